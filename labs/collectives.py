"""One rank's view of its group: collectives from send and recv, on a ring or by doubling.

On a ring a rank sends to the next rank and receives from the one before it, and to nobody else. A tensor is cut by
`tensor.tensor_split(world_size)`: the first pieces are one element longer where it does not divide, and a piece may be
empty. Piece r belongs to rank r.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def exchange(outgoing: Tensor, incoming: Tensor, to: int | None = None, source: int | None = None) -> None:
    """Send one tensor and fill another at the same time, so that ranks which all send do not wait for each other.

    `to` is the next rank of the ring unless said otherwise, `source` the one before; both tensors are contiguous, and
    `incoming` has the shape of what arrives.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(outgoing, (rank + 1) % world_size if to is None else to)
    dist.recv(incoming, (rank - 1) % world_size if source is None else source)
    sending.wait()


def ring_reduce_scatter(tensor: Tensor) -> Tensor:
    """Return this rank's piece of the sum over all ranks.

    `tensor` [n] has one length on all ranks and is left as it is; returns [n // world_size] or one element more.
    Sends world_size - 1 messages, every piece but the own.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = list(tensor.clone().tensor_split(world_size))
    for step in range(world_size - 1):
        incoming = torch.empty_like(pieces[(rank - step - 2) % world_size])
        exchange(pieces[(rank - step - 1) % world_size], incoming)
        pieces[(rank - step - 2) % world_size] += incoming
    return pieces[rank].clone()  # a view would keep the other pieces alive


def ring_all_gather(piece: Tensor, num_elements: int) -> Tensor:
    """Return the whole tensor [num_elements] on every rank, from the piece that each of them holds.

    Sends world_size - 1 messages, every piece but that of the next rank.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = piece.new_empty(num_elements)
    pieces = whole.tensor_split(world_size)
    pieces[rank].copy_(piece)
    for step in range(world_size - 1):
        exchange(pieces[(rank - step) % world_size], pieces[(rank - step - 1) % world_size])
    return whole


def ring_all_reduce(tensor: Tensor) -> Tensor:
    """Return the sum over all ranks [n] on every rank: reduce-scatter, then all-gather."""
    return ring_all_gather(ring_reduce_scatter(tensor), tensor.numel())


def doubling_all_reduce(tensor: Tensor) -> Tensor:
    """Return the sum over all ranks [n] on every rank in log2(world_size) rounds, the whole tensor in each.

    Every rank is the root of a binomial tree. Raises ValueError unless world_size is a power of two.
    Source: Thakur, Rabenseifner and Gropp 2005, section 4, "recursive doubling".
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size & (world_size - 1):
        raise ValueError(f"{world_size} ranks do not pair up in every round; try 2, 4 or 8")
    total = tensor.clone()
    for distance in (2**i for i in range(world_size.bit_length() - 1)):
        incoming = torch.empty_like(total)
        exchange(total, incoming, to=rank ^ distance, source=rank ^ distance)
        total += incoming
    return total
