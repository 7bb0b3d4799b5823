"""What can be drawn of a run at one moment, finished or still training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labs.config import ModelTrainingConfig
from labs.moments import RankTimeline
from labs.records import MODEL_STATES, EvalRecord, RunResult, StateBytes, StepRecord, TrafficRecord
from labs.spec import PRESETS, ModelSpec
from labs.units import format_count


@dataclass(frozen=True)
class RunView:
    """A run as far as it is known: lists by rank may be empty while it trains.

    `predicted` and `measured` hold {state: bytes} for each rank, `peaks` the most parameter bytes live at once.
    """

    config: ModelTrainingConfig
    steps: tuple[StepRecord, ...] = ()
    evals: tuple[EvalRecord, ...] = ()
    predicted: tuple[dict[str, int], ...] = ()
    measured: tuple[dict[str, int], ...] = ()
    peaks: tuple[StateBytes, ...] = ()
    traffic: tuple[TrafficRecord, ...] = ()
    timelines: tuple[RankTimeline, ...] = ()

    @property
    def name(self) -> str:
        return run_name(self.config)


def model_state_bytes(held: dict[str, int]) -> int:
    """Add up what a rank holds from step to step: all states but activations."""
    return sum(held.get(state, 0) for state in MODEL_STATES)


def sent_bytes_per_step(view: RunView) -> float | None:
    """Return the measured bytes a step of the rank that sends most; None where nothing was measured."""
    sent = [record.sent_bytes for record in view.traffic if record.sent_bytes is not None]
    return max(sent) / max(1, len(view.steps)) if sent else None


def view_of(run: RunResult | RunView) -> RunView:
    """Return what can be drawn of a run. Raises TypeError if it is neither a RunResult nor a RunView."""
    if isinstance(run, RunView):
        return run
    if not isinstance(run, RunResult):
        raise TypeError(f"a plot needs the RunResult that launch(config) returns, not {type(run).__name__}")
    states = [rank.memory.states for rank in run.ranks]
    return RunView(
        config=run.config,
        steps=run.steps,
        evals=run.evals,
        predicted=tuple({name: state.predicted_bytes for name, state in rank.items()} for rank in states),
        measured=tuple({name: state.measured_bytes for name, state in rank.items()} for rank in states),
        peaks=tuple(rank.memory.peak_parameters for rank in run.ranks),
        traffic=tuple(rank.traffic for rank in run.ranks),
        timelines=tuple(rank.timeline for rank in run.ranks if rank.timeline is not None),
    )


def views_of(runs) -> dict[str, RunView]:
    """Name the runs to draw together: one run, a list of runs, or {name: run}; equal names are numbered."""
    if isinstance(runs, Mapping):
        return {str(name): view_of(run) for name, run in runs.items()}
    views = [view_of(run) for run in (runs if isinstance(runs, (list, tuple)) else [runs])]
    named: dict[str, RunView] = {}
    for view in views:
        named[unused_name(view.name, named)] = view
    return named


def unused_name(wish: str, taken) -> str:
    """Return the wished name, numbered when it is taken: 'ddp x 2', 'ddp x 2 (2)', ..."""
    number = 1
    name = wish
    while name in taken:
        number += 1
        name = f"{wish} ({number})"
    return name


def run_name(config: ModelTrainingConfig) -> str:
    """Name a run by what decides it most: 'zero2 x 4, tiny, bf16'."""
    precision = "bf16" if config.use_mixed_precision else "fp32"
    extras = [word for word, on in (("offload", config.offload), ("ckpt", config.activation_checkpointing)) if on]
    return ", ".join([f"{config.strategy} x {config.world_size}", model_name(config.model), precision, *extras])


def model_name(spec: ModelSpec) -> str:
    """Name a model by its preset, or by its kind and number of parameters: 'gpt 3.20 M'."""
    for name in PRESETS:
        if spec == ModelSpec.from_name(name):
            return name
    return f"{spec.kind} {format_count(spec.num_parameters)}"
