"""Bytes that ranks hold: predicted hatched beside measured solid."""

from __future__ import annotations

from matplotlib.axes import Axes

from labs.plots.style import (
    INK,
    ONE_PICTURE,
    STATE_COLORS,
    STATE_HATCHES,
    Picture,
    byte_unit,
    clean,
    headline,
    say_instead,
)
from labs.plots.view import RunView, model_state_bytes, view_of
from labs.records import MODEL_STATES, STATES
from labs.units import format_bytes

BAR_WIDTH = 0.36
MEMORY_MARGINS = {"right": 2.75}  # inches: names of the states, and the activations on an axis of their own


def plot_memory(run) -> Picture:
    """Draw the bytes that each rank holds, state by state: predicted hatched beside measured solid."""
    picture = Picture(*ONE_PICTURE)
    draw_memory(picture.panel(**MEMORY_MARGINS), view_of(run))
    return picture


def draw_memory(axes: Axes, view: RunView) -> None:
    """Draw memory bars on given axes; without measurements the predicted bars stand alone.

    Activations depend on the batch and would press the other states flat, so they have an axis of their own.
    """
    if not view.predicted:
        headline(axes, "Memory of each rank")
        return say_instead(axes, "no prediction for this run")
    inches = axes.get_position().width * axes.figure.get_figwidth()
    beside = axes.inset_axes([1 + 1.72 / inches, 0, 0.95 / inches, 1])
    size = _draw_bars(axes, view, MODEL_STATES, "model states held")
    _draw_bars(beside, view, ("activations",), "activations kept")
    _label_states(axes, (view.measured or view.predicted)[-1], size)
    headline(axes, *_memory_title(view))


def _draw_bars(axes: Axes, view: RunView, states: tuple[str, ...], name: str) -> int:
    """Draw two stacks a rank and return the bytes of one unit of the axis."""
    totals = [sum(held.get(state, 0) for state in states) for held in (*view.predicted, *view.measured)]
    size, unit = byte_unit(max(totals))
    for rank, held in enumerate(view.predicted):
        _stack(axes, rank - 0.2, held, states, size, hatched=True)
    for rank, held in enumerate(view.measured):
        _stack(axes, rank + 0.2, held, states, size, hatched=False)
    num_ranks = len(view.predicted)
    axes.set_ylim(0, max(totals) / size * 1.16 or 1)
    axes.set_xlim(-0.6, num_ranks - 0.4)
    axes.set_xticks(range(num_ranks))
    clean(axes, "rank", f"{name} [{unit}]")
    if num_ranks <= 5 and "parameters" in states:  # more numbers than that would touch; the title has the most
        for rank, total in enumerate(totals[-num_ranks:]):
            _write_total(axes, rank, max(totals[rank::num_ranks]) / size, total / size)
    return size


def _stack(axes: Axes, x: float, held: dict[str, int], states: tuple[str, ...], size: int, hatched: bool) -> None:
    bottom = 0.0
    for state in states:
        height = held.get(state, 0) / size
        if height:
            axes.bar(x, height, BAR_WIDTH, bottom, linewidth=0.8, **_state_look(state, hatched))
        bottom += height


def _state_look(state: str, hatched: bool) -> dict:
    color = STATE_COLORS[state]
    if hatched:
        return {"facecolor": "white", "edgecolor": color, "hatch": STATE_HATCHES[state]}
    return {"facecolor": color, "edgecolor": "white"}


def _write_total(axes: Axes, x: float, y: float, total: float) -> None:
    axes.annotate(f"{total:.3g}", (x, y), (0, 3), textcoords="offset points", ha="center", fontsize=8, color=INK)


def _label_states(axes: Axes, held: dict[str, int], size: int) -> None:
    """Name each state beside its part of the last bar, pushed apart where parts are thin."""
    least_gap = axes.get_ylim()[1] * 0.07
    bottom, lowest_free = 0.0, 0.0
    for state in MODEL_STATES:
        height = held.get(state, 0) / size
        if height:
            middle = bottom + height / 2
            _label_state(axes, state, middle, max(middle, lowest_free))
            bottom, lowest_free = bottom + height, max(middle, lowest_free) + least_gap


def _label_state(axes: Axes, state: str, middle: float, y: float) -> None:
    line = {"arrowstyle": "-", "color": STATE_COLORS[state], "linewidth": 1.6, "shrinkA": 1, "shrinkB": 0}
    axes.annotate(
        state.replace("_", " "), (axes.get_xlim()[1], middle), (14, y), xycoords="data",
        textcoords=("offset points", "data"), va="center", fontsize=8.5, color=INK, annotation_clip=False,
        arrowprops={**line, "relpos": (0, 0.5)},
    )  # fmt: skip


def _memory_title(view: RunView) -> tuple[str, str]:
    held = view.measured or view.predicted
    totals = [model_state_bytes(rank) for rank in held]
    most = ("up to " if len(set(totals)) > 1 else "") + format_bytes(max(totals))
    activations = format_bytes(max(rank.get("activations", 0) for rank in held))
    if not view.measured:
        how = "hatched: predicted by arithmetic; measured when the run has ended"
        return f"A rank will hold {most} of states, {activations} of activations", how
    how = f"hatched: predicted, solid: measured; {memory_difference(view)}"
    return f"A rank holds {most} of states, {activations} of activations", how


def memory_difference(view: RunView) -> str:
    """Say in words how far measured and predicted bytes lie apart."""
    apart = {
        (state, rank): predicted.get(state, 0) - measured.get(state, 0)
        for rank, (predicted, measured) in enumerate(zip(view.predicted, view.measured, strict=False))
        for state in STATES
    }
    (state, rank), most = max(apart.items(), key=lambda item: abs(item[1]))
    if most == 0:
        return "no byte of difference in any state"
    return f"largest difference {format_bytes(abs(most))} ({state.replace('_', ' ')}, rank {rank})"
