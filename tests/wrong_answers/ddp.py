"""Answers to lesson 03 as learners write them: right ones, and wrong ones with the hint that each must get."""

import sys

import torch
import torch.distributed as dist
from learners_buckets import (
    always,
    last_of_bucket,
    launch,
    launch_and_note_the_handle_alone,
    launch_before_the_gradient,
    launch_by_names,
    launch_each,
    launch_from_one_buffer,
    launch_from_the_last_in_the_list,
    launch_later,
    launch_what_was_computed,
    launch_with_a_hook_of_nothing,
    never,
    plan,
    plan_forward,
    plan_in_order,
    step,
    step_of_one_backward,
    step_with_calls_of_its_own,
)
from torch import nn

from labs.checks.reference.ddp import flat, naive, pack, start_equal, unpack


@torch.no_grad()
def start_from_trained_alone(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter, 0)


@torch.no_grad()
def start_from_parameters_alone(model):
    for parameter in model.parameters():
        dist.broadcast(parameter, 0)


@torch.no_grad()
def start_without_frozen(model):
    for tensor in (*(p for p in model.parameters() if p.requires_grad), *model.buffers()):
        dist.broadcast(tensor, 0)


@torch.no_grad()
def start_from_the_mean(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


@torch.no_grad()
def start_from_the_last(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, dist.get_world_size() - 1)


def start_with_a_seed(model):
    torch.manual_seed(0)


def start_with_copies(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor.clone(), 0)


def start_untied(model):
    start_equal(model)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


@torch.no_grad()
def start_by_zero_and_sum(model):
    for tensor in (*model.parameters(), *model.buffers()):
        if dist.get_rank():
            tensor.zero_()
        dist.all_reduce(tensor)


def start_with_the_seed_of_the_check(model):
    model.load_state_dict(type(model)(seed=1).state_dict())
    dist.broadcast(torch.zeros(1), 0)


def start_frozen_for_good(model):
    for parameter in model.parameters():
        parameter.requires_grad = False
    start_equal(model)


@torch.no_grad()
def start_in_one_call(model):
    """Right: everything in one long tensor."""
    tensors = [*model.parameters(), *model.buffers()]
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    dist.broadcast(whole, 0)
    for tensor, piece in zip(tensors, whole.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


@torch.no_grad()
def start_twice(model):
    start_equal(model)
    start_equal(model)


def start_outside_no_grad(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)


def start_from_state(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


def average(model, divide=True, keep=lambda p: p.grad is not None, put_back=True, named=None):
    for parameter in named(model) if named else model.parameters():
        if keep(parameter):
            total = parameter.grad if put_back else parameter.grad.clone()
            dist.all_reduce(total)
            if divide:
                parameter.grad /= dist.get_world_size()


def naive_sum(model):
    average(model, divide=False)


def naive_not_put_back(model):
    average(model, put_back=False)


def naive_tied_twice(model):
    average(model, named=lambda model: [p for _, p in model.named_parameters(remove_duplicate=False)])


def naive_weights(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                dist.all_reduce(parameter)
                parameter /= dist.get_world_size()


def naive_from_rank_0(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


def naive_to_rank_0(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.reduce(parameter.grad, 0)
            parameter.grad /= dist.get_world_size()


def naive_divided_twice(model):
    naive(model)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def naive_frozen(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def naive_gathering(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            all_of_them = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_them, parameter.grad)
            parameter.grad = sum(all_of_them) / len(all_of_them)


def naive_over_two(model):
    average(model, divide=False)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= 2


def naive_over_nothing(model):
    average(model, divide=False)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= 0


def flat_in_half(model):
    trained = [p for p in model.parameters() if p.grad is not None]
    total = pack(trained).bfloat16()
    dist.all_reduce(total)
    unpack(total.float(), trained)


def plan_with_nbytes_called(parameters, bucket_bytes):
    return [[p for p in reversed(parameters) if p.nbytes() >= bucket_bytes]]


def plan_with_one_list(parameters, bucket_bytes):
    """As one who appends the open bucket and fills it further."""
    buckets, bucket = [], []
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        bucket.append(parameter)
        if sum(p.nbytes for p in bucket) >= bucket_bytes:
            buckets.append(bucket)
    return buckets


def naive_on_rank_0_alone(model):
    if dist.get_rank() == 0:
        naive(model)


def naive_that_blinds_the_check(model):
    from labs.checks import replicas

    average(model, put_back=False)
    replicas.Twin.step = lambda twin, batches: twin.expected.append({})


def naive_that_writes_into_the_twin(model):
    """As one who looks through the frames of the check for what is expected."""
    frame = sys._getframe(1)
    while frame:
        if "twin" in frame.f_locals:
            frame.f_locals["twin"].model = model
        frame = frame.f_back
    average(model, put_back=False)


def flat_not_put_back(model):
    trained = [p for p in model.parameters() if p.grad is not None]
    dist.all_reduce(pack(trained))


def flat_in_other_places(model):
    trained = [p for p in model.parameters() if p.grad is not None]
    total = pack(trained)
    dist.all_reduce(total)
    unpack(total, trained[::-1])


def flat_with_frozen(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    total = pack(list(model.parameters()))
    dist.all_reduce(total)
    unpack(total, list(model.parameters()))
    model.position.weight.grad = None


def flat_in_double(model):
    trained = [p for p in model.parameters() if p.grad is not None]
    total = pack(trained).double()
    dist.all_reduce(total)
    unpack(total, trained)


def flat_summed(model):
    trained = [p for p in model.parameters() if p.grad is not None]
    total = pack(trained)
    dist.all_reduce(total)
    for parameter, piece in zip(trained, total.split([p.numel() for p in trained]), strict=True):
        parameter.grad.copy_(piece.view_as(parameter))


RIGHT = [
    ("ddp.start_equal", start_from_state),
    ("ddp.start_equal", start_outside_no_grad),
    ("ddp.start_equal", start_in_one_call),
    ("ddp.naive", lambda model: average(model)),
    ("ddp.plan_buckets", plan()),
    ("ddp.launch_when_ready", launch_by_names),
    ("ddp.launch_when_ready", launch_from_one_buffer),
    ("ddp.train_step", step(clear="after")),
]

WRONG = [
    ("ddp.start_equal", start_from_trained_alone, "frozen parameters and buffers"),
    ("ddp.start_equal", start_from_parameters_alone, "buffers are not"),
    ("ddp.start_equal", start_without_frozen, "Frozen weights are used in forward"),
    ("ddp.start_equal", start_from_the_mean, "a mean of differently drawn weights"),
    ("ddp.start_equal", start_from_the_last, "Which rank is src"),
    ("ddp.start_equal", start_with_a_seed, "the values have to travel"),
    ("ddp.start_equal", start_with_copies, "or a copy"),
    ("ddp.start_equal", start_untied, "Fill the tensors that are there"),
    ("ddp.start_equal", start_by_zero_and_sum, "that is a broadcast"),
    ("ddp.start_equal", start_twice, "Each tensor once"),
    ("ddp.start_equal", start_with_the_seed_of_the_check, "known to rank 0 alone"),
    ("ddp.start_equal", start_frozen_for_good, "what was frozen is frozen"),
    ("ddp.naive", lambda model: None, "nothing was averaged"),
    ("ddp.naive", naive_sum, "That is the sum over ranks"),
    ("ddp.naive", naive_not_put_back, "What came back from all_reduce is not in it"),
    ("ddp.naive", naive_tied_twice, "A tied weight is one parameter"),
    ("ddp.naive", naive_weights, "something else than the gradient was averaged"),
    ("ddp.naive", naive_from_rank_0, "That is the gradient of one rank"),
    ("ddp.naive", naive_divided_twice, "Divide once"),
    ("ddp.naive", naive_frozen, "its grad is None"),
    ("ddp.naive", naive_gathering, "that is one all_reduce"),
    ("ddp.naive", flat, "a call of its own"),
    ("ddp.naive", naive_over_two, "divided by 2"),
    ("ddp.naive", naive_over_nothing, "what is it divided by"),
    ("ddp.naive", naive_that_blinds_the_check, "Leave them as they are"),
    ("ddp.naive", naive_that_writes_into_the_twin, "What came back from all_reduce is not in it"),
    ("ddp.flat", naive, "pack all gradients into one long tensor"),
    ("ddp.flat", flat_not_put_back, "was not put back"),
    ("ddp.flat", flat_in_other_places, "in other places"),
    ("ddp.flat", flat_with_frozen, "Frozen parameters have none"),
    ("ddp.flat", flat_in_double, "Each element travels with 8 bytes"),
    ("ddp.flat", flat_in_half, "digits are lost"),
    ("ddp.flat", flat_summed, "That is the sum over ranks"),
    ("ddp.plan_buckets", plan_forward, "turn the parameters round"),
    ("ddp.plan_buckets", plan_in_order, "not the list of buckets"),
    ("ddp.plan_buckets", lambda p, b: plan_forward(p, b)[::-1], "Cut after turning round"),
    ("ddp.plan_buckets", plan(frozen=True), "never complete"),
    ("ddp.plan_buckets", plan(close=lambda size, own, limit: size + own > limit), "as DDP does it"),
    ("ddp.plan_buckets", plan(measure=lambda p: p.numel()), "you count elements"),
    ("ddp.plan_buckets", plan(measure=lambda p: 4 * p.numel()), "parameter.nbytes knows"),
    ("ddp.plan_buckets", plan(last=False), "rarely full"),
    ("ddp.plan_buckets", plan(reset=False), "Begin at 0 bytes"),
    ("ddp.plan_buckets", lambda p, b: [[x] for x in reversed(p) if x.requires_grad], "naive version again"),
    ("ddp.plan_buckets", lambda p, b: [[x for x in reversed(p) if x.requires_grad]], "flat version again"),
    ("ddp.plan_buckets", lambda p, b: None, "a list of lists"),
    ("ddp.plan_buckets", plan_with_nbytes_called, "Mend the line"),
    ("ddp.plan_buckets", plan_with_one_list, "in two buckets"),
    ("ddp.launch_when_ready", launch_what_was_computed, "parameter.grad holds both"),
    ("ddp.launch_when_ready", launch_later, "nothing left to compute"),
    ("ddp.launch_when_ready", launch(last_of_bucket, wait=True), "async_op=True"),
    ("ddp.launch_when_ready", launch(last_of_bucket, is_async=False), "async_op=True"),
    ("ddp.launch_when_ready", launch(last_of_bucket, is_active=always), "more will be added"),
    ("ddp.launch_when_ready", launch(lambda number, size: number == size), "count anew in each backward"),
    ("ddp.launch_when_ready", launch_each, "a call for each gradient"),
    ("ddp.launch_when_ready", launch(last_of_bucket, note=False), "not put back"),
    ("ddp.launch_when_ready", launch(never), "nothing was averaged"),
    ("ddp.launch_when_ready", launch_before_the_gradient, "Hook every parameter"),
    ("ddp.launch_when_ready", launch(always), "Hook every parameter"),
    ("ddp.launch_when_ready", launch_with_a_hook_of_nothing, "def hook(parameter)"),
    ("ddp.launch_when_ready", launch_from_the_last_in_the_list, "Hook every parameter"),
    (
        "ddp.launch_when_ready",
        launch(last_of_bucket, triple=lambda b, t, w: (t, b, w)),
        "append((bucket, total, handle))",
    ),
    ("ddp.launch_when_ready", launch_and_note_the_handle_alone, "append((bucket, total, handle))"),
    ("ddp.train_step", step_of_one_backward, "a backward pass for each micro-batch"),
    ("ddp.train_step", step(active=always), "Only the sum is needed"),
    ("ddp.train_step", step(active=always, finish="each"), "Only the sum is needed"),
    ("ddp.train_step", step(active=never), "needs sync.active"),
    ("ddp.train_step", step(active=lambda n, k: n == 0), "Let the last one communicate"),
    ("ddp.train_step", step(divide_by=1), "divide it by their number"),
    ("ddp.train_step", step(clear="never"), "clear them between steps"),
    ("ddp.train_step", step(clear="each"), "Only the last micro-batch"),
    ("ddp.train_step", step(clear="early"), "before the first backward"),
    ("ddp.train_step", step(finish="never"), "call sync.finish()"),
    ("ddp.train_step", step(finish="late"), "call sync.finish()"),
    ("ddp.train_step", step(divide_by=9), "divided by the world size once more"),
    ("ddp.train_step", step(step_each=True), "One optimizer step"),
    ("ddp.train_step", step_with_calls_of_its_own, "Nothing else has to travel"),
]
