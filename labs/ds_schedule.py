"""Which collectives DeepSpeed 0.19.8 issues in one training step, in order, by arithmetic. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from labs.config import ModelTrainingConfig
from labs.ds_layout import (
    blocks_of,
    bucket_elements,
    flat_part_elements,
    modules_in_order,
    optimizer_groups,
    part_elements,
)
from labs.spec import ParameterSpec, backward_order
from labs.traffic import Collective
from labs.widths import FP32_BYTES, compute_bytes

_INT64_BYTES = _FP64_BYTES = 8
# Modules without parameters of their own are traced too: the model, its blocks, an Identity in place of a norm.
_MODULES = {"gpt": (5, 7), "mlp": (3, 3)}  # (outside of blocks, in a block)


def step_collectives(
    config: ModelTrainingConfig, rank: int, step: int, parameters: Sequence[ParameterSpec]
) -> list[Collective]:
    """List the collectives that a rank issues in one training step (counted from 0), in order."""
    if config.strategy == "zero3":
        return list(_cut_step(config, step, parameters))
    return list(_flat_step(config, parameters))


def _flat_step(config: ModelTrainingConfig, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    """Whole buckets are all-reduced, and every rank keeps its part: ZeRO-1 once a step, ZeRO-2 every micro-batch.

    ZeRO-1 walks the optimizer groups when all gradients are there; ZeRO-2 takes gradients as backward completes them.
    In bf16 the ranks then agree on whether any gradient overflowed. Each group has its own norm and its own all_gather.
    """
    width, world, groups = compute_bytes(config), config.world_size, optimizer_groups(parameters)
    trained = [p for p in parameters if p.trainable]
    is_zero1 = config.strategy == "zero1"
    order = sum(groups, []) if is_zero1 else backward_order(trained)
    for _ in range(1 if is_zero1 else config.gradient_accumulation_steps):
        for bucket in _buckets([p.num_elements for p in order]):
            yield Collective("all_reduce", width * sum(bucket), world, element_bytes=width)
    if config.use_mixed_precision:
        yield Collective("all_reduce", 1, world, element_bytes=1)
    for _ in groups:
        yield Collective("all_reduce", FP32_BYTES, world, element_bytes=FP32_BYTES)
    for group in groups if world > 1 else ():
        size = width * world * flat_part_elements(group, world)
        yield Collective("all_gather", size, world, element_bytes=width)


def _buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Cut gradients [elements] in order of readiness into buckets: one is reduced when the next would not fit."""
    limit, buckets = bucket_elements(sizes), [[]]
    for size in sizes:
        if sum(buckets[-1]) + size > limit:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def _cut_step(config: ModelTrainingConfig, step: int, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    """Every micro-batch gathers every module forwards and again backwards, and reduce-scatters full buckets."""
    for micro_step in range(config.gradient_accumulation_steps):
        yield from _trace_agreement(config, step, micro_step, parameters)
        for module in modules_in_order(config, parameters):
            yield from _gather(config, module)
        yield from _cut_backward(config, parameters)
    norm_bytes = FP32_BYTES if config.offload else _FP64_BYTES
    for _ in optimizer_groups(parameters):
        yield Collective("all_reduce", norm_bytes, config.world_size, element_bytes=norm_bytes)


def _cut_backward(config: ModelTrainingConfig, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    modules = modules_in_order(config, parameters)
    last_of = {block[-1][0].name: block for block in blocks_of(modules)} if config.activation_checkpointing else {}
    limit, filled = bucket_elements([p.num_elements for p in parameters if p.trainable]), []
    for index, module in reversed(list(enumerate(modules))):
        yield from _gather_backward(config, module, last_of.get(module[0].name, []))
        for parameter in module if module not in modules[:index] else ():  # a tied gradient is ready at its first use
            if not parameter.trainable:
                continue
            if filled and sum(filled) + parameter.num_elements > limit:
                yield _reduce_scatter(config, filled)
                filled = []
            filled.append(parameter.num_elements)
    yield _reduce_scatter(config, filled)


def _gather_backward(
    config: ModelTrainingConfig, module: list[ParameterSpec], block: list[list[ParameterSpec]]
) -> Iterator[Collective]:
    """Gather a module for its gradients; the last one of a checkpointed block brings the block's recomputation along.

    In a gpt that layer is gathered when its own backward asks for its input, and is not gathered again. In an mlp the
    GELU behind it asks, so that all layers are recomputed before.
    """
    recomputed = block[:-1] if config.model.kind == "gpt" else block
    again = [call for each in recomputed for call in _gather(config, each)]
    own = _gather(config, module)
    yield from own + again if config.model.kind == "gpt" else again + own


def _trace_agreement(
    config: ModelTrainingConfig, step: int, micro_step: int, parameters: Sequence[ParameterSpec]
) -> Iterator[Collective]:
    """Before its first two forward passes ZeRO-3 checks that all ranks recorded the same order of modules.

    Rank 0 broadcasts how many there are and which: nothing the first time; then modules, parameters, and their steps.
    """
    num_passes = step * config.gradient_accumulation_steps + micro_step
    second_was_evaluation = config.gradient_accumulation_steps == 1 and config.evaluates_after(0)
    lengths = [0] if num_passes == 0 else []
    if num_passes == 1 and not second_was_evaluation:
        modules = modules_in_order(config, parameters)
        outside, inside = _MODULES[config.model.kind]
        recomputed = config.activation_checkpointing * config.model.num_layers * (inside - 1)
        again = sum(blocks_of(modules), []) if config.activation_checkpointing else []
        num_parameters = 2 * sum(map(len, modules)) + sum(map(len, again))
        lengths = [2 * (outside + inside * config.model.num_layers) + recomputed, num_parameters, num_parameters]
    for length in lengths:
        for size in (_INT64_BYTES, _INT64_BYTES * length):
            yield Collective("broadcast", size, config.world_size, element_bytes=_INT64_BYTES)


def _gather(config: ModelTrainingConfig, module: list[ParameterSpec]) -> list[Collective]:
    if config.world_size == 1:
        return []
    size = _padded_bytes(config, [p.num_elements for p in module])
    return [Collective("all_gather", size, config.world_size, element_bytes=compute_bytes(config))]


def _reduce_scatter(config: ModelTrainingConfig, sizes: Iterable[int]) -> Collective:
    size = _padded_bytes(config, sizes)
    return Collective("reduce_scatter", size, config.world_size, element_bytes=compute_bytes(config))


def _padded_bytes(config: ModelTrainingConfig, sizes: Iterable[int]) -> int:
    """Bytes of tensors [elements] of which every one is padded to equal parts."""
    return compute_bytes(config) * config.world_size * sum(part_elements(size, config.world_size) for size in sizes)
