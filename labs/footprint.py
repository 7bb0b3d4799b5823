"""Bytes of one rank for any model, strategy and number of ranks, state by state and moment by moment. No torch.

At rest (`Footprint.device` and `host`) the arithmetic is that of labs/memory.py, exact for this course's engines, and
it also knows other precisions and optimizers. Bytes an element, by state:

| strategy | parameters | gradients | optimizer (AdamW) | master_weights |
|---|---|---|---|---|
| single, ddp | e | e | 2 s | 4 in mixed precision, else 0 |
| fsdp, hsdp | 0 in mixed precision, else e | s | 2 s | 4 in mixed precision, else 0 |
| zero1, zero2, zero3 | e | e | 2 s | s |

e: 4 in fp32, else 2; s: 2 in "bf16", else 4. What passes (`Footprint.moments`) is an estimate: it leaves out the CUDA
context, the allocator's fragments and the libraries' workspaces, a few GiB on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from labs import ds_layout
from labs.activations import block_terms, kept_terms
from labs.memory import gathered_peak_bytes, local_elements, padded_elements, unit_bytes
from labs.records import STATES
from labs.scenario import SHARDED, Scenario
from labs.spec import ModelSpec, ParameterSpec
from labs.widths import FP32_BYTES

__all__ = ["Footprint", "Scenario", "footprint"]

Bytes = dict[str, int]
OPTIMIZER_TENSORS = {"adamw": 2, "momentum": 1, "sgd": 0}
QUANTISED_FROM, QUANTISED_BLOCK = 4096, 256  # elements; Source: bitsandbytes, min_8bit_size and its block-wise scales
SUB_GROUP_ELEMENTS = 1_000_000_000  # ZeRO-3 updates so many at once; Source: DeepSpeed's default sub_group_size


@dataclass(frozen=True)
class Footprint:
    """Bytes of one rank: by state on the device and on the host, and on the device at the moments that can be the peak.

    `device` and `host` have the keys of records.STATES; gradients are those between the last backward and `step()`.
    `moments` maps each moment to {part: device bytes}; the parts are the states and what passes: "gathered" (copies of
    sharded parameters), "buckets", "logits", "recomputed", "unreduced gradients", "fp32 gradients".
    """

    device: Bytes
    host: Bytes
    moments: dict[str, Bytes]

    @property
    def states(self) -> Bytes:
        """Bytes by state, wherever they lie: what `labs.memory.state_bytes` predicts for a live run."""
        return {state: self.device[state] + self.host[state] for state in STATES}

    @property
    def total_bytes(self) -> int:
        return sum(self.states.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def peak_moment(self) -> str:
        """Name the moment at which the device holds most."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak_bytes(self) -> int:
        """Most bytes that the device holds at once: an estimate."""
        return sum(self.moments[self.peak_moment].values())


def footprint(scenario: Scenario, rank: int = 0) -> Footprint:
    """Count the bytes of one rank of a scenario.

    Raises ValueError for a rank that the scenario does not have.
    """
    if not 0 <= rank < scenario.world_size:
        raise ValueError(f"rank {rank} is not among the {scenario.world_size} ranks; they are counted from 0")
    parameters = parameters_of(scenario.model)
    device, host = _states(scenario, rank, parameters)
    kept = kept_terms(*_sample(scenario), scenario.activation_checkpointing, scenario.attention == "eager")
    device["activations"] = sum(kept.values())
    device["buffers"] = FP32_BYTES * sum(shape[0] for _, shape in scenario.model.buffers())
    moments = _moments(scenario, parameters, device)
    return Footprint({s: device.get(s, 0) for s in STATES}, {s: host.get(s, 0) for s in STATES}, moments)


@lru_cache(maxsize=64)
def parameters_of(model: ModelSpec) -> tuple[ParameterSpec, ...]:
    """List the parameters of a model, once for all questions about it."""
    return model.parameters()


@lru_cache(maxsize=64)
def largest_module_elements(model: ModelSpec) -> int:
    """Count the parameters of the largest module (a linear layer, an embedding), its bias included."""
    modules: dict[str, int] = {}
    for parameter in parameters_of(model):
        module = parameter.name.rpartition(".")[0]
        modules[module] = modules.get(module, 0) + parameter.num_elements
    return max(modules.values())


