"""What DeepSpeed 0.19.8 holds and sends for ZeRO-1, 2 and 3, by arithmetic: exact to the byte. No torch.

ZeRO-1 and 2 lay the parameters of each optimizer group (matrices; norms and biases) into one flat tensor and cut that
into equal parts, one a rank: a part begins and ends in the middle of a parameter. ZeRO-3 cuts every parameter alone.
Checked against real ranks in tests/test_laws.py and tests/test_deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from labs.config import ModelTrainingConfig
from labs.spec import ParameterSpec
from labs.widths import ADAMW_TENSORS, FP32_BYTES, compute_bytes

ALIGNMENT = 2  # elements per rank to which a flat group is padded; Source: nccl_start_alignment_factor


def state_bytes(config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """Predict the bytes of parameters, gradients, optimizer and master weights that a rank holds.

    Gradients are those between the last backward and `step()`, buffers that live as long included.
    """
    return _cut_bytes(config, parameters) if config.strategy == "zero3" else _flat_bytes(config, rank, parameters)


def peak_parameters_bytes(config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec]) -> int:
    """Predict the most bytes of parameters that `measure.PeakParameters` sees alive at once during a training step.

    ZeRO-3 has one module gathered at a time, beside the parts at rest. Two exceptions: a block that recomputes its
    activations keeps its last linear layer gathered meanwhile; and both embeddings stay gathered until backward ends,
    for nothing asks for the gradient of their input, which would free them. Not seen: tensors that arrive in one
    all_gather are there twice for the moment in which they are copied out.
    """
    resting = state_bytes(config, rank, parameters)["parameters"]
    if config.strategy != "zero3" or config.world_size == 1:  # one rank computes with the part itself
        return resting
    modules = modules_in_order(config, parameters)
    live = [gathered_elements(module, config.world_size) for module in modules]
    if config.model.kind == "gpt":
        live.append(sum(live[:2]))
    if config.activation_checkpointing and config.model.kind == "gpt":
        for block in blocks_of(modules):
            sizes = [gathered_elements(module, config.world_size) for module in block]
            live.append(sizes[-1] + max(sizes[:-1]))
    return resting + compute_bytes(config) * max(live)


def bucket_elements(sizes: Iterable[int]) -> int:
    """Size the gradient bucket [elements]: a quarter of the model, but never less than its largest parameter.

    DeepSpeed's own default of 5e8 elements would hold any model of this course whole, and ZeRO-3 allocates it in full.
    """
    sizes = list(sizes)
    return max(max(sizes), -(-sum(sizes) // 4))


def part_elements(num_elements: int, world_size: int) -> int:
    """Elements of a parameter that every rank holds under ZeRO-3; those of the last ranks are partly padding."""
    return -(-num_elements // world_size)


def flat_part_elements(group: Iterable[ParameterSpec], world_size: int) -> int:
    """Elements of a flat optimizer group that every rank owns under ZeRO-1 and 2, padding included."""
    unit = ALIGNMENT * world_size
    return -(-sum(p.num_elements for p in group) // unit) * ALIGNMENT


def optimizer_groups(parameters: Iterable[ParameterSpec]) -> list[list[ParameterSpec]]:
    """Split the trained parameters as the optimizer does: those that decay, those that do not; empty groups go."""
    trained = [p for p in parameters if p.trainable]
    groups = [[p for p in trained if p.decays], [p for p in trained if not p.decays]]
    return [group for group in groups if group]


def _flat_bytes(config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """ZeRO-1 and 2 hold every parameter; between backward and step both keep gradients of their own part alone."""
    width, groups = compute_bytes(config), optimizer_groups(parameters)
    part = sum(flat_part_elements(group, config.world_size) for group in groups)
    frozen = sum(p.num_elements for p in parameters if not p.trainable)
    back = part if config.offload else 0  # an updated part is rounded beside the masters before it is sent back
    return {
        "parameters": width * (config.world_size * part + frozen + back),
        "gradients": _flat_gradient_bytes(config, rank, groups),
        "optimizer": ADAMW_TENSORS * FP32_BYTES * part,
        "master_weights": FP32_BYTES * part,
    }


def _flat_gradient_bytes(config: ModelTrainingConfig, rank: int, groups: list[list[ParameterSpec]]) -> int:
    """A parameter that lies in two parts has its gradient kept whole by both ranks; padding is a tensor of its own.

    Offload: an fp32 part, two staging buffers of the largest parameter, and with accumulation under ZeRO-2 the
    gradients of every parameter of the part, whole.
    """
    width = compute_bytes(config)
    touched = [flat_touched(group, config.world_size, rank) for group in groups]
    whole = sum(p.num_elements for found, _ in touched for p in found)
    if not config.offload:
        return width * (whole + sum(padding for _, padding in touched))
    part = sum(flat_part_elements(group, config.world_size) for group in groups)
    staging = 2 * max(p.num_elements for group in groups for p in group)
    accumulated = whole if config.strategy == "zero2" and config.gradient_accumulation_steps > 1 else 0
    return FP32_BYTES * part + width * (staging + accumulated)


def flat_touched(group: list[ParameterSpec], world_size: int, rank: int) -> tuple[list[ParameterSpec], int]:
    """Return the parameters of which a rank owns some elements, and the elements of its part that are padding."""
    part = flat_part_elements(group, world_size)
    first, last, offset, found = rank * part, (rank + 1) * part, 0, []
    for parameter in group:
        if offset < last and first < offset + parameter.num_elements:
            found.append(parameter)
        offset += parameter.num_elements
    return found, min(part, max(0, last - offset))


def _cut_bytes(config: ModelTrainingConfig, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """ZeRO-3 holds its part of every state; gradients pass through a bucket that is never freed."""
    width, trained = compute_bytes(config), [p.num_elements for p in parameters if p.trainable]
    part = sum(part_elements(size, config.world_size) for size in trained)
    fp32_gradients = FP32_BYTES * part if config.offload else 0  # without offload they are made within the step
    return {
        "parameters": width * sum(part_elements(p.num_elements, config.world_size) for p in parameters),
        "gradients": width * (part + bucket_elements(trained)) + fp32_gradients,
        "optimizer": ADAMW_TENSORS * FP32_BYTES * part,
        "master_weights": FP32_BYTES * part,
    }


def modules_in_order(config: ModelTrainingConfig, parameters: Iterable[ParameterSpec]) -> list[list[ParameterSpec]]:
    """List the parameters that each module gathers, in the order of the forward pass; a tied head comes last."""
    parameters = list(parameters)
    modules = [list(group) for _, group in groupby(parameters, key=module_of)]
    is_tied = config.model.kind == "gpt" and module_of(parameters[-1]) != "head"
    return modules + [[parameters[0]]] if is_tied else modules


def blocks_of(modules: Iterable[list[ParameterSpec]]) -> list[list[list[ParameterSpec]]]:
    """Group the modules of each block; what stands outside of blocks is left out."""
    grouped = groupby(modules, key=lambda module: module[0].unit)
    return [list(group) for unit, group in grouped if unit != "root"]


def module_of(parameter: ParameterSpec) -> str:
    return parameter.name.rpartition(".")[0]


def gathered_elements(module: list[ParameterSpec], world_size: int) -> int:
    """Elements of a module's gathered copy: one tensor stays in its padded buffer, several are copied out of theirs."""
    if len(module) > 1:
        return sum(p.num_elements for p in module)
    return world_size * part_elements(module[0].num_elements, world_size)
