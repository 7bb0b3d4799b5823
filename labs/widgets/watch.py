"""One run as a lab follows it: what has arrived so far, and what arithmetic says about the rest."""

from __future__ import annotations

import threading
from dataclasses import replace

from labs import memory, schedule, traffic
from labs.config import ModelTrainingConfig
from labs.plots.view import RunView
from labs.records import EvalRecord, StepRecord, TrafficRecord


def predicted_memory(config: ModelTrainingConfig) -> tuple[dict[str, int], ...]:
    """Predict {state: bytes} of each rank."""
    return tuple(memory.state_bytes(config, rank) for rank in range(config.world_size))


def predicted_traffic(config: ModelTrainingConfig) -> tuple[TrafficRecord, ...]:
    """Predict what each rank sends over all steps; nothing is measured yet."""
    pairs = [traffic.predict(schedule.run_collectives(config, rank), rank) for rank in range(config.world_size)]
    return tuple(TrafficRecord(None, None, gloo, ring, {}) for gloo, ring in pairs)


def preview(config: ModelTrainingConfig) -> RunView:
    """Return what can be drawn of a run before its first step."""
    return RunView(config, predicted=predicted_memory(config), traffic=predicted_traffic(config))


class Watch:
    """Collects the records of a run while they arrive; `hear` may be called from any thread."""

    def __init__(self, config: ModelTrainingConfig):
        self.config = config
        self.ended = threading.Event()
        self.is_cancelled = False
        self._run = None
        self._steps: list[StepRecord] = []
        self._evals: list[EvalRecord] = []
        self._preview: RunView | None = None

    def follow(self, run) -> None:
        """Take the started run; it is cancelled right away if that was asked for in the meantime."""
        self._run = run
        if self.is_cancelled:
            run.cancel()

    def cancel(self) -> None:
        """Ask for the end of the run, also of one that is only about to start."""
        self.is_cancelled = True
        if self._run is not None:
            self._run.cancel()

    def hear(self, rank: int, record) -> bool:
        """Take a record and return whether it is something new to draw; all ranks see the same steps."""
        if rank == 0 and isinstance(record, StepRecord):
            self._steps.append(record)
        elif rank == 0 and isinstance(record, EvalRecord):
            self._evals.append(record)
        else:
            return False
        return True

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The steps that have ended, as rank 0 saw them."""
        return tuple(self._steps)

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def view(self) -> RunView:
        """Return what can be drawn now. The predictions are worked out on the first call."""
        if self._preview is None:
            self._preview = preview(self.config)
        before = self._preview
        return replace(before, steps=tuple(self._steps), evals=tuple(self._evals))

    def ending(self, run) -> str:
        """Say how far a run came that did not reach its end."""
        word = "cancelled" if self.is_cancelled else getattr(run, "state", "failed")
        return f"{word} after {self.num_steps} of {self.config.steps} steps"

    def status(self) -> str:
        """Say in one line where the run stands."""
        if self.is_cancelled:
            return "cancelling"
        if not self._steps:
            return "starting the ranks (the first start of a kernel takes about 10 s)"
        last = self._steps[-1]
        speed = f"{len(self._steps) / sum(step.seconds for step in self._steps):.1f} steps a second"
        return f"step {len(self._steps)} of {self.config.steps}, loss {last.loss:.3f}, {speed}"
