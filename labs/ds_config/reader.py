"""Reads a config as DeepSpeed 0.19.8 does, refuses what it refuses, and says in words why. No torch.

DeepSpeed stops at its first problem; here all of them are collected. tests/test_ds_config.py compares with the live
`DeepSpeedConfig` on many configs, made by hand and at random.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from labs.ds_config import side_blocks as side
from labs.ds_config import side_reads as reads
from labs.ds_config.batch import work_out
from labs.ds_config.blocks import BF16, FP16, Zero
from labs.ds_config.keys import REMOVED, REMOVED_ZERO, path_of
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import Finding, Refusal, object_at, of_validation, shown


def read(config: dict, world_size: float, accelerator: str) -> Reading:
    """Read a whole config; refusals are in the order in which DeepSpeed would meet them."""
    found = Reading(config, world_size, accelerator)
    for key, step in STEPS:
        try:
            step(found)
        except Refusal as refusal:
            found.refusals.append(refusal.finding)
        except ValidationError as error:
            found.refusals += of_validation(key, error)
        except Exception as error:  # whatever DeepSpeed would stumble over, too
            value = config.get(key)
            what = f"{key} is {shown(value)}" if value is not None else f"{key} cannot be read"
            found.refusals.append(Finding("error", key, what, f"DeepSpeed stops at it: {error}", "change it"))
    return found


def _removed(found: Reading) -> None:
    zero = found.config.get("zero_optimization")
    there = [("", key, REMOVED) for key in REMOVED if key in found.config]
    if isinstance(zero, dict):
        there += [("zero_optimization", key, REMOVED_ZERO) for key in REMOVED_ZERO if key in zero]
    for block, key, fixes in there:
        path, why = path_of(block, key), "DeepSpeed has removed the feature and refuses its key"
        found.refusals.append(Finding("error", path, f"{path} is gone", why, fixes[key]))


def _zero(found: Reading) -> None:
    value = found.config.get("zero_optimization", {})
    if isinstance(value, bool):  # the format of before 2020: true means stage 1
        value = {"stage": 1, "allgather_bucket_size": found.config.get("allgather_size", 5e8)} if value else {}
        found.zero = Zero(**value)
        return
    given = {key: v for key, v in object_at(found.config, "zero_optimization").items() if key not in REMOVED_ZERO}
    found.zero = _whole(Zero, given)


def _whole(model: type, given: dict):
    """Build a block; a refusal of the block as a whole is pydantic's or ours."""
    try:
        return model(**given)
    except ValidationError:
        raise
    except ValueError as error:
        raise Refusal(
            "zero_optimization", str(error), "DeepSpeed takes one of them", "leave the old name out"
        ) from None


def _precision(found: Reading) -> None:
    found.fp16 = FP16(**object_at(found.config, "fp16"))


def _bf16(found: Reading) -> None:
    name = "bf16" if found.config.get("bf16") is not None else "bfloat16"
    given = object_at(found.config, name)
    try:
        found.bf16 = BF16(**given)
    except ValidationError as error:
        found.refusals += of_validation(name, error)


def _one_precision(found: Reading) -> None:
    if found.fp16 and found.bf16 and found.fp16.enabled and found.bf16.enabled:
        raise Refusal(
            "bf16.enabled", "fp16 and bf16 are both enabled", "a model computes in one of them", "leave fp16 out"
        )


def _compile(found: Reading) -> None:
    found.compile = side.Compile(**object_at(found.config, "compile"))


def _batch(found: Reading) -> None:
    found.batch = work_out(found.config, found.world_size, found.refusals)


def _reduction(found: Reading) -> None:
    if str(found.config.get("gradient_allreduce_op", "mean")).lower() == "sum" and found.zero:
        compiled = found.compile and found.compile.deepcompile
        if found.zero.stage == 3 or found.zero.zenflow is not None or compiled:
            what = "gradient_allreduce_op sum does not work with stage 3, ZenFlow or DeepCompile"
            raise Refusal("gradient_allreduce_op", what, "they average alone", "leave it out")


def _low_precision_masters(found: Reading) -> None:
    """Masters and optimizer in 2 bytes need ZeRO, and the second needs the first."""
    if found.zero and found.zero.stage == 0:
        for block, name in (
            (found.fp16, "fp16_master_weights_and_grads"),
            (found.bf16, "bf16_master_weights_and_grads"),
        ):
            if block and getattr(block, name):
                path = f"{name[:4]}.{name}"
                raise Refusal(path, f"{path} is true at stage 0", "ZeRO alone has it", "set stage 1, 2 or 3")
    if found.bf16 and found.bf16.bf16_optimizer_states:
        if not found.bf16.bf16_master_weights_and_grads:
            what, fix = "bf16.bf16_optimizer_states is true alone", "set bf16_master_weights_and_grads to true, too"
            raise Refusal("bf16.bf16_optimizer_states", what, "it needs master weights in bf16", fix)


STEPS: list[tuple[str, Callable]] = [
    ("", _removed),
    ("communication_data_type", reads.data_type("communication_data_type", None)),
    ("seq_parallel_communication_data_type", reads.data_type("seq_parallel_communication_data_type", "fp32")),
    ("gradient_allreduce_op", reads.allreduce_op),
    ("zero_optimization", _zero),
    ("activation_checkpointing", lambda found: object_at(found.config, "activation_checkpointing")),
    ("comms_logger", reads.block("comms_logger")),
    ("monitors", reads.monitors),
    ("fp16", _precision),
    ("bf16", _bf16),
    ("bf16", _one_precision),
    ("torch_autocast", reads.torch_autocast),
    ("optimizer", reads.optimizer),
    ("scheduler", lambda found: object_at(found.config, "scheduler")),
    ("wall_clock_breakdown", reads.wall_clock_breakdown),
    ("autotuning", reads.autotuning),
    ("hybrid_engine", reads.block("hybrid_engine")),
    ("pipeline", lambda found: object_at(found.config, "pipeline")),
    ("data_efficiency", reads.data_efficiency),
    ("checkpoint", reads.checkpoint),
    ("data_types", reads.data_types),
    ("aio", reads.aio),
    ("weight_quantization", reads.block("weight_quantization")),
    ("compile", _compile),
    ("timers", reads.timers),
    ("tensor_parallel", reads.block("tensor_parallel")),
    ("expert_parallel", reads.expert_parallel),
    ("train_batch_size", _batch),
    ("gradient_allreduce_op", _reduction),
    ("precision", _low_precision_masters),
    ("vocabulary_size", reads.vocabulary),
]
