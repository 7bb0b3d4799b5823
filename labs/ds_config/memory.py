"""Bytes of one rank under a DeepSpeed config, for a model of which the number of parameters is known. No torch.

States are those at the end of the backward pass. The arithmetic is that of labs/ds_layout.py for one long tensor: it
leaves out what depends on the shapes (small parameters that stay whole, staging buffers) and activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from labs.ds_config.reading import Reading
from labs.ds_layout import flat_part_elements, part_elements
from labs.spec import ParameterSpec
from labs.widths import FP32_BYTES

STATES = ("parameters", "gradients", "optimizer", "master_weights")
LARGEST_BUCKET = 10**15  # elements; a config may hold any number
PLACES = ("device", "host", "nvme")
MOMENTS = {"adam": 2, "adamw": 2, "muadam": 2, "muadamw": 2, "lamb": 2, "adagrad": 1, "lion": 1, "musgd": 0, "sgd": 0}


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank: {state: {place: bytes}}, and on the device what comes and goes (at most, each).

    Stage 3 has one more state, "reduce_bucket": gradients pass through it, and it is always there.
    """

    num_parameters: int
    states: dict[str, dict[str, int]]
    passing: dict[str, int]

    def place_bytes(self, place: str) -> int:
        """Bytes of all states in one place: device, host or nvme."""
        return sum(state[place] for state in self.states.values())

    def to_dict(self) -> dict:
        """Return what the JSON carries; every number in bytes but the first."""
        states = {
            state: {f"{place}_bytes": size for place, size in places.items()} for state, places in self.states.items()
        }
        totals = {f"{place}_bytes": self.place_bytes(place) for place in PLACES}
        passing = {f"{name.replace(' ', '_')}_bytes": size for name, size in self.passing.items()}
        return {"num_parameters": self.num_parameters, "states": states, **totals, "passing": passing}


def rank_memory(found: Reading, num_parameters: int) -> RankMemory | None:
    """Count the bytes of one rank; None where the config is refused in what decides them."""
    refused = found.zero is None or found.fp16 is None or found.bf16 is None
    if refused or not 1 <= found.world_size < inf:
        return None
    stage, world = int(found.zero.stage), int(found.world_size)
    width = 2 if found.fp16.enabled or found.bf16.enabled else FP32_BYTES
    part, whole = _part(stage, num_parameters, world), num_parameters
    held = {
        "parameters": width * (part if stage == 3 else world * part if stage else whole),
        "gradients": width * (part if stage >= 2 else whole),
        **_updated(found, part if stage else whole, width),
    }
    if stage == 3 and found.zero.contiguous_gradients:
        held["reduce_bucket"] = width * min(found.zero.reduce_bucket_size, LARGEST_BUCKET)  # it is never freed
    states = {state: dict.fromkeys(PLACES, 0) | {"device": size} for state, size in held.items()}
    _offload(found, states, part, width)
    return RankMemory(num_parameters, states, _passing(found, num_parameters, width))


def _part(stage: int, num_parameters: int, world: int) -> int:
    if stage == 3:
        return part_elements(num_parameters, world)
    return flat_part_elements([ParameterSpec("all", (num_parameters,), "root")], world)


def _updated(found: Reading, owned: int, width: int) -> dict[str, int]:
    """Optimizer states and master weights: fp32, but for the two settings of 2 bytes; stage 0 in fp32 has no copy."""
    in_two = found.bf16.bf16_master_weights_and_grads or found.fp16.fp16_master_weights_and_grads
    states_in_two = found.bf16.bf16_optimizer_states or found.fp16.fp16_master_weights_and_grads
    masters = 0 if found.zero.stage == 0 and width == FP32_BYTES else owned * (2 if in_two else FP32_BYTES)
    moments = MOMENTS.get(optimizer_name(found.config).lower(), 2)
    return {"optimizer": moments * owned * (2 if states_in_two else FP32_BYTES), "master_weights": masters}


def optimizer_name(config: dict) -> str:
    """The name in the optimizer block; AdamW where the script brings its own, which this arithmetic assumes."""
    optimizer = config.get("optimizer")
    name = optimizer.get("type") if isinstance(optimizer, dict) else None
    return name if isinstance(name, str) else "AdamW"


def _offload(found: Reading, states: dict, part: int, width: int) -> None:
    """Move what is offloaded; the optimizer on the host needs gradients in fp32 beside it, and the way back."""
    stage, zero = int(found.zero.stage), found.zero
    to = _place(zero.offload_optimizer, stage)
    if stage and to != "device":
        moved = zero.offload_optimizer.ratio
        for state in ("optimizer", "master_weights"):
            size = states[state]["device"]
            states[state][to] = int(size * moved)
            states[state]["device"] = size - int(size * moved)
        states["gradients"]["host"] += FP32_BYTES * part
        if stage < 3:
            states["parameters"]["host"] += width * part
        if stage == 2:  # whole gradients wait on the host from micro-batch to micro-batch
            states["gradients"]["device"] = 0
            states["gradients"]["host"] += width * part if found.batch and found.batch[2] > 1 else 0
    to = _place(zero.offload_param, stage)
    if stage == 3 and to != "device":
        states["parameters"][to] += states["parameters"]["device"]
        states["parameters"]["device"] = 0


def _place(block, stage: int) -> str:
    if block is None or block.device == "none":
        return "device"
    return "nvme" if block.device == "nvme" and stage == 3 else "host"


def _passing(found: Reading, num_parameters: int, width: int) -> dict[str, int]:
    stage, zero = int(found.zero.stage), found.zero
    bucket = min(zero.reduce_bucket_size, LARGEST_BUCKET)
    if stage == 3:
        return {"gathered parameters": width * min(zero.max_live_parameters, num_parameters)}
    if not stage or not zero.contiguous_gradients:
        return {}
    buckets = 2 if zero.overlap_comm else 1  # the second fills while the first is sent
    return {"reduce bucket": buckets * width * bucket}
