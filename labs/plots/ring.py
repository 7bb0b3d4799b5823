"""The ring, step by step: who holds which parts of which piece, what travels, and what each link has carried.

Pure arithmetic: `ring_moments(world_size)` follows the parts, the plots draw what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labs.plots.style import FAINT, INK, Picture, clean, headline
from labs.plots.tables import Table

# Light to dark blue by the share of ranks whose part is in the sum; the number in the cell says the same.
_LIGHT, _DARK = (0.93, 0.96, 0.99), (0.0, 0.36, 0.60)
_LINK_COLOR, _ROOT_COLOR, _SENT_COLOR = "#0072B2", "#D55E00", "#D55E00"


@dataclass(frozen=True)
class RingMoment:
    """The ranks after `step` steps of a ring all-reduce.

    `parts[rank][piece]` counts the ranks whose values are in that sum. `sends[rank]` is the piece that travels next to
    the following rank; () when all is done. `link_pieces` counts the pieces that each link has carried so far.
    """

    step: int
    phase: str
    parts: tuple[tuple[int, ...], ...]
    sends: tuple[int, ...]
    link_pieces: int


def ring_moments(world_size: int) -> tuple[RingMoment, ...]:
    """Follow a ring all-reduce: 2(N-1)+1 moments, the first before anything was sent.

    Raises ValueError for fewer than two ranks.
    """
    if world_size < 2:
        raise ValueError(f"world_size={world_size} makes no ring; try 4")
    ranks, last = range(world_size), 2 * (world_size - 1)
    parts = [[1] * world_size for _ in ranks]
    moments = []
    for step in range(last + 1):
        gathers = step >= world_size - 1
        # Reduce-scatter starts a piece behind, so that piece r ends on rank r; from there the all-gather goes on.
        sends = tuple((rank - step - (0 if gathers else 1) + gathers * (world_size - 1)) % world_size for rank in ranks)
        phase = "all-gather" if gathers else "reduce-scatter"
        done = step == last
        held = tuple(map(tuple, parts))
        moments.append(RingMoment(step, "done" if done else phase, held, () if done else sends, step))
        for rank in ranks:
            piece, after = sends[rank], (rank + 1) % world_size
            parts[after][piece] = held[rank][piece] if gathers else held[rank][piece] + held[after][piece]
    return tuple(moments)


def plot_ring(world_size: int = 4) -> Picture:
    """Draw every moment of a ring all-reduce side by side, to be read from left to right. Simulated, nothing runs."""
    moments = ring_moments(world_size)
    columns = min(4, len(moments))
    rows = ceil(len(moments) / columns)
    picture = Picture(11, 2.55 * rows + 0.4)
    for moment in moments:
        column, row = moment.step % columns, moment.step // columns
        height = 2.55 * rows / (2.55 * rows + 0.4)
        box = (column / columns, height * (1 - (row + 1) / rows), 1 / columns, height / rows)
        axes = picture.panel(box, left=0.5, right=0.12, top=0.6, bottom=0.12)
        _draw_pieces(axes, moment, small=True)
        headline(axes, _title(moment, world_size), _subtitle(moment))
    text = (
        "Columns are pieces. A number counts the ranks whose parts are in it; what is framed travels to the next rank."
    )
    picture.text(0.01, 0.985, text, va="top", fontsize=9.5, color=FAINT)
    return picture


def plot_ring_step(world_size: int = 4, step: int = 0) -> Picture:
    """Draw one moment of a ring all-reduce large, beside what each link has carried so far. Simulated, nothing runs.

    Raises ValueError for a step that the ring does not have.
    """
    moments = ring_moments(world_size)
    if not 0 <= step < len(moments):
        raise ValueError(f"step {step} is not there; {world_size} ranks have moments 0 to {len(moments) - 1}")
    moment = moments[step]
    picture = Picture(10.5, 3.9)
    axes = picture.panel((0, 0, 0.5, 1), left=0.75, right=0.2, top=0.75, bottom=0.3)
    _draw_pieces(axes, moment, small=False)
    headline(axes, _title(moment, world_size), _subtitle(moment))
    _draw_links(picture.panel((0.5, 0, 0.5, 1), left=0.95, right=0.3, top=0.75, bottom=0.6), moment, world_size)
    return picture


def _title(moment: RingMoment, world_size: int) -> str:
    if moment.phase == "done":
        return f"after {moment.step} steps: all agree"
    if moment.step == 0:
        return "at the start"
    return f"after step {moment.step}" + (": all summed" if moment.step == world_size - 1 else "")


def _subtitle(moment: RingMoment) -> str:
    return "nothing left to send" if moment.phase == "done" else f"next: {moment.phase}"


def _draw_pieces(axes: Axes, moment: RingMoment, small: bool) -> None:
    """A row a rank, a column a piece; an arrow to the next row is a message; the last rank's goes round to rank 0."""
    n = len(moment.parts)
    size = max(6.0, (9.5 if small else 13) - 0.5 * max(0, n - 4))
    for rank, row in enumerate(moment.parts):
        for piece, count in enumerate(row):
            share = (count - 1) / (n - 1)
            color = tuple(a + (b - a) * share for a, b in zip(_LIGHT, _DARK, strict=True))
            axes.add_patch(Rectangle((piece + 0.06, rank + 0.1), 0.88, 0.8, facecolor=color, edgecolor="white"))
            ink = "white" if share > 0.5 else INK
            axes.text(piece + 0.5, rank + 0.5, str(count), ha="center", va="center", fontsize=size, color=ink)
    for rank, piece in enumerate(moment.sends):
        _draw_message(axes, rank, piece, n)
    axes.set_xlim(0, n)
    axes.set_ylim(n + 0.3, -0.3)
    axes.set_xticks([piece + 0.5 for piece in range(n)], [_piece_name(piece, n, small) for piece in range(n)])
    axes.set_yticks([rank + 0.5 for rank in range(n)], [f"rank {rank}" for rank in range(n)])
    axes.xaxis.tick_bottom()
    axes.tick_params(length=0, labelsize=7 if small else 9, labelcolor=FAINT, pad=1)
    axes.spines[:].set_visible(False)


