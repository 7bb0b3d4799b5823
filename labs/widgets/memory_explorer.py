"""Sliders for any model on any number of ranks: what one rank holds under every strategy, and what breaks first."""

from __future__ import annotations

from base64 import b64encode
from html import escape

import ipywidgets as widgets

from labs.errors import ConfigError
from labs.fit import what_breaks_first
from labs.plots.footprints import model_title, plot_footprints, table_footprints
from labs.scenario import Scenario
from labs.units import GiB, format_count
from labs.widgets.background import Background
from labs.widgets.explorer_controls import ExplorerControls
from labs.widgets.pictures import image, screen, show
from labs.widgets.static_view import WIDGET_VIEW

LIVE_DPI, STATIC_DPI = 100, 110
ALWAYS_POSSIBLE = "zero3"  # drawn around when the chosen strategy is refused: it takes every offload


def memory_explorer(scenario: Scenario | None = None, capacity_gib: int = 80) -> MemoryExplorer:
    """Return the memory explorer, its controls set to a scenario; nothing is started, all numbers are predicted.

    `capacity_gib` [GiB] is what one device holds. Raises ConfigError for a capacity that is not offered.
    """
    return MemoryExplorer(scenario or Scenario(model="llama-3-8b", strategy="zero3"), capacity_gib)


class MemoryExplorer:
    """The screen: `controls`, `verdict` (a sentence), `picture` and `table`, all of them answers to `scenario`.

    A move is answered in words at once; the picture follows from a thread, which draws the latest choice alone.
    Without a kernel its output is the static picture and the table as text.
    """

    def __init__(self, scenario: Scenario, capacity_gib: int):
        self._background = Background(self._show_error)
        self.controls = ExplorerControls(scenario, capacity_gib, self._moved)
        self.verdict, self.warning, self.table = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.picture = image("960px")
        self.screen = screen([self.controls.screen(), self.verdict, self.warning, self.picture, self.table])
        self._answer()
        self._draw()

    @property
    def scenario(self) -> Scenario:
        """The set-up that the controls describe now. Raises ConfigError while they describe none."""
        return self.controls.read()

    @property
    def capacity_bytes(self) -> int:
        return self.controls.capacity_gib.value * GiB

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the picture shows the latest choice; returns False when the time is over first."""
        return self._background.wait_until_idle(timeout_seconds)

    def _moved(self) -> None:
        self._answer()
        self._background.do("picture", self._draw, at_once=True)

    def _answer(self) -> None:
        """Say whether the choice fits, and put the table beside it."""
        drawn = self._drawn_scenario()
        try:
            sentence = what_breaks_first(self.scenario, self.capacity_bytes)
            sign = "&#10003;" if sentence.startswith("It fits") else "&#10007;"
        except ConfigError as refused:
            sign, sentence = "&#10007; <b>Not possible:</b>", str(refused)
        self.verdict.value = f'<div role="status" style="line-height:1.4">{sign} {escape(sentence)}</div>'
        self.warning.value = _experts_warning(drawn) if drawn else ""
        table = table_footprints(drawn, self.capacity_bytes)._repr_html_() if drawn else ""
        self.table.value = f"<details><summary>The same in numbers</summary>{table}</details>" if table else ""

    def _draw(self) -> None:
        drawn = self._drawn_scenario()
        show(self.picture, self._plot(drawn) if drawn else None, LIVE_DPI)

    def _plot(self, drawn: Scenario):
        return plot_footprints(drawn, self.capacity_bytes, chosen=self.controls.strategy.value)

    def _drawn_scenario(self) -> Scenario | None:
        """The choice, or with a strategy that can do what the chosen one cannot; None where none can."""
        for strategy in (self.controls.strategy.value, ALWAYS_POSSIBLE):
            try:
                return self.controls.read(strategy)
            except ConfigError:
                continue
        return None

    def _show_error(self, text: str) -> None:
        self.verdict.value = f'<pre role="alert">{escape(text)}</pre>'

    def _repr_mimebundle_(self, **_) -> dict:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.screen.model_id}
        drawn = self._drawn_scenario()
        if drawn is None:
            return {WIDGET_VIEW: view, "text/plain": "no strategy can do this; change a control"}
        return {
            WIDGET_VIEW: view,
            "text/plain": str(table_footprints(drawn, self.capacity_bytes)),
            "image/png": b64encode(self._plot(drawn).png(STATIC_DPI)).decode(),
        }


def _experts_warning(scenario: Scenario) -> str:
    """Warn where a model stores more parameters than compute one token."""
    model = scenario.model
    if model.num_active_parameters == model.num_parameters:
        return ""
    active = format_count(model.num_active_parameters)
    return (
        f"<div>&#9888; {escape(model_title(model))} is a mixture of experts: {active} parameters compute each token, "
        f"but a training step reaches all {format_count(model.num_parameters)}, so all of them need gradients and "
        "optimizer states.</div>"
    )
