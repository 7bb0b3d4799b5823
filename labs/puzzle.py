"""A schedule puzzle: one step of a sharded model, move by move, on two lanes and under two limits. No torch.

A schedule is a list of moves, "gather 2" or "backward 4". One program makes them in order, as FSDP does:

- `gather i` hands layer i to the wire and goes on at once. From then on its whole weights take memory.
- `forward i` and `backward i` wait until layer i has arrived, then compute. Backward makes a whole gradient.
- `free i` gives back the whole weights of layer i; its shard stays.
- `reduce i` hands the gradient to the wire. Its memory comes back when the next reduce begins, or at the end.

The wire carries one transfer at a time, in the order in which they were handed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from labs.traffic import Collective, alpha_beta_seconds
from labs.units import MiB, format_bytes

VERBS = ("gather", "forward", "free", "backward", "reduce")


class IllegalMove(ValueError):
    """A move that cannot be made: `why` names it and says why not, `advice` what to try."""

    def __init__(self, why: str, advice: str):
        super().__init__(f"{why}. {advice}.")
        self.why, self.advice = why, advice


@dataclass(frozen=True)
class Puzzle:
    """Layers of one size on `world_size` ranks, the seconds of each move, and the two limits; None is no limit."""

    num_layers: int = 4
    layer_bytes: int = 4 * MiB
    world_size: int = 2
    latency_seconds: float = 0.0005
    bytes_per_second: float = 1000 * MiB
    forward_seconds: float = 0.003
    backward_seconds: float = 0.006
    limit_bytes: int | None = 16 * MiB
    limit_seconds: float = 0.042

    @property
    def gather_seconds(self) -> float:
        return self._transfer("all_gather")

    @property
    def reduce_seconds(self) -> float:
        return self._transfer("reduce_scatter")

    def _transfer(self, kind: str) -> float:
        call = Collective(kind, self.layer_bytes, self.world_size)
        return alpha_beta_seconds(call, self.latency_seconds, self.bytes_per_second)

    def without_limit(self) -> Puzzle:
        """Return the same puzzle with as much memory as anybody wants."""
        return replace(self, limit_bytes=None)


PUZZLE = Puzzle()


@dataclass(frozen=True)
class Bar:
    """Something that takes time: a move, or "wait", on the lane "compute" or "wire"."""

    move: str
    lane: str
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Live:
    """Whole weights and whole gradients that take memory from this moment on."""

    seconds: float
    weights_bytes: int
    gradients_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradients_bytes


@dataclass(frozen=True)
class Playback:
    """What a schedule does, simulated or measured: bars of both lanes, what is live with each move and at the end."""

    moves: tuple[str, ...]
    bars: tuple[Bar, ...]
    live: tuple[Live, ...]
    is_measured: bool = False

    @property
    def seconds(self) -> float:
        return max((bar.end_seconds for bar in self.bars), default=0.0)

    @property
    def peak_bytes(self) -> int:
        return max((live.total_bytes for live in self.live), default=0)

    @property
    def waited_seconds(self) -> float:
        """Time in which the compute lane stands still."""
        return self.seconds - sum(b.end_seconds - b.begin_seconds for b in self.bars if is_compute(b.move))


def is_compute(move: str) -> bool:
    return move.startswith(("forward", "backward"))


def moves_of(schedule: str | Iterable[str]) -> tuple[str, ...]:
    """Read a schedule: a list of moves, or one text with commas or line ends between them.

    Raises IllegalMove for anything else.
    """
    parts = schedule.replace("\n", ",").split(",") if isinstance(schedule, str) else schedule
    try:
        words = [part.lower().split() for part in parts]
    except (AttributeError, TypeError):
        why = f"a schedule is a list of texts, not {str(schedule)[:60]}"
        raise IllegalMove(why, 'Return moves such as ["gather 1", "forward 1"]') from None
    return tuple(" ".join(word) for word in words if word)


def play(schedule: str | Iterable[str], puzzle: Puzzle = PUZZLE) -> Playback:
    """Simulate a schedule from its first move to its last.

    Raises IllegalMove for a move that cannot be made at its place, for one that is missing, and for one that would
    make more bytes live than the puzzle allows.
    """
    moves = moves_of(schedule)
    program = _Program(puzzle)
    for number, move in enumerate(moves, 1):
        try:
            program.make(move)
        except IllegalMove as problem:
            raise IllegalMove(f'move {number}, "{move:.20}": {problem.why}', problem.advice) from None
    program.finish()
    return Playback(moves, tuple(program.bars), tuple(program.live))


class _Program:
    """The state of both lanes and of the memory while a schedule is played."""

    def __init__(self, puzzle: Puzzle):
        self.puzzle = puzzle
        self.bars: list[Bar] = []
        self.live: list[Live] = []
        self.now = self.wire_free = self.reduced_at = 0.0
        self.arrives: dict[int, float] = {}  # whole layers, and when their gather ends
        self.used: set[int] = set()  # whole layers that have computed since their gather
        self.gradients: set[int] = set()  # whole, not handed over
        self.on_the_wire: int | None = None  # the layer whose gradient is being reduced
        self.done: set[str] = set()

    def make(self, move: str) -> None:
        verb, layer = self._read(move)
        getattr(self, f"_{verb}")(layer)
        self.done.add(move)
        self._note(self.bars[-1].begin_seconds if is_compute(move) else self.now)

    def finish(self) -> None:
        """Wait for the wire, and hold that nothing was left out."""
        layers = range(1, self.puzzle.num_layers + 1)
        needed = [f"{verb} {layer}" for verb in ("forward", "backward", "reduce") for layer in layers]
        if missing := [move for move in needed if move not in self.done]:
            why = f"the step ends without {', '.join(missing)}"
            raise IllegalMove(why, "Each layer computes forward and backward, and each gradient is reduced")
        if self.arrives:
            why = f"the step ends with whole weights in memory: layer {_listed(self.arrives)}"
            raise IllegalMove(why, "Free a layer after its last computation")
        self._await_reduce()
        self._note(self.now)

    def _read(self, move: str) -> tuple[str, int]:
        verb, _, number = move.partition(" ")
        if verb not in VERBS or not number.isdecimal() or not 1 <= int(number) <= self.puzzle.num_layers:
            advice = f"Write one of {', '.join(VERBS)}, then a layer from 1 to {self.puzzle.num_layers}"
            raise IllegalMove("there is no such move", advice)
        return verb, int(number)

    def _gather(self, layer: int) -> None:
        if layer in self.arrives:
            raise IllegalMove(f"layer {layer} is whole already", "Leave this gather out, or free the layer first")
        self._send(f"gather {layer}", self.puzzle.gather_seconds)
        self.arrives[layer] = self.wire_free

    def _forward(self, layer: int) -> None:
        if f"forward {layer}" in self.done or layer > 1 and f"forward {layer - 1}" not in self.done:
            advice = f"Forward goes through the layers once, from 1 to {self.puzzle.num_layers}"
            raise IllegalMove(f"it is not the turn of forward {layer}", advice)
        self._compute("forward", layer, self.puzzle.forward_seconds)

    def _backward(self, layer: int) -> None:
        before = f"backward {layer + 1}" if layer < self.puzzle.num_layers else f"forward {layer}"
        if f"backward {layer}" in self.done or before not in self.done:
            last = self.puzzle.num_layers
            advice = f"Backward goes through the layers once, from {last} to 1, after forward {last}"
            raise IllegalMove(f"it is not the turn of backward {layer}", advice)
        self.gradients.add(layer)
        self._compute("backward", layer, self.puzzle.backward_seconds)

    def _free(self, layer: int) -> None:
        if layer not in self.arrives:
            raise IllegalMove(f"layer {layer} is not whole", "Leave it out: there is nothing to free")
        if layer not in self.used:
            why = f"layer {layer} has been gathered and has not computed yet"
            raise IllegalMove(why, "Free a layer after it has computed, or the gather was for nothing")
        del self.arrives[layer]
        self.used.discard(layer)

    def _reduce(self, layer: int) -> None:
        if f"reduce {layer}" in self.done:
            raise IllegalMove(f"the gradient of layer {layer} has been reduced", "Each gradient travels once")
        if layer not in self.gradients:
            advice = f"backward {layer} makes it; reduce comes after that"
            raise IllegalMove(f"the gradient of layer {layer} is not there yet", advice)
        self._await_reduce()
        self._send(f"reduce {layer}", self.puzzle.reduce_seconds)
        self.gradients.discard(layer)
        self.on_the_wire, self.reduced_at = layer, self.wire_free

    def _compute(self, verb: str, layer: int, seconds: float) -> None:
        if layer not in self.arrives:
            advice = f'Put "gather {layer}" above it; a layer that was freed is gathered again'
            raise IllegalMove(f"layer {layer} is not whole", advice)
        self._wait_until(self.arrives[layer])
        self.bars.append(Bar(f"{verb} {layer}", "compute", self.now, self.now + seconds))
        self.now += seconds
        self.used.add(layer)

    def _send(self, move: str, seconds: float) -> None:
        begin = max(self.now, self.wire_free)
        self.wire_free = begin + seconds
        self.bars.append(Bar(move, "wire", begin, self.wire_free))

    def _await_reduce(self) -> None:
        if self.on_the_wire is not None:
            self._wait_until(self.reduced_at)
            self.on_the_wire = None

    def _wait_until(self, moment: float) -> None:
        if moment > self.now:
            self.bars.append(Bar("wait", "compute", self.now, moment))
            self.now = moment

    def _note(self, seconds: float) -> None:
        """Write down what is live from this moment on, and refuse what is over the limit."""
        whole = self.puzzle.layer_bytes
        gradients = len(self.gradients) + (self.on_the_wire is not None)
        self.live.append(Live(seconds, whole * len(self.arrives), whole * gradients))
        limit, total = self.puzzle.limit_bytes, self.live[-1].total_bytes
        if limit is not None and total > limit:
            reducing = () if self.on_the_wire is None else (self.on_the_wire,)
            why = (
                f"it makes {format_bytes(total)} live, {format_bytes(limit)} is the limit; whole weights: layer "
                f"{_listed(self.arrives)}, whole gradients: layer {_listed([*self.gradients, *reducing])}"
            )
            if len(self.gradients) > 1:
                raise IllegalMove(why, "Reduce each gradient when it is there, before backward makes the next")
            raise IllegalMove(why, "Free weights that this computation does not need, or gather later")


def _listed(layers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
