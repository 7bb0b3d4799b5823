"""Bytes and seconds on the wire by arithmetic: what gloo sends, and what an ideal ring would send. No torch.

Three numbers stand side by side in this course: the theory of a ring, the cost of the library at hand (gloo), and what
the sockets counted (labs/wire.py). The gloo model here is exact: it counts every header that gloo's TCP transport adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from labs.errors import ConfigError

HEADER_BYTES = 48  # six 64-bit words before every message; Source: gloo/transport/tcp/pair.h, struct Op
MAX_SEGMENT_BYTES = 2**20  # Source: gloo/allreduce.h and gloo/reduce.h, kMaxSegmentSize


@dataclass(frozen=True)
class Collective:
    """`count` equal calls of one collective in one group, seen from the member with rank `index` in that group.

    `size_bytes` is the full tensor [bytes]: the tensor of all_reduce, broadcast and reduce; the input (all shards) of
    reduce_scatter and all_to_all; the output (all shards) of all_gather and gather; the message of send and recv.
    Tensors that one call flattens together (a DDP bucket, a coalesced all_gather) are one collective of their summed
    size. `element_bytes` matters where gloo cuts between elements: all_reduce, reduce_scatter and reduce.
    `index=None` takes the rank given to the function.
    Raises ConfigError for an unknown kind, a size that does not split into shards, a root or index outside the group.
    """

    kind: str
    size_bytes: int
    group_size: int
    count: int = 1
    element_bytes: int = 4
    root: int = field(default=0, kw_only=True)
    index: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ConfigError(f"collective {self.kind!r} is not known; the known kinds are {', '.join(KINDS)}")
        if self.group_size < 1 or self.count < 0 or self.size_bytes < 0 or self.element_bytes < 1:
            raise ConfigError(f"{self} has a negative or zero size; group_size and element_bytes start at 1")
        if not 0 <= self.root < self.group_size or not 0 <= (self.index or 0) < self.group_size:
            raise ConfigError(f"{self} names a rank outside its group; ranks go from 0 to {self.group_size - 1}")
        if self.kind in _SHARDED and self.size_bytes % self.group_size:
            raise ConfigError(
                f"{self.kind} of {self.size_bytes} bytes does not split into {self.group_size} equal shards; "
                f"pad it to {-(-self.size_bytes // self.group_size) * self.group_size} bytes as the libraries do"
            )


@dataclass(frozen=True)
class Exchange:
    """What one rank hands to gloo: messages and their payload [bytes], in both directions."""

    sent_messages: int = 0
    sent_payload: int = 0
    received_messages: int = 0
    received_payload: int = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes that leave: payload, two headers for a message sent (it is announced first), one for one received."""
        return self.sent_payload + HEADER_BYTES * (2 * self.sent_messages + self.received_messages)

    @property
    def received_bytes(self) -> int:
        return self.received_payload + HEADER_BYTES * (2 * self.received_messages + self.sent_messages)


def gloo_exchange(collective: Collective, rank: int = 0) -> Exchange:
    """Count the messages of one call of a collective, as gloo carries it out for one rank of the group.

    Source: gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc, barrier.cc and torch's ProcessGroupGloo, which
    builds reduce_scatter from all_reduce; checked against the sockets in tests/test_measure.py.
    """
    if collective.group_size == 1:
        return Exchange()
    return KINDS[collective.kind](collective, _index(collective, rank))


def gloo_sent_bytes(collective: Collective, rank: int = 0) -> int:
    """Bytes that gloo sends for one rank over all `count` calls, headers included."""
    return collective.count * gloo_exchange(collective, rank).sent_bytes


def gloo_received_bytes(collective: Collective, rank: int = 0) -> int:
    """Bytes that gloo receives for one rank over all `count` calls, headers included."""
    return collective.count * gloo_exchange(collective, rank).received_bytes


