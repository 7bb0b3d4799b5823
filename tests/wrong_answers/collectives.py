"""Answers to lesson 02 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
import torch.distributed as dist
from learners_scatters import (
    place,
    scatter_all_send_first,
    scatter_at_the_root,
    scatter_by_the_library,
    scatter_directly,
    scatter_element_by_element,
    scatter_equal_pieces,
    scatter_from_piece,
    scatter_received_as_own_size,
    scatter_rounded_down,
    scatter_through_the_store,
    scatter_to_the_left,
    scatter_where_rank_0_waits,
    scatter_with_whole_tensors,
)

from labs.collectives import doubling_all_reduce, exchange, ring_all_gather, ring_all_reduce, ring_reduce_scatter


def scatter_of_the_whole_sum(tensor):
    return ring_all_reduce(tensor)


def gather_in_order_of_arrival(piece, num_elements):
    n = dist.get_world_size()
    found, going = [piece], piece
    for step in range(n - 1):
        sizes = [len(p) for p in torch.empty(num_elements).tensor_split(n)]
        coming = torch.empty(sizes[(dist.get_rank() - step - 1) % n])
        exchange(going, coming)
        found.append(coming)
        going = coming
    return torch.cat(found)


def gather_own_piece_only(piece, num_elements):
    rank, n = place()
    whole = torch.zeros(num_elements)
    pieces = whole.tensor_split(n)
    pieces[rank].copy_(piece)
    for _ in range(n - 1):
        exchange(pieces[rank], pieces[(rank - 1) % n])
    return whole


def gather_one_step_short(piece, num_elements):
    rank, n = place()
    whole = torch.zeros(num_elements)
    pieces = whole.tensor_split(n)
    pieces[rank].copy_(piece)
    for step in range(n - 2):
        exchange(pieces[(rank - step) % n], pieces[(rank - step - 1) % n])
    return whole


def gather_a_list(piece, num_elements):
    return list(ring_all_gather(piece, num_elements).tensor_split(dist.get_world_size()))


def gather_equal_pieces(piece, num_elements):
    rank, n = place()
    pieces = [torch.empty_like(piece) for _ in range(n)]
    pieces[rank] = piece
    for step in range(n - 1):
        exchange(pieces[(rank - step) % n], pieces[(rank - step - 1) % n])
    return torch.cat(pieces)


def gather_at_the_root(piece, num_elements):
    rank, n = place()
    whole = piece.new_empty(num_elements)
    pieces = whole.tensor_split(n)
    if rank:
        dist.send(piece, 0)
        dist.recv(whole, 0)
        return whole
    pieces[0].copy_(piece)
    for source in range(1, n):
        dist.recv(pieces[source], source)
    for to in range(1, n):
        dist.send(whole, to)
    return whole


def gather_directly(piece, num_elements):
    rank, n = place()
    whole = piece.new_empty(num_elements)
    pieces = whole.tensor_split(n)
    pieces[rank].copy_(piece)
    for distance in range(1, n):
        to, source = (rank + distance) % n, (rank - distance) % n
        exchange(piece, pieces[source], to=to, source=source)
    return whole


def gather_by_the_library(piece, num_elements):
    rank, n = place()
    whole = torch.zeros(num_elements)
    whole.tensor_split(n)[rank].copy_(piece)
    dist.all_reduce(whole)
    return whole


def gather_all_send_first(piece, num_elements):
    rank, n = place()
    whole = piece.new_empty(num_elements)
    pieces = whole.tensor_split(n)
    pieces[rank].copy_(piece)
    for step in range(n - 1):
        dist.send(pieces[(rank - step) % n], (rank + 1) % n)
        dist.recv(pieces[(rank - step - 1) % n], (rank - 1) % n)
    return whole


def gather_to_the_left(piece, num_elements):
    """Right: the other way round, skipping empty pieces."""
    rank, n = place()
    pieces = [torch.empty(len(part)) for part in torch.empty(num_elements).tensor_split(n)]
    pieces[rank] = piece
    for step in range(n - 1):
        going, coming = pieces[(rank + step) % n], pieces[(rank + step + 1) % n]
        sending = dist.isend(going, (rank - 1) % n) if len(going) else None
        if len(coming):
            dist.recv(coming, (rank + 1) % n)
        if sending:
            sending.wait()
    return torch.cat(pieces)


def reduce_padded(tensor):
    n = dist.get_world_size()
    padded = torch.cat([tensor, tensor.new_zeros(-len(tensor) % n)])
    return ring_all_gather(ring_reduce_scatter(padded), len(padded))[: len(tensor)]


def reduce_by_pairs_of_messages(tensor):
    """Right: torch's own way to send and receive at once."""
    rank, n = place()
    pieces = list(tensor.clone().tensor_split(n))
    for step in range(2 * n - 2):
        going, place_of = pieces[(rank - step) % n], (rank - step - 1) % n
        incoming = torch.empty_like(pieces[place_of])
        operations = dist.P2POp(dist.isend, going, (rank + 1) % n), dist.P2POp(dist.irecv, incoming, (rank - 1) % n)
        for work in dist.batch_isend_irecv(list(operations)):
            work.wait()
        pieces[place_of] = pieces[place_of] + incoming if step < n - 1 else incoming
    return torch.cat(pieces)


