"""Bytes and seconds on the wire of one training step, for any scenario: the theory of a ring. No torch.

With P the bytes of the trained parameters in the width of compute, N ranks, and one micro-batch a step, a rank sends

| strategy | what it sends | law |
|---|---|---|
| ddp | all-reduce of gradients | 2 P (N-1)/N |
| zero1, zero2 | reduce-scatter of gradients, all-gather of updated parameters | 2 P (N-1)/N |
| zero3, fsdp | all-gather forwards and backwards, reduce-scatter | 3 P (N-1)/N; FSDP gathers its root once |
| hsdp on S shards | the same among S ranks, then an all-reduce of a shard between N/S copies | |

With accumulation ddp, zero1 and fsdp reduce once a step, zero2 and zero3 in every micro-batch. These are the laws;
DeepSpeed 0.19.8 reduces with an all-reduce at stages 1 and 2 and so sends 3 P there (labs/ds_schedule.py).
Source: ZeRO (arXiv 1910.02054), section 7; PyTorch FSDP (arXiv 2304.11277), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labs import ds_layout
from labs.footprint import parameters_of
from labs.memory import unit_bytes
from labs.scenario import SHARDED, Scenario
from labs.schedule import ddp_buckets
from labs.spec import ParameterSpec, backward_order
from labs.traffic import Collective, alpha_beta_seconds, ring_bytes
from labs.widths import FP32_BYTES

RANKS_PER_HOST = 8


@dataclass(frozen=True)
class Link:
    """A connection: seconds until a message arrives, and bytes a second that one rank sends over it."""

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class StepTraffic:
    """The collectives of one step that stay inside a host, and those that leave it, as one rank takes part in them."""

    within_host: tuple[Collective, ...]
    between_hosts: tuple[Collective, ...]

    @property
    def within_host_bytes(self) -> int:
        return sum(ring_bytes(call) for call in self.within_host)

    @property
    def between_hosts_bytes(self) -> int:
        return sum(ring_bytes(call) for call in self.between_hosts)

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank sends in one optimizer step; it receives as many."""
        return self.within_host_bytes + self.between_hosts_bytes

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes sent by kind of collective."""
        found: dict[str, int] = {}
        for call in (*self.within_host, *self.between_hosts):
            found[call.kind] = found.get(call.kind, 0) + ring_bytes(call)
        return found

    def seconds(self, within_host: Link, between_hosts: Link) -> float:
        """Seconds of all collectives one after another by alpha-beta; what computing hides is not taken off."""
        calls = [(call, within_host) for call in self.within_host] + [(c, between_hosts) for c in self.between_hosts]
        return sum(alpha_beta_seconds(call, link.latency_seconds, link.bytes_per_second) for call, link in calls)


def step_traffic(scenario: Scenario, ranks_per_host: int = RANKS_PER_HOST) -> StepTraffic:
    """List the collectives of one step. Ranks are numbered host by host; hsdp's shards are neighbours.

    A group of ranks that all sit in one host communicates within it; any other counts as between hosts.
    Raises ValueError if ranks_per_host < 1.
    """
    if ranks_per_host < 1:
        raise ValueError(f"ranks_per_host={ranks_per_host} leaves no place for a rank; try 8")
    shards, parameters = scenario.shards, parameters_of(scenario.model)
    calls = [call for call in _collectives(scenario, parameters) if call.group_size > 1]
    inside = scenario.world_size <= ranks_per_host
    if scenario.strategy == "hsdp" and not inside:
        fits = ranks_per_host % shards == 0  # a group of neighbours never straddles two hosts
        within = [call for call in calls if call.kind != "all_reduce" and fits]
        return StepTraffic(tuple(within), tuple(call for call in calls if call.kind == "all_reduce" or not fits))
    return StepTraffic(tuple(calls), ()) if inside else StepTraffic((), tuple(calls))


def _collectives(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    if scenario.strategy == "ddp":
        sizes = [p.num_elements * scenario.width for p in backward_order(parameters) if p.trainable]
        for size in ddp_buckets(sizes):
            yield Collective("all_reduce", size, scenario.world_size, element_bytes=scenario.width)
    elif scenario.strategy in SHARDED:
        yield from _fsdp(scenario, parameters)
    elif scenario.strategy == "zero3":
        yield from _zero3(scenario, parameters)
    elif scenario.strategy.startswith("zero"):
        yield from _reduced(scenario, parameters, 1 if scenario.strategy == "zero1" else None)
        for group in ds_layout.optimizer_groups(parameters):
            size = scenario.world_size * ds_layout.flat_part_elements(group, scenario.world_size)
            yield _sharded("all_gather", scenario, size)


def _fsdp(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    """Gather root and blocks, the blocks again backwards; reduce in the last micro-batch; one number for the norm."""
    (_, root), *blocks = unit_bytes(parameters, scenario.shards, scenario.width)
    trained = unit_bytes([p for p in parameters if p.trainable], scenario.shards, scenario.width)
    width, shards, times = scenario.width, scenario.shards, scenario.gradient_accumulation_steps
    yield Collective("all_gather", root, shards, times, width)
    for _, size in blocks:
        yield Collective("all_gather", size, shards, 2 * times, width)
    for _, size in trained:
        yield Collective("reduce_scatter", size, shards, element_bytes=width)
        if scenario.strategy == "hsdp":
            yield Collective("all_reduce", size // shards, scenario.world_size // shards, element_bytes=width)
    yield Collective("all_reduce", FP32_BYTES, shards)


def _zero3(scenario: Scenario, parameters: Sequence[ParameterSpec]) -> Iterator[Collective]:
    """Gather every unit forwards and backwards; parts are cut from the flat parameter, not by rows."""
    world, units = scenario.world_size, {}
    for parameter in parameters:
        part = ds_layout.part_elements(parameter.num_elements, world)
        units[parameter.unit] = units.get(parameter.unit, 0) + world * part
    for elements in units.values():
        yield _sharded("all_gather", scenario, elements, 2 * scenario.gradient_accumulation_steps)
    yield from _reduced(scenario, parameters)


def _reduced(scenario: Scenario, parameters: Sequence[ParameterSpec], times: int | None = None) -> Iterator[Collective]:
    """Reduce-scatter the gradients bucket by bucket, in every micro-batch unless `times` says otherwise."""
    left, times = sum(p.num_elements for p in parameters if p.trainable), times or scenario.gradient_accumulation_steps
    full, last = divmod(left, scenario.bucket_elements)
    for elements, count in ((scenario.bucket_elements, full), (last, 1)):
        if elements and count:
            yield _sharded("reduce_scatter", scenario, elements, times * count)


def _sharded(kind: str, scenario: Scenario, elements: int, count: int = 1) -> Collective:
    """A collective of equal shards, padded to a whole number of elements a rank."""
    padded = -(-elements // scenario.world_size) * scenario.world_size
    return Collective(kind, padded * scenario.width, scenario.world_size, count, scenario.width)
