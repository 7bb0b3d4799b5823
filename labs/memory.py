"""Bytes that one rank holds, state by state, by arithmetic: exact for what `engine.held()` shows. No torch.

With P parameters of which T are trained, and e bytes an element in compute (4, or 2 in mixed precision):

| strategy | parameters | gradients | optimizer | master_weights |
|---|---|---|---|---|
| single, ddp | e P | e T | 8 T | 4 T in mixed precision, else 0 |
| fsdp, hsdp on S shards | 4 P/S, or 0 in mixed precision | 4 T/S | 8 T/S | 4 P/S in mixed precision, else 0 |
| zero1, zero2, zero3 | see `labs.ds_layout` | | | |

Division by S is not exact: FSDP2 cuts every tensor by rows, and a row cannot be cut. `padded_elements` and
`local_elements` count what that costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labs import ds_layout
from labs.activations import activation_bytes
from labs.config import ConfigError, ModelTrainingConfig
from labs.spec import ParameterSpec
from labs.widths import ADAMW_TENSORS, FP32_BYTES, compute_bytes


def state_bytes(
    config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec] | None = None
) -> dict[str, int]:
    """Predict the bytes that a rank holds of each state in `records.STATES`.

    Gradients are those between the last backward and `step()`; activations those that one micro-batch keeps for its
    backward; all others rest between steps. `parameters` describes another model than `config.model`.
    """
    found = parameters or config.model.parameters()
    if config.strategy.startswith("zero"):
        held = ds_layout.state_bytes(config, rank, found)
    elif config.strategy in ("fsdp", "hsdp"):
        held = _sharded_state_bytes(config, rank, found)
    else:
        held = _replicated_state_bytes(config, found)
    return {**held, "activations": activation_bytes(config), "buffers": buffer_bytes(config)}


def peak_parameters_bytes(
    config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec] | None = None
) -> int:
    """Predict the most bytes of parameters for compute that are live at once during a training step.

    FSDP: the resting shards, the root, one block, and one flat receive buffer: that of the block itself in the forward
    pass (it is freed when the next block is gathered), that of the prefetched block in the backward pass.
    """
    found = parameters or config.model.parameters()
    if config.strategy.startswith("zero"):
        return ds_layout.peak_parameters_bytes(config, rank, found)
    resting = state_bytes(config, rank, found)["parameters"]
    if config.strategy not in ("fsdp", "hsdp"):
        return resting
    return resting + gathered_peak_bytes(found, num_shards(config), compute_bytes(config))


def gathered_peak_bytes(parameters: Iterable[ParameterSpec], shards: int, width: int) -> int:
    """Predict the most bytes that FSDP's gathered copies and receive buffers take at once; `width` bytes an element."""
    root, *blocks = [size for _, size in unit_bytes(parameters, shards, width)]
    received = 0 if shards == 1 else 1  # one shard is copied, not received
    in_forward = [size * (1 + received) for size in blocks]
    in_backward = [size + received * before for size, before in zip(blocks, (0, *blocks), strict=False)]
    return root + max(root * received, *in_forward, *in_backward)


def waiting_gradients_bytes(config: ModelTrainingConfig, parameters: Sequence[ParameterSpec] | None = None) -> int:
    """Predict the bytes of gradients that wait between two micro-batches of one step, whole and not yet reduced: e T.

    FSDP gives back its saving for that time: it reduces, and so shards, in the last micro-batch only.
    Raises ConfigError for zero1, zero2 and zero3, which have buffers of their own.
    """
    if config.strategy.startswith("zero"):
        raise ConfigError(f"{config.strategy} does not hold whole gradients between micro-batches; try strategy='fsdp'")
    trained = sum(p.num_elements for p in parameters or config.model.parameters() if p.trainable)
    return compute_bytes(config) * trained if config.gradient_accumulation_steps > 1 else 0


def buffer_bytes(config: ModelTrainingConfig) -> int:
    """Buffers are fp32 and whole on every rank."""
    return FP32_BYTES * sum(_product(shape) for _, shape in config.model.buffers())


def num_shards(config: ModelTrainingConfig) -> int:
    """Count the ranks that share one copy of a sharded state: all of them, or half for hsdp's two copies."""
    return config.world_size // 2 if config.strategy == "hsdp" else config.world_size


def padded_elements(shape: tuple[int, ...], shards: int) -> int:
    """Elements that every rank stores of a tensor cut by rows: the first chunk's, which is the largest.

    Source: torch.chunk, the split that FSDP2 applies to dim 0; shorter chunks are padded to the first.
    """
    return -(-shape[0] // shards) * _product(shape[1:])


def local_elements(shape: tuple[int, ...], shards: int, index: int) -> int:
    """Elements of a tensor that the rank at `index` of the shard group owns, padding left out; may be 0."""
    rows = -(-shape[0] // shards)
    return min(rows, max(0, shape[0] - index * rows)) * _product(shape[1:])


def gathered_bytes(config: ModelTrainingConfig, parameters: Iterable[ParameterSpec]) -> list[tuple[str, int]]:
    """List (unit, bytes of its gathered copy, padding included) of FSDP: the root first, then blocks in order."""
    return unit_bytes(parameters, num_shards(config), compute_bytes(config))


def unit_bytes(parameters: Iterable[ParameterSpec], shards: int, width: int) -> list[tuple[str, int]]:
    """List (unit, bytes of its copy gathered from `shards` padded shards), in elements of `width` bytes."""
    units = {"root": 0}
    for parameter in parameters:
        size = shards * padded_elements(parameter.shape, shards) * width
        units[parameter.unit] = units.get(parameter.unit, 0) + size
    return list(units.items())


def _replicated_state_bytes(config: ModelTrainingConfig, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """Every rank holds everything; DDP's gradients are views of its buckets, which have no padding."""
    width, trained = compute_bytes(config), sum(p.num_elements for p in parameters if p.trainable)
    return {
        "parameters": width * sum(p.num_elements for p in parameters),
        "gradients": width * trained,
        "optimizer": ADAMW_TENSORS * FP32_BYTES * trained,
        "master_weights": FP32_BYTES * trained if config.use_mixed_precision else 0,
    }


def _sharded_state_bytes(config: ModelTrainingConfig, rank: int, parameters: Sequence[ParameterSpec]) -> dict[str, int]:
    """Shards and their gradients are fp32 and padded, equal on all ranks; AdamW's states have the unpadded size."""
    shards = num_shards(config)
    stored = FP32_BYTES * sum(padded_elements(p.shape, shards) for p in parameters)
    trained = [p.shape for p in parameters if p.trainable]
    owned = sum(local_elements(shape, shards, rank % shards) for shape in trained)
    return {
        "parameters": 0 if config.use_mixed_precision else stored,
        "gradients": FP32_BYTES * sum(padded_elements(shape, shards) for shape in trained),
        "optimizer": ADAMW_TENSORS * FP32_BYTES * owned,
        "master_weights": stored if config.use_mixed_precision else 0,
    }


def _product(shape: Iterable[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
