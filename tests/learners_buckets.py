"""Buckets, hooks and accumulation as learners write them; tests/wrong_answers/ddp.py names what each must hear."""

import itertools

import torch
import torch.distributed as dist

from labs.checks.reference.ddp import pack, plan_buckets


def plan_in_order(parameters, bucket_bytes):
    return plan_buckets(parameters, bucket_bytes)[::-1]


def plan_forward(parameters, bucket_bytes):
    buckets, size = [[]], 0
    for parameter in parameters:
        if parameter.requires_grad:
            if size >= bucket_bytes:
                buckets, size = [*buckets, []], 0
            buckets[-1].append(parameter)
            size += parameter.nbytes
    return buckets


def plan(close=lambda size, own, limit: size >= limit, frozen=False, measure=lambda p: p.nbytes, last=True, reset=True):
    def plan_buckets(parameters, bucket_bytes):
        buckets, bucket, size = [], [], 0
        for parameter in reversed(list(parameters)):
            if not parameter.requires_grad and not frozen:
                continue
            if bucket and close(size, measure(parameter), bucket_bytes):
                buckets.append(bucket)
                bucket, size = [], 0 if reset else size
            bucket.append(parameter)
            size += measure(parameter)
        if bucket and (last or size >= bucket_bytes):
            buckets.append(bucket)
        return buckets

    return plan_buckets


def launch(trigger, is_active=lambda sync: sync.active, wait=False, is_async=True, note=True, triple=lambda *t: t):
    """launch_when_ready with another trigger: trigger(number of the call, size of the bucket)."""

    def launch_when_ready(bucket, sync):
        count = itertools.count(1)

        def ready(_):
            if trigger(next(count), len(bucket)) and is_active(sync):
                total = pack(bucket)
                work = dist.all_reduce(total, async_op=is_async)
                if wait:
                    work.wait()
                if note:
                    sync.in_flight.append(triple(bucket, total, work or Done()))

        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(ready)

    return launch_when_ready


class Done:
    def wait(self):
        pass


class Later:
    """Begins to communicate when it is waited for."""

    def __init__(self, total):
        self.total = total

    def wait(self):
        dist.all_reduce(self.total)


def launch_later(bucket, sync):
    left = []

    def ready(_):
        left.append(1)
        if len(left) % len(bucket) == 0 and sync.active:
            total = pack(bucket)
            sync.in_flight.append((bucket, total, Later(total)))

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(ready)


def launch_by_names(bucket, sync):
    """Right: counts by a set that is emptied."""
    ready = set()

    def hook(parameter):
        ready.add(id(parameter))
        if len(ready) == len(bucket):
            ready.clear()
            if sync.active:
                total = torch.cat([p.grad.reshape(-1) for p in bucket])
                sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(hook)


def launch_from_one_buffer(bucket, sync):
    """Right: each gradient is copied as it becomes ready, into a buffer that is used again in the next backward."""
    sizes, ready = [p.numel() for p in bucket], set()
    buffer = torch.empty(sum(sizes))
    places = dict(zip(bucket, buffer.split(sizes), strict=True))

    def hook(parameter):
        places[parameter].copy_(parameter.grad.flatten())
        ready.add(parameter)
        if len(ready) == len(bucket):
            ready.clear()
            if sync.active:
                sync.in_flight += [[tuple(bucket), buffer, dist.all_reduce(buffer, async_op=True)]]

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(hook)


def launch_what_was_computed(bucket, sync):
    """As one who finds torch's hook for several tensors: it is given gradients before they are added up."""

    def hook(gradients):
        if sync.active:
            total = torch.cat([gradient.flatten() for gradient in gradients])
            sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    torch.autograd.graph.register_multi_grad_hook(bucket, hook)


def launch_each(bucket, sync):
    for parameter in bucket:

        def ready(parameter):
            if sync.active:
                total = pack([parameter])
                sync.in_flight.append(([parameter], total, dist.all_reduce(total, async_op=True)))

        parameter.register_post_accumulate_grad_hook(ready)


def launch_before_the_gradient(bucket, sync):
    def ready(gradient):
        total = pack(bucket)
        sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    bucket[-1].register_hook(ready)


def step(active=lambda n, k: n == k - 1, divide_by=None, clear="before", finish="end", step_each=False):
    def train_step(model, optimizer, micro_batches, sync):
        k = len(micro_batches)
        if clear == "before":
            optimizer.zero_grad()
        for number, batch in enumerate(micro_batches):
            if clear == "each":
                optimizer.zero_grad()
            sync.active = active(number, k)
            (model(*batch) / (divide_by or k)).backward()
            if finish == "each":
                sync.finish()
            if step_each:
                optimizer.step()
        if finish == "end":
            sync.finish()
        if clear == "early":
            optimizer.zero_grad()
        if not step_each:
            optimizer.step()
        if finish == "late":
            sync.finish()
        if clear == "after":
            optimizer.zero_grad()

    return train_step


def always(*_):
    return True


def never(*_):
    return False


def last_of_bucket(number, size):
    return number % size == 0


def launch_with_a_hook_of_nothing(bucket, sync):
    def ready():
        total = pack(bucket)
        sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(ready)


def launch_from_the_last_in_the_list(bucket, sync):
    def ready(parameter):
        if sync.active:
            total = pack(bucket)
            sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))

    bucket[-1].register_post_accumulate_grad_hook(ready)


def launch_and_note_the_handle_alone(bucket, sync):
    count = itertools.count(1)

    def ready(parameter):
        if next(count) % len(bucket) == 0 and sync.active:
            sync.in_flight.append(dist.all_reduce(pack(bucket), async_op=True))

    for parameter in bucket:
        parameter.register_post_accumulate_grad_hook(ready)


def step_of_one_backward(model, optimizer, micro_batches, sync):
    optimizer.zero_grad()
    (sum(model(*batch) for batch in micro_batches) / len(micro_batches)).backward()
    sync.finish()
    optimizer.step()


def step_with_calls_of_its_own(model, optimizer, micro_batches, sync):
    """As one who does without sync: the numbers are right."""
    optimizer.zero_grad()
    sync.active = False
    for batch in micro_batches:
        (model(*batch) / len(micro_batches)).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
