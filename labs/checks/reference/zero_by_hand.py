"""Solutions of lesson 05."""

import itertools

import torch
import torch.distributed as dist


def partition(sizes, world_size):
    """List for each rank the slices (parameter, start, stop) that it owns of all parameters laid end to end."""
    part = -(-sum(sizes) // world_size)
    owned, offset = [[] for _ in range(world_size)], 0
    for index, size in enumerate(sizes):
        for rank in range(world_size):
            start, stop = max(0, rank * part - offset), min(size, (rank + 1) * part - offset)
            if start < stop:
                owned[rank].append((index, start, stop))
        offset += size
    return owned


class Row:
    """Parameters end to end in one tensor `whole` [ranks * part]; `mine` [part] is a view of what this rank owns."""

    def __init__(self, parameters):
        self.parameters = [p for p in parameters if p.requires_grad]
        sizes = [p.numel() for p in self.parameters]
        num_ranks, rank = dist.get_world_size(), dist.get_rank()
        self.padding = -sum(sizes) % num_ranks
        self.whole = torch.zeros(sum(sizes) + self.padding)
        pieces = self.whole[: sum(sizes)].split(sizes)
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.data = piece.copy_(parameter.data.flatten()).view_as(parameter)
        self.mine = torch.nn.Parameter(self.whole.chunk(num_ranks)[rank])


def gradient(row):
    """Return all gradients of a row end to end, padded with zeros [ranks * part]."""
    pieces = [parameter.grad.flatten() for parameter in row.parameters]
    return torch.cat([*pieces, torch.zeros(row.padding)])


def reduce_part(row):
    """Give row.mine its part of the mean gradient, and let go of all others."""
    row.mine.grad = torch.empty_like(row.mine)
    dist.reduce_scatter_tensor(row.mine.grad, gradient(row))
    row.mine.grad /= dist.get_world_size()
    for parameter in row.parameters:
        parameter.grad = None


def sharded_adamw(rows, **options):
    """Return step(): AdamW on the own parts, then every rank gets the parts of all."""
    adamw = torch.optim.AdamW([row.mine for row in rows], **options)

    def step():
        adamw.step()
        adamw.zero_grad()
        for row in rows:
            dist.all_gather_into_tensor(row.whole, row.mine.detach())

    return step


def at_last_gradient(row, act):
    """In every backward, call act(row) when the last gradient of the row is ready."""
    count = itertools.count(1)

    def ready(_):
        if next(count) % len(row.parameters) == 0:
            act(row)

    for parameter in row.parameters:
        parameter.register_post_accumulate_grad_hook(ready)


def gather(row):
    """Make the row whole again from the parts of all ranks."""
    row.whole.untyped_storage().resize_(row.whole.nbytes)
    dist.all_gather_into_tensor(row.whole, row.mine.detach())


def gather_compute_free(unit, row):
    """Let a unit hold its row whole only while it computes."""

    def free(*_):
        row.whole.untyped_storage().resize_(0)

    unit.register_forward_pre_hook(lambda *_: gather(row))
    unit.register_forward_hook(free)
    unit.register_full_backward_pre_hook(lambda *_: gather(row))
    at_last_gradient(row, free)
    free()
