"""The ownership map: parameters laid end to end in one row, and the rank that owns each piece of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.axes import Axes

from labs.plots.shard_map import rank_colors
from labs.plots.style import FAINT, INK, Picture, clean, headline
from labs.plots.tables import Table

Pieces = Sequence[Sequence[tuple[int, int, int]]]  # by rank: (number of the parameter, first element, end)


def plot_ownership(sizes: Mapping[str, int], owned: Pieces) -> Picture:
    """Draw parameters [elements] as steps of a staircase, coloured and numbered by the rank that owns each piece.

    `owned[rank]` lists (number of the parameter, first element, end). Raises ValueError when there is nothing to draw.
    """
    if not sizes or not owned:
        raise ValueError("plot_ownership needs the size of a parameter at least, and the pieces of a rank")
    starts = [0, *accumulate(sizes.values())]
    part = -(-starts[-1] // len(owned))
    picture = Picture(11, 1.5 + 0.27 * (len(sizes) + 2))
    axes = picture.panel(left=1.6, right=0.9, bottom=0.55, top=0.75)
    _draw_ranks(axes, len(owned), part)
    for rank, pieces in enumerate(owned):
        for index, first, end in pieces:
            _draw_piece(axes, starts[index] + first, end - first, index, rank, len(owned), part)
    padding = part * len(owned) - starts[-1]
    rows = [f"{name}" for name in sizes] + ["padding"]
    axes.barh(len(sizes), padding, 0.72, starts[-1], facecolor="white", edgecolor=FAINT, hatch="////", linewidth=0.6)
    for row, count in enumerate((*sizes.values(), padding)):
        place = ("axes fraction", "data")
        axes.annotate(f"{count:,}", (1, row), (6, 0), place, "offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(sizes) + 0.55, -1.5)  # room for the names of the ranks
    axes.set_xlim(0, part * len(owned))
    clean(axes, "place in the row [elements]; right: elements of the parameter", "", grid="")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="y", length=0)
    headline(axes, *_titles(sizes, owned, part))
    return picture


def _draw_ranks(axes: Axes, num_ranks: int, part: int) -> None:
    for rank, color in enumerate(rank_colors(num_ranks)):
        axes.axvspan(rank * part, (rank + 1) * part, color=color, alpha=0.22, linewidth=0)
        axes.axvline((rank + 1) * part, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            f"rank {rank}", ((rank + 0.5) * part, 1), (0, -5), ("data", "axes fraction"), "offset points",
            ha="center", va="top", fontsize=9, fontweight="bold", color=INK,
        )  # fmt: skip


def _draw_piece(axes: Axes, place: int, length: int, row: int, rank: int, num_ranks: int, part: int) -> None:
    color = rank_colors(num_ranks)[rank]
    axes.barh(row, length, 0.72, place, color=color, edgecolor=INK, linewidth=0.7)
    if length > 0.055 * part * num_ranks:
        axes.text(place + length / 2, row, f"{length:,}", ha="center", va="center", fontsize=8, color=INK)


def _titles(sizes: Mapping[str, int], owned: Pieces, part: int) -> tuple[str, str]:
    owners = [sum(index == piece[0] for pieces in owned for piece in pieces) for index in range(len(sizes))]
    cut = sum(count > 1 for count in owners)
    title = f"{len(sizes)} parameters in one row, cut into {len(owned)} parts of {part:,} elements"
    return title, f"{cut} parameters lie in more than one part; dashed: where the row is cut"


def table_ownership(sizes: Mapping[str, int], owned: Pieces) -> Table:
    """List the elements of each parameter that each rank owns."""
    rows = []
    for index, name in enumerate(sizes):
        counts = [sum(end - first for number, first, end in pieces if number == index) for pieces in owned]
        rows.append((name, *(f"{count:,}" for count in counts)))
    totals = [sum(end - first for _, first, end in pieces) for pieces in owned]
    rows.append(("all", *(f"{count:,}" for count in totals)))
    return Table("Elements owned", ("parameter", *(f"rank {rank}" for rank in range(len(owned)))), tuple(rows))
