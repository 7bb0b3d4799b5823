"""When one rank computes and when it communicates: gradients as they become ready, collectives as they are issued."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from labs.moments import GradientReady, RankTimeline, Span, Transfer
from labs.recorder import CollectiveRecord, Recorder
from labs.wire import InstrumentGroup

__all__ = ["GradientReady", "RankTimeline", "Span", "TimelineRecorder", "Transfer"]

_ZERO = "labs.timeline zero"
_NUM_TRIES = 10
_RUNS = "gloo:"  # how torch's profiler (2.13) names a collective while gloo's own thread carries it out
_MESSAGES = ("gloo:send", "gloo:recv", "gloo:recvAnySource")  # not collectives


class TimelineRecorder:
    """Records this rank inside `with recorder:`; afterwards `recorder.timeline` holds what was seen.

    Every rank of the group enters, and they begin together: entering waits for all (no collective is recorded for it).
    Build it before anything else hooks into the model, so that a gradient is noted as ready before what it sets off.
    Backward runs from the gradient of the model's output (one tensor) to the last gradient of a parameter. With
    `times_transfers` torch's profiler also tells when gloo carried each collective out; that slows the step down.
    Without a model nothing is hooked: `during` says what runs, `watch_gradients` whose gradients to note. What goes
    over the group of an `instrument` is left out, and the waiting at the entrance goes over it.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        times_transfers: bool = True,
        instrument: InstrumentGroup | None = None,
    ):
        self.timeline: RankTimeline | None = None
        self._times_transfers, self._is_on, self._instrument = times_transfers, False, instrument
        if model is not None:
            model.register_forward_pre_hook(self._forward_begins)
            model.register_forward_hook(self._forward_ends)
            self.watch_gradients(model)
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._note("optimizer begins"))
            optimizer.register_step_post_hook(lambda *_: self._note("optimizer ends"))

    def watch_gradients(self, model: nn.Module) -> None:
        """Note when the gradient of each parameter is ready."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(functools.partial(self._ready, name))

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Record the block as one span: forward, backward or optimizer."""
        self._note(f"{what} begins")
        yield
        self._note(f"{what} ends")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing of the block, which communicates over the instrument's group alone."""
        was_on, self._is_on = self._is_on, False
        yield
        self._is_on = was_on

    def __enter__(self) -> TimelineRecorder:
        self._moments: list[tuple[str, int]] = []
        self._gradients: list[GradientReady] = []
        self._waits: list[Span] = []
        self._num_forwards = 0
        self._calls = Recorder()
        self._profile = profile(activities=[ProfilerActivity.CPU]) if self._times_transfers else None
        if self._profile:
            self._profile.start()
        dist.barrier(self._instrument and self._instrument.group)  # after the profiler, which takes its time to start
        if self._profile:
            self._meet_clocks()
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
        unseen = self._instrument and self._instrument.name
        pairs = [(call, run) for call, run in zip(calls, runs, strict=True) if call.group_name != unseen]
        transfers = tuple(self._transfer(call, run) for call, run in pairs)
        spans = tuple(sorted([*self._spans(), *self._waits], key=lambda span: span.begin_ns))
        self.timeline = RankTimeline(dist.get_rank(), spans, tuple(self._gradients), transfers)

    def _meet_clocks(self) -> None:
        """Mark a moment that both clocks know, the profiler's and ours.

        Of several tries the shortest counts: on a busy machine the core may be gone for milliseconds in between.
        """
        tries = []
        for number in range(_NUM_TRIES):
            begin_ns = time.time_ns()
            with record_function(f"{_ZERO} {number}"):
                pass
            tries.append((time.time_ns() - begin_ns, begin_ns, number))
        width_ns, begin_ns, number = min(tries)
        self._zero_ns, self._zero_name = begin_ns + width_ns // 2, f"{_ZERO} {number}"

    # What the hooks call.

    def _note(self, name: str) -> None:
        if self._is_on:
            self._num_forwards += name == "forward begins"
            self._moments.append((name, time.time_ns()))

    def _forward_begins(self, module, args) -> None:
        if torch.is_grad_enabled():
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
                if self._is_on:
                    self._waits.append(Span("wait", begin_ns, time.time_ns()))

        return waiting

    # What is made of it afterwards.

    def _spans(self) -> Iterable[Span]:
        begun: dict[str, int] = {}
        for name, at_ns in self._moments:
            what, _, edge = name.partition(" ")
            if edge == "begins":
                begun[what] = at_ns
            elif what in begun and what != "backward":
                yield Span(what, begun.pop(what), at_ns)
        yield from self._backward_spans()

    def _backward_spans(self) -> Iterable[Span]:
        """End each backward with its last gradient: what follows inside the call is waiting for other ranks."""
        edges = [(name, at_ns) for name, at_ns in self._moments if name.startswith("backward")]
        for (name, begin_ns), (next_name, next_ns) in pairwise([*edges, ("", float("inf"))]):
            ready = [g.at_ns for g in self._gradients if begin_ns <= g.at_ns < next_ns]
            if name == "backward begins" and (ready or next_name == "backward ends"):
                yield Span("backward", begin_ns, max(ready, default=next_ns))

    def _transfer(self, call: CollectiveRecord, run: tuple[int, int] | None) -> Transfer:
        begins = [at_ns for name, at_ns in self._moments if name == "forward begins"]
        micro_batch = max(0, sum(at_ns <= call.created_ns for at_ns in begins) - 1)
        ready = sum(g.micro_batch == micro_batch and g.at_ns <= call.created_ns for g in self._gradients)
        begin_ns, end_ns = run or (None, None)
        return Transfer(call.kind, call.size_bytes, micro_batch, ready, call.created_ns, begin_ns, end_ns)

    def _runs(self) -> list[tuple[int, int]]:
        """Return when gloo began and ended each collective; it takes them up in the order of issue.

        Read as the profiler recorded them: to make torch's own list of all events, thousands a step, takes a rank
        longer than the step. Undocumented: `profiler.kineto_results` (torch 2.13).
        """
        events = [(event.name(), event) for event in self._profile.profiler.kineto_results.events()]
        zero_ns = next(event.start_ns() for name, event in events if name == self._zero_name)
        runs = [event for name, event in events if name.startswith(_RUNS) and name not in _MESSAGES]
        spans = [(run.start_ns() - zero_ns, run.end_ns() - zero_ns) for run in runs]
        return sorted((self._zero_ns + begin, self._zero_ns + end) for begin, end in spans if begin > 0)
