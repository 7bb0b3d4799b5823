"""The rank panel: one card a rank, for a notebook, with a text twin. Pure `rows -> picture`."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankPanel:
    """What each rank said of itself, in order of rank: cards in a notebook, a table in text."""

    rows: tuple[Mapping[str, object], ...]

    def __str__(self) -> str:
        names = list(self.rows[0])
        table = [names] + [[str(row[name]) for name in names] for row in self.rows]
        widths = [max(len(line[column]) for line in table) for column in range(len(names))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cards = "".join(_card(row) for row in self.rows)
        return f"<div role='list' style='display:flex; flex-wrap:wrap; gap:0.8em'>{cards}</div>"


def rank_panel(rows: Sequence[Mapping[str, object]]) -> RankPanel:
    """Show what each rank returned: one mapping a rank, with the same keys, "rank" first.

    Raises ValueError when there are no rows, or rows with different keys.
    """
    rows = tuple(rows)
    if not rows or any(list(row) != list(rows[0]) for row in rows) or next(iter(rows[0]), None) != "rank":
        raise ValueError(
            f"rank_panel needs one mapping a rank, all with the same keys and 'rank' first, not {rows!r}; "
            "try launch(...) of a function that returns dict(rank=..., value=...)"
        )
    return RankPanel(rows)


def _card(row: Mapping[str, object]) -> str:
    title, *rest = row.items()
    lines = "".join(
        f"<tr><td style='text-align:left; opacity:0.75'>{html.escape(name)}</td>"
        f"<td style='text-align:right'><b>{html.escape(str(value))}</b></td></tr>"
        for name, value in rest
    )
    return (
        "<div role='listitem' style='border:1px solid currentColor; border-radius:6px; padding:0.4em 0.8em'>"
        f"<div style='border-bottom:1px solid currentColor'>rank {html.escape(str(title[1]))}</div>"
        f"<table style='margin:0'>{lines}</table></div>"
    )
