"""Gantt of a schedule: what computes, what is on the wire, and what is live below, on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.plots.style import FAINT, INK, STATE_COLORS, STATE_HATCHES, Picture, clean, headline
from labs.plots.tables import Table
from labs.puzzle import PUZZLE, Bar, Playback, Puzzle
from labs.units import MiB, format_bytes, format_seconds

# (facecolor, hatch, edge, ink); the hatches tell them apart in print
_LOOKS = {
    "forward": ("#56B4E9", "", "white", INK),
    "backward": ("#0072B2", "", "white", "white"),
    "wait": ("white", "....", "#999999", FAINT),
    "gather": ("#E69F00", "////", "#7A5200", INK),
    "reduce": ("#009E73", "xxx", "#00543D", INK),
}
_LANES = {"compute": 1.0, "wire": 0.0}
_HEIGHT, _FOOT = 2.75, 0.7  # inches: of a schedule, of the axis of time below all


def plot_gantt(playbacks: Mapping[str, Playback], puzzle: Puzzle = PUZZLE) -> Picture:
    """Draw {name: playback} below each other, on the same axis of milliseconds where none is measured.

    Above are the two lanes, with the number of the layer in each bar; below are the live bytes and the limit.
    Raises ValueError when there is nothing to draw.
    """
    if not playbacks:
        raise ValueError("plot_gantt needs {name: playback}, with at least one of them")
    picture = Picture(11, _HEIGHT * len(playbacks) + 0.55)
    height = picture.get_size_inches()[1]
    longest_ms = 1e3 * max(p.seconds for p in playbacks.values())
    for index, (name, playback) in enumerate(playbacks.items()):
        bottom = height - 0.35 - _HEIGHT * (index + 1)
        lanes = picture.panel((0, (bottom + 1.15) / height, 1, 1.6 / height), left=0.85, top=0.62, bottom=0.04)
        live = picture.panel((0, bottom / height, 1, 1.15 / height), left=0.85, top=0.03, bottom=0.33)
        is_mixed = any(p.is_measured for p in playbacks.values())
        end_ms = 1e3 * playback.seconds if is_mixed else longest_ms
        _draw_lanes(lanes, playback, end_ms)
        _draw_live(live, playback, puzzle, end_ms)
        headline(lanes, f"{name}: {_summary(playback)}", _subtitle(playback))
    live.set_xlabel("milliseconds since the step began", fontsize=9, color=INK, labelpad=1)
    _legend(picture)
    return picture


def _summary(playback: Playback) -> str:
    return f"{1e3 * playback.seconds:.1f} ms, at most {format_bytes(playback.peak_bytes)} live"


def _subtitle(playback: Playback) -> str:
    kind = "measured" if playback.is_measured else "simulated"
    return (
        f"{kind}; compute stands still for {1e3 * playback.waited_seconds:.1f} ms; {_num_transfers(playback)} transfers"
    )


def _num_transfers(playback: Playback) -> int:
    return sum(bar.lane == "wire" for bar in playback.bars)


def _draw_lanes(axes: Axes, playback: Playback, end_ms: float) -> None:
    wire_end, is_low = 0.0, False
    for bar in sorted(playback.bars, key=lambda bar: bar.begin_seconds):
        place, tall = _LANES[bar.lane], 0.74
        if bar.lane == "wire" and playback.is_measured:  # gloo works on two transfers at once: they overlap
            is_low = bar.begin_seconds < wire_end - 1e-9 and not is_low
            place, tall = (-0.19, 0.36) if is_low else (0.19, 0.36)
            wire_end = max(wire_end, bar.end_seconds)
        _draw_bar(axes, bar, place, tall, end_ms)
    axes.set_yticks(list(_LANES.values()), list(_LANES))
    axes.set_ylim(-0.5, 1.5)
    axes.set_xlim(0, end_ms)
    clean(axes, "", "", grid="x")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False, length=0)


def _draw_bar(axes: Axes, bar: Bar, place: float, tall: float, end_ms: float) -> None:
    verb, _, layer = bar.move.partition(" ")
    color, hatch, edge, ink = _LOOKS[verb]
    begin, wide = 1e3 * bar.begin_seconds, 1e3 * (bar.end_seconds - bar.begin_seconds)
    axes.barh(place, wide, tall, begin, facecolor=color, hatch=hatch, edgecolor=edge, linewidth=0.6)
    if layer and wide > 0.012 * end_ms:
        box = {"boxstyle": "round,pad=0.12", "facecolor": color, "edgecolor": "none"} if hatch else None
        axes.text(begin + wide / 2, place, layer, ha="center", va="center", fontsize=8.5, color=ink, bbox=box)


def _draw_live(axes: Axes, playback: Playback, puzzle: Puzzle, end_ms: float) -> None:
    seconds = [1e3 * live.seconds for live in playback.live] + [end_ms]
    weights = [live.weights_bytes / MiB for live in playback.live]
    total = [live.total_bytes / MiB for live in playback.live]
    base = [0.0] * len(total)
    for low, high, state in ((base, weights, "parameters"), (weights, total, "gradients")):
        axes.fill_between(
            seconds, low + low[-1:], high + high[-1:], step="post", facecolor=STATE_COLORS[state], alpha=0.75,
            hatch=STATE_HATCHES[state], edgecolor="white", linewidth=0,
        )  # fmt: skip
    most = max([*total, (puzzle.limit_bytes or 0) / MiB])
    if puzzle.limit_bytes:
        axes.axhline(puzzle.limit_bytes / MiB, color="#D55E00", linewidth=1.4, linestyle=(0, (5, 1.5)))
    axes.set_xlim(0, end_ms)
    axes.set_ylim(0, 1.12 * most)
    axes.set_yticks(range(0, int(most) + 1, 8))
    clean(axes, "", "MiB live", grid="y")


def _legend(picture: Picture) -> None:
    lanes = [
        Patch(facecolor=color, hatch=hatch, edgecolor=edge if edge != "white" else color, label=name)
        for name, (color, hatch, edge, _) in _LOOKS.items()
    ]
    states = [
        Patch(facecolor=STATE_COLORS[state], hatch=STATE_HATCHES[state], edgecolor="white", label=f"whole {name}")
        for state, name in (("parameters", "weights"), ("gradients", "gradients"))
    ]
    limit = Patch(facecolor="none", edgecolor="#D55E00", linestyle=(0, (5, 1.5)), label="limit")
    picture.legend(
        handles=[*lanes, *states, limit], loc="upper left", bbox_to_anchor=(0.065, 1.0), ncols=8, frameon=False,
        fontsize=8.5, handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip


def table_gantt(playbacks: Mapping[str, Playback], puzzle: Puzzle = PUZZLE) -> Table:
    """List what the Gantt shows: transfers, seconds, standing still, peak of live bytes."""
    rows = [
        (
            name,
            str(_num_transfers(playback)),
            format_seconds(playback.seconds),
            format_seconds(playback.waited_seconds),
            format_bytes(playback.peak_bytes),
        )  # fmt: skip
        for name, playback in playbacks.items()
    ]
    words = "no limit" if puzzle.limit_bytes is None else format_bytes(puzzle.limit_bytes)
    targets = ("target", "-", f"at most {format_seconds(puzzle.limit_seconds)}", "-", f"at most {words}")
    kinds = {"measured" if playback.is_measured else "simulated" for playback in playbacks.values()}
    caption = f"One step of each schedule, {' or '.join(sorted(kinds))}"
    return Table(caption, ("schedule", "transfers", "time", "compute stands still", "live at most"), (*rows, targets))
