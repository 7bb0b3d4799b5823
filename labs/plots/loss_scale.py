"""A dynamic loss scale over the steps of a run: where it overflowed, fell, and rose again."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import LogLocator, MaxNLocator

from labs.plots.style import RUN_COLORS, Picture, clean, headline
from labs.plots.tables import Table


def plot_loss_scale(scales: Sequence[float], is_finite: Sequence[bool]) -> Picture:
    """Draw the loss scale that each step used, and mark the steps whose gradients were not finite: they are skipped.

    Raises ValueError when the two have different lengths, or none.
    """
    if not scales or len(scales) != len(is_finite):
        raise ValueError(f"one scale and one answer a step are needed, not {len(scales)} and {len(is_finite)}")
    picture = Picture(8.6, 3.2)
    axes = picture.panel()
    steps = range(1, len(scales) + 1)
    axes.step(steps, scales, where="mid", color=RUN_COLORS[0], linewidth=1.8, label="loss scale")
    skipped = [step for step, finite in zip(steps, is_finite, strict=True) if not finite]
    marks = [scales[step - 1] for step in skipped]
    axes.plot(skipped, marks, "X", color=RUN_COLORS[1], markersize=8, label="overflow: this step is skipped")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.5, len(scales) + 0.5)
    clean(axes, "optimizer step", "loss scale (log scale)")
    axes.legend(fontsize=8.5, frameon=False, loc="best")
    headline(axes, f"{len(skipped)} of {len(scales)} steps overflow and are skipped", "measured, fp16 on CPU")
    return picture


def table_loss_scale(scales: Sequence[float], is_finite: Sequence[bool]) -> Table:
    """List the stretches of steps with one loss scale, and how each ended."""
    rows, begin = [], 0
    for step in range(1, len(scales) + 1):
        if step == len(scales) or scales[step] != scales[begin]:
            end = "overflow" if not is_finite[step - 1] else "clean"
            where = f"{begin + 1}" if step == begin + 1 else f"{begin + 1} to {step}"
            rows.append((where, f"{scales[begin]:,.0f}", end))
            begin = step
    return Table("Loss scale, measured", ("steps", "scale", "last step"), tuple(rows))
