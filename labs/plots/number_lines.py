"""Number lines of the formats that train networks: how far each reaches, and how fine it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from labs.plots.style import FAINT, INK, Picture, clean, headline, run_style
from labs.plots.tables import Table

LOWEST, HIGHEST = -152, 130  # powers of two that are shown


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format with one sign bit, subnormals and infinities.

    Source: IEEE 754-2019 for binary16 and binary32; bf16 is binary32 without its last 16 bits.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    color: str

    @property
    def largest_exponent(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def smallest_normal_exponent(self) -> int:
        return 1 - self.largest_exponent

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest subnormal number."""
        return self.smallest_normal_exponent - self.mantissa_bits

    @property
    def largest(self) -> float:
        return (2 - 2.0**-self.mantissa_bits) * 2.0**self.largest_exponent


FORMATS = (
    NumberFormat("fp16", 5, 10, "#E69F00"),
    NumberFormat("bf16", 8, 7, "#009E73"),
    NumberFormat("fp32", 8, 23, "#0072B2"),
)


def plot_number_lines(values: Mapping[str, Sequence[float]] | None = None) -> Picture:
    """Draw the range of each format, and its numbers around 1; `values` {name: numbers} are laid over the range.

    Zeros among the values are left out of the picture and counted in its key.
    """
    picture = Picture(10.6, 5.4 if values else 4.3)
    split = 0.37 if values else 0.46
    axes = picture.panel((0, split, 1, 1 - split), left=0.75, right=0.3, bottom=0.5)
    _draw_ranges(axes, values or {})
    _draw_steps(picture.panel((0, 0, 1, split), left=0.75, right=0.3, top=0.55, bottom=0.42))
    return picture


def table_number_lines() -> Table:
    """List range and fineness of each format, by arithmetic."""
    rows = [
        (
            form.name,
            str(form.exponent_bits),
            str(form.mantissa_bits),
            f"{form.largest:.3g}",
            f"{2.0**form.smallest_normal_exponent:.2g}",
            f"{2.0**form.smallest_exponent:.2g}",
            f"{2.0**-form.mantissa_bits:.2g}",
        )
        for form in FORMATS
    ]
    columns = ("format", "exponent bits", "mantissa bits", "largest", "smallest normal", "smallest", "step above 1")
    return Table("What each format can hold, by arithmetic", columns, tuple(rows))


def _draw_ranges(axes: Axes, values: Mapping[str, Sequence[float]]) -> None:
    for row, form in enumerate(FORMATS):
        begin, normal, end = form.smallest_exponent, form.smallest_normal_exponent, form.largest_exponent + 1
        axes.barh(row, normal - begin, 0.5, begin, facecolor="white", edgecolor=form.color, hatch="/////", linewidth=1)
        axes.barh(row, end - normal, 0.5, normal, color=form.color)
        words = f"{form.name}: {2.0**normal:.1g} to {form.largest:.2g}"
        look = {"va": "center", "fontsize": 8.8, "fontweight": "bold"}
        if end - normal < 100:
            axes.text(end + 2, row, words, color=INK, **look)
        else:
            ink = "white" if form.name == "fp32" else INK
            axes.text((normal + end) / 2, row, words, ha="center", color=ink, **look)
    top = -0.75
    for index, (name, numbers) in enumerate(values.items()):
        _draw_values(axes, name, np.abs(np.asarray(numbers, dtype=float)), index)
        top = -2.1
    axes.set_ylim(len(FORMATS) - 0.6, top)
    axes.set_xlim(LOWEST, HIGHEST)
    axes.set_yticks([])
    powers = range(-45, 40, 5)
    axes.set_xticks([power * np.log2(10) for power in powers], [f"1e{power}" for power in powers])
    clean(axes, "absolute value (log scale)", "", grid="x")
    if values:
        axes.legend(fontsize=8.5, frameon=False, loc="upper right")
    how = "hatched: subnormal, with fewer and fewer digits; left of it all is 0, right of it all is inf"
    headline(axes, "bf16 reaches as far as fp32; fp16 ends at 65,504", f"by arithmetic; {how}")


def _draw_values(axes: Axes, name: str, numbers: np.ndarray, index: int) -> None:
    """Draw a histogram that stands on the uppermost number line."""
    used = numbers[np.isfinite(numbers) & (numbers > 0)]
    counts, edges = np.histogram(np.log2(used), bins=np.arange(LOWEST, HIGHEST + 1, 2))
    style = run_style(index)
    zeros = (numbers == 0).mean() if numbers.size else 0
    label = f"{name} (measured; {zeros:.0%} are 0)" if zeros >= 0.005 else f"{name} (measured)"
    heights = -0.4 - 1.5 * counts / max(1, counts.max())
    axes.stairs(heights, edges, baseline=-0.4, color=style["color"], linestyle=style["linestyle"], linewidth=1.8,
                label=label)  # fmt: skip


def _draw_steps(axes: Axes) -> None:
    """Draw every number of each format between 1 and 1 + 1/16."""
    for row, form in enumerate(FORMATS):
        if form.mantissa_bits > 12:
            axes.barh(row, 1 / 16, 0.6, 1, color=form.color)
        else:
            numbers = 1 + np.arange(2 ** (form.mantissa_bits - 4) + 1) * 2.0**-form.mantissa_bits
            axes.vlines(numbers, row - 0.3, row + 0.3, color=form.color, linewidth=1.8)
    axes.axvline(1.001, color=INK, linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate("1.001", (1.001, -0.45), (3, 0), textcoords="offset points", fontsize=8, color=FAINT, va="center")
    axes.set_yticks(range(len(FORMATS)), [form.name for form in FORMATS])
    axes.set_ylim(len(FORMATS) - 0.5, -0.65)
    axes.set_xlim(0.9985, 1 + 1 / 16 + 0.0015)
    clean(axes, "every number that the format has here (fp32: 524,289 of them)", "", grid="")
    axes.tick_params(axis="y", length=0)
    headline(axes, "Above 1, bf16 has a number every 0.0078, fp16 every 0.00098")
