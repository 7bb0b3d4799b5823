"""The only data that leaves a rank. Frozen, JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan, nan
from pathlib import Path

from labs.config import ConfigError, ModelTrainingConfig
from labs.moments import RankTimeline
from labs.whole import write_whole

STATES = ("parameters", "gradients", "optimizer", "master_weights", "activations", "buffers")
MODEL_STATES = tuple(state for state in STATES if state != "activations")  # what a rank holds from step to step


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step: mean loss [nats] over the global batch, global gradient norm before clipping."""

    step: int
    loss: float
    grad_norm: float
    layer_grad_norms: dict[str, float]
    learning_rate: float
    seconds: float
    communication_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class EvalRecord:
    """Validation loss after a step beside the unigram (text) or majority-class (table) baseline, both mean nats."""

    step: int
    validation_loss: float
    baseline_loss: float


def best_of(evals: Iterable[EvalRecord]) -> EvalRecord:
    """Return the first of the evaluations with the lowest validation loss; a loss that is nan is never lower."""
    return min(evals, key=lambda record: inf if isnan(record.validation_loss) else record.validation_loss)


@dataclass(frozen=True)
class StateBytes:
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True)
class MemoryRecord:
    """Bytes that one rank holds, by state (keys: STATES), and the peak of parameter bytes that were live at once."""

    states: dict[str, StateBytes]
    peak_parameters: StateBytes


@dataclass(frozen=True)
class TrafficRecord:
    """Bytes of one rank on the wire over all training steps; set-up, metrics and evaluation are not counted.

    `predicted_bytes` is what gloo should send, `theory_bytes` what an ideal ring would. `sent_bytes` and
    `received_bytes` come from the kernel's counters of the rank's sockets; None where the system has none.
    """

    sent_bytes: int | None
    received_bytes: int | None
    predicted_bytes: int
    theory_bytes: int
    collectives: dict[str, int]


@dataclass(frozen=True)
class StepMemory:
    """Bytes that one rank held after every operation of one step, by state; "activations" hold temporaries, too.

    `phases` are (name, number of its first operation), in order; the series of all states are equally long.
    """

    rank: int
    phases: tuple[tuple[str, int], ...]
    states: dict[str, tuple[int, ...]]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.states.values(), strict=True)))

    @property
    def peak_bytes(self) -> int:
        return max(self.totals)

    @property
    def peak_phase(self) -> str:
        """Name the phase in which the rank holds most."""
        place = self.totals.index(self.peak_bytes)
        return [name for name, first in self.phases if first <= place][-1]

    def peak_of(self, *names: str) -> int:
        """Most bytes that these states have together at one moment; 0 for one that is not there."""
        series = [self.states[name] for name in names if name in self.states]
        return max(map(sum, zip(*series, strict=True)), default=0)

    def at_end(self, name: str) -> int:
        """Bytes of a state when the step is over."""
        return self.states[name][-1] if name in self.states else 0


@dataclass(frozen=True)
class RankRecord:
    """What one rank returns from a run; its first step began at `first_step_at` [seconds since the epoch]."""

    rank: int
    first_step_at: float
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    memory: MemoryRecord
    traffic: TrafficRecord
    timeline: RankTimeline | None = None


def timeline_step(config: ModelTrainingConfig) -> int | None:
    """Return the step (counted from 0) whose timeline is recorded: the last but one, never the first; else None."""
    return config.steps - 2 if config.steps >= 3 else None


def steps_per_second(steps: tuple[StepRecord, ...]) -> float:
    """Steps over their seconds; in four or more without the first (warm-up) and the two that are looked into."""
    counted = steps[1:-2] or steps
    return len(counted) / sum(step.seconds for step in counted)