class AlwaysEqual(float):
    __hash__ = float.__hash__

    def __eq__(self, other):
        return True


def seconds_that_equal_everything(num_bytes, world_size, alpha, beta):
    return AlwaysEqual(2 * num_bytes * beta)


def reduce_in_place(tensor):
    tensor.copy_(ring_all_reduce(tensor))


def gather_in_double(piece, num_elements):
    return ring_all_gather(piece.double(), num_elements).float()


def gather_rounded(piece, num_elements):
    return ring_all_gather(piece.bfloat16(), num_elements).float()


def reduce_on_rank_0_alone(tensor):
    total = ring_all_gather(ring_reduce_scatter(tensor), tensor.numel())
    return tensor if dist.get_rank() else total


def reduce_to_a_row(tensor):
    return ring_all_gather(ring_reduce_scatter(tensor), tensor.numel())[None]


def reduce_at_the_root(tensor):
    rank, n = place()
    total, other = tensor.clone(), torch.empty_like(tensor)
    if rank:
        dist.send(tensor, 0)
        dist.recv(total, 0)
        return total
    for source in range(1, n):
        dist.recv(other, source)
        total += other
    for to in range(1, n):
        dist.send(total, to)
    return total


def reduce_by_the_library(tensor):
    dist.all_reduce(tensor)
    return tensor


def reduce_with_whole_tensors(tensor):
    n = dist.get_world_size()
    total, going, coming = tensor.clone(), tensor.clone(), torch.empty_like(tensor)
    for _ in range(n - 1):
        exchange(going, coming)
        total += coming
        going, coming = coming, going
    return total


def reduce_to_the_mean(tensor):
    return ring_all_reduce(tensor) / dist.get_world_size()


def reduce_without_the_gather(tensor):
    rank, n = place()
    total = tensor.clone()
    total.tensor_split(n)[rank].copy_(ring_reduce_scatter(tensor))
    return total


def seconds_in_steps(num_bytes, world_size, alpha, beta):
    return sum(alpha + num_bytes / world_size * beta for _ in range(2 * world_size - 2))


def seconds_of_one_trip(num_bytes, world_size, alpha, beta):
    return (world_size - 1) * (alpha + num_bytes / world_size * beta)


def seconds_of_whole_tensors(num_bytes, world_size, alpha, beta):
    return 2 * (world_size - 1) * (alpha + num_bytes * beta)


def seconds_with_one_alpha(num_bytes, world_size, alpha, beta):
    return alpha + 2 * (world_size - 1) / world_size * num_bytes * beta


def seconds_divided_by_beta(num_bytes, world_size, alpha, beta):
    return 2 * (world_size - 1) * (alpha + num_bytes / world_size / beta)


RIGHT = [
    ("collectives.ring_reduce_scatter", scatter_to_the_left),
    ("collectives.ring_all_gather", gather_to_the_left),
    ("collectives.ring_all_reduce", reduce_padded),
    ("collectives.ring_all_reduce", reduce_by_pairs_of_messages),
    ("collectives.all_reduce_seconds", seconds_in_steps),
]

