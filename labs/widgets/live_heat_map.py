"""A run that is watched while it goes: its heat map of gradient norms grows under the cell."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.plots.heat_map import norm_range, plot_heat_map, table_heat_map
from labs.records import RunResult
from labs.widgets.background import Background
from labs.widgets.pictures import hidden_image, screen, show
from labs.widgets.static_view import StaticView
from labs.widgets.watch import Watch

LIVE_DPI, FINAL_DPI = 80, 110


def live_heat_map(config: ModelTrainingConfig, title: str | None = None, like: RunResult | None = None) -> RunResult:
    """Run a config, draw layers x steps of its gradient norms meanwhile, at most four times a second, and return it.

    `title` replaces the sentence about the last step when the run is over; `like` is an earlier run whose colours are
    used. Raises what `labs.launch` raises; interrupting the cell ends the run.
    """
    from labs.launcher import start  # here, so that the widgets load without it

    watch, image, status, numbers = Watch(config), hidden_image(), widgets.HTML(), widgets.HTML()
    colors = norm_range(like.steps) if like else None
    view = StaticView(screen([status, image, numbers]), "live_heat_map: run this cell to watch its run")
    background = Background(lambda text: setattr(status, "value", f"<pre>{escape(text)}</pre>"))

    def draw() -> None:
        status.value = watch.status()
        show(image, plot_heat_map(watch.steps, None, config.steps, colors), LIVE_DPI)

    def finish() -> None:
        """Leave the last picture, sharp, and its table, also for readers without a kernel."""
        picture, table = plot_heat_map(watch.steps, title, norm_range=colors), table_heat_map(watch.steps)
        status.value = f"{watch.num_steps} of {config.steps} steps under {config.strategy} on {config.world_size} ranks"
        numbers.value = f"<details><summary>The same in numbers</summary>{table._repr_html_()}</details>"
        show(image, picture, FINAL_DPI)
        view.update(picture, str(table))

    view.display()
    status.value = watch.status()
    run = start(config, on_record=lambda rank, record: watch.hear(rank, record) and background.do("picture", draw))
    watch.follow(run)
    try:
        return run.wait()
    finally:
        background.do("picture", finish, at_once=True)
        background.wait_until_idle(10)
