"""The pages that show one run, finished, in progress or only predicted: a picture each, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import NamedTuple

import ipywidgets as widgets

from labs.plots import (
    Picture,
    RunView,
    Table,
    plot_heat_map,
    plot_loss,
    plot_memory,
    plot_shard_map,
    plot_timelines,
    plot_traffic,
    table_heat_map,
    table_loss,
    table_memory,
    table_shard_map,
    table_timelines,
    table_traffic,
)  # fmt: skip
from labs.records import timeline_step
from labs.widgets.pictures import hidden_image, line, show

LIVE_DPI, FINAL_DPI = 100, 150
NO_CHOICE = "This choice cannot run, so there is nothing to show; the line under the controls says what to try."


class Page:
    """One tab: words where there is no picture yet, the picture, and its table, which `numbers` shows."""

    def __init__(self):
        self.words, self.image, self.table = line(), hidden_image(), widgets.HTML(layout={"display": "none"})
        self.screen = widgets.VBox([self.words, self.table, self.image])

    def show(self, picture: Picture | None, table: Table | None, dots_per_inch: int, words: str = "") -> None:
        self.words.value = escape(words)
        self.words.layout.display = "" if words else "none"
        show(self.image, picture, dots_per_inch)
        self.table.value = table._repr_html_() if table else ""

    def show_numbers(self, shown: bool) -> None:
        self.table.layout.display = "" if shown else "none"


class Kind(NamedTuple):
    """How a page draws a view: its picture, its table, and whether there is something to draw (else, what to say)."""

    plot: Callable[[RunView], Picture]
    table: Callable[[RunView], Table]
    missing: Callable[[RunView], str] = lambda view: ""


def _no_steps(view: RunView) -> str:
    return "" if view.steps else "This picture begins with the first step of a run."


def _no_timeline(view: RunView) -> str:
    if view.timelines:
        return ""
    step = timeline_step(view.config)
    if step is None:
        return "A run of fewer than three steps records no timeline."
    if view.measured:  # it has ended
        return f"The run ended after step {len(view.steps)}, before step {step + 1}, the one that is recorded."
    return (
        f"One step is recorded on every rank, step {step + 1} of {view.config.steps}; it shows when the run has ended."
    )


def _timelines(view: RunView) -> dict:
    return {f"{view.config.strategy} x {view.config.world_size}, step {len(view.steps) - 1}": view.timelines}


KINDS = {
    "Memory": Kind(lambda view: plot_memory(view), lambda view: table_memory(view)),
    "Wire": Kind(lambda view: plot_traffic(view), lambda view: table_traffic(view)),
    "Shards": Kind(lambda view: plot_shard_map(view.config), lambda view: table_shard_map(view.config)),
    "Loss": Kind(lambda view: plot_loss(view, view.config.steps), lambda view: table_loss(view), _no_steps),
    "Norms": Kind(
        lambda view: plot_heat_map(view.steps, None, view.config.steps),
        lambda view: table_heat_map(view.steps),
        _no_steps,
    ),
    "Timeline": Kind(
        lambda view: plot_timelines(_timelines(view)), lambda view: table_timelines(_timelines(view)), _no_timeline
    ),
}


class RunPages:
    """One page of each kind. Only the page on top is drawn: ranks need the cores more than hidden pictures do."""

    def __init__(self):
        self.pages = {name: Page() for name in KINDS}
        self._drawn: dict[str, tuple[RunView | None, int]] = {}

    def clear(self, name: str, view: RunView | None) -> None:
        """Take off a page what is not of this view, so that it is not taken for it until `draw` comes to it."""
        if name in KINDS and self._drawn.get(name, (view,))[0] != view:
            self.pages[name].show(None, None, LIVE_DPI, "drawing")
            del self._drawn[name]

    def draw(self, name: str, view: RunView | None, dots_per_inch: int) -> None:
        """Draw a view on a page, if that does not show it already; None is a choice that cannot run."""
        if self._drawn.get(name) == (view, dots_per_inch):
            return
        kind = KINDS[name]
        if words := kind.missing(view) if view else NO_CHOICE:
            self.pages[name].show(None, None, dots_per_inch, words)
        else:
            self.pages[name].show(kind.plot(view), kind.table(view), dots_per_inch)
        self._drawn[name] = view, dots_per_inch
