"""What ZeRO's stage makes of the other settings: those that have no effect, and those that stop it later. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from labs.ds_config.blocks import Zero, is_auto
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import Finding, shown
from labs.ds_config.start_findings import is_optimizer

# The stages at which a key of zero_optimization is used; a key that is not listed is used at all of them, or by none.
_FLAT = """reduce_scatter allgather_bucket_size use_multi_rank_bucket_allreduce ignore_unused_parameters
    round_robin_gradients parameter_alignment""".split()
_CUT = """prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters
    max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold use_all_reduce_for_fetch_params
    allgather_sequential sub_group_size memory_efficient_linear zero_hpz_partition_size zero_quantized_weights
    zero_quantized_gradients zero_quantized_nontrainable_weights override_module_apply leaf_module""".split()
USED_AT = {
    **{name: (1, 2) for name in _FLAT},
    **{name: (3,) for name in _CUT},
    **{name: (1, 2, 3) for name in ("contiguous_gradients", "reduce_bucket_size", "overlap_comm", "reduce_scatter")},
}
# Read by nothing at any stage.
UNUSED = {"allgather_partitions": "zero_optimization.allgather_partitions"}
DEEPSPEEDS = ("adam", "adamw", "adagrad", "lion")  # those that ZeRO is tested with, and that can be offloaded


def without_effect(found: Reading) -> Iterator[Finding]:
    """Keys of zero_optimization that are for another stage; a change of what is held or sent is a warning."""
    given = found.config.get("zero_optimization")
    if not found.zero or not isinstance(given, dict):
        return
    aliases = {field.alias or name: name for name, field in Zero.model_fields.items()}
    quiet = []
    for key, value in given.items():
        name = aliases.get(key, key)
        if is_auto(value) or found.zero.stage in USED_AT.get(name, (found.zero.stage,)):
            continue
        if key.startswith(("stage3_", "zero_")) and getattr(found.zero, name) != _default(name):
            why = f"it is for stage 3, and the stage is {int(found.zero.stage)}"
            yield Finding(
                "warning", f"zero_optimization.{key}", "it has no effect", why, "set stage 3, or leave it out"
            )
        else:
            quiet.append(key)
    if quiet:
        what = f"{', '.join(quiet)}: no effect at stage {int(found.zero.stage)}"
        yield Finding("note", "zero_optimization", what, "they are for other stages", "nothing to do")


def _default(name: str):
    return Zero.model_fields[name].get_default(call_default_factory=True)


def offload(found: Reading) -> Iterator[Finding]:
    """Offload that does nothing at this stage, or goes elsewhere, or cannot start."""
    if not found.zero:
        return
    stage = int(found.zero.stage)
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        block, path = getattr(found.zero, name), f"zero_optimization.{name}"
        if block is None or block.device == "none":
            continue
        if stage < least:
            why = f"it works at stage {'3 alone' if least == 3 else '1, 2 and 3'}, and the stage is {stage}"
            yield Finding("warning", path, "it has no effect", why, f"set stage {least}, or leave it out")
        elif block.device == "nvme" and stage < 3:
            why = f"NVMe is for stage 3; stage {stage} offloads to the CPU instead"
            yield Finding("warning", path, "nothing goes to NVMe", why, 'set stage 3, or write "device": "cpu"')
        elif block.device == "nvme" and block.nvme_path is None:
            why = "device is nvme without nvme_path; deepspeed.initialize stops"
            yield Finding("warning", path, f"{name} cannot start", why, "write nvme_path, a folder on the NVMe")
    yield from _offloaded_optimizer(found)


def _offloaded_optimizer(found: Reading) -> Iterator[Finding]:
    block, optimizer = found.zero.offload_optimizer, found.config.get("optimizer")
    if block is None or block.device == "none" or found.zero.stage == 0:
        return
    if not isinstance(optimizer, dict) and found.config.get("zero_force_ds_cpu_optimizer", True):
        why = "deepspeed.initialize refuses to offload any but its own CPU optimizers"
        fix = "for an optimizer of your own, write zero_force_ds_cpu_optimizer: false"
        yield Finding("note", "zero_optimization.offload_optimizer", "no optimizer block is given", why, fix)


def untested_optimizer(found: Reading) -> Iterator[Finding]:
    """An optimizer that ZeRO asks a permission for."""
    optimizer = found.config.get("optimizer")
    name = optimizer.get("type") if isinstance(optimizer, dict) else None
    if not found.zero or found.zero.stage == 0 or not isinstance(name, str):
        return
    if (
        is_optimizer(name)
        and name.lower() not in (*DEEPSPEEDS, "muon")
        and not found.config.get("zero_allow_untested_optimizer", False)
    ):
        why = "deepspeed.initialize stops: ZeRO is not tested with it"
        fix = "write zero_allow_untested_optimizer: true, or AdamW"
        yield Finding("warning", "optimizer.type", f"ZeRO does not take {shown(name)}", why, fix)


def stops_later(found: Reading) -> Iterator[Finding]:
    """Settings that the config may have, and the ZeRO optimizer refuses."""
    zero, config = found.zero, found.config
    if not zero or zero.stage == 0:
        return
    why = "the config is taken; deepspeed.initialize stops"
    if zero.legacy_stage1:
        path = "zero_optimization.legacy_stage1"
        yield Finding("warning", path, "the old stage 1 is gone", why, "leave legacy_stage1 out")
    if zero.stage in (1, 2) and zero.allgather_bucket_size % 2:
        path = "zero_optimization.allgather_bucket_size"
        yield Finding("warning", path, "it is odd", f"{why}: it must be even", "make it even")
    if not zero.compute_grad_norm and config.get("gradient_clipping", 1.0):
        path, what = "zero_optimization.compute_grad_norm", "clipping needs the norm that is not computed"
        yield Finding("warning", path, what, why, "write gradient_clipping: 0, too")
    if zero.stage >= 2 and zero.reduce_scatter:
        for key, plain in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
            if config.get(key, plain) != plain:
                fix = f"leave it out, or write zero_optimization.reduce_scatter: {shown(False)}"
                yield Finding("warning", key, f"{key} does not work with reduce_scatter", why, fix)


def groups(found: Reading) -> Iterator[Finding]:
    """One rank has nothing to cut; groups of hpZ must divide the ranks."""
    zero, world = found.zero, found.world_size
    if not zero or zero.stage == 0:
        return
    if world == 1:
        why = "ZeRO cuts states over the ranks, and there is one"
        yield Finding("note", "world_size", f"stage {int(zero.stage)} saves nothing", why, "give --world-size")
    size = zero.zero_hpz_partition_size
    if zero.stage == 3 and size > 1 and world > 1 and world % size:
        path, why = "zero_optimization.zero_hpz_partition_size", f"{world:g} ranks do not divide into groups of {size}"
        yield Finding("warning", path, "the second partition cannot be built", why, "use a divisor of the ranks")


def saving(found: Reading) -> Iterator[Finding]:
    """At stage 3 a state dict of the model is empty unless it is gathered."""
    if found.zero and found.zero.stage == 3 and not found.zero.gather_16bit_weights_on_model_save:
        what = "save_16bit_model() saves nothing"
        why = "at stage 3 every rank holds its part alone, and nothing gathers them"
        fix = "write stage3_gather_16bit_weights_on_model_save: true, or consolidate the checkpoint"
        yield Finding("note", "zero_optimization.stage3_gather_16bit_weights_on_model_save", what, why, fix)


def idle_blocks(found: Reading) -> Iterator[Finding]:
    """Settings that nothing reads: some at all, some without their other half."""
    config = found.config
    if config.get("disable_allgather"):
        yield Finding(
            "note", "disable_allgather", "it has no effect", "DeepSpeed 0.19.8 reads it nowhere", "leave it out"
        )
    if found.zero and not found.zero.allgather_partitions:
        path = "zero_optimization.allgather_partitions"
        yield Finding("note", path, "it has no effect", "DeepSpeed 0.19.8 reads it nowhere", "leave it out")
    offloads = [getattr(found.zero, name) for name in ("offload_optimizer", "offload_param")] if found.zero else []
    if isinstance(config.get("aio"), dict) and not any(block and block.device == "nvme" for block in offloads):
        yield Finding("note", "aio", "it has no effect", "nothing is offloaded to NVMe", "nothing to do")
    if config.get("activation_checkpointing"):
        why = "it sets up deepspeed.checkpointing, which the model must call itself"
        yield Finding("note", "activation_checkpointing", "it checkpoints nothing alone", why, "see your model's code")


RULES = (without_effect, offload, untested_optimizer, stops_later, groups, saving, idle_blocks)
