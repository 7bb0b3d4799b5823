"""What one rank did from one moment to another: when it computed, when it communicated, how much of both at once.

All moments are nanoseconds since the epoch; ranks of one machine share the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Something this rank did from one moment to another [ns]."""

    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class GradientReady:
    """The moment at which backward had finished the gradient of a parameter; `micro_batch` counts forward passes."""

    parameter: str
    micro_batch: int
    at_ns: int


@dataclass(frozen=True)
class Transfer:
    """One collective: issued by the program, then carried out beside it.

    `num_ready` of the micro-batch's gradients were ready when it was issued: the autograd position. `begin_ns` to
    `end_ns` is the time that gloo worked on it, waiting for other ranks included; None where that was not recorded.
    """

    kind: str
    size_bytes: int
    micro_batch: int
    num_ready: int
    issued_ns: int
    begin_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did while it was recorded: spans named forward, backward, optimizer and wait."""

    rank: int
    spans: tuple[Span, ...]
    gradients: tuple[GradientReady, ...]
    transfers: tuple[Transfer, ...]

    @classmethod
    def from_dict(cls, data: dict) -> RankTimeline:
        """Rebuild a timeline from `dataclasses.asdict`."""
        spans = tuple(Span(**span) for span in data["spans"])
        gradients = tuple(GradientReady(**gradient) for gradient in data["gradients"])
        return cls(data["rank"], spans, gradients, tuple(Transfer(**transfer) for transfer in data["transfers"]))

    @property
    def communicating_seconds(self) -> float:
        """Time in which at least one collective was carried out."""
        return _length(self._communicating()) / 1e9

    @property
    def overlapped_share(self) -> float | None:
        """Share of the communicating time in which this rank computed as well; None when nothing was timed."""
        communicating = self._communicating()
        computing = _union((s.begin_ns, s.end_ns) for s in self.spans if s.name != "wait")
        waiting = _union((s.begin_ns, s.end_ns) for s in self.spans if s.name == "wait")
        hidden = _common(communicating, computing)
        total = _length(communicating)
        return (_length(hidden) - _length(_common(hidden, waiting))) / total if total else None

    def _communicating(self) -> list[tuple[int, int]]:
        return _union((t.begin_ns, t.end_ns) for t in self.transfers if t.end_ns is not None)


Interval = tuple[int, int]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _common(some: list[Interval], others: list[Interval]) -> list[Interval]:
    """Return where two lists of disjoint intervals are both present."""
    pairs = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return [(begin, end) for begin, end in pairs if begin < end]


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
