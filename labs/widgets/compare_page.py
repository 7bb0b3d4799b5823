"""The page on which kept runs are laid over each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ipywidgets as widgets

from labs.plots import plot_loss, table_differences
from labs.widgets.kept_runs import KeptRuns
from labs.widgets.pictures import hidden_image, show


class ComparePage:
    """Kept runs, their losses over each other, and what differs between them: choices first, then results."""

    def __init__(self, on_change: Callable[[], None], reserved: Iterable[str] = ()):
        self.image, self.table = hidden_image(), widgets.HTML()
        self.kept = KeptRuns(on_change, reserved)
        self.screen = widgets.VBox([self.kept.list, self.table, self.image])

    def draw(self, dots_per_inch: int) -> None:
        """Draw the runs that are ticked now."""
        runs = self.kept.overlaid
        show(self.image, plot_loss(runs) if runs else None, dots_per_inch)
        self.table.value = table_differences(runs)._repr_html_() if runs else ""
