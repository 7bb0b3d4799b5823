"""A run that is watched while it goes: its heat map of gradient norms grows under the cell."""

from __future__ import annotations

from functools import partial

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.plots.heat_map import plot_heat_map
from labs.records import RunResult
from labs.widgets.background import Background
from labs.widgets.pictures import hidden_image, show
from labs.widgets.static_view import StaticView
from labs.widgets.watch import Watch

LIVE_DPI, FINAL_DPI = 80, 110


def live_heat_map(config: ModelTrainingConfig, title: str | None = None) -> RunResult:
    """Run a config, draw layers x steps of its gradient norms meanwhile, at most four times a second, and return it.

    `title` replaces the sentence about the last step when the run is over. Raises what `labs.launch` raises;
    interrupting the cell ends the run.
    """
    from labs.launcher import start  # here, so that the widgets load without it

    watch, image, status = Watch(config), hidden_image(), widgets.HTML()
    screen = StaticView(widgets.VBox([status, image]), "live_heat_map: run this cell to watch its run")
    background = Background(lambda text: setattr(status, "value", f"<pre>{text}</pre>"))

    def draw() -> None:
        status.value = watch.status()
        show(image, plot_heat_map(watch.steps, num_steps=config.steps), LIVE_DPI)

    screen.display()
    status.value = watch.status()
    run = start(config, on_record=lambda rank, record: watch.hear(rank, record) and background.do("picture", draw))
    watch.follow(run)
    try:
        result = run.wait()
    finally:
        background.do("picture", partial(_finish, watch, screen, status, image, title), at_once=True)
        background.wait_until_idle(10)
    return result


def _finish(watch: Watch, screen: StaticView, status: widgets.HTML, image: widgets.Image, title: str | None) -> None:
    """Leave the last picture, sharp, also for readers without a kernel."""
    picture = plot_heat_map(watch.steps, title)
    status.value = f"{watch.num_steps} of {watch.config.steps} steps, {watch.config.strategy}"
    show(image, picture, FINAL_DPI)
    screen.update(picture)
