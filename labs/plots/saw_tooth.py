"""The memory saw-tooth: bytes of one rank by state over one step, measured after every operation."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.plots.style import FAINT, INK, STATE_COLORS, STATE_HATCHES, Picture, byte_unit, clean, headline
from labs.plots.tables import Table
from labs.records import StepMemory
from labs.units import format_bytes

# From what rests to what passes, so that the teeth are on top.
_ORDER = ("optimizer", "master_weights", "buffers", "parameters", "gradients", "activations")
_LABELS = {"activations": "activations and temporaries", "master_weights": "master weights"}
_COLUMNS = 4


def plot_saw_tooth(traces: Mapping[str, StepMemory]) -> Picture:
    """Draw {name: memory of one rank over a step} beside each other, on one scale of bytes; four in a line.

    Raises ValueError when there is nothing to draw.
    """
    if not traces:
        raise ValueError("plot_saw_tooth needs {name: StepMemory}, at least one")
    columns = min(_COLUMNS, len(traces))
    lines = ceil(len(traces) / columns)
    picture = Picture(11, 0.55 + 2.95 * lines)
    tall = picture.get_size_inches()[1]
    height, foot = 1 - 0.5 / tall, 0.2 / tall
    highest = max(trace.peak_bytes for trace in traces.values())
    size, unit = byte_unit(highest)
    for index, (name, trace) in enumerate(traces.items()):
        line, column = divmod(index, columns)
        box = (column / columns, foot + height * (1 - (line + 1) / lines), 1 / columns, height / lines)
        axes = picture.panel(box, left=0.62 if column == 0 else 0.3, right=0.1, top=0.6, bottom=0.42)
        _draw(axes, trace, size)
        axes.set_ylim(0, 1.1 * highest / size)
        clean(axes, "", f"{unit} on rank {trace.rank}" if column == 0 else "")
        axes.tick_params(axis="x", length=0)
        _mark_peak(axes, trace, size)
        headline(axes, f"{name}: {format_bytes(trace.peak_bytes)}", f"peak in {trace.peak_phase}")
        if index:
            first = next(iter(traces.values())).peak_bytes
            axes.axhline(first / size, color=FAINT, linewidth=0.9, linestyle=(0, (2, 2)))
    _legend(picture, traces)
    return picture


def _draw(axes: Axes, trace: StepMemory, size: int) -> None:
    """Stack the states; between two operations nothing changes, so the edges are steps."""
    places, below = _places(trace), [0.0] * (len(trace.totals) + 1)
    for state in (*_ORDER, *(set(trace.states) - set(_ORDER))):
        if not any(trace.states.get(state, ())):
            continue
        series = (*trace.states[state], trace.states[state][-1])
        above = [low + value / size for low, value in zip(below, series, strict=True)]
        axes.fill_between(
            places, below, above, step="post", facecolor=STATE_COLORS[state], edgecolor="white",
            hatch=STATE_HATCHES[state], linewidth=0,
        )  # fmt: skip
        axes.step(places, above, where="post", color="white", linewidth=0.5)
        below = above
    axes.step(places, below, where="post", color=INK, linewidth=0.8)
    edges = [0.0]
    for name, _ in trace.phases:
        edges.append(edges[-1] + _width(name))
    axes.set_xlim(0, edges[-1])
    for edge in edges[1:-1]:
        axes.axvline(edge, color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
    middles = [(begin + end) / 2 for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    axes.set_xticks(middles, [name for name, _ in trace.phases])


def _places(trace: StepMemory) -> list[float]:
    """Return where each operation begins, and the end: a phase has its width, whatever the number of operations."""
    ends = [first for _, first in trace.phases[1:]] + [len(trace.totals)]
    places, begin = [], 0.0
    for (name, first), end in zip(trace.phases, ends, strict=True):
        places += [begin + _width(name) * index / (end - first) for index in range(end - first)]
        begin += _width(name)
    return [*places, begin]


def _width(phase: str) -> int:
    return 2 if phase == "backward" else 1


def _mark_peak(axes: Axes, trace: StepMemory, size: int) -> None:
    place, height = trace.totals.index(trace.peak_bytes), trace.peak_bytes / size
    axes.plot([_places(trace)[place]], [height], marker="v", markersize=6, color=INK, clip_on=False)


def _legend(picture: Picture, traces: Mapping[str, StepMemory]) -> None:
    used = [state for state in _ORDER if any(any(trace.states.get(state, ())) for trace in traces.values())]
    patches = [
        Patch(facecolor=STATE_COLORS[s], edgecolor="white", hatch=STATE_HATCHES[s], label=_LABELS.get(s, s))
        for s in reversed(used)
    ]
    picture.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(0.03, 1.0), ncols=6, frameon=False, fontsize=8.5,
        handlelength=1.8, columnspacing=1.4,
    )  # fmt: skip
    note = "measured after every operation of one step" + ("; dotted: peak of the first" if len(traces) > 1 else "")
    y = 0.08 / picture.get_size_inches()[1]
    picture.text(0.985, y, note, ha="right", va="bottom", fontsize=8.5, color=FAINT)


def table_saw_tooth(traces: Mapping[str, StepMemory]) -> Table:
    """List for each run the peak and what it is made of, and what is left when the step is over."""
    used = [state for state in reversed(_ORDER) if any(any(t.states.get(state, ())) for t in traces.values())]
    rows = []
    for name, trace in traces.items():
        place = trace.totals.index(trace.peak_bytes)
        parts = [format_bytes(trace.states.get(state, (0,) * (place + 1))[place]) for state in used]
        rows.append((name, format_bytes(trace.peak_bytes), trace.peak_phase, *parts, format_bytes(trace.totals[-1])))
    columns = ("run", "peak", "in", *(_LABELS.get(state, state) for state in used), "after the step")
    return Table("One rank at its peak, measured", columns, tuple(rows))
