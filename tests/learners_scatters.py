"""Ring reduce-scatters as learners write them, right and wrong, for tests/wrong_answers/collectives.py."""

import torch
import torch.distributed as dist

from labs.collectives import exchange, ring_reduce_scatter


def place():
    return dist.get_rank(), dist.get_world_size()


def scatter_to_the_left(tensor):
    rank, n = place()
    pieces = [piece.clone() for piece in tensor.tensor_split(n)]
    for step in range(1, n):
        coming = pieces[(rank + step + 1) % n]
        incoming = torch.zeros(coming.shape)
        exchange(pieces[(rank + step) % n], incoming, to=(rank - 1) % n, source=(rank + 1) % n)
        coming.add_(incoming)
    return pieces[rank]


def scatter_from_piece(start, steps_less=0, add=True, send_own=False, returned=0):
    """A ring that may start at another piece, stop early, replace instead of adding, or pass on its own part."""

    def ring_reduce_scatter(tensor):
        rank, n = place()
        own, pieces = tensor.tensor_split(n), list(tensor.clone().tensor_split(n))
        for step in range(n - 1 - steps_less):
            go, come = (rank + start - step) % n, (rank + start - step - 1) % n
            incoming = torch.empty_like(pieces[come])
            exchange((own if send_own else pieces)[go], incoming)
            pieces[come] = pieces[come] + incoming if add else incoming
        return pieces[(rank + returned) % n]

    changes = {"steps_less": steps_less, "replaces": not add, "sends_own": send_own, "returns_next": returned}
    named = [f"scatter_from_piece_{start}".replace("-1", "before"), *(name for name, on in changes.items() if on)]
    ring_reduce_scatter.__name__ = "_and_".join(named)
    return ring_reduce_scatter


def scatter_at_the_root(tensor):
    rank, n = place()
    if rank:
        dist.send(tensor, 0)
        piece = torch.empty_like(tensor.tensor_split(n)[rank])
        dist.recv(piece, 0)
        return piece
    total, other = tensor.clone(), torch.empty_like(tensor)
    for source in range(1, n):
        dist.recv(other, source)
        total += other
    pieces = total.tensor_split(n)
    for to in range(1, n):
        dist.send(pieces[to], to)
    return pieces[0]


def scatter_by_the_library(tensor):
    rank, n = place()
    total = tensor.clone()
    dist.all_reduce(total)
    return total.tensor_split(n)[rank]


def scatter_with_whole_tensors(tensor):
    rank, n = place()
    total, going, coming = tensor.clone(), tensor.clone(), torch.empty_like(tensor)
    for _ in range(n - 1):
        exchange(going, coming)
        total += coming
        going, coming = coming, going
    return total.tensor_split(n)[rank]


def scatter_directly(tensor):
    rank, n = place()
    pieces = tensor.tensor_split(n)
    total, incoming = pieces[rank].clone(), torch.empty_like(pieces[rank])
    for distance in range(1, n):
        to, source = (rank + distance) % n, (rank - distance) % n
        exchange(pieces[to], incoming, to=to, source=source)
        total += incoming
    return total


def scatter_equal_pieces(tensor):
    rank, n = place()
    pieces = list(tensor.clone().view(n, -1))
    for step in range(n - 1):
        incoming = torch.empty_like(pieces[rank])
        exchange(pieces[(rank - step - 1) % n], incoming)
        pieces[(rank - step - 2) % n] += incoming
    return pieces[rank]


def scatter_rounded_down(tensor):
    n = dist.get_world_size()
    return ring_reduce_scatter(tensor[: len(tensor) // n * n])


def scatter_received_as_own_size(tensor):
    rank, n = place()
    pieces = list(tensor.clone().tensor_split(n))
    for step in range(n - 1):
        incoming = torch.empty_like(pieces[rank])
        exchange(pieces[(rank - step - 1) % n], incoming)
        pieces[(rank - step - 2) % n] += incoming
    return pieces[rank]


def scatter_all_send_first(tensor):
    rank, n = place()
    pieces = list(tensor.clone().tensor_split(n))
    for step in range(n - 1):
        incoming = torch.empty_like(pieces[(rank - step - 2) % n])
        dist.send(pieces[(rank - step - 1) % n], (rank + 1) % n)
        dist.recv(incoming, (rank - 1) % n)
        pieces[(rank - step - 2) % n] += incoming
    return pieces[rank]


def scatter_where_rank_0_waits(tensor):
    piece = ring_reduce_scatter(tensor)
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1), 1)
    return piece


def scatter_element_by_element(tensor):
    rank, n = place()
    pieces = list(tensor.clone().tensor_split(n))
    for step in range(n - 1):
        going, coming = pieces[(rank - step - 1) % n], pieces[(rank - step - 2) % n]
        for element in range(len(coming)):
            incoming = torch.empty(1)
            exchange(going[element : element + 1], incoming)
            coming[element] += incoming.item()
    return pieces[rank]


def scatter_through_the_store(tensor):
    rank, n = place()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"values {rank}", repr(tensor.tolist()))
    values = [torch.tensor(eval(store.get(f"values {r}"))) for r in range(n)]
    return sum(values).tensor_split(n)[rank]
