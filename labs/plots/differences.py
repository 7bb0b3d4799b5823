"""Runs side by side: what differs between their configs, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable

from labs.config import ModelTrainingConfig
from labs.plots.tables import Table
from labs.plots.view import RunView, model_name, model_state_bytes, sent_bytes_per_step, views_of
from labs.records import steps_per_second
from labs.spec import ModelSpec
from labs.units import format_bytes, format_count

WORDS = {"world_size": "ranks", "gradient_accumulation_steps": "accumulation", "use_mixed_precision": "precision"}


def table_differences(runs) -> Table:
    """List what differs between the configs of some runs, a row a field, then their measured results, a column a run.

    `runs` is a RunResult, a list of them, or {name: RunResult}; bytes are those of the fullest or busiest rank.
    """
    views = views_of(runs)
    rows = [*_differing([view.config for view in views.values()]), *_results(list(views.values()))]
    number = len(rows) - len(_RESULTS)
    caption = "What was chosen differently, and what was measured"
    if number == 0:
        caption = (
            "Nothing was chosen differently; measured" if len(views) > 1 else "Measured; tick a second run to compare"
        )
    return Table(caption, ("", *views), tuple(rows))


def _differing(configs: list[ModelTrainingConfig]) -> Iterable[tuple[str, ...]]:
    for name in ModelTrainingConfig.model_fields:
        values = [getattr(config, name) for config in configs]
        if any(value != values[0] for value in values) and name != "model":
            yield (WORDS.get(name, name.replace("_", " ")), *(_value(name, value) for value in values))
    models = [config.model for config in configs]
    if any(model != models[0] for model in models):
        yield ("model", *map(model_name, models))
        yield from _differing_models(models)


def _differing_models(models: list[ModelSpec]) -> Iterable[tuple[str, ...]]:
    yield ("model: parameters", *(format_count(model.num_parameters) for model in models))
    for name in ModelSpec.model_fields:
        values = [getattr(model, name) for model in models]
        if any(value != values[0] for value in values):
            yield (f"model: {name.replace('_', ' ')}", *map(str, values))


def _value(name: str, value) -> str:
    if name == "use_mixed_precision":
        return "bf16, fp32 masters" if value else "fp32"
    if value is None:
        return "off"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _last_loss(view: RunView) -> str:
    return f"{view.steps[-1].loss:.4f}" if view.steps else "-"


def _validation(view: RunView) -> str:
    return f"{view.evals[-1].validation_loss:.4f}" if view.evals else "-"


def _states(view: RunView) -> str:
    return format_bytes(max(map(model_state_bytes, view.measured))) if view.measured else "-"


def _activations(view: RunView) -> str:
    return format_bytes(max(states.get("activations", 0) for states in view.measured)) if view.measured else "-"


def _peak(view: RunView) -> str:
    return format_bytes(max(peak.measured_bytes for peak in view.peaks)) if view.peaks else "-"


def _sent(view: RunView) -> str:
    sent = sent_bytes_per_step(view)
    return "not measured" if sent is None else format_bytes(sent)


def _calls(view: RunView) -> str:
    calls = max((sum(record.collectives.values()) for record in view.traffic), default=0)
    return f"{calls / max(1, len(view.steps)):.3g}"


def _speed(view: RunView) -> str:
    return f"{steps_per_second(view.steps):.1f}" if view.steps else "-"


_RESULTS = {
    "last loss [nats]": _last_loss,
    "validation loss [nats]": _validation,
    "states held by a rank": _states,
    "activations of a rank": _activations,
    "most parameters live at once": _peak,
    "sent by a rank in a step": _sent,
    "collectives a step, on average": _calls,
    "steps a second": _speed,
}


def _results(views: list[RunView]) -> list[tuple[str, ...]]:
    return [(name, *map(result, views)) for name, result in _RESULTS.items()]
