"""What DeepSpeed 0.19.8 takes as a config and stops at in deepspeed.initialize, or in the first step. No torch.

The optimizer and the scheduler get their parameters as keyword arguments: the config says nothing of a wrong one.
tests/test_ds_starts.py starts a live engine with each kind, and holds the names to those of DeepSpeed and torch.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator

from labs.ds_config.blocks import is_auto
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import Finding, shown
from labs.ds_config.side_reads import AUTOCAST

DEEPSPEED_OPTIMIZERS = "adam adamw adagrad lamb lion muadam muadamw musgd muon".split()  # in any case
TORCH_OPTIMIZERS = """ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD
    SparseAdam""".split()
# What Adam and AdamW may be given: of DeepSpeed's own ones, of torch's, and what DeepSpeed takes out before.
ADAM_PARAMS = """lr bias_correction betas eps weight_decay amsgrad set_grad_none fp32_optimizer_states foreach maximize
    capturable differentiable fused decoupled_weight_decay torch_adam adam_w_mode max_grad_norm""".split()
_WARMUP = "warmup_num_steps warmup_type last_batch_iteration".split()
SCHEDULES = {  # name -> (must be given, may be given)
    "LRRangeTest": ([], """lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase
        last_batch_iteration""".split()),
    "OneCycle": (["cycle_min_lr", "cycle_max_lr"], """decay_lr_rate cycle_first_step_size cycle_second_step_size
        cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom
        decay_mom_rate last_batch_iteration""".split()),
    "WarmupLR": ([], ["warmup_min_lr", "warmup_max_lr", *_WARMUP]),
    "WarmupDecayLR": (["total_num_steps"], ["warmup_min_lr", "warmup_max_lr", *_WARMUP]),
    "WarmupCosineLR": (["total_num_steps"], ["warmup_min_ratio", "cos_min_ratio", *_WARMUP]),
}  # fmt: skip
TORCH_SCHEDULERS = """ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
    LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR
    StepLR""".split()
_STOPS = "the config is taken; deepspeed.initialize stops"


def is_optimizer(name: str) -> bool:
    """Whether DeepSpeed can build an optimizer of this name: its own in any case, torch's as torch writes them."""
    return name.lower() in DEEPSPEED_OPTIMIZERS or name in TORCH_OPTIMIZERS


def optimizer(found: Reading) -> Iterator[Finding]:
    """An optimizer that cannot be built: no name, one that nobody knows, or parameters that it does not take."""
    block = found.config.get("optimizer")
    if not isinstance(block, dict):
        return
    name = block.get("type")
    if name is None:
        why = "DeepSpeed builds no optimizer from a block without a type"
        yield Finding("warning", "optimizer.type", "it is not given", why, 'write "type": "AdamW", for one')
    elif isinstance(name, str) and not is_auto(name) and not is_optimizer(name):
        yield _unknown("optimizer.type", name, [*TORCH_OPTIMIZERS, *DEEPSPEED_OPTIMIZERS], "AdamW")
    elif isinstance(name, str) and name.lower() in ("adam", "adamw"):
        yield from _unknown_params("optimizer", name, block.get("params"), ADAM_PARAMS)


def scheduler(found: Reading) -> Iterator[Finding]:
    """A schedule that cannot be built; those of torch get their parameters unseen."""
    block = found.config.get("scheduler")
    name = block.get("type") if isinstance(block, dict) else None
    if not isinstance(name, str) or is_auto(name) or name in TORCH_SCHEDULERS:
        return
    if name not in SCHEDULES:
        yield _unknown("scheduler.type", name, [*SCHEDULES, *TORCH_SCHEDULERS], "WarmupLR")
        return
    needed, optional = SCHEDULES[name]
    params = block.get("params") or {}
    yield from _unknown_params("scheduler", name, params, [*needed, *optional])
    for key in needed if isinstance(params, dict) else ():
        if key not in params:
            yield Finding(
                "warning", f"scheduler.params.{key}", "it is not given", f"{_STOPS}: {name} needs it", "give it"
            )


def _unknown(key: str, name: str, known: Iterable[str], example: str) -> Finding:
    by_sound = {one.lower(): one for one in reversed(list(known))}
    near = difflib.get_close_matches(name.lower(), by_sound, n=1, cutoff=0.7)
    fix = f"did you mean {by_sound[near[0]]}?" if near else f"write {example}, or build it in the script"
    return Finding("warning", key, f"DeepSpeed knows no {shown(name)}", _STOPS, fix)


def _unknown_params(block: str, name: str, params, known: list[str]) -> Iterator[Finding]:
    for key in params if isinstance(params, dict) else ():
        if key not in known:
            near = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=0.7)
            fix = f"did you mean {near[0]}?" if near else "leave it out"
            yield Finding("warning", f"{block}.params.{key}", f"{name} has no such parameter", _STOPS, fix)


def texts_for_numbers(found: Reading) -> Iterator[Finding]:
    """ "1e-4" in quotation marks: nothing turns it into a number."""
    for block in ("optimizer", "scheduler"):
        holder = found.config.get(block)
        params = holder.get("params") if isinstance(holder, dict) else None
        for key, value in params.items() if isinstance(params, dict) else ():
            texts = [text for text in (value if isinstance(value, list) else [value]) if _is_number_in_text(text)]
            if texts:
                why = f"the {block} gets the text, and stops, at the latest in the first step"
                fix = f"write {texts[0].strip()}, without quotation marks"
                yield Finding("warning", f"{block}.params.{key}", f"it is the text {shown(texts[0])}", why, fix)


def _is_number_in_text(value) -> bool:
    try:
        return isinstance(value, str) and bool(math.isfinite(float(value)))
    except ValueError:
        return False


def numbers_of_steps(found: Reading) -> Iterator[Finding]:
    """Numbers that the first step calculates with."""
    value = found.config.get("steps_per_print", 10)
    if value is not None and not is_auto(value) and (not isinstance(value, int | float) or value == 0):
        why = "the first step divides by it, and stops"
        fix = "write 1 or more, or null to print nothing"
        yield Finding("warning", "steps_per_print", f"it is {shown(value)}", why, fix)
    clip = found.config.get("gradient_clipping", 1.0)
    if isinstance(clip, int | float) and not clip >= 0:
        why = "DeepSpeed clips to a norm above 0 alone"
        yield Finding(
            "warning", "gradient_clipping", f"it is {shown(clip)}: nothing is clipped", why, "write 0 to say so"
        )


def data_types(found: Reading) -> Iterator[Finding]:
    """The type in which gradients are accumulated is looked up late."""
    block = found.config.get("data_types")
    value = block.get("grad_accum_dtype") if isinstance(block, dict) else None
    if value is not None and not (isinstance(value, str) and value in AUTOCAST):
        key, fix = "data_types.grad_accum_dtype", "write fp32, fp16 or bf16, or leave it out"
        yield Finding("warning", key, f"{shown(value)} is no data type", _STOPS, fix)


RULES = (optimizer, scheduler, texts_for_numbers, numbers_of_steps, data_types)
