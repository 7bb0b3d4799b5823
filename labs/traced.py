"""A few steps of any way to train, the last one traced: its memory by state, its collectives, its bytes on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from labs.config import ModelTrainingConfig
from labs.data import load_data
from labs.peaks import MemoryTrace, ParameterStates
from labs.recorder import Recorder
from labs.records import StepMemory
from labs.strategies.base import build_engine
from labs.traffic import Collective, ring_bytes
from labs.wire import measured_bytes
from labs.workload import build_model


@dataclass(frozen=True)
class Version:
    """A way to train: what is called for a loss, for its backward, for the step, and for the tensors by state."""

    forward: Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
    backward: Callable[[torch.Tensor], object]
    finish: Callable[[], object]
    states: Callable[[], Mapping[str, Iterable[torch.Tensor]]]


@dataclass(frozen=True)
class TracedRun:
    """What one rank saw: a loss a step [nats], and memory, collectives and bytes sent of the last step.

    `sent_bytes` is None where the system does not count the bytes of sockets.
    """

    losses: tuple[float, ...]
    memory: StepMemory
    calls: tuple[Collective, ...]
    sent_bytes: int | None

    @property
    def ring_bytes(self) -> int:
        """Bytes that an ideal ring would send for the collectives of the step."""
        return sum(map(ring_bytes, self.calls))


def by_hand(model: nn.Module, finish: Callable[[], object], parts: Iterable[nn.Parameter] = ()) -> Version:
    """Train a plain model: `finish()` is called after backward; `parts` are parameters that the model does not list."""
    states = ParameterStates([*model.parameters(), *parts])
    return Version(lambda batch: model(*batch), torch.Tensor.backward, finish, states)


def by_engine(config: ModelTrainingConfig, bucket: int | None = None) -> Callable[[nn.Module], Version]:
    """Train with the engine of `config.strategy`; `bucket` is DeepSpeed's for gradients [elements]."""

    def version(model: nn.Module) -> Version:
        if bucket is None:
            engine = build_engine(config, model)
        else:
            from labs.strategies import deepspeed  # only for who has it

            engines = {"zero1": deepspeed.ZeRO1Engine, "zero2": deepspeed.ZeRO2Engine, "zero3": deepspeed.ZeRO3Engine}
            engine = engines[config.strategy](model, config, bucket)
        return Version(engine.forward_loss, engine.backward, engine.step, engine.states_now)

    return version


def train_traced(
    version_of: Callable[[nn.Module], Version], config: ModelTrainingConfig, num_steps: int = 3
) -> TracedRun:
    """Train the config's model and data for a few steps on this rank and trace the last. Collective."""
    version, data = version_of(build_model(config.model, config.seed)), load_data(config)
    batches = [data.train_batch(config, step, 0, dist.get_rank()) for step in range(num_steps)]
    trace, recorder = MemoryTrace(version.states), Recorder()
    losses = [_step(version, batch) for batch in batches[:-1]]
    recorder.start()
    sockets = measured_bytes(lambda: losses.append(_step(version, batches[-1], trace)))
    world = dist.get_world_size()
    calls = [Collective(c.kind, c.size_bytes, world, element_bytes=c.element_bytes) for c in recorder.stop().calls]
    step_calls = tuple(call for call in calls if call.kind != "barrier")  # those are the meter's own
    return TracedRun(tuple(losses), trace.record, step_calls, sockets and sockets.sent_bytes)


def _step(version: Version, batch: tuple[torch.Tensor, ...], trace: MemoryTrace | None = None) -> float:
    with trace or nullcontext():
        loss = version.forward(batch)
        _begin(trace, "backward")
        version.backward(loss)
        _begin(trace, "step")
        version.finish()
    return loss.item()


def _begin(trace: MemoryTrace | None, phase: str) -> None:
    if trace is not None:
        trace.phase = phase
