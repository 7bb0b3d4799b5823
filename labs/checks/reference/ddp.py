"""Solutions of lesson 03."""

import itertools

import torch
import torch.distributed as dist


@torch.no_grad()
def start_equal(model):
    """Give every rank the weights and buffers of rank 0, frozen ones too."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)


def naive(model):
    """Average the gradients over all ranks, one call a parameter."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def pack(parameters):
    """Copy the gradients into one long tensor [elements of all]."""
    return torch.cat([parameter.grad.flatten() for parameter in parameters])


def unpack(total, parameters):
    """Put the sum over ranks back into the gradients, as a mean."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, piece in zip(parameters, total.split(sizes), strict=True):
        parameter.grad.copy_(piece.view_as(parameter) / dist.get_world_size())


def flat(model):
    """Average the gradients over all ranks, in one call."""
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    total = pack(trained)
    dist.all_reduce(total)
    unpack(total, trained)


def plan_buckets(parameters, bucket_bytes):
    """Cut the trained parameters, last first, into buckets; one is closed when it has bucket_bytes or more."""
    buckets, size = [[]], 0
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        if size >= bucket_bytes:
            buckets, size = [*buckets, []], 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets


def launch_when_ready(bucket, sync):
    """Start the bucket's all-reduce in every active backward, when its last gradient is ready."""
    count = itertools.count(1)

    def ready(_):
        if next(count) % len(bucket) == 0 and sync.active:
            total = pack(bucket)
            sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(ready)


class Bucketed:
    """Averages gradients bucket by bucket while backward runs; `active` off: this backward only adds up."""

    def __init__(self, model, bucket_bytes):
        self.active, self.in_flight = True, []
        for bucket in plan_buckets(list(model.parameters()), bucket_bytes):
            launch_when_ready(bucket, self)

    def finish(self):
        """Wait for what is in flight, and put the means into the gradients."""
        for bucket, total, work in self.in_flight:
            work.wait()
            unpack(total, bucket)
        self.in_flight.clear()


def train_step(model, optimizer, micro_batches, sync):
    """Make one optimizer step of several micro-batches; only the last one's backward communicates."""
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches, 1):
        sync.active = number == len(micro_batches)
        (model(*batch) / len(micro_batches)).backward()
    sync.finish()
    optimizer.step()
