"""Finished runs of a lab: named, laid over each other, removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import ipywidgets as widgets

from labs.plots.view import run_name, unused_name
from labs.records import RunResult


@dataclass(frozen=True)
class Row:
    """One kept run on the screen: tick to overlay, name to edit, button to remove."""

    result: RunResult
    overlay: widgets.Checkbox
    name: widgets.Text
    remove_button: widgets.Button
    screen: widgets.HBox


class KeptRuns:
    """Keeps results under names that differ. `on_change()` is called when what is laid over each other changes.

    No run gets one of the `reserved` names: they mean something else in the lists that offer the runs.
    """

    def __init__(self, on_change: Callable[[], None], reserved: Iterable[str] = ()):
        self._rows: list[Row] = []
        self._reserved = frozenset(reserved)
        self._on_change = on_change
        self.list = widgets.VBox()
        self._show()

    @property
    def results(self) -> dict[str, RunResult]:
        """All kept runs by name, oldest first."""
        return {row.name.value: row.result for row in self._rows}

    @property
    def overlaid(self) -> dict[str, RunResult]:
        """The runs whose tick is set."""
        return {row.name.value: row.result for row in self._rows if row.overlay.value}

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows)

    def add(self, result: RunResult) -> str:
        """Keep a run and return the name that it got."""
        name = unused_name(run_name(result.config), self._reserved | self.results.keys())
        self._rows.append(self._make_row(result, name))
        self._show()
        self._on_change()
        return name

    def _make_row(self, result: RunResult, name: str) -> Row:
        overlay = widgets.Checkbox(True, description="overlay", indent=False, layout={"width": "86px"})
        style = {"description_width": "initial"}
        text = widgets.Text(name, description="name", continuous_update=False, style=style, layout={"width": "330px"})
        button = widgets.Button(description="Remove", icon="trash", layout={"width": "100px"})
        about = widgets.Label(f"{len(result.steps)} steps, last loss {result.losses[-1]:.4f}")
        row = Row(
            result,
            overlay,
            text,
            button,
            widgets.HBox([overlay, text, about, button], layout={"flex_flow": "row wrap"}),
        )
        overlay.observe(lambda change: self._on_change(), names="value")
        text.observe(lambda change: self._rename(row, change["new"], change["old"]), names="value")
        button.on_click(lambda clicked: self._remove(row))
        return row

    def _rename(self, row: Row, wish: str, old: str) -> None:
        others = self._reserved | {other.name.value for other in self._rows if other is not row}
        name = unused_name(wish.strip() or old, others)
        if name != wish:
            row.name.value = name  # observed too: that change tells about it
        else:
            self._on_change()

    def _remove(self, row: Row) -> None:
        self._rows = [other for other in self._rows if other is not row]
        row.screen.close()
        self._show()
        self._on_change()

    def _show(self) -> None:
        hint = widgets.Label("Finished runs are kept here, to be laid over each other: run two.")
        self.list.children = [row.screen for row in self._rows] or [hint]
