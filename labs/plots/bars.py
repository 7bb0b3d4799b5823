"""Bytes that ranks hold and bytes that they send: predicted hatched, measured solid."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.plots.style import INK, STATE_COLORS, STATE_HATCHES, Picture, byte_unit, clean, headline, say_instead
from labs.plots.view import RunView, view_of
from labs.records import STATES
from labs.units import format_bytes

BAR_WIDTH = 0.36
MEMORY_MARGINS = {"right": 1.4}  # inches: names of the states
# (label, field of TrafficRecord, look of the bar): three answers to one question, told apart without colour.
TRAFFIC_BARS = (
    ("ideal ring, theory", "theory_bytes", {"facecolor": "white", "edgecolor": "#999999", "linestyle": (0, (2, 1.5))}),
    ("gloo, predicted", "predicted_bytes", {"facecolor": "#FBE3D3", "edgecolor": "#D55E00", "hatch": "////"}),
    ("sockets, measured", "sent_bytes", {"facecolor": "#D55E00", "edgecolor": "#D55E00"}),
)


def plot_memory(run) -> Picture:
    """Draw the bytes that each rank holds, state by state: predicted hatched beside measured solid."""
    picture = Picture(8, 4.2)
    draw_memory(picture.panel(**MEMORY_MARGINS), view_of(run))
    return picture


def plot_traffic(run) -> Picture:
    """Draw the bytes that each rank sent over all training steps: an ideal ring, gloo predicted, sockets measured."""
    picture = Picture(8, 4.2)
    draw_traffic(picture.panel(), view_of(run))
    return picture


def draw_memory(axes: Axes, view: RunView) -> None:
    """Draw memory bars on given axes; without measurements the predicted bars stand alone."""
    if not view.predicted:
        headline(axes, "Memory of each rank")
        return say_instead(axes, "no prediction for this run")
    totals = [sum(states.values()) for states in (*view.predicted, *view.measured)]
    size, unit = byte_unit(max(totals))
    for rank, states in enumerate(view.predicted):
        _stack(axes, rank - 0.2, states, size, hatched=True)
    for rank, states in enumerate(view.measured):
        _stack(axes, rank + 0.2, states, size, hatched=False)
    axes.set_ylim(0, max(totals) / size * 1.16 or 1)
    for rank, states in enumerate(held := view.measured or view.predicted):
        _write_total(axes, rank, max(totals[rank :: len(held)]) / size, sum(states.values()), len(held))
    axes.set_xlim(-0.6, len(held) - 0.4)
    _label_states(axes, held[-1], size)
    axes.set_xticks(range(len(held)))
    clean(axes, "rank", f"bytes held [{unit}]")
    headline(axes, *_memory_title(view))


def _stack(axes: Axes, x: float, states: dict[str, int], size: int, hatched: bool) -> None:
    bottom = 0.0
    for state in STATES:
        height = states.get(state, 0) / size
        if height:
            axes.bar(x, height, BAR_WIDTH, bottom, linewidth=0.8, **_state_look(state, hatched))
        bottom += height


def _state_look(state: str, hatched: bool) -> dict:
    color = STATE_COLORS[state]
    if hatched:
        return {"facecolor": "white", "edgecolor": color, "hatch": STATE_HATCHES[state]}
    return {"facecolor": color, "edgecolor": "white"}


def _write_total(axes: Axes, x: float, y: float, total_bytes: int, num_ranks: int) -> None:
    text = format_bytes(total_bytes)
    text = text.split()[0] if num_ranks > 4 else text  # the axis has the unit
    axes.annotate(text, (x, y), (0, 3), textcoords="offset points", ha="center", fontsize=8, color=INK)


def _label_states(axes: Axes, states: dict[str, int], size: int) -> None:
    """Name each state beside its part of the last bar, pushed apart where parts are thin."""
    least_gap = axes.get_ylim()[1] * 0.07
    bottom, lowest_free = 0.0, 0.0
    for state in STATES:
        height = states.get(state, 0) / size
        if height:
            middle = bottom + height / 2
            _label_state(axes, state, middle, max(middle, lowest_free))
            bottom, lowest_free = bottom + height, max(middle, lowest_free) + least_gap


def _label_state(axes: Axes, state: str, middle: float, y: float) -> None:
    edge = axes.get_xlim()[1]
    axes.annotate(
        state.replace("_", " "), (edge, middle), (14, y), xycoords="data", textcoords=("offset points", "data"),
        va="center", fontsize=8.5, color=INK, annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": STATE_COLORS[state], "linewidth": 1.6, "shrinkA": 1, "shrinkB": 0},
    )  # fmt: skip


def _memory_title(view: RunView) -> tuple[str, str]:
    held = view.measured or view.predicted
    least, most = min(sum(rank.values()) for rank in held), max(sum(rank.values()) for rank in held)
    amount = (
        format_bytes(most)
        if format_bytes(least) == format_bytes(most)
        else f"{format_bytes(least)} to {format_bytes(most)}"
    )
    if not view.measured:
        return f"Each rank will hold {amount}", "hatched: predicted by arithmetic; measured when the run has ended"
    return f"Each rank holds {amount}", f"hatched: predicted, solid: measured; {memory_difference(view)}"


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


def draw_traffic(axes: Axes, view: RunView) -> None:
    """Draw three bars a rank on given axes; a missing measurement is said, not drawn as zero."""
    if not view.traffic:
        headline(axes, "Bytes on the wire")
        return say_instead(axes, "counted when the run has ended")
    numbers = [getattr(record, field) or 0 for record in view.traffic for _, field, _ in TRAFFIC_BARS]
    size, unit = byte_unit(max(numbers))
    for index, (_, field, look) in enumerate(TRAFFIC_BARS):
        for rank, record in enumerate(view.traffic):
            sent = getattr(record, field)
            if sent is not None:
                axes.bar(rank + (index - 1) * 0.27, sent / size, 0.25, linewidth=1, **look)
    axes.set_xticks(range(len(view.traffic)))
    axes.set_xlim(-0.6, len(view.traffic) - 0.4)
    axes.set_ylim(0, max(numbers) / size * 1.28 or 1)
    clean(axes, "rank", f"bytes sent in {view.config.steps} steps [{unit}]")
    keys = [Patch(label=label, linewidth=1, **look) for label, _, look in TRAFFIC_BARS]
    axes.legend(
        handles=keys, fontsize=8, frameon=False, ncols=3, loc="upper left", columnspacing=1.2, borderaxespad=0.2
    )
    headline(axes, *_traffic_title(view))


def _traffic_title(view: RunView) -> tuple[str, str]:
    sent = [record.sent_bytes for record in view.traffic]
    if len(sent) == 1:
        return "One rank sends nothing", "predicted and measured: there is no other rank to agree with"
    if None in sent and len(view.steps) < view.config.steps:
        most = max(record.predicted_bytes for record in view.traffic)
        return (
            f"Each rank will send {format_bytes(most)}",
            "predicted for the whole run; measured when the run has ended",
        )
    if None in sent:
        return "Bytes on the wire, predicted", "this system has no counters for its sockets: not measured"
    off = max(abs(record.sent_bytes / record.predicted_bytes - 1) for record in view.traffic if record.predicted_bytes)
    theory = max(record.theory_bytes for record in view.traffic)
    ratio = f"{max(sent) / theory:.2f} times an ideal ring" if theory else "an ideal ring sends nothing"
    return f"Each rank sent {format_bytes(max(sent))}: {ratio}", f"sockets within {off:.2%} of the prediction for gloo"
