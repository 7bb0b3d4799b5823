"""The batch arithmetic of a DeepSpeed config: train_batch_size = micro-batch x accumulation x ranks. No torch."""

from __future__ import annotations

from labs.ds_config.blocks import is_auto
from labs.ds_config.keys import BATCH
from labs.ds_config.refusals import Finding, Refusal, shown

WHOLE, MICRO, STEPS = BATCH
_SHORT = {WHOLE: "train_batch_size", MICRO: "micro-batch", STEPS: "accumulation"}


def work_out(config: dict, world_size: float, refusals: list[Finding]) -> tuple[int, int, int] | None:
    """Return (train_batch_size, micro-batch a rank, accumulation steps) as DeepSpeed completes them.

    One of the first two must be given; what is not given follows, by division without remainder.
    What is no number is added to `refusals`, all of it. Raises Refusal for numbers that do not work out.
    """
    given = [config.get(key) for key in BATCH]
    no_numbers = [_no_number(key, value) for key, value in zip(BATCH, given, strict=True) if not _is_number(value)]
    refusals += no_numbers
    if no_numbers:
        return None
    whole, micro, steps = _complete(*given, world_size)
    numbers = {WHOLE: whole, MICRO: micro, STEPS: steps}
    for key in sorted(BATCH, key=lambda key: config.get(key) is None):  # blame what is written before what follows
        if not numbers[key] > 0:
            raise _not_positive(key, numbers[key], config, world_size)
    if whole != micro * steps * world_size:
        raise _mismatch(given, whole, micro, steps, world_size)
    return whole, micro, steps


def _is_number(value) -> bool:
    return value is None or isinstance(value, int | float)


def _no_number(key: str, value) -> Finding:
    if is_auto(value):
        why = "DeepSpeed calculates with it; a trainer (Hugging Face's, Accelerate) would have replaced it before"
        return Finding("error", key, f'{key} is "auto"', why, "write a number; under such a trainer add --trainer")
    return Finding("error", key, f"{key} is {shown(value)}", "it must be a number", "write a whole number")


def _complete(whole, micro, steps, world_size):
    if whole is None and micro is None:
        why = "the size of a batch must follow from one of them"
        raise Refusal(WHOLE, f"neither {WHOLE} nor {MICRO} is given", why, f'write "{MICRO}": 1, for one')
    if micro is None:
        micro = whole // world_size
        micro = micro if steps is None else micro // steps
        steps = 1 if steps is None else steps
    elif whole is None:
        steps = 1 if steps is None else steps
        whole = micro * steps * world_size
    elif steps is None:
        steps = whole // micro // world_size
    return whole, micro, steps


def _not_positive(key: str, value, config: dict, world_size) -> Refusal:
    if config.get(key) is not None:
        return Refusal(key, f"{key} is {shown(value)}", "it must be above 0", "write 1 or more")
    parts = [f"{shown(config[other])} ({_SHORT[other]})" for other in (MICRO, STEPS) if config.get(other) is not None]
    divided = " and by ".join([f"{world_size:g} ranks", *parts])
    what = f"{WHOLE} {shown(config[WHOLE])}, divided by {divided}, leaves {key} at {shown(value)}"
    why = "each rank needs at least one sample in each micro-batch"
    return Refusal(WHOLE, what, why, f"make {WHOLE} larger, or the other numbers smaller")


def _mismatch(given, whole, micro, steps, world_size) -> Refusal:
    product = micro * steps * world_size
    what = f"{WHOLE} {shown(whole)} is not {shown(micro)} x {shown(steps)} x {world_size:g} = {shown(product)}"
    why = f"{WHOLE} = {MICRO} x {STEPS} x ranks"
    if all(value is not None for value in given):
        return Refusal(WHOLE, what, why, f"leave {WHOLE} out: it follows from the other two and the ranks")
    missing = MICRO if given[1] is None else STEPS
    return Refusal(WHOLE, what, f"{why}; {missing} was worked out", f"write {WHOLE}: {shown(product)}")
