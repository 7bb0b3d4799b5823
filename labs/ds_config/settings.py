"""The settings that really hold, with DeepSpeed's defaults, without those that the stage does not use. No torch."""

from __future__ import annotations

from labs.ds_config.keys import BATCH
from labs.ds_config.memory import optimizer_name
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import shown

LARGEST = 10**60
EVERY_STAGE = ("reduce_bucket_size", "overlap_comm", "contiguous_gradients")
FLAT = ("allgather_bucket_size", "reduce_scatter", "round_robin_gradients")
CUT = ("param_persistence_threshold", "prefetch_bucket_size", "max_live_parameters", "max_reuse_distance")
CUT += ("sub_group_size", "gather_16bit_weights_on_model_save")


def effective(found: Reading) -> dict[str, object]:
    """Return {setting: value}; None where the config is refused in it. Sizes of buckets are in elements."""
    numbers = found.batch or (None, None, None)
    holds = {
        "world_size": found.world_size,
        **dict(zip(BATCH, numbers, strict=True)),
        "precision": _precision(found),
        "zero_stage": found.zero and int(found.zero.stage),
        **_offload(found),
        "optimizer": optimizer_name(found.config) if "optimizer" in found.config else "the script's own",
        "gradient_clipping": found.config.get("gradient_clipping", 1.0),
        **_zero(found),
    }
    return {name: _plain(value) for name, value in holds.items()}


def _plain(value):
    """A value that JSON and a table can show: DeepSpeed takes lists and numbers of any length in some places."""
    is_scalar = value is None or isinstance(value, str | float | bool)
    return value if is_scalar or (isinstance(value, int) and abs(value) < LARGEST) else shown(value)


def _precision(found: Reading) -> str | None:
    if found.fp16 is None or found.bf16 is None or (found.fp16.enabled and found.bf16.enabled):
        return None
    return "fp16" if found.fp16.enabled else "bf16" if found.bf16.enabled else "fp32"


def _offload(found: Reading) -> dict[str, str | None]:
    """Name the place where the states really lie: a stage that does not offload keeps them on the device."""
    if found.zero is None:
        return {"offload_optimizer": None, "offload_param": None}
    places = {}
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        block, stage = getattr(found.zero, name), found.zero.stage
        device = "none" if block is None or stage < least else str(block.device)
        places[name] = "cpu" if device == "nvme" and stage < 3 else device
    return places


def _zero(found: Reading) -> dict[str, object]:
    if found.zero is None or found.zero.stage == 0:
        return {}
    names = EVERY_STAGE + (CUT if found.zero.stage == 3 else FLAT)
    return {name: getattr(found.zero, name) for name in names}
