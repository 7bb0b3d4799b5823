"""One number a layer over the depth of a stack, on a log scale: what grows or shrinks from layer to layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from labs.plots.style import FAINT, INK, Picture, clean, headline, run_style, say_instead
from labs.plots.tables import Table
from labs.units import format_figures

LABEL_INCHES = 0.34  # the height of a name and its two numbers


def plot_depth(norms: Mapping[str, Sequence[float]], title: str | None = None) -> Picture:
    """Draw {name: measured gradient norm of each layer, the first layer first}; backward goes from right to left.

    Raises ValueError when there is nothing to draw.
    """
    if not norms:
        raise ValueError("plot_depth needs {name: [norm of the first layer, ...]}, at least one of them")
    picture = Picture(9.6, max(3.6, 1.5 + LABEL_INCHES * len(norms)))
    axes = picture.panel(left=0.8, right=2.75)
    for index, (name, values) in enumerate(norms.items()):
        _draw_line(axes, values, run_style(index), name)
    if not any(_can_be_drawn(value) for values in norms.values() for value in values):
        say_instead(axes, "no norm is finite and above zero")
        return picture
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.minorticks_off()
    clean(axes, "layer, counted from the input", "gradient norm (log scale)")
    axes.annotate("backward goes this way", (0.52, 0.03), (0.98, 0.03), "axes fraction", ha="right", va="center",
                  fontsize=8.5, color=FAINT, arrowprops={"arrowstyle": "->", "color": FAINT})  # fmt: skip
    _name_lines(axes, norms)
    headline(axes, title or _widest_words(norms), "measured in one backward pass; a line ends where a norm is 0 or inf")
    return picture


def table_depth(norms: Mapping[str, Sequence[float]]) -> Table:
    """List the norm of the first, the middle and the last layer of each stack, and first over last."""
    rows = [
        (name, *(format_figures(values[place], 2) for place in (0, len(values) // 2, -1)), _ratio_words(values))
        for name, values in norms.items()
    ]
    columns = ("stack", "first layer", "middle layer", "last layer", "first / last")
    return Table("Gradient norm by layer, measured", columns, tuple(rows))


def _draw_line(axes: Axes, values: Sequence[float], style: dict, name: str) -> None:
    shown = [value if _can_be_drawn(value) else float("nan") for value in values]
    every = max(1, len(shown) // 6)
    axes.plot(range(len(shown)), shown, linewidth=1.8, markevery=every, markersize=5.5, label=name, **style)


def _name_lines(axes: Axes, norms: Mapping[str, Sequence[float]]) -> None:
    """Write each name at the right, level with its line's left end where there is room: that is what differs."""
    high = axes.get_position().height * axes.figure.get_figheight()
    places = {name: _place(axes, values) * high for name, values in norms.items()}
    tops = _apart([places[name] for name in norms], LABEL_INCHES, high)
    for index, (name, values) in enumerate(norms.items()):
        style, y = run_style(index), tops[index] / high
        x = 1.02
        axes.plot([x, x + 0.07], [y, y], transform=axes.transAxes, clip_on=False, linewidth=1.8, markersize=5.5,
                  markevery=[1], **style)  # fmt: skip
        axes.annotate(name, (x + 0.09, y), (0, 1), "axes fraction", "offset points", va="bottom", fontsize=8.8,
                      fontweight="bold", color=INK)  # fmt: skip
        words = f"first layer {format_figures(values[0], 2)}, last {format_figures(values[-1], 2)}"
        axes.annotate(
            words, (x + 0.09, y), (0, -1), "axes fraction", "offset points", va="top", fontsize=8, color=FAINT
        )


def _place(axes: Axes, values: Sequence[float]) -> float:
    first = next((value for value in values if _can_be_drawn(value)), None)
    if first is None:
        return 0.0
    return float(axes.transAxes.inverted().transform(axes.transData.transform((0, first)))[1])


def _apart(wishes: list[float], distance: float, high: float) -> list[float]:
    """Move places as little as an upward sweep can so that neighbours keep their distance inside 0 ... high."""
    order = sorted(range(len(wishes)), key=wishes.__getitem__)
    placed, floor = list(wishes), distance / 2
    for index in order:
        placed[index] = floor = max(wishes[index], floor)
        floor += distance
    ceiling = high
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - distance
    return placed


def _can_be_drawn(value: float) -> bool:
    return isfinite(value) and value > 0


def _ratio_words(values: Sequence[float]) -> str:
    return format_figures(values[0] / values[-1], 2) if _can_be_drawn(values[0]) and _can_be_drawn(values[-1]) else "-"


def _widest_words(norms: Mapping[str, Sequence[float]]) -> str:
    firsts = {name: values[0] for name, values in norms.items() if _can_be_drawn(values[0])}
    if len(firsts) < 2:
        return "Gradient norm over depth"
    high, low = max(firsts, key=firsts.__getitem__), min(firsts, key=firsts.__getitem__)
    return f"The first layer gets from {firsts[low]:.0e} ({low}) to {firsts[high]:.0e} ({high})"
