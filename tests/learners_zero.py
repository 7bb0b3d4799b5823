"""Answers to the two exercises of lesson 05 that hook into backward, as learners write them."""

import torch
import torch.distributed as dist
from torch.autograd import Variable

from labs.checks.reference.zero_by_hand import at_last_gradient, gather


def hooked(note):
    """Hook note(row, act, seen, parameter) to each parameter; `seen` is a list of its own for each row."""

    def answer(row, act):
        seen = []
        for parameter in row.parameters:
            parameter.register_post_accumulate_grad_hook(lambda p: note(row, act, seen, p))

    return answer


def _by_names(row, act, seen, parameter):
    seen.append(id(parameter))
    if set(seen) == {id(p) for p in row.parameters}:
        seen[:] = []
        act(row)


def _each(row, act, seen, parameter):
    act(row)


def _in_first_backward(row, act, seen, parameter):
    seen.append(parameter)
    if len(seen) == len(row.parameters):
        act(row)


def _with_the_parameter(row, act, seen, parameter):
    seen.append(parameter)
    if len(seen) % len(row.parameters) == 0:
        act(parameter)


def _after_backward(row, act, seen, parameter):
    seen.append(parameter)
    if len(seen) % len(row.parameters) == 0:
        Variable._execution_engine.queue_callback(lambda: act(row))


def _never(row, act, seen, parameter):
    seen.append(parameter)


act_by_names, act_each = hooked(_by_names), hooked(_each)
act_in_first_backward, act_with_the_parameter = hooked(_in_first_backward), hooked(_with_the_parameter)
act_after_backward, act_never = hooked(_after_backward), hooked(_never)
_waiting = []


def act_at_the_first_of_the_next(row, act):
    """Reduce a row when the next one is complete, and the last one with it: one row too late."""

    def complete(row):
        _waiting.append(row)
        while len(_waiting) > 1 or (_waiting and len(row.parameters) == 3):
            act(_waiting.pop(0))

    at_last_gradient(row, complete)


def act_at_one_parameter(row, act):
    row.parameters[0].register_post_accumulate_grad_hook(lambda _: act(row))


def act_before_it_is_there(row, act):
    seen = []

    def note(_):
        seen.append(_)
        if len(seen) % len(row.parameters) == 0:
            act(row)

    for parameter in row.parameters:
        parameter.register_hook(note)


def act_without_argument(row, act):
    for parameter in row.parameters:
        parameter.register_post_accumulate_grad_hook(lambda: act(row))


def act_for_one_argument(row):
    return row


def act_keeping_what_it_saw(row, act, kept=None):
    """Right in time and numbers: and every gradient stays in a list."""
    seen, kept = [], [] if kept is None else kept

    def note(parameter):
        kept.append(parameter.grad)
        seen.append(parameter.shape)
        if len(seen) % len(row.parameters) == 0:
            act(row)

    for parameter in row.parameters:
        parameter.register_post_accumulate_grad_hook(note)


KEPT = []


def act_keeping_until_the_end(row, act):
    """As above, but nothing is left to see when backward is over: the first of all rows is the last one ready."""

    def last(row):
        act(row)
        if any(parameter.shape[0] == 13 for parameter in row.parameters):
            KEPT.clear()

    act_keeping_what_it_saw(row, last, KEPT)


def act_counted_on_the_row(row, act):
    """One count for all who wait for this row."""
    row.num_ready = 0

    def note(_):
        row.num_ready += 1
        if row.num_ready == len(row.parameters):
            row.num_ready = 0
            act(row)

    for parameter in row.parameters:
        parameter.register_post_accumulate_grad_hook(note)


def act_by_what_is_there(row, act):
    """Wait until all gradients are there: an act before this one may have cleared them."""

    def note(_):
        if all(parameter.grad is not None for parameter in row.parameters):
            act(row)

    for parameter in row.parameters:
        parameter.register_post_accumulate_grad_hook(note)