def optimizer_bytes(optimizer: str, sizes: Iterable[int], width: int) -> int:
    """Bytes of an optimizer's states for tensors of these sizes [elements], in elements of `width` bytes.

    "adamw-8bit" keeps a byte an element and state, and an fp32 scale for each block of 256; small tensors stay fp32.
    Source: Dettmers et al. 2022 (arXiv 2110.02861), as in bitsandbytes.
    """
    if optimizer != "adamw-8bit":
        return OPTIMIZER_TENSORS[optimizer] * width * sum(sizes)
    states = 2
    small = sum(size for size in sizes if size < QUANTISED_FROM)
    large = [size for size in sizes if size >= QUANTISED_FROM]
    return states * (FP32_BYTES * small + sum(size + FP32_BYTES * -(-size // QUANTISED_BLOCK) for size in large))


def _states(scenario: Scenario, rank: int, parameters: Sequence[ParameterSpec]) -> tuple[Bytes, Bytes]:
    """Return the states at rest (device, host), without activations and buffers."""
    if scenario.strategy == "zero3":
        return _cut_states(scenario, parameters)
    if scenario.strategy in ("zero1", "zero2"):
        return _flat_states(scenario, rank, parameters)
    trained = [p for p in parameters if p.trainable]
    if scenario.strategy not in SHARDED:
        whole = [p.num_elements for p in trained]
        return _priced(scenario, sum(p.num_elements for p in parameters), sum(whole), whole, sum(whole)), {}
    shards = scenario.shards
    stored = sum(padded_elements(p.shape, shards) for p in parameters)
    gradients = sum(padded_elements(p.shape, shards) for p in trained)
    owned = [local_elements(p.shape, shards, rank % shards) for p in trained]
    held = _priced(scenario, stored, gradients, owned, stored)
    return (held, {}) if scenario.offload == "none" else ({}, held)


def _priced(scenario: Scenario, parameters: int, gradients: int, owned: list[int], masters: int) -> Bytes:
    """Turn elements into bytes; `owned` are the sizes of the tensors that the optimizer sees."""
    mixed, sharded = scenario.precision.endswith("mixed"), scenario.strategy in SHARDED
    kept_width = 2 if scenario.precision == "bf16" else FP32_BYTES
    has_masters = mixed or scenario.strategy.startswith("zero")
    return {
        "parameters": 0 if sharded and mixed else scenario.width * parameters,
        "gradients": (kept_width if sharded else scenario.width) * gradients,
        "optimizer": optimizer_bytes(scenario.optimizer, owned, kept_width),
        "master_weights": kept_width * masters if has_masters else 0,
    }


def _flat_states(scenario: Scenario, rank: int, parameters: Sequence[ParameterSpec]) -> tuple[Bytes, Bytes]:
    """ZeRO-1 and 2, whose gradients are counted as labs/ds_layout.py explains."""
    world, groups = scenario.world_size, ds_layout.optimizer_groups(parameters)
    parts = [ds_layout.flat_part_elements(group, world) for group in groups]
    part, frozen = sum(parts), sum(p.num_elements for p in parameters if not p.trainable)
    touched = [ds_layout.flat_touched(group, world, rank) for group in groups]
    whole = sum(p.num_elements for found, _ in touched for p in found)
    gradients = whole + sum(padding for _, padding in touched)
    held = _priced(scenario, world * part + frozen, gradients, parts, part)
    if scenario.offload == "none":
        return held, {}
    staging = scenario.width * max(p.num_elements for group in groups for p in group)
    accumulated = whole if scenario.strategy == "zero2" and scenario.gradient_accumulation_steps > 1 else 0
    device = {"parameters": held["parameters"], "gradients": staging}
    moved = {"optimizer": held["optimizer"], "master_weights": held["master_weights"]}
    kept = held["master_weights"] + staging + scenario.width * accumulated  # gradients as wide as the masters
    return device, {**moved, "parameters": scenario.width * part, "gradients": kept}


def _cut_states(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> tuple[Bytes, Bytes]:
    """ZeRO-3: the bucket, which its gradients pass through, is counted apart."""
    parts = [ds_layout.part_elements(p.num_elements, scenario.world_size) for p in parameters]
    owned = [part for part, p in zip(parts, parameters, strict=True) if p.trainable]
    held = _priced(scenario, sum(parts), sum(owned), [sum(owned)], sum(owned))
    if scenario.offload == "none":
        return held, {}
    host = {**held, "gradients": held["gradients"] + held["master_weights"]}  # an fp32 copy, for the optimizer
    device = {} if scenario.offload == "optimizer+parameters" else {"parameters": host.pop("parameters")}
    return device, host


def _moments(scenario: Scenario, parameters: Sequence[ParameterSpec], device: Bytes) -> dict[str, Bytes]:
    """Return what the device holds when the backward pass begins, when it ends, and in the optimizer's step."""
    rest = {state: size for state, size in device.items() if state not in ("gradients", "activations")}
    gradients, gathered = {"gradients": device.get("gradients", 0)}, {"gathered": _gathered(scenario, parameters)}
    buckets, block = _buckets(scenario, parameters), sum(_block(scenario).values())
    accumulates, unreduced = scenario.gradient_accumulation_steps > 1, _unreduced(scenario, parameters)
    lasting = scenario.strategy in ("ddp", "zero3") or scenario.offload != "none"
    lasting = lasting or (accumulates and not unreduced)
    recomputed = block if scenario.activation_checkpointing != "none" else 0
    logits = _logits(scenario)
    begins = {**rest, **(gradients if lasting else {}), **(unreduced if accumulates else {}), **gathered}
    begins |= {"activations": device["activations"], "buckets": 0 if scenario.strategy in SHARDED else buckets}
    begins |= {"logits": logits} if logits >= recomputed else {"recomputed": recomputed}
    ends = {**rest, **gradients, **unreduced, **gathered, "buckets": buckets, "activations": block}
    step = {**rest, **gradients, "fp32 gradients": _fp32_gradients(scenario, device)}
    step |= {"buckets": buckets if scenario.strategy == "zero3" else 0}
    return {"backward begins": begins, "backward ends": ends, "optimizer step": step}


def _unreduced(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> Bytes:
    """Whole gradients that wait to be reduced: ZeRO-1's until backward ends, FSDP's from micro-batch to micro-batch."""
    accumulates = scenario.strategy in SHARDED and scenario.gradient_accumulation_steps > 1
    if scenario.strategy != "zero1" and not accumulates:
        return {}
    return {"unreduced gradients": scenario.width * sum(p.num_elements for p in parameters if p.trainable)}


def _gathered(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> int:
    """Copies of sharded parameters: FSDP's root, block and prefetch; ZeRO-3's live parameters, one module at least."""
    if scenario.strategy in SHARDED:
        return gathered_peak_bytes(parameters, scenario.shards, scenario.width)
    if scenario.strategy != "zero3":
        return 0
    live = min(sum(p.num_elements for p in parameters), scenario.live_elements)
    return scenario.width * max(live, largest_module_elements(scenario.model))


def _buckets(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> int:
    """DeepSpeed's reduce bucket; FSDP's gradients of a unit, and the flat copy that is sent. DDP's are views."""
    if scenario.strategy.startswith("zero"):
        return scenario.width * scenario.bucket_elements
    if scenario.strategy in SHARDED:
        return 2 * max(size for _, size in unit_bytes(parameters, scenario.shards, scenario.width))
    return 0


def _sample(scenario: Scenario) -> tuple[ModelSpec, int, int]:
    return scenario.trained_model, scenario.micro_batch_size, scenario.width


def _block(scenario: Scenario) -> Bytes:
    return block_terms(*_sample(scenario), scenario.attention == "eager")


def _logits(scenario: Scenario) -> int:
    """The gradient of the logits in fp32, and its copy in the width of compute where that is another."""
    model, samples, width = _sample(scenario)
    rows, classes = (samples, model.num_classes) if model.kind == "mlp" else (samples * model.context, model.vocab_size)
    return rows * classes * (FP32_BYTES + (width if width != FP32_BYTES else 0))


def _fp32_gradients(scenario: Scenario, device: Bytes) -> int:
    """The fp32 copy of 2-byte gradients that the update of fp32 master weights reads; offload makes it on the host.

    One rank alone frees each gradient as it copies it, so that only the difference is added.
    """
    if not scenario.precision.endswith("mixed") or scenario.strategy in SHARDED or scenario.offload != "none":
        return 0
    copied = device["master_weights"]
    if scenario.strategy == "single":
        return copied - device["gradients"]
    return min(copied, FP32_BYTES * SUB_GROUP_ELEMENTS) if scenario.strategy == "zero3" else copied
