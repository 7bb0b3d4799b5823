"""Bytes and seconds of collectives: what theory says beside what was measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.ticker import LogLocator

from labs.plots.style import FAINT, INK, RUN_COLORS, Picture, clean, headline, run_style
from labs.units import format_bytes, format_seconds


def plot_seconds(
    sizes_bytes: Sequence[int],
    measured: Mapping[str, Sequence[float]],
    model: Callable[[int], float] | None = None,
    title: str = "Small costs latency, large costs bandwidth",
) -> Picture:
    """Draw medians [seconds] over sizes [bytes], one series a name, and the fitted model as a line.

    Raises ValueError when a series does not have one value a size.
    """
    for name, seconds in measured.items():
        if len(seconds) != len(sizes_bytes):
            raise ValueError(f"{name!r} has {len(seconds)} values for {len(sizes_bytes)} sizes; give one for each size")
    picture = Picture(7.5, 3.7)
    axes = picture.panel(left=0.95, right=0.3, top=0.75, bottom=0.6)
    for index, (name, seconds) in enumerate(measured.items()):
        look = run_style(index) if model is None else {**run_style(index), "linestyle": "none"}
        axes.plot(sizes_bytes, seconds, label=f"{name}, measured", markersize=6, **look)
    if model is not None:
        fine = [sizes_bytes[0] * (sizes_bytes[-1] / sizes_bytes[0]) ** (i / 60) for i in range(61)]
        axes.plot(fine, [model(size) for size in fine], color=FAINT, linestyle=(0, (5, 2)), label="alpha-beta model")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: format_bytes(size))
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds))
    axes.yaxis.set_minor_formatter(lambda *_: "")
    clean(axes, "size of the tensor", "seconds of one call", grid="both")
    headline(axes, title, "medians on this machine; both axes are logarithmic")
    axes.legend(fontsize=8.5, frameon=False)
    return picture


def plot_sent(
    theory: Mapping[tuple[str, int], float], measured: Mapping[tuple[str, int], float | None], size_bytes: int
) -> Picture:
    """Draw the bytes that the busiest rank sent, {(collective, ranks): bytes}, in sizes of the tensor [size_bytes].

    One panel a number of ranks; hatched is theory, solid is measured, and a value that is None is left out.
    """
    names = list(dict.fromkeys(name for name, _ in theory))
    groups = list(dict.fromkeys(ranks for _, ranks in theory))
    most = max(*theory.values(), *(sent or 0 for sent in measured.values())) / size_bytes
    picture = Picture(11, 0.42 * len(names) + 1.6)
    for index, ranks in enumerate(groups):
        box = (0.07 + 0.93 * index / len(groups), 0, 0.93 / len(groups), 1)
        axes = picture.panel(box, left=0.4 if index else 0.35, right=0.25, top=0.75, bottom=0.6)
        for place, name in enumerate(names):
            _draw_pair(axes, place, theory[name, ranks] / size_bytes, measured[name, ranks], size_bytes)
        axes.set_yticks(range(len(names)), names if index == 0 else [""] * len(names))
        axes.set_xlim(0, most * 1.22)
        axes.set_ylim(len(names) - 0.4, -0.6)
        clean(axes, "sent by the busiest rank [tensors]", "", grid="x")
        headline(axes, f"{ranks} ranks", "hatched: ring, theory    solid: sockets, measured" if index == 0 else " ")
    return picture


def _draw_pair(axes, place: int, theory: float, measured_bytes: float | None, size_bytes: int) -> None:
    axes.barh(place - 0.19, theory, 0.34, facecolor="white", edgecolor=RUN_COLORS[0], hatch="////")
    axes.text(theory + 0.04, place - 0.19, f"{theory:.2f}", va="center", fontsize=8, color=FAINT)
    if measured_bytes is not None:
        measured = measured_bytes / size_bytes
        axes.barh(place + 0.19, measured, 0.34, color=RUN_COLORS[0])
        axes.text(measured + 0.04, place + 0.19, f"{measured:.2f}", va="center", fontsize=8, color=INK)
