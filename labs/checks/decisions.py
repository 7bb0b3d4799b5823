"""What a decision of lesson 08 returns: asked for once or for many cases, read as a config of our own, run, counted."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from labs import memory
from labs.checks.answer import Answer, AnswerRaised, Raised, bare, outcomes
from labs.checks.verdict import Verdict, failed, shortened
from labs.config import ModelTrainingConfig
from labs.launcher import launch
from labs.records import RunResult
from labs.schedule import run_collectives
from labs.spec import ModelSpec
from labs.traffic import predict

STATES = ("parameters", "gradients", "optimizer", "master_weights")
# What says how a run is watched and kept, not what it holds, sends or computes; a check leaves it at these.
UNWATCHED = {"early_stopping_patience": None, "best_checkpoint": None}


def ask_all(answer: Answer, cases: Sequence[tuple]) -> list[Any]:
    """Call the answer once a case, all in one process. Raises AnswerRaised for the first case that raises."""
    values = outcomes(answer, cases) if isinstance(answer, Answer) else [bare(answer)(*case) for case in cases]
    for value in values:
        if isinstance(value, Raised):
            raise AnswerRaised(value.traceback)
    return values


def config_of(choice: Any) -> ModelTrainingConfig | None:
    """Return a choice as a config built anew from its fields, None for what is no config.

    So neither a subclass with methods of its own nor a field that was never validated decides what is run and counted.
    Raises ConfigError for fields that cannot be.
    """
    if not isinstance(choice, ModelTrainingConfig):
        return None
    fields = {name: value for name, value in vars(choice).items() if name in ModelTrainingConfig.model_fields}
    if isinstance(fields.get("model"), ModelSpec):
        fields["model"] = ModelSpec(**{name: vars(fields["model"])[name] for name in ModelSpec.model_fields})
    return ModelTrainingConfig(**{**fields, **UNWATCHED})


def no_config(choice: Any) -> Verdict:
    """Say what was returned in place of a config."""
    if isinstance(choice, RunResult):
        return failed("The function returned a run.", "The config of a run is run.config: return that.")
    hint = "It must return a labs.ModelTrainingConfig."
    return failed(f"The function returned {shortened(repr(choice), 120)}.", hint)


def run_of(choice: ModelTrainingConfig) -> RunResult:
    """Run two steps of a choice, with what no byte depends on as in a plain config."""
    return _run_once(choice.replace(steps=2, warmup_steps=0, eval_every=0, learning_rate=1e-4, seed=0))


@functools.cache
def _run_once(config: ModelTrainingConfig) -> RunResult:
    """Run a choice on real ranks; its bytes are the same each time, so the same choice is not run twice."""
    return launch(config, timeout_seconds=60)


def state_bytes(run: RunResult, state: str) -> int:
    return max(rank.memory.states[state].measured_bytes for rank in run.ranks)


def held_bytes(run: RunResult) -> int:
    return max(sum(rank.memory.states[state].measured_bytes for state in STATES) for rank in run.ranks)


def sent_bytes(run: RunResult) -> float:
    """Bytes that the busiest rank sent in a step: measured, or predicted where the system has no counters."""
    return max(rank.traffic.sent_bytes or rank.traffic.predicted_bytes for rank in run.ranks) / run.config.steps


def predicted_bytes(config: ModelTrainingConfig) -> int:
    by_rank = [memory.state_bytes(config, rank) for rank in range(config.world_size)]
    return max(sum(rank[state] for state in STATES) for rank in by_rank)


def predicted_sent_bytes(config: ModelTrainingConfig) -> float:
    return max(predict(run_collectives(config, rank), rank)[0] for rank in range(config.world_size)) / config.steps


def fewest_of(cost, configs) -> tuple[float, ModelTrainingConfig]:
    best = min(configs, key=cost)
    return cost(best), best