@dataclass(frozen=True)
class RunResult:
    """A finished run: its description and the records of every rank."""

    config: ModelTrainingConfig
    ranks: tuple[RankRecord, ...]
    startup_seconds: float

    @classmethod
    def from_ranks(cls, config: ModelTrainingConfig, ranks: Iterable[RankRecord], started_at: float) -> RunResult:
        """Collect the records of all ranks, in order of rank.

        `startup_seconds` is the time from `started_at` [seconds since the epoch] until the last rank's first step.
        """
        ranks = tuple(ranks)
        return cls(config, ranks, max(rank.first_step_at for rank in ranks) - started_at)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Steps as rank 0 saw them; the laws in tests/ hold that every rank saw the same."""
        return self.ranks[0].steps

    @property
    def evals(self) -> tuple[EvalRecord, ...]:
        return self.ranks[0].evals

    @property
    def best_eval(self) -> EvalRecord:
        """The evaluation with the lowest validation loss."""
        return best_of(self.evals)

    @property
    def ended_because(self) -> str:
        """Say in words why the run ended where it did."""
        if len(self.steps) == self.config.steps:
            return f"all {self.config.steps} steps are done"
        evaluations = (
            f"{self.config.early_stopping_patience} evaluation{'s' * (self.config.early_stopping_patience > 1)}"
        )
        return (
            f"after step {len(self.steps)} of {self.config.steps}: no better validation loss in {evaluations} since "
            f"step {self.best_eval.step + 1}"
        )

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]

    @property
    def grad_norms(self) -> list[float]:
        return [step.grad_norm for step in self.steps]

    @property
    def steps_per_second(self) -> float:
        return steps_per_second(self.steps)

    def to_dict(self) -> dict:
        """Return what `python -m labs train --json` prints, and `ranks`, from which `from_dict` rebuilds the run."""
        return {
            "config": self.config.model_dump(),
            "losses": self.losses,
            "grad_norms": self.grad_norms,
            "eval": [asdict(record) for record in self.evals],
            "memory": [{name: asdict(state) for name, state in rank.memory.states.items()} for rank in self.ranks],
            "traffic": [asdict(rank.traffic) for rank in self.ranks],
            "startup_seconds": self.startup_seconds,
            "steps_per_second": self.steps_per_second,
            "ranks": [asdict(rank) for rank in self.ranks],
        }

    @classmethod
    def from_dict(cls, data: dict) -> RunResult:
        """Rebuild a run from `to_dict()`. Raises KeyError for a missing part, ConfigError for a bad config."""
        ranks = tuple(_rank_from_dict(rank) for rank in data["ranks"])
        config = ModelTrainingConfig(**data["config"])
        return cls(config, ranks, data["startup_seconds"])

    def save(self, path) -> Path:
        """Write the run as JSON and return the path; a number that is not finite is null, and nan when read back."""
        path = Path(path)
        write_whole(path, strict_json(self.to_dict(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path) -> RunResult:
        """Read a run written by `save`. Raises ConfigError for a file that holds something else, OSError for none."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as problem:
            raise ConfigError(f"{path} is not a JSON file ({problem}); give a file that RunResult.save wrote") from None
        if not isinstance(data, dict) or "ranks" not in data:
            raise ConfigError(f"{path} holds no finished run; python -m labs train --config {path} runs a description")
        return cls.from_dict(data)


def strict_json(data, indent: int | None = None) -> str:
    """Write JSON that every reader accepts: a number that is not finite, of a run that diverged, becomes null."""
    return json.dumps(_without_infinities(data), allow_nan=False, indent=indent)


def _without_infinities(data):
    if isinstance(data, dict):
        return {name: _without_infinities(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_without_infinities(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def _with_nan(data: dict) -> dict:
    """Read null, where a number must stand, as nan."""
    nested = {name: _with_nan(value) for name, value in data.items() if isinstance(value, dict)}
    return {name: nan if value is None else nested.get(name, value) for name, value in data.items()}


def _rank_from_dict(data: dict) -> RankRecord:
    memory = data["memory"]
    return RankRecord(
        rank=data["rank"],
        first_step_at=data["first_step_at"],
        steps=tuple(StepRecord(**_with_nan(step)) for step in data["steps"]),
        evals=tuple(EvalRecord(**_with_nan(record)) for record in data["evals"]),
        memory=MemoryRecord(
            states={name: StateBytes(**state) for name, state in memory["states"].items()},
            peak_parameters=StateBytes(**memory["peak_parameters"]),
        ),
        traffic=TrafficRecord(**data["traffic"]),
        timeline=RankTimeline.from_dict(data["timeline"]) if data.get("timeline") else None,
    )