def ring_bytes(collective: Collective, rank: int = 0) -> int:
    """Bytes that one rank sends when the collective is an ideal ring: payload alone, no headers.

    all_reduce 2(N-1)/N x size; reduce_scatter, all_gather and all_to_all (N-1)/N x size; broadcast and reduce pass the
    whole tensor along a chain, so all but one rank send it; barrier carries nothing.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations";
    ZeRO (arXiv 1910.02054), section 7, uses the same counts.
    """
    size, members, index = collective.size_bytes, collective.group_size, _index(collective, rank)
    last_of_chain = (collective.root - 1) % members
    one_shard_kept = -(-size * (members - 1) // members)
    sent = {
        "all_reduce": 2 * one_shard_kept,
        "broadcast": size if index != last_of_chain else 0,
        "reduce": size if index != collective.root else 0,
        "gather": size // members if index != collective.root else 0,
        "scatter": one_shard_kept if index == collective.root else 0,
        "barrier": 0,
        "send": size,
        "recv": 0,
    }.get(collective.kind, one_shard_kept)
    return collective.count * sent if members > 1 else 0


def predict(collectives: Iterable[Collective], rank: int = 0) -> tuple[int, int]:
    """Return (bytes gloo sends, bytes a ring would send) for one rank over a list of collectives."""
    collectives = tuple(collectives)
    predicted = sum(gloo_sent_bytes(collective, rank) for collective in collectives)
    return predicted, sum(ring_bytes(collective, rank) for collective in collectives)


def alpha_beta_seconds(collective: Collective, latency_seconds: float, bytes_per_second: float) -> float:
    """Seconds of all `count` calls on a ring: steps x latency + bytes of the busiest rank / bandwidth of its link.

    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    members, ends = collective.group_size, {0, collective.root, (collective.root + 1) % collective.group_size}
    steps = {"all_reduce": 2 * (members - 1), "barrier": (members - 1).bit_length(), "send": 1, "recv": 1}
    busiest_bytes = max(ring_bytes(replace(collective, index=rank, count=1)) for rank in ends)
    if collective.kind == "recv":
        busiest_bytes = collective.size_bytes
    num_steps = steps.get(collective.kind, members - 1)
    return collective.count * (num_steps * latency_seconds + busiest_bytes / bytes_per_second)


def _index(collective: Collective, rank: int) -> int:
    index = rank if collective.index is None else collective.index
    if not 0 <= index < collective.group_size:
        raise ConfigError(
            f"rank {index} is not in a group of {collective.group_size}; give the collective an index inside its group"
        )
    return index


@dataclass(frozen=True)
class _Segments:
    """How gloo cuts a tensor: equal segments, `per_rank` of them in a rank's chunk; the last may be short or empty."""

    total_bytes: int
    segment_bytes: int
    per_rank: int

    def between(self, first: int, last: int) -> tuple[int, int]:
        """Return (messages, bytes) of the non-empty segments first..last-1."""
        begin, end = (min(self.total_bytes, index * self.segment_bytes) for index in (first, last))
        return -(-(end - begin) // self.segment_bytes), end - begin

    def chunk(self, rank: int, skip: int = 0) -> tuple[int, int]:
        """Return (messages, bytes) of one rank's chunk without its first `skip` segments."""
        return self.between(rank * self.per_rank + skip, (rank + 1) * self.per_rank)

    def all_but(self, *chunks: tuple[int, int]) -> tuple[int, int]:
        """Return (messages, bytes) of the tensor once for each chunk given, that chunk left out."""
        messages, size = self.between(0, -(-self.total_bytes // self.segment_bytes))
        return len(chunks) * messages - sum(c[0] for c in chunks), len(chunks) * size - sum(c[1] for c in chunks)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _all_reduce(collective: Collective, index: int) -> Exchange:
    """Ring: in each of two phases a rank sends every chunk but one, segment by segment, to the rank before it."""
    size, members, element = collective.size_bytes, collective.group_size, collective.element_bytes
    if size == 0:
        return Exchange()
    limit = element * max(1, MAX_SEGMENT_BYTES // element)
    num_segments = _round_up(max(-(-size // limit), 2 * members), members)
    cut = _Segments(size, _round_up(-(-size // num_segments), element), num_segments // members)
    before, after = cut.chunk((index - 1) % members), cut.chunk((index + 1) % members)
    return Exchange(*cut.all_but(cut.chunk(index), before), *cut.all_but(after, cut.chunk(index)))


def _reduce(collective: Collective, index: int) -> Exchange:
    """The first phase of the ring (it also passes on all but the last two segments of the own chunk), then a gather."""
    size, members, element = collective.size_bytes, collective.group_size, collective.element_bytes
    if size == 0:
        return Exchange()
    limit = element * max(1, MAX_SEGMENT_BYTES // element)
    segment = _round_up(min(-(-size // (2 * members)), limit), element)
    cut = _Segments(size, segment, _round_up(max(-(-size // segment), 2 * members), members) // members)
    keep = cut.per_rank - 2
    sent, received = cut.all_but(cut.chunk(index, keep)), cut.all_but(cut.chunk((index + 1) % members, keep))
    own = cut.chunk(index)[1]
    if index != collective.root:
        return Exchange(sent[0] + (own > 0), sent[1] + own, *received)
    others = -(-size // (segment * cut.per_rank)) - (own > 0)
    return Exchange(*sent, received[0] + others, received[1] + size - own)


def _broadcast(collective: Collective, index: int) -> Exchange:
    """Binomial tree: in round i the first 2**i members, counted from the root, send the tensor 2**i places on."""
    members, place = collective.group_size, (index - collective.root) % collective.group_size
    rounds = range(place.bit_length(), (members - 1).bit_length())
    sends = sum(place + 2**i < members for i in rounds)
    receives = int(place > 0)
    return Exchange(sends, sends * collective.size_bytes, receives, receives * collective.size_bytes)


def _all_gather(collective: Collective, index: int) -> Exchange:
    """Ring: every rank passes on N-1 shards, each in two halves (also when a half is empty)."""
    if collective.size_bytes == 0:
        return Exchange()
    others = collective.group_size - 1
    flow = (2 * others, others * collective.size_bytes // collective.group_size)
    return Exchange(*flow, *flow)


def _all_to_all(collective: Collective, index: int) -> Exchange:
    others = collective.group_size - 1
    flow = (others, others * collective.size_bytes // collective.group_size)
    return Exchange(*flow, *flow)


def _gather(collective: Collective, index: int) -> Exchange:
    others, shard = collective.group_size - 1, collective.size_bytes // collective.group_size
    return Exchange(0, 0, others, others * shard) if index == collective.root else Exchange(1, shard, 0, 0)


def _scatter(collective: Collective, index: int) -> Exchange:
    back = _gather(collective, index)
    return Exchange(back.received_messages, back.received_payload, back.sent_messages, back.sent_payload)


def _barrier(collective: Collective, index: int) -> Exchange:
    """Dissemination: log2(N) rounds, rounded up, of one empty message each way."""
    rounds = (collective.group_size - 1).bit_length()
    return Exchange(rounds, 0, rounds, 0)


def _send(collective: Collective, index: int) -> Exchange:
    return Exchange(1, collective.size_bytes, 0, 0)


def _recv(collective: Collective, index: int) -> Exchange:
    return Exchange(0, 0, 1, collective.size_bytes)


KINDS: dict[str, Callable[[Collective, int], Exchange]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _all_reduce,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
    "send": _send,
    "recv": _recv,
}
_SHARDED = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
