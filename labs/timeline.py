"""When one rank computes and when it communicates: gradients as they become ready, collectives as they are issued."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from labs.recorder import CollectiveRecord, Recorder

_ZERO = "labs.timeline zero"
_RUNS = "gloo:"  # how torch's profiler (2.13) names a collective while gloo's own thread carries it out
_MESSAGES = ("gloo:send", "gloo:recv", "gloo:recvAnySource")  # not collectives


@dataclass(frozen=True)
class Span:
    """Something this rank did from one moment to another [ns since the epoch; ranks of one machine share the clock]."""

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


class TimelineRecorder:
    """Records this rank inside `with recorder:`; afterwards `recorder.timeline` holds what was seen.

    Every rank of the group enters, and they begin together: entering waits for all (no collective is recorded for it).
    Build it before anything else hooks into the model, so that a gradient is noted as ready before what it sets off.
    Backward runs from the gradient of the model's output (one tensor) to the last gradient of a parameter. With
    `times_transfers` torch's profiler also tells when gloo carried each collective out; that slows the step down.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, times_transfers: bool = True):
        self.timeline: RankTimeline | None = None
        self._times_transfers, self._is_on = times_transfers, False
        model.register_forward_pre_hook(self._forward_begins)
        model.register_forward_hook(self._forward_ends)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(functools.partial(self._ready, name))
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._note("optimizer begins"))
            optimizer.register_step_post_hook(lambda *_: self._note("optimizer ends"))

    def __enter__(self) -> TimelineRecorder:
        self._moments: list[tuple[str, int]] = []
        self._gradients: list[GradientReady] = []
        self._waits: list[Span] = []
        self._num_forwards = 0
        self._calls = Recorder()
        self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True) if self._times_transfers else None
        if self._profile:
            self._profile.start()
        dist.barrier()  # after the profiler, which takes its time to start
        if self._profile:
            with record_function(_ZERO):
                self._zero_ns = time.time_ns()
        self._calls.start()
        self._original_wait = dist.Work.wait
        dist.Work.wait = self._watched(self._original_wait)
        self._is_on = True
        return self

    def __exit__(self, *error) -> None:
        self._is_on = False
        dist.Work.wait = self._original_wait
        calls = self._calls.stop().calls
        if self._profile:
            self._profile.stop()
        runs = self._runs() if self._profile else []
        if len(runs) != len(calls):  # not every call was seen by both, so no pair is sure
            runs = [None] * len(calls)
        transfers = tuple(map(self._transfer, calls, runs))
        spans = tuple(sorted([*self._spans(), *self._waits], key=lambda span: span.begin_ns))
        self.timeline = RankTimeline(dist.get_rank(), spans, tuple(self._gradients), transfers)

    # What the hooks call.

    def _note(self, name: str) -> None:
        if self._is_on:
            self._moments.append((name, time.time_ns()))

    def _forward_begins(self, module, args) -> None:
        if self._is_on and torch.is_grad_enabled():
            self._num_forwards += 1
            self._note("forward begins")

    def _forward_ends(self, module, args, output) -> None:
        self._note("forward ends")
        if self._is_on and isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(lambda _: self._note("backward begins"))

    def _ready(self, name: str, parameter) -> None:
        if self._is_on:
            self._gradients.append(GradientReady(name, self._num_forwards - 1, time.time_ns()))

    def _watched(self, wait):
        """Note how long the program stands still in `work.wait()`, where `dist.all_reduce(...)` stands still, too."""

        @functools.wraps(wait)
        def waiting(work, *args, **kwargs):
            begin_ns = time.time_ns()
            try:
                return wait(work, *args, **kwargs)
            finally:
                self._waits.append(Span("wait", begin_ns, time.time_ns()))

        return waiting

    # What is made of it afterwards.

    def _spans(self) -> Iterable[Span]:
        begun: dict[str, int] = {}
        for name, at_ns in self._moments:
            what, _, edge = name.partition(" ")
            if edge == "begins":
                begun[what] = at_ns
            elif what in begun:
                yield Span(what, begun.pop(what), at_ns)
        starts = [at_ns for name, at_ns in self._moments if name == "backward begins"]
        for begin_ns, following_ns in zip(starts, [*starts[1:], float("inf")], strict=False):
            if ready := [g.at_ns for g in self._gradients if begin_ns <= g.at_ns < following_ns]:
                yield Span("backward", begin_ns, max(ready))

    def _transfer(self, call: CollectiveRecord, run: tuple[int, int] | None) -> Transfer:
        begins = [at_ns for name, at_ns in self._moments if name == "forward begins"]
        micro_batch = max(0, sum(at_ns <= call.created_ns for at_ns in begins) - 1)
        ready = sum(g.micro_batch == micro_batch and g.at_ns <= call.created_ns for g in self._gradients)
        begin_ns, end_ns = run or (None, None)
        return Transfer(call.kind, call.size_bytes, micro_batch, ready, call.created_ns, begin_ns, end_ns)

    def _runs(self) -> list[tuple[int, int]]:
        """Return when gloo began and ended each collective; it takes them up in the order of issue."""
        events = self._profile.events()
        zero_us = next(event.time_range.start for event in events if event.name == _ZERO)
        runs = [
            event.time_range
            for event in events
            if event.name.startswith(_RUNS) and event.name not in _MESSAGES and event.time_range.start > zero_us
        ]
        return sorted((self._ns(run.start - zero_us), self._ns(run.end - zero_us)) for run in runs)

    def _ns(self, microseconds: float) -> int:
        return self._zero_ns + round(1000 * microseconds)


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
