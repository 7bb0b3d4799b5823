"""Seconds of an all-reduce over its size: measured points beside the line of the alpha-beta model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from labs.plots.style import FAINT, Picture, clean, headline, run_style
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
    axes.yaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds))
    axes.yaxis.set_minor_formatter(lambda *_: "")
    clean(axes, "size of the tensor", "seconds of one call", grid="both")
    headline(axes, title, "medians on this machine; both axes are logarithmic")
    axes.legend(fontsize=8.5, frameon=False)
    return picture
