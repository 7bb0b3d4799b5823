"""Which collectives one training step issues, in order, by arithmetic. No torch.

Metrics and evaluation are not part of a step; the all-reduce of the gradient norm is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labs import ds_schedule
from labs.config import ModelTrainingConfig
from labs.memory import gathered_bytes, num_shards
from labs.spec import ParameterSpec, backward_order
from labs.traffic import Collective
from labs.widths import FP32_BYTES, compute_bytes

DDP_FIRST_BUCKET_BYTES = 2**20  # small, so that the first all-reduce starts early; Source: torch DDP, defaults
DDP_BUCKET_BYTES = 25 * 2**20
INDEX_BYTES = 4
WARM_STEPS = 3  # the third step and all after it issue the same collectives


def step_collectives(
    config: ModelTrainingConfig, rank: int, step: int, parameters: Sequence[ParameterSpec] | None = None
) -> list[Collective]:
    """List the collectives that a rank issues in one training step (counted from 0), in order."""
    found = parameters or config.model.parameters()
    if config.strategy.startswith("zero"):
        return ds_schedule.step_collectives(config, rank, step, found)
    if config.strategy in ("fsdp", "hsdp"):
        return _fsdp_step(config, rank, found)
    return _ddp_step(config, step, found) if config.strategy == "ddp" else []


def run_collectives(
    config: ModelTrainingConfig,
    rank: int,
    parameters: Sequence[ParameterSpec] | None = None,
    num_steps: int | None = None,
) -> list[Collective]:
    """List the collectives of all steps; those of the settled steps are listed once, with a count.

    `num_steps` is how many there were in a run that stopped early; `config.steps` when not given.
    """
    num_steps = config.steps if num_steps is None else num_steps
    settled = max(0, num_steps - WARM_STEPS + 1)
    found = []
    for step in range(min(num_steps, WARM_STEPS)):
        count = settled if step == WARM_STEPS - 1 else 1
        found += [replace(call, count=call.count * count) for call in step_collectives(config, rank, step, parameters)]
    return found


def _ddp_step(config: ModelTrainingConfig, step: int, parameters: Sequence[ParameterSpec]) -> list[Collective]:
    """One all-reduce a bucket, in the last micro-batch alone. Step 0 has one bucket of everything.

    Before step 1 rank 0 broadcasts the order in which gradients became ready, and the buckets are made anew.
    Source: torch DDP, Reducer::rebuild_buckets and sync_bucket_indices.
    """
    width, world = compute_bytes(config), config.world_size
    sizes = [p.num_elements * width for p in backward_order(parameters) if p.trainable]
    buckets = [sum(sizes)] if step == 0 else ddp_buckets(sizes)
    calls = [Collective("all_reduce", size, world, element_bytes=width) for size in buckets]
    if step != 1:
        return calls
    news = (len(sizes) + 1, len(buckets))  # every index and the number of buckets; then the size of every bucket
    return [Collective("broadcast", INDEX_BYTES * count, world, element_bytes=INDEX_BYTES) for count in news] + calls


def ddp_buckets(sizes: Sequence[int]) -> list[int]:
    """Group gradients [bytes] in order of readiness into buckets [bytes]: one closes once it has reached its limit."""
    buckets, current, limit = [], 0, DDP_FIRST_BUCKET_BYTES
    for size in sizes:
        current += size
        if current >= limit:
            buckets.append(current)
            current, limit = 0, DDP_BUCKET_BYTES
    return buckets + [current] if current else buckets


def _fsdp_step(config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec]) -> list[Collective]:
    """Per micro-batch: gather root and blocks, then blocks again backwards; in the last one reduce what was computed.

    The block before is gathered while a block computes its gradients (prefetch), so its gather comes first. The root
    stays gathered through the backward pass. The gradient norm costs one all-reduce of one fp32 number.
    """
    (root, root_bytes), *blocks = gathered_bytes(config, parameters)
    gathers = [_gather(config, rank, size) for _, size in blocks]
    trained = dict(gathered_bytes(config, [p for p in parameters if p.trainable]))
    reduces = [_reduce(config, rank, trained.get(unit, 0)) for unit, _ in reversed(blocks)]
    forward = _gather(config, rank, root_bytes) + sum(gathers, [])
    prefetches = gathers[::-1]
    calls = (forward + sum(prefetches, [])) * (config.gradient_accumulation_steps - 1) + forward
    calls += prefetches[0] if prefetches else []
    for prefetch, reduce in zip([*prefetches[1:], []], reduces, strict=True):
        calls += prefetch + reduce
    norm = Collective("all_reduce", FP32_BYTES, num_shards(config), index=rank % num_shards(config))
    return calls + _reduce(config, rank, trained[root]) + [norm]


def _gather(config: ModelTrainingConfig, rank: int, size: int) -> list[Collective]:
    """All-gather one unit within the shard group; one shard is copied without communication."""
    shards = num_shards(config)
    if shards == 1:
        return []
    return [Collective("all_gather", size, shards, element_bytes=compute_bytes(config), index=rank % shards)]


def _reduce(config: ModelTrainingConfig, rank: int, size: int) -> list[Collective]:
    """Reduce-scatter the gradients of one unit in the shard group; hsdp then all-reduces them between its copies."""
    shards, width = num_shards(config), compute_bytes(config)
    if size == 0:
        return []  # nothing in this unit is trained
    calls = []
    if shards > 1:
        calls.append(Collective("reduce_scatter", size, shards, element_bytes=width, index=rank % shards))
    if config.strategy == "hsdp":
        calls.append(Collective("all_reduce", size // shards, 2, element_bytes=width, index=rank // shards))
    return calls
