"""A ring all-reduce to step through: a slider for the step, one for the ranks, and a picture of both."""

from __future__ import annotations

from base64 import b64encode

import ipywidgets as widgets

from labs.plots.ring import plot_ring, plot_ring_step, ring_moments, table_ring
from labs.widgets.pictures import ToldImage, screen
from labs.widgets.static_view import WIDGET_VIEW

MOST_RANKS = 8
STEP_MILLISECONDS = 1500
DOTS_PER_INCH = 130


def ring_animation(world_size: int = 4) -> RingAnimation:
    """Return a ring all-reduce to step through, for 2 to 8 ranks. Simulated: no rank is started.

    Raises ValueError for another number of ranks.
    """
    if not 2 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size={world_size} is refused: the picture has room for 2 to {MOST_RANKS} ranks; try 4")
    return RingAnimation(world_size)


class RingAnimation:
    """The screen: `step` and `ranks` are its sliders, `picture` what they show.

    Without a kernel its output is the static picture of all steps and their table.
    """

    def __init__(self, world_size: int):
        self._drawn: dict[tuple[int, int], tuple[bytes, str]] = {}  # PNG and words
        look = {"style": {"description_width": "50px"}, "layout": {"width": "330px"}}
        last = len(ring_moments(world_size)) - 1
        self.ranks = widgets.IntSlider(world_size, 2, MOST_RANKS, description="ranks", **look)
        self.step = widgets.IntSlider(0, 0, last, description="step", **look)
        self.play = widgets.Play(value=0, min=0, max=last, interval=STEP_MILLISECONDS)
        self.picture = ToldImage(format="png", layout={"max_width": "100%"})
        self._link = widgets.jslink((self.play, "value"), (self.step, "value"))
        self.step.observe(lambda change: self._show(), names="value")
        self.ranks.observe(lambda change: self._restart(), names="value")
        controls = widgets.Box([self.play, self.step, self.ranks], layout={"flex_flow": "row wrap"})
        self.picture.add_class("labs-picture")
        self.screen = screen([controls, self.picture])
        self._show()

    def _restart(self) -> None:
        last = len(ring_moments(self.ranks.value)) - 1
        self.step.value = self.play.value = 0
        self.step.max = self.play.max = last
        self._show()

    def _show(self) -> None:
        moment = (self.ranks.value, self.step.value)
        if moment not in self._drawn:
            picture = plot_ring_step(*moment)
            self._drawn[moment] = picture.png(DOTS_PER_INCH), picture.words
        self.picture.value, self.picture.tooltip = self._drawn[moment]

    def _repr_mimebundle_(self, **_) -> dict:
        world_size = self.ranks.value
        return {
            WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.screen.model_id},
            "text/plain": str(table_ring(world_size)),
            "image/png": b64encode(plot_ring(world_size).png()).decode(),
        }
