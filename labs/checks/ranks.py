"""Running an answer on real ranks and counting what it did there: facts for a judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labs.checks.seal import MeterReplaced, sealed
from labs.checks.verdict import Blocked

LIMIT_SECONDS = 20.0


@dataclass(frozen=True)
class Message:
    """One send or isend to the rank `to` among all ranks, whatever its number in a group, with its payload [bytes]."""

    to: int
    size_bytes: int


@dataclass(frozen=True)
class Call:
    """One collective that a rank called: `kind` as in torch.distributed, `size_bytes` of the whole tensor [bytes]."""

    kind: str
    size_bytes: int
    element_bytes: int
    group_size: int


@dataclass(frozen=True)
class RankFacts:
    """What one rank did: the value it returned, its collectives and messages in order, bytes on its sockets.

    `held_bytes` counts the memory behind the tensors of the returned value: a view of a large tensor holds all of it.
    Sockets also carry gloo's headers, about 50 bytes a message; `messages` and `calls` count payload alone.
    """

    rank: int
    world_size: int
    value: Any
    calls: tuple[Call, ...]
    messages: tuple[Message, ...]
    held_bytes: int
    sent: int | None
    received: int | None

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank's sockets sent. Raises Blocked where the system does not count them."""
        return _known(self.sent)

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank's sockets received. Raises Blocked where the system does not count them."""
        return _known(self.received)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its collectives, in order."""
        return tuple(call.kind for call in self.calls)

    @property
    def counts(self) -> dict[str, int]:
        """Return {kind: number of collectives}."""
        return dict(Counter(self.kinds))


def _known(num_bytes: int | None) -> int:
    if num_bytes is None:
        raise Blocked("this system does not count the bytes of sockets; Linux does, also in WSL2 and in a container")
    return num_bytes


def on_ranks(answer: Callable, arguments: Sequence[tuple], limit_seconds: float = LIMIT_SECONDS) -> list[RankFacts]:
    """Run the answer on len(arguments) ranks, rank r with arguments[r]; returns the facts of every rank, in order.

    Raises RankFailed or RankTimeout, which `check` puts in words.
    """
    from labs.launcher import launch

    return launch(_observed, answer, list(arguments), world_size=len(arguments), timeout_seconds=limit_seconds)


def _observed(answer: Callable, arguments: list[tuple]) -> RankFacts:
    """Run on one rank: the meters' own traffic goes over a group of their own."""
    import torch.distributed as dist

    from labs.measure import tensor_bytes
    from labs.recorder import Recorder
    from labs.wire import WireMeter, new_instrument_group

    group = new_instrument_group()
    wire, recorder = WireMeter(group), Recorder(group)
    wire.start()
    recorder.start()
    with sealed(), _messages() as messages:
        value = answer(*arguments[dist.get_rank()])
    recording = recorder.stop()
    sent, received = wire.stop()
    calls = tuple(Call(c.kind, c.size_bytes, c.element_bytes, c.group_size) for c in recording.calls)
    held_bytes = tensor_bytes(_tensors_in(value))
    return RankFacts(dist.get_rank(), dist.get_world_size(), value, calls, tuple(messages), held_bytes, sent, received)


def overheard(function: Callable, *arguments) -> tuple[Any, bool]:
    """Call it on this rank; returns its value, and whether anything came in from other ranks before it returned.

    Who knows what others hold has received something by then, so nobody has to wait for the counters. True as well
    where the system does not count the bytes of sockets.
    """
    from labs.recorder import recent_calls
    from labs.wire import tcp_sockets

    def heard() -> tuple[dict[int, int], list[int]]:
        sockets = {inode: count.received_bytes for inode, count in tcp_sockets().items()}
        return sockets, [call["record_id"] for call in recent_calls()[-1:]]

    before = heard()
    with sealed():
        value = function(*arguments)
    return value, not before[0] or heard() != before


@contextmanager
def _messages() -> Iterator[list[Message]]:
    """Note every message that this process sends; torch's own recorder (2.13) leaves gloo's messages out."""
    import torch.distributed as dist

    messages: list[Message] = []
    original = vars(dist.ProcessGroup)["send"]

    def noting(group, tensors, to, tag):
        rank = dist.get_global_rank(group, to)
        messages.extend(Message(rank, tensor.numel() * tensor.element_size()) for tensor in tensors)
        return original(group, tensors, to, tag)

    dist.ProcessGroup.send = noting
    try:
        yield messages
        if vars(dist.ProcessGroup)["send"] is not noting:
            raise MeterReplaced("torch.distributed.ProcessGroup.send is no longer the one that counts messages")
    finally:
        dist.ProcessGroup.send = original


def _tensors_in(value: Any) -> list:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors_in(item)]
