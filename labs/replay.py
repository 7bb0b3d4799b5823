"""A schedule of the puzzle on real ranks: real transfers, real frees, and the bytes that are really there.

The model is a chain of square matrices, y = x W, so that each line of calculus can be read: backward needs the weights
again (dx = dy Wᵀ), and it makes a whole gradient (dW = xᵀ dy). The loss is the sum of the last y.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isqrt

import torch
import torch.distributed as dist

from labs.moments import RankTimeline
from labs.puzzle import PUZZLE, Bar, Live, Playback, Puzzle, is_compute, moves_of, play
from labs.timeline import TimelineRecorder

BATCH = 64  # rows of x on one rank
SHORTEST_WAIT_SECONDS = 1e-4  # what is shorter is the call itself


@dataclass(frozen=True)
class Replay:
    """What one rank saw: times and bytes, and how far its shards of the gradients are from the twin's, relative."""

    rank: int
    playback: Playback
    gradient_error: float


def replay(schedule, puzzle: Puzzle = PUZZLE) -> Replay:
    """Carry a schedule out on this rank, once for the bytes and once for the times; every rank of the group calls it.

    Live bytes are those of all tensors of a layer's size that exist in this process, whoever holds them. To count them
    takes longer than a transfer, so times are taken in a round of their own.
    Raises IllegalMove where the puzzle does.
    """
    play(schedule, puzzle)
    moves = moves_of(schedule)
    counted, timed = _Program(puzzle, counts=True), _Program(puzzle, counts=False)
    counted.run(moves)
    recorder = TimelineRecorder()
    with recorder:
        timed.run(moves)
    live = [replace(c, seconds=t.seconds) for c, t in zip(counted.live, timed.live, strict=True)]
    playback = Playback(moves, timed.bars_with(recorder.timeline), tuple(live), is_measured=True)
    return Replay(dist.get_rank(), playback, counted.error())


def tensors_of(num_bytes: int) -> int:
    """Count the tensors of this process that hold so many bytes, by asking Python's collector for all objects."""
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return len({t.untyped_storage().data_ptr() for t in found if t.untyped_storage().nbytes() == num_bytes})


def _give_back(tensor: torch.Tensor) -> None:
    """Free the memory as FSDP does: gloo's thread may hold the tensor a moment longer, and then it holds nothing."""
    tensor.untyped_storage().resize_(0)


class _Program:
    def __init__(self, puzzle: Puzzle, counts: bool):
        self.counts = counts
        width = isqrt(puzzle.layer_bytes // 4)
        self.puzzle, self.width, self.rank = puzzle, width, dist.get_rank()
        self.shards = {n: self._weights(n).chunk(dist.get_world_size())[self.rank].clone() for n in self._layers()}
        self.inputs = {1: self._batch(self.rank)}
        self.whole: dict[int, tuple] = {}  # layer -> (weights, handle of the gather)
        self.gradients: dict[int, torch.Tensor] = {}
        self.reduced: dict[int, torch.Tensor] = {}  # this rank's shards of the gradients, summed over ranks
        self.in_flight: tuple | None = None
        self.upstream = torch.ones(BATCH, width)
        self.bars: list[Bar] = []
        self.sent: list[str] = []
        self.live: list[Live] = []

    def _layers(self):
        return range(1, self.puzzle.num_layers + 1)

    def _weights(self, layer: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(layer)
        return torch.randn(self.width, self.width, generator=source) / self.width**0.5  # [in, out]

    def _batch(self, rank: int) -> torch.Tensor:
        return torch.randn(BATCH, self.width, generator=torch.Generator().manual_seed(100 + rank))

    def run(self, moves: Sequence[str]) -> None:
        self.zero_ns = time.time_ns()
        for move in moves:
            verb, _, number = move.partition(" ")
            getattr(self, f"_{verb}")(int(number))
            self.sent += [move] if verb in ("gather", "reduce") else []
            self._note(self.bars[-1].begin_seconds if is_compute(move) else self._elapsed(time.time_ns()))
        self._await_reduce()
        self._note(self._elapsed(time.time_ns()))

    def _gather(self, layer: int) -> None:
        weights = torch.empty(self.width, self.width)
        handle = dist.all_gather_into_tensor(weights, self.shards[layer], async_op=True)
        self.whole[layer] = weights, handle

    def _forward(self, layer: int) -> None:
        weights = self._arrived(layer)
        with self._bar(f"forward {layer}"):
            self.inputs[layer + 1] = self.inputs[layer] @ weights

    def _backward(self, layer: int) -> None:
        weights = self._arrived(layer)
        with self._bar(f"backward {layer}"):
            self.gradients[layer] = self.inputs[layer].T @ self.upstream
            self.upstream = self.upstream @ weights.T

    def _free(self, layer: int) -> None:
        _give_back(self.whole.pop(layer)[0])

    def _reduce(self, layer: int) -> None:
        self._await_reduce()
        gradient = self.gradients.pop(layer)
        self.reduced[layer] = torch.empty_like(self.shards[layer])
        handle = dist.reduce_scatter_tensor(self.reduced[layer], gradient, async_op=True)
        self.in_flight = gradient, handle

    def _arrived(self, layer: int) -> torch.Tensor:
        weights, handle = self.whole[layer]
        handle.wait()
        return weights

    def _await_reduce(self) -> None:
        if self.in_flight is not None:
            gradient, handle = self.in_flight
            handle.wait()
            _give_back(gradient)
            self.in_flight = None

    @contextmanager
    def _bar(self, move: str):
        begin = self._elapsed(time.time_ns())
        yield
        self.bars.append(Bar(move, "compute", begin, self._elapsed(time.time_ns())))

    def _elapsed(self, at_ns: int) -> float:
        return (at_ns - self.zero_ns) / 1e9

    def bars_with(self, timeline: RankTimeline) -> tuple[Bar, ...]:
        """Add what was recorded beside the program: its waits, and the transfers, in the order of their moves."""
        timed = [(move, t) for move, t in zip(self.sent, timeline.transfers, strict=True) if t.end_ns is not None]
        wire = [Bar(move, "wire", self._elapsed(t.begin_ns), self._elapsed(t.end_ns)) for move, t in timed]
        waits = [Bar("wait", "compute", *map(self._elapsed, (s.begin_ns, s.end_ns))) for s in timeline.spans]
        bars = [*self.bars, *wire, *(w for w in waits if w.end_seconds - w.begin_seconds > SHORTEST_WAIT_SECONDS)]
        return tuple(sorted(bars, key=lambda bar: bar.begin_seconds))

    def _note(self, seconds: float) -> None:
        whole = self.puzzle.layer_bytes
        gradients = whole * (len(self.gradients) + (self.in_flight is not None))
        weights = whole * tensors_of(whole) - gradients if self.counts else 0
        self.live.append(Live(seconds, weights, gradients))

    def error(self) -> float:
        """Compare this rank's shards of the gradients with those of one process that has the whole batch."""
        upstream = torch.ones(BATCH * dist.get_world_size(), self.width)
        inputs = [torch.cat([self._batch(rank) for rank in range(dist.get_world_size())])]
        for layer in self._layers():
            inputs.append(inputs[-1] @ self._weights(layer))
        worst = 0.0
        for layer in reversed(self._layers()):
            expected = (inputs[layer - 1].T @ upstream).chunk(dist.get_world_size())[self.rank]
            worst = max(worst, ((self.reduced[layer] - expected).norm() / expected.norm()).item())
            upstream = upstream @ self._weights(layer).T
        return worst
