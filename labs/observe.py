"""What a run records about itself: seconds, norms, bytes held, bytes sent, each beside its prediction.

The observer's own communication goes over a group of its own, whose sockets and calls are not counted, and its own
seconds are left out of the step's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from labs import memory, schedule, traffic
from labs.config import ModelTrainingConfig
from labs.measure import KeptActivations, PeakParameters, tensor_bytes
from labs.moments import RankTimeline
from labs.recorder import Recorder
from labs.records import STATES, MemoryRecord, StateBytes, StepRecord, TrafficRecord, timeline_step
from labs.strategies.base import Engine
from labs.timeline import TimelineRecorder
from labs.wire import WaitClock, WireMeter, new_instrument_group


class Observer:
    """Watches one engine on one rank. Every rank makes the same calls in the same order.

    The last step is inspected, which slows it down, and so does the recording of a timeline, in the step before. With
    early stopping every step that may be the last is inspected.
    """

    def __init__(self, config: ModelTrainingConfig, engine: Engine):
        self.config, self.engine, self.rank = config, engine, dist.get_rank()
        self._group = new_instrument_group()
        self._wire, self._recorder, self._clock = WireMeter(self._group), Recorder(self._group), WaitClock()
        self._layer_norms: dict[str, float] = {}
        self._measured: dict[str, int] = {}
        self._peak_bytes = self._num_steps = 0
        self._timeline = TimelineRecorder(instrument=self._group)
        self._timeline.watch_gradients(engine.module)
        self._recorder.start()
        self._wire.start()

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Time one training step; inspect it if it may be the last one; record the last but one."""
        self._inspecting = self.config.may_end_after(step)
        peak = PeakParameters(self.engine.module, self.engine.live_parameters) if self._inspecting else nullcontext()
        self._waited = self._elapsed = 0.0
        with peak, self._timeline if step == timeline_step(self.config) else nullcontext():
            self._clock.lap()
            yield
            self._lap()
        self._recorder.step()
        self._num_steps += 1
        if self._inspecting:
            self._peak_bytes = peak.peak_bytes
            self._measure_held()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Stand around a forward pass: count what autograd keeps of it in the inspected step."""
        kept = KeptActivations(self._model_tensors) if self._inspecting else nullcontext()
        with kept, self._timeline.during("forward"):
            yield
        if self._inspecting:
            self._measured["activations"] = kept.kept_bytes

    def backward(self) -> AbstractContextManager:
        """Stand around a backward pass."""
        return self._timeline.during("backward")

    def optimizer(self) -> AbstractContextManager:
        """Stand around clipping and update."""
        return self._timeline.during("optimizer")

    def gradients_ready(self) -> None:
        """Stand between the last backward and the optimizer: gradient norms by layer, and bytes of gradients."""
        self._lap()
        with self._timeline.paused():
            self._layer_norms = self.engine.layer_grad_norms(self._group.group)
        if self._inspecting:
            self._measured["gradients"] = tensor_bytes(self.engine.held()["gradients"])
        self._clock.lap()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens inside out of the traffic."""
        self._recorder.pause()
        with self._wire.paused():
            yield
        self._recorder.resume()

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        """Add numbers over all ranks, in fp64."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._group.group)
        return total.tolist()

    def step_record(self, step: int, local_loss: float, grad_norm: float) -> StepRecord:
        """Describe the step that ended: the loss is averaged over ranks here."""
        return StepRecord(
            step=step,
            loss=self.sum_over_ranks([local_loss])[0] / self.config.world_size,
            grad_norm=grad_norm,
            layer_grad_norms=self._layer_norms,
            learning_rate=self.config.learning_rate_at(step),
            seconds=self._elapsed,
            communication_seconds=self._waited if self.config.world_size > 1 else 0.0,
            tokens_per_second=self.config.tokens_per_step / self._elapsed,
        )

    def memory_record(self) -> MemoryRecord:
        """Set the bytes held by this rank beside the predicted ones, state by state."""
        predicted = memory.state_bytes(self.config, self.rank)
        states = {name: StateBytes(predicted[name], self._measured[name]) for name in STATES}
        return MemoryRecord(states, StateBytes(memory.peak_parameters_bytes(self.config, self.rank), self._peak_bytes))

    def traffic_record(self) -> TrafficRecord:
        """Set the bytes on this rank's sockets beside gloo's and a ring's arithmetic, over all steps."""
        sent, received = self._wire.stop()
        recording = self._recorder.stop()
        collectives = schedule.run_collectives(self.config, self.rank, num_steps=self._num_steps)
        predicted, theory = traffic.predict(collectives, self.rank)
        return TrafficRecord(sent, received, predicted, theory, recording.counts())

    @property
    def timeline(self) -> RankTimeline | None:
        """What this rank did in the recorded step; None in a run too short to have one."""
        return self._timeline.timeline

    def _model_tensors(self) -> list[torch.Tensor]:
        return [*self.engine.live_parameters(), *self.engine.module.buffers()]

    def _lap(self) -> None:
        waited, elapsed = self._clock.lap()
        self._waited += waited
        self._elapsed += elapsed

    def _measure_held(self) -> None:
        held = self.engine.held()
        for name in ("parameters", "optimizer", "master_weights", "buffers"):
            self._measured[name] = tensor_bytes(held[name])
