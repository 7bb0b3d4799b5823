"""Who talks to whom: the groups of ranks that really met in collectives, drawn over the nodes they live on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import atan2
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from labs.plots.style import FAINT, INK, Picture, headline
from labs.plots.tables import Table
from labs.units import format_bytes

if TYPE_CHECKING:  # a plot imports no torch
    from labs.sharded_step import ShardedStep

Nodes = Sequence[Sequence[int]]
_LOOKS = {"all_gather": ("#0072B2", "-", 3.0), "all_reduce": ("#E69F00", (0, (4, 2)), 2.0)}


def plot_meshes(runs: Mapping[str, Sequence[ShardedStep]], nodes: Nodes) -> Picture:
    """Draw {name: step of every rank}: nodes as boxes, and a line through each group that called a collective.

    A reduce_scatter runs in the group of the all_gathers. Raises ValueError when there is nothing to draw.
    """
    if not runs:
        raise ValueError("plot_meshes needs {name: [step of rank 0, ...]}, at least one")
    wide, high = 3.6 * len(runs), 3.5
    picture = Picture(max(wide, 7.2), high)
    for index, (name, steps) in enumerate(runs.items()):
        axes = picture.panel((index / len(runs), 0, 1 / len(runs), 1), left=0.2, right=0.2, top=0.75, bottom=0.45)
        places = _draw_nodes(axes, nodes)
        for kind in _LOOKS:
            for group in sorted(groups_of(steps, kind)):
                _draw_group(axes, [places[rank] for rank in group], kind)
        headline(axes, name, f"{format_bytes(crossing_bytes(steps[0], nodes))} a step in calls between nodes")
    lines = [Line2D([], [], color=c, linestyle=s, linewidth=w, label=kind) for kind, (c, s, w) in _LOOKS.items()]
    picture.legend(handles=lines, loc="lower center", ncols=2, frameon=False, fontsize=8.5, title="measured groups",
                   title_fontsize=8.5)  # fmt: skip
    return picture


def groups_of(steps: Sequence[ShardedStep], kind: str) -> set[tuple[int, ...]]:
    """Return the groups of more than one rank that met in calls of a kind."""
    pairs = [(call, group) for step in steps for call, group in zip(step.calls, step.members, strict=True)]
    return {group for call, group in pairs if call.kind == kind and len(group) > 1}


def crossing_bytes(step: ShardedStep, nodes: Nodes) -> int:
    """Add up the full tensors of one rank's calls whose group has ranks on more than one node."""
    pairs = zip(step.calls, step.members, strict=True)
    return sum(call.size_bytes for call, group in pairs if not any(set(group) <= set(node) for node in nodes))


def _draw_nodes(axes: Axes, nodes: Nodes) -> dict[int, tuple[float, float]]:
    """Draw boxes with ranks in them; returns the place of each rank."""
    places = {}
    for column, node in enumerate(nodes):
        look = {"boxstyle": "round,pad=0.05", "facecolor": "#F3F3F3", "edgecolor": "#999999"}
        box = FancyBboxPatch((column - 0.3, -0.35), 0.6, len(node) - 0.3, **look)
        axes.add_patch(box)
        axes.text(column, -0.62, f"node {'ABCDEFGH'[column]}", ha="center", va="center", fontsize=9, color=FAINT)
        for line, rank in enumerate(node):
            places[rank] = (column, len(node) - 1 - line)
            axes.plot(*places[rank], "o", markersize=26, color="white", markeredgecolor=INK, zorder=5)
            axes.text(*places[rank], f"{rank}", ha="center", va="center", fontsize=11, color=INK, zorder=6)
    axes.set_xlim(-0.55, len(nodes) - 0.45)
    axes.set_ylim(-0.85, max(map(len, nodes)) - 0.45)
    axes.axis("off")
    return places


def _draw_group(axes: Axes, places, kind: str) -> None:
    """Draw a line between two ranks, and a ring through more: lines that cross would look like pairs."""
    color, dash, width = _LOOKS[kind]
    x, y = (sum(axis) / len(places) for axis in zip(*places, strict=True))
    ring = sorted(places, key=lambda place: atan2(place[1] - y, place[0] - x))
    ring += ring[:1] if len(ring) > 2 else []  # a dashed line that comes back would fill its gaps
    axes.plot(*zip(*ring, strict=True), color=color, linestyle=dash, linewidth=width, zorder=3)


def table_meshes(runs: Mapping[str, Sequence[ShardedStep]], nodes: Nodes) -> Table:
    """List for each run what one rank rests on, which ranks meet in gathers, and its bytes within and between nodes."""
    rows = []
    for name, steps in runs.items():
        step, crossing = steps[0], crossing_bytes(steps[0], nodes)
        groups = " ".join("-".join(map(str, group)) for group in sorted(groups_of(steps, "all_gather")))
        inside = sum(call.size_bytes for call in step.calls) - crossing
        rows.append((name, groups or "none", format_bytes(step.resting_bytes), format_bytes(inside),
                     format_bytes(crossing)))  # fmt: skip
    columns = ("mesh", "ranks that gather together", "resting", "in calls inside a node", "in calls between nodes")
    return Table("One step of rank 0, measured", columns, tuple(rows))
