"""What the pages of a lab show: the choice as predicted, the latest run, or a kept one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.plots.view import RunView, view_of
from labs.records import RunResult
from labs.widgets.watch import Watch, preview

CHOICE, LATEST = "the choice above, predicted", "the latest run"


def name_now(name: str, before: Mapping[str, RunResult], now: Mapping[str, RunResult]) -> str:
    """Return the name that a kept run has now, after it may have been renamed; any other name as it is."""
    run = before.get(name)
    return next((other for other, result in now.items() if result is run), name)


class Shown:
    """A labelled list of what can be shown; `latest` is the run in progress, or one that ended before its end."""

    def __init__(self, on_change: Callable[[], None]):
        self.latest: Watch | None = None
        self._results: Mapping[str, RunResult] = {}
        self.control = widgets.Dropdown(options=[CHOICE], description="show", layout={"width": "290px"})
        self.control.style.description_width = "initial"
        self.control.observe(lambda change: on_change(), names="value")

    def offer(self, results: Mapping[str, RunResult], value: str | None = None) -> None:
        """Offer the kept runs too, and show `value`, or what is shown already if that is still there."""
        value = value or name_now(self.control.value, self._results, results)
        self._results = dict(results)
        options = (CHOICE, *((LATEST,) if self.latest else ()), *self._results)
        if self.control.options != options:
            self.control.options = options
        self.control.value = value if value in options else CHOICE

    def view(self, choice: ModelTrainingConfig | None) -> RunView | None:
        """Return what is to be drawn; None where the choice cannot run and is what is shown."""
        name = self.control.value
        if name in self._results:
            return view_of(self._results[name])
        if name == LATEST and self.latest is not None:
            return self.latest.view()
        return preview(choice) if choice else None