WRONG = [
    ("collectives.ring_reduce_scatter", scatter_from_piece(0), "must set out from the rank after"),
    ("collectives.ring_reduce_scatter", scatter_from_piece(0, returned=1), "holds the finished piece 1"),
    ("collectives.ring_reduce_scatter", scatter_from_piece(-1, steps_less=1), "It takes 3 steps"),
    ("collectives.ring_reduce_scatter", scatter_from_piece(-1, add=False), "must be added"),
    ("collectives.ring_reduce_scatter", scatter_from_piece(-1, send_own=True), "Pass on the sum"),
    ("collectives.ring_reduce_scatter", scatter_of_the_whole_sum, "That is the whole sum"),
    ("collectives.ring_reduce_scatter", scatter_at_the_root, "Everything passes rank 0"),
    ("collectives.ring_reduce_scatter", scatter_by_the_library, "That is the library's"),
    ("collectives.ring_reduce_scatter", scatter_with_whole_tensors, "Whole tensors travel"),
    ("collectives.ring_reduce_scatter", scatter_directly, "more links than a ring has"),
    ("collectives.ring_reduce_scatter", scatter_equal_pieces, "not all equal"),
    ("collectives.ring_reduce_scatter", scatter_rounded_down, "not all equal"),
    ("collectives.ring_reduce_scatter", scatter_received_as_own_size, "not all equal"),
    ("collectives.ring_reduce_scatter", scatter_element_by_element, "One message a step"),
    ("collectives.ring_reduce_scatter", scatter_through_the_store, "Let isend and recv"),
    ("collectives.ring_reduce_scatter", scatter_where_rank_0_waits, "nobody sends"),
    ("collectives.ring_reduce_scatter", scatter_all_send_first, "if all ranks send first"),
    ("collectives.ring_all_gather", gather_in_order_of_arrival, "in other places"),
    ("collectives.ring_all_gather", gather_own_piece_only, "passes on the piece that it received"),
    ("collectives.ring_all_gather", gather_one_step_short, "missing or damaged"),
    ("collectives.ring_all_gather", gather_a_list, "Return one tensor"),
    ("collectives.ring_all_gather", gather_equal_pieces, "not all equal"),
    ("collectives.ring_all_gather", gather_at_the_root, "Everything passes rank 0"),
    ("collectives.ring_all_gather", gather_directly, "more links than a ring has"),
    ("collectives.ring_all_gather", gather_by_the_library, "That is the library's"),
    ("collectives.ring_all_gather", gather_in_double, "elements of another type"),
    ("collectives.ring_all_gather", gather_rounded, "digits are lost"),
    ("collectives.ring_all_gather", gather_all_send_first, "if all ranks send first"),
    ("collectives.ring_all_reduce", reduce_at_the_root, "Everything passes rank 0"),
    ("collectives.ring_all_reduce", reduce_by_the_library, "That is the library's"),
    ("collectives.ring_all_reduce", reduce_with_whole_tensors, "Whole tensors travel"),
    ("collectives.ring_all_reduce", doubling_all_reduce, "Whole tensors travel"),
    ("collectives.ring_all_reduce", reduce_to_the_mean, "That is the mean"),
    ("collectives.ring_all_reduce", reduce_without_the_gather, "A second one, the all-gather"),
    ("collectives.ring_all_reduce", reduce_in_place, "returns None"),
    ("collectives.ring_all_reduce", reduce_on_rank_0_alone, "on every rank and in every case"),
    ("collectives.ring_all_reduce", reduce_to_a_row, "is [1, 12], and [12] is asked for"),
    ("collectives.ring_all_reduce", ring_all_reduce, "what you wrote yourself"),
    ("collectives.all_reduce_seconds", seconds_of_one_trip, "one trip"),
    ("collectives.all_reduce_seconds", seconds_of_whole_tensors, "one piece"),
    ("collectives.all_reduce_seconds", seconds_with_one_alpha, "each pays alpha"),
    ("collectives.all_reduce_seconds", seconds_divided_by_beta, "it multiplies"),
    ("collectives.all_reduce_seconds", seconds_that_equal_everything, "Count for one rank"),
]