def _piece_name(piece: int, world_size: int, small: bool) -> str:
    return str(piece) if small or world_size > 5 else f"piece {piece}"


def _draw_message(axes: Axes, rank: int, piece: int, n: int) -> None:
    frame = {"fill": False, "edgecolor": _SENT_COLOR, "linewidth": 2}
    axes.add_patch(Rectangle((piece + 0.06, rank + 0.1), 0.88, 0.8, **frame))
    arrow = {"arrowstyle": "-|>", "color": _SENT_COLOR, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (piece + 0.5, rank + 1.22), (piece + 0.5, rank + 0.86), arrowprops=arrow)
    if rank == n - 1:  # the ring closes: the message comes in again at the top
        axes.annotate("", (piece + 0.5, 0.2), (piece + 0.5, -0.28), arrowprops=arrow)


def _draw_links(axes: Axes, moment: RingMoment, n: int) -> None:
    """Bars of what each link of the ring has carried, beside the busiest link of a gather at one rank."""
    share = moment.link_pieces / n
    names = [f"{rank} to {(rank + 1) % n}" for rank in range(n)]
    axes.barh(range(n), [share] * n, color=_LINK_COLOR, height=0.6)
    for rank in range(n):
        axes.text(share + 0.03, rank, f"{moment.link_pieces}/{n}", va="center", fontsize=8.5, color=INK)
    whole = 2 * (n - 1) / n
    axes.axvline(n - 1, color=_ROOT_COLOR, linestyle=(0, (1, 1.5)), linewidth=1.6)
    if n > 2:
        note = {"fontsize": 8, "color": _ROOT_COLOR, "ha": "right", "va": "top"}
        axes.text(n - 1 - 0.03, -0.72, f"into rank 0, if all send to it: {n - 1}", **note)
    if moment.phase == "done":  # not before: where the bars end is for the reader to predict
        axes.axvline(whole, color=_LINK_COLOR, linestyle=(0, (4, 2)), linewidth=1.2)
        side, shift = ("left", 0.03) if n > 2 else ("right", -0.02)
        end = {"fontsize": 8, "color": _LINK_COLOR, "ha": side, "va": "bottom"}
        axes.text(whole + shift, n - 0.42, f"2({n}-1)/{n}", **end)
    axes.set_yticks(range(n), names)
    axes.set_ylim(n - 0.4, -0.8)
    axes.set_xlim(0, max(n - 1, whole) * 1.08)
    clean(axes, "carried so far [sizes of the tensor]", "link, from rank to rank", grid="x")
    headline(axes, "Every link carries the same", "theory: payload of a ring all-reduce, counted in tensors")


def table_ring(world_size: int = 4) -> Table:
    """List who sends which piece in each step of a ring all-reduce, and how many parts are in it."""
    moments = ring_moments(world_size)
    rows = [
        (
            f"{moment.step + 1} {moment.phase}",
            *(f"{piece} ({moment.parts[rank][piece]} of {world_size})" for rank, piece in enumerate(moment.sends)),
        )
        for moment in moments[:-1]
    ]
    columns = ("step", *(f"rank {rank} to {(rank + 1) % world_size}" for rank in range(world_size)))
    return Table("Pieces that travel, and the ranks whose parts are in them", columns, tuple(rows))
