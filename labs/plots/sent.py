"""What one step sends: its collectives, and their bytes by three counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from labs.plots.tables import Table
from labs.traffic import gloo_sent_bytes
from labs.units import format_bytes

if TYPE_CHECKING:  # a table imports no torch
    from labs.traced import TracedRun


def table_sent(runs: Mapping[str, TracedRun], rank: int = 0) -> Table:
    """List {name: run of one rank}: its calls, and its bytes by an ideal ring, by gloo's arithmetic and on sockets."""
    rows = []
    for name, run in runs.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(call.kind for call in run.calls).items())
        gloo = sum(gloo_sent_bytes(call, rank) for call in run.calls)
        sockets = "not measured" if run.sent_bytes is None else format_bytes(run.sent_bytes)
        rows.append((name, kinds, format_bytes(run.ring_bytes), format_bytes(gloo), sockets))
    columns = ("run", "collectives", "ideal ring (theory)", "gloo (predicted)", "sockets (measured)")
    return Table(f"Sent by rank {rank} in one step", columns, tuple(rows))