def hold(first=True, before_forward=True, after_forward=True, before_backward=True, after_backward=True, num_gathers=1):
    """gather_compute_free with one thing done otherwise."""

    def answer(unit, row):
        def free(*_):
            row.whole.untyped_storage().resize_(0)

        def whole(*_):
            for _ in range(num_gathers):
                gather(row)

        if before_forward:
            unit.register_forward_pre_hook(whole)
        if after_forward:
            unit.register_forward_hook(free)
        if before_backward:
            unit.register_full_backward_pre_hook(whole)
        if after_backward:
            at_last_gradient(row, free)
        if first:
            free()

    return answer


def hold_everything(unit, row):
    """Gather whenever it may be needed, and free nothing: right in numbers."""
    unit.register_forward_pre_hook(lambda *_: gather(row))


def hold_by_full_backward_hook(unit, row):
    hold(after_backward=False)(unit, row)

    def free(*_):
        row.whole.untyped_storage().resize_(0)

    unit.register_full_backward_hook(free)


def hold_with_a_hook_that_returns(unit, row):
    hold(after_forward=False)(unit, row)
    unit.register_forward_hook(lambda *_: row.whole.untyped_storage().resize_(0))


def hold_by_output_hooks(unit, row):
    """Gather for backward from the gradient of the output, and only if the row is not there."""

    def free(*_):
        row.whole.untyped_storage().resize_(0)

    def whole(*_):
        if row.whole.untyped_storage().nbytes() == 0:
            gather(row)

    def after(module, inputs, output):
        free()
        output.register_hook(lambda _: whole())

    unit.register_forward_pre_hook(lambda *_: whole())
    unit.register_forward_hook(after)
    at_last_gradient(row, free)
    free()


def hold_resizing_the_tensor(unit, row):
    def free(*_):
        row.whole.resize_(0)

    unit.register_forward_pre_hook(lambda *_: gather(row))
    unit.register_forward_hook(free)
    unit.register_full_backward_pre_hook(lambda *_: gather(row))
    at_last_gradient(row, free)
    free()


def hold_dropping_data(unit, row):
    """The way that the lesson shows as wrong, with gather as it stands."""

    def drop(*_):
        for parameter in row.parameters:
            parameter.data = torch.empty(0)

    unit.register_forward_pre_hook(lambda *_: gather(row))
    unit.register_forward_hook(drop)
    unit.register_full_backward_pre_hook(lambda *_: gather(row))
    at_last_gradient(row, drop)
    drop()


def hold_by_a_hook_without_arguments(unit, row):
    def free():
        row.whole.untyped_storage().resize_(0)

    free()
    unit.register_forward_pre_hook(lambda *_: gather(row))
    unit.register_forward_hook(free)


def hold_calling_at_once(unit, row):
    hold(before_forward=False)(unit, row)
    unit.register_forward_pre_hook(gather(row))


def hold_without_the_tensor(unit, row):
    def free(*_):
        row.whole = None

    unit.register_forward_pre_hook(lambda *_: gather(row))
    unit.register_forward_hook(free)
    at_last_gradient(row, free)
    free()


def hold_by_fresh_tensors(unit, row):
    """Drop the tensors: autograd's views keep the memory until backward."""
    shapes = [p.shape for p in row.parameters]

    def drop(*_):
        row.whole = None
        for parameter in row.parameters:
            parameter.data = torch.empty(0)

    def whole(*_):
        row.whole = torch.empty(len(row.mine) * dist.get_world_size())
        dist.all_gather_into_tensor(row.whole, row.mine.detach())
        pieces = row.whole.split([*(shape.numel() for shape in shapes), row.padding])
        for parameter, shape, piece in zip(row.parameters, shapes, pieces, strict=False):
            parameter.data = piece.view(shape)

    unit.register_forward_pre_hook(whole)
    unit.register_forward_hook(drop)
    unit.register_full_backward_pre_hook(whole)
    at_last_gradient(row, drop)
    drop()


def hold_gathering_once(unit, row):
    """Whole from forward to the end of backward: what FSDP2 calls reshard_after_forward=False."""
    unit.register_forward_pre_hook(lambda *_: gather(row))
    at_last_gradient(row, lambda row: row.whole.untyped_storage().resize_(0))
    row.whole.untyped_storage().resize_(0)
