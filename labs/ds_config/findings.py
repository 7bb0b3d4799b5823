"""What DeepSpeed 0.19.8 takes and does not do: keys that it ignores, and "auto" that nobody fills. No torch.

Each rule yields findings about a config that was read. stage_findings.py has the rules about ZeRO's stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from labs.ds_config.blocks import DEPRECATED, is_auto
from labs.ds_config.keys import BATCH, MODELS, READ, RENAMED, TOP_LEVEL, homes_of, is_comment, nearest, path_of
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import Finding, shown

# Switches that are taken as they are: a text is true, also the text "false".
SWITCHES = """managed_gradient_accumulation disable_python_gc prescale_gradients zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer memory_breakdown use_data_before_expert_parallelism dataloader_drop_last dump_state
    torch_autocast.enabled flops_profiler.enabled activation_checkpointing.partition_activations
    activation_checkpointing.cpu_checkpointing activation_checkpointing.contiguous_memory_optimization""".split()
DEEPEST = 6  # blocks in blocks; DeepSpeed knows no deeper ones
AUTO_IS_A_VALUE = {"zero_optimization.zenflow", "data_types", "pipeline", "expert_parallel"}


def unknown_keys(found: Reading) -> Iterator[Finding]:
    """Keys at the top level, and in blocks that are read key by key, that DeepSpeed never asks for."""
    for key, value in found.config.items():
        if key == "allgather_size" and found.config.get("zero_optimization") is True:
            continue  # the companion of the oldest format
        key = str(key)
        if key not in TOP_LEVEL and key not in _REFUSED and not is_comment(key):
            yield _ignored("", key)
        elif key in READ and isinstance(value, dict):
            yield from (_ignored(key, str(inner)) for inner in value if inner not in READ[key].split())


def _ignored(block: str, key: str) -> Finding:
    path, place = path_of(block, key), block or "the top level"
    why = f"DeepSpeed does not know this key at {place}, and ignores it without a word"
    homes, near = homes_of(key, not_in=block), nearest(key, block)
    if path in RENAMED:
        fix = f"write {RENAMED[path]}, its name today"
    elif homes:
        fix = f"move it into {homes[0]}" if homes[0] else "move it to the top level, outside of every block"
    elif near:
        fix = f"did you mean {near}?"
    else:
        near = nearest(key, "zero_optimization") if not block else None
        fix = f"did you mean zero_optimization.{near}?" if near else "leave it out"
    return Finding("warning", path, "it has no effect", why, fix)


_REFUSED = {
    *"nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention".split(),
    *"elasticity graph_harvesting curriculum_learning progressive_layer_drop".split(),
}


def autos(found: Reading) -> Iterator[Finding]:
    """ "auto" anywhere but in the batch keys, which the batch arithmetic refuses."""
    for key, value in found.config.items():
        if is_auto(value) and key not in BATCH:
            yield _auto_at_top(str(key))
        elif isinstance(value, dict) and key not in AUTO_IS_A_VALUE:
            yield from _autos_in(str(key), value)


def _autos_in(block: str, given: dict) -> Iterator[Finding]:
    for key, value in given.items():
        path = path_of(block, str(key))
        if isinstance(value, dict) and path not in AUTO_IS_A_VALUE and path.count(".") < DEEPEST:
            yield from _autos_in(path, value)
        elif is_auto(value):
            yield _auto_in(block, str(key))


def _auto_at_top(key: str) -> Finding:
    if key == "gradient_clipping":
        why = "DeepSpeed keeps the text, and stops at the first step, where it compares it with a number"
        return Finding("warning", key, 'it is "auto"', why, "write a number, 1.0 for one")
    why = "outside of a trainer that replaces it, DeepSpeed keeps the text"
    return Finding("warning", key, 'it is "auto"', why, "write a value, or leave it out")


def _auto_in(block: str, key: str) -> Finding:
    path = path_of(block, key)
    if block.partition(".")[0] in ("optimizer", "scheduler"):
        why = "it reaches the optimizer or scheduler as a text, and stops it"
        return Finding("warning", path, 'it is "auto"', why, "write a number")
    default = _default_of(block, key)
    if block not in MODELS or default is None:
        why = "outside of a trainer that replaces it, nobody fills it in"
        return Finding("warning", path, 'it is "auto"', why, "write a value, or leave it out")
    why = f"outside of a trainer that replaces it, DeepSpeed drops the key: its default holds, {default}"
    return Finding("warning", path, 'it is "auto"', why, f"write a value, or leave it out to have {default}")


def _default_of(block: str, key: str) -> str | None:
    if block not in MODELS:
        return None
    for name, field in MODELS[block].model_fields.items():
        if key in (name, field.alias):
            value = field.get_default(call_default_factory=True)
            return "true at stage 3, else false" if name == "overlap_comm" else shown(value)
    return None


def texts_for_switches(found: Reading) -> Iterator[Finding]:
    """ "false" in quotation marks, where DeepSpeed asks only whether there is something."""
    for path in SWITCHES:
        block, _, key = path.rpartition(".")
        holder = found.config.get(block, {}) if block else found.config
        value = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(value, str) and not is_auto(value):
            what, why = f"it is the text {shown(value)}", "any text counts as true, also this one"
            yield Finding("warning", path, what, why, "write true or false, without quotation marks")


def old_names(found: Reading) -> Iterator[Finding]:
    """Names and formats that still work, and those that are read and do nothing."""
    zero = found.config.get("zero_optimization")
    if isinstance(zero, bool):
        what = f"zero_optimization is {shown(zero)}, the format of 2020"
        level = "warning" if zero else "note"
        why = f"it means stage {int(zero)}, and the default of everything else"
        yield Finding(level, "zero_optimization", what, why, f'write {{"stage": {int(zero)}}}')
    for old, new in DEPRECATED.items() if isinstance(zero, dict) else ():
        if old in zero and not is_auto(zero[old]) and not (new and new in zero):
            path = f"zero_optimization.{old}"
            if new:
                yield Finding("note", path, "it is an old name", "it still works", f"write {_today(old, new)}")
            else:
                why = "DeepSpeed reads it and uses it nowhere"
                yield Finding("warning", path, "it has no effect", why, "write pin_memory in the offload block")
    if "bfloat16" in found.config and found.config.get("bf16") is not None:
        yield Finding("warning", "bfloat16", "it has no effect", "bf16 is given, and wins", "leave bfloat16 out")
    elif "bfloat16" in found.config:
        yield Finding("note", "bfloat16", "it is an old name", "it still works", "write bf16")


def _today(old: str, new: str) -> str:
    return f'{new}: {{"device": "cpu"}}' if new.startswith("offload") else f"stage3_{new}"


def optimizer_and_clipping(found: Reading) -> Iterator[Finding]:
    """Where the optimizer block says something that is not done, or is done without being said."""
    optimizer = found.config.get("optimizer")
    params = optimizer.get("params") if isinstance(optimizer, dict) else None
    if isinstance(params, dict) and "max_grad_norm" in params:
        why = "deepspeed.initialize refuses it as a parameter of the optimizer"
        fix = "leave it out, and write gradient_clipping at the top level"
        yield Finding("warning", "optimizer.params.max_grad_norm", "max_grad_norm clips nothing", why, fix)
    if "gradient_clipping" not in found.config:
        why = "DeepSpeed 0.19.8 clips to a norm of 1.0 when the key is not there"
        fix = "write gradient_clipping: 0 to clip nothing"
        yield Finding("note", "gradient_clipping", "gradients are clipped", why, fix)
    elif (value := found.config["gradient_clipping"]) is None or isinstance(value, str | list | dict):
        if not is_auto(value):
            why = "DeepSpeed stops at the first step, where it compares it with a number"
            yield Finding("warning", "gradient_clipping", f"it is {shown(value)}", why, "write a number")


def precision(found: Reading) -> Iterator[Finding]:
    """fp16 without a device for it, and scale settings that a fixed scale leaves unused."""
    if found.fp16 and found.fp16.enabled and found.accelerator == "cpu":
        why = "deepspeed.initialize refuses fp16 on a CPU; a GPU takes it"
        yield Finding("note", "fp16.enabled", "fp16 does not run on this machine", why, "try bf16 here")
    if found.fp16 and found.fp16.enabled and found.fp16.loss_scale:
        unused = [name for name in found.fp16.model_fields_set if name in ("loss_scale_window", "initial_scale_power")]
        if unused:
            what = f"{' and '.join(sorted(unused))} {'has' if len(unused) == 1 else 'have'} no effect"
            why = f"loss_scale {found.fp16.loss_scale:g} is fixed"
            yield Finding("note", "fp16.loss_scale", what, why, "write loss_scale: 0 for a scale that adapts")


RULES = (unknown_keys, autos, texts_for_switches, old_names, optimizer_and_clipping, precision)
