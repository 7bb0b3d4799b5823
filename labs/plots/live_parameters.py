"""Live parameters over one step: a staircase for each way of cutting a model into units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labs.plots.style import FAINT, INK, Picture, byte_unit, clean, headline, run_style
from labs.plots.tables import Table
from labs.units import format_bytes

if TYPE_CHECKING:  # a plot imports no torch
    from labs.sharded_step import ShardedStep


def plot_live(
    steps: Mapping[str, ShardedStep], whole_bytes: int, budget_bytes: int | None = None, title: str = ""
) -> Picture:
    """Draw {name: step of one rank}: bytes of parameters that are live wherever a layer begins or ends.

    The x axis is the order of the program, not time. `whole_bytes` is the model that nobody cut. The title says by
    default which of them stays lowest.
    Raises ValueError when there is nothing to draw, or steps of different models.
    """
    if not steps or len({len(step.live) for step in steps.values()}) > 1:
        raise ValueError("plot_live needs {name: ShardedStep}, all of the same model, at least one")
    picture = Picture(11, 4.3)
    axes = picture.panel(left=0.85, right=2.6, top=0.75, bottom=0.75)
    most = max(step.peak_bytes for step in steps.values())
    unit, unit_name = byte_unit(most)
    for index, step in enumerate(steps.values()):
        style = run_style(index)
        axes.step(
            range(len(step.live)), [sample.live_bytes / unit for sample in step.live], where="post",
            color=style["color"], linestyle=style["linestyle"], linewidth=1.8,
        )  # fmt: skip
    axes.axhline(whole_bytes / unit, color=INK, linewidth=1.0, linestyle=(0, (1, 2)))
    if budget_bytes is not None:
        axes.axhline(budget_bytes / unit, color=FAINT, linewidth=1.0, linestyle=(0, (5, 1.5)))
    first = next(iter(steps.values()))
    _mark_passes(axes, first)
    axes.set_xlim(0, len(first.live) - 1)
    axes.set_ylim(0, 1.08 * most / unit)
    clean(axes, "the block that computes, in the order of the program", f"live parameters [{unit_name}]")
    _name_lines(axes, steps, whole_bytes, budget_bytes, unit)
    lowest = min(steps, key=lambda name: steps[name].peak_bytes)
    what = "measured on one rank: resting shards, gathered weights and the buffers that receive them"
    headline(axes, title or f"Of {len(steps)} ways to cut the model, {lowest} keeps the least alive", what)
    return picture


def _mark_passes(axes, step: ShardedStep) -> None:
    """Shade the backward pass, and put the number of a block where it begins."""
    backward = next(i for i, sample in enumerate(step.live) if sample.pass_name == "backward")
    axes.axvspan(backward, len(step.live), color="#F3F3F3", zorder=0)
    for place, name in ((0, "forward"), (backward, "backward")):
        axes.annotate(name, (place, 1), (4, -4), ("data", "axes fraction"), textcoords="offset points", va="top",
                      fontsize=8.5, color=FAINT)  # fmt: skip
    starts: dict[tuple[str, str], int] = {}
    for index, sample in enumerate(step.live):
        if sample.module.startswith("blocks."):
            starts.setdefault((sample.pass_name, sample.module.split(".")[1]), index)
    axes.set_xticks(list(starts.values()), [block for _, block in starts])


def _name_lines(axes, steps, whole_bytes: int, budget_bytes: int | None, unit: int) -> None:
    """Write names beside the lines, at the height of their peaks, pushed apart where they would meet."""
    lines = [(step.peak_bytes, f"{name}: {format_bytes(step.peak_bytes)}", run_style(i)["color"])
             for i, (name, step) in enumerate(steps.items())]  # fmt: skip
    if budget_bytes is not None:
        lines.append((budget_bytes, f"the budget: {format_bytes(budget_bytes)}", FAINT))
    if all(whole_bytes != peak for peak, _, _ in lines):
        lines.append((whole_bytes, f"the whole model: {format_bytes(whole_bytes)}", INK))
    gap, height = 0.062 * axes.get_ylim()[1], float("-inf")
    for peak, text, color in sorted(lines, key=lambda line: line[0]):
        height = max(peak / unit, height + gap)
        arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkB": 0}
        axes.annotate(text, (1, peak / unit), (1.05, height), ("axes fraction", "data"), ("axes fraction", "data"),
                      va="center", fontsize=8.5, color=color, arrowprops=arrow)  # fmt: skip


def table_steps(steps: Mapping[str, ShardedStep], whole_bytes: int) -> Table:
    """List for each step: units gathered, collectives, bytes gathered, resting and peak bytes of parameters."""
    rows = [
        (
            name,
            str(step.count("all_gather")),
            str(step.count("reduce_scatter")),
            format_bytes(step.sent_bytes("all_gather")),
            format_bytes(step.resting_bytes),
            format_bytes(step.peak_bytes),
            f"{step.peak_bytes / whole_bytes:.2f}",
        )
        for name, step in steps.items()
    ]
    columns = (
        "units", "all_gathers", "reduce_scatters", "bytes gathered", "resting", "live at most", "in whole models",
    )  # fmt: skip
    return Table("One step of one rank, measured", columns, tuple(rows))
