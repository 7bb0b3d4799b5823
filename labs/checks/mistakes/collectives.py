"""Mistakes in collectives made of messages: what a rank returned, what it sent, and the hint for each."""

from __future__ import annotations

import math
from itertools import combinations

from labs.checks.verdict import Verdict, failed, row

ELEMENT_BYTES = 4


def of_values(case) -> Verdict | None:
    """Compare what each rank returned with what it should hold; None when all are right."""
    for fact in case.facts:
        expected = case.task.result(case.tensors, fact.rank)
        if not _equal(fact.value, expected):
            found = f"On {case.name}, rank {fact.rank} returns something else."
            return failed(found, _value_hint(case, fact), row(f"rank {fact.rank}", expected, fact.value))
    return None


def _value_hint(case, fact) -> str:
    expected, built, n = case.task.result(case.tensors, fact.rank), fact.value, case.world_size
    total = sum(case.tensors[1:], case.tensors[0])
    if built is None:
        return "Your function returns None. Return the tensor, also when you changed it in place."
    if not hasattr(built, "tensor_split"):
        return "Return one tensor; torch.cat makes one of several pieces."
    if case.task.phases == 1 and len(expected) < len(total) and _equal(built, total):
        return "That is the whole sum. Rank r returns piece r alone: that is what makes it half of an all-reduce."
    if built.shape != expected.shape:
        shapes = f"{list(built.shape)}, and {list(expected.shape)} is asked for"
        return sizes_hint(case) if not case.is_even else f"The shape of what you return is {shapes}."
    if _equal(built, expected / n):
        return "That is the mean. The sum is asked for."
    if case.task.phases == 2 and _equal(built, case.tensors[fact.rank]):
        return f"That is the tensor that rank {fact.rank} brought. Return the sum, on every rank and in every case."
    if built.to(expected.dtype).isclose(expected, rtol=0.02, atol=0.0).all():
        return "Nearly: digits are lost. Keep the type that you were given; in float32 every sum here is exact."
    return _gathered_hint(case, built) or _summed_hint(case, fact, expected, built)


def _gathered_hint(case, built) -> str | None:
    """All-gather only moves: say which places of the result are not what they should be."""
    wanted = case.task.result(case.tensors, 0).tensor_split(case.world_size)
    own = [tensor.tensor_split(case.world_size)[rank] for rank, tensor in enumerate(case.tensors)]
    if not all(map(_equal, wanted, own)):
        return None
    found = built.tensor_split(case.world_size)
    if sorted(built.tolist()) == sorted(case.task.result(case.tensors, 0).tolist()):
        return "All pieces are there, in other places. The piece of rank r belongs to place r: receive it there."
    missing = [rank for rank, (a, b) in enumerate(zip(found, own, strict=True)) if not _equal(a, b)]
    return (
        f"The pieces of ranks {missing} are missing or damaged. It takes world_size - 1 steps; in each a rank "
        "passes on the piece that it received in the step before."
    )


def _summed_hint(case, fact, expected, built) -> str:
    """Say whose parts are in the sum, where that can be told."""
    n, steps = case.world_size, case.task.phases * (case.world_size - 1)
    if 0 < len(fact.messages) == steps // 2 and case.task.phases == 2:
        return "One trip was made: each rank can have one piece of the sum. A second one, the all-gather, is missing."
    if 0 < len(fact.messages) < steps:
        return f"It takes {steps} steps on {n} ranks; rank {fact.rank} sent {len(fact.messages)} messages."
    first, found = (0, built.tensor_split(n)) if case.task.phases == 2 else (fact.rank, [built])
    for place, piece in enumerate(found, first):
        parts = _parts(case, piece)
        if parts is not None and parts != (place, tuple(range(n))):
            return _parts_hint(case, fact, place, *parts)
    return "Follow one piece on paper: where it starts, which part is added in each step, where it ends."


def _parts_hint(case, fact, place: int, number: int, ranks: tuple[int, ...]) -> str:
    start = "A piece must set out from the rank after the one where it is to end."
    if len(ranks) == case.world_size:
        return f"Rank {fact.rank} holds the finished piece {number} where piece {place} belongs. {start}"
    if ranks == (fact.rank,) and fact.messages and case.task.phases == 1:
        return f"The piece that rank {fact.rank} returns was never added to: it left, and ended elsewhere. {start}"
    if len(ranks) == 1:
        return (
            f"Piece {number} holds the part of rank {ranks[0]} alone. What comes in must be added to the own part, "
            "and the sum passed on."
        )
    return f"Piece {number} has the parts of ranks {list(ranks)} alone. Pass on the sum, not the own part."


def _parts(case, built) -> tuple[int, tuple[int, ...]] | None:
    """Return (piece, ranks) such that `built` is the sum of that piece over those ranks; None when there is none."""
    n = case.world_size
    for number in range(n):
        cut = [tensor.tensor_split(n)[number] for tensor in case.tensors]
        for count in range(n, 0, -1):
            for ranks in combinations(range(n), count):
                if _equal(built, sum(cut[r] for r in ranks)):
                    return number, ranks
    return None


def sizes_hint(case) -> str:
    """The hint for a ring that takes all pieces for equal."""
    n, num_elements = case.world_size, case.tensors[0].numel()
    sizes = [len(piece) for piece in case.tensors[0].tensor_split(n)]
    return (
        f"{num_elements} elements make {n} pieces of {sizes} elements: they are not all equal. Cut with "
        f"tensor_split({n}), and make the tensor to receive into as large as the piece that comes (torch.empty_like)."
    )


def of_traffic(case) -> Verdict | None:
    """The result is right; was it made by a ring? Bytes and messages of each rank, payload alone."""
    n, phases = case.world_size, case.task.phases
    collectives = [kind for fact in case.facts for kind in fact.kinds]
    if collectives:
        found = f"The result is right, and it calls {collectives[0]}."
        return failed(found, "That is the library's. Build it from isend and recv alone, or from exchange.")
    total = ELEMENT_BYTES * case.tensors[0].numel()
    most = phases * (n - 1) * math.ceil(case.tensors[0].numel() / n) * ELEMENT_BYTES
    sent = [sum(message.size_bytes for message in fact.messages) for fact in case.facts]
    busiest = max(range(n), key=lambda rank: (max(sent[rank], _received(case, rank)), sent[rank]))
    built = max(sent[busiest], _received(case, busiest))
    way = "sends" if built == sent[busiest] else "receives"
    if built > most:
        found = f"On {case.name} the result is right, and rank {busiest} {way} {built} bytes of a tensor of {total}."
        return failed(
            found, _bytes_hint(case, total), row(f"bytes that rank {busiest} {way}", f"at most {most}", built)
        )
    least = phases * (n - 1) * total
    if sum(sent) < least:  # nobody can agree with less, so something else carried the rest: the store, a file
        found = f"On {case.name} the result is right, and too few bytes travelled as messages to explain it."
        hint = "Let isend and recv, or exchange, carry the values; the store and files are for small notes."
        return failed(found, hint, row("bytes of all messages", f"at least {least}", sum(sent)))
    return _route(case)


def _received(case, rank: int) -> int:
    return sum(m.size_bytes for fact in case.facts for m in fact.messages if m.to == rank)


def _bytes_hint(case, total: int) -> str:
    n = case.world_size
    for root in range(n):
        others = [{m.to for m in fact.messages} for fact in case.facts if fact.rank != root]
        if all(to <= {root} for to in others) and any(others):
            return (
                f"Everything passes rank {root}, and the others wait for its link. With more ranks it carries more; "
                "on a ring every link carries the same, and less than two tensors however many ranks there are."
            )
    if any(message.size_bytes == total for fact in case.facts for message in fact.messages):
        return "Whole tensors travel. One piece a step is enough: that is why the tensor was cut."
    if all(len(fact.messages) <= case.task.phases * (n - 1) for fact in case.facts):
        return "One message a step, and longer than a piece: elements of another type, or padding that need not travel."
    return "Some piece travels more often than it has to. On one trip it makes world_size - 1 steps."


def _route(case) -> Verdict | None:
    n, steps = case.world_size, case.task.phases * (case.world_size - 1)
    for fact in case.facts:
        to = {message.to for message in fact.messages}
        if len(to) > 1:
            found = f"On {case.name} the result and the bytes are right, and rank {fact.rank} sends to {sorted(to)}."
            hint = (
                "That needs more links than a ring has. On a ring a rank sends to the next one alone, and passes on "
                "what it received."
            )
            return failed(found, hint, row(f"rank {fact.rank} sends to", [(fact.rank + 1) % n], sorted(to)))
        if len(fact.messages) > steps:
            found = f"On {case.name} the result and the bytes are right, in more messages than needed."
            hint = "Each message costs its latency. One message a step, with a whole piece in it."
            return failed(found, hint, row(f"messages of rank {fact.rank}", steps, len(fact.messages)))
    return None


def _equal(built, expected) -> bool:
    """Equal element by element; whatever is not a tensor of that shape is not."""
    if not isinstance(built, type(expected)) or built.shape != expected.shape:
        return False
    return built.detach().as_subclass(type(expected)).tolist() == expected.tolist()


def _seconds(steps, share):
    """Make a wrong formula: `steps` messages, `share` of the bytes, both functions of the world size."""
    return lambda num_bytes, n, alpha, beta: steps(n) * alpha + share(n) * num_bytes * beta


ALL_REDUCE_SECONDS = (
    (_seconds(lambda n: n - 1, lambda n: (n - 1) / n), "That is one trip: a reduce-scatter. An all-reduce takes two."),
    (
        _seconds(lambda n: 2 * (n - 1), lambda n: 2 * (n - 1)),
        "A step sends one piece, num_bytes / N, and not the whole tensor.",
    ),
    (
        _seconds(lambda n: 1, lambda n: 2 * (n - 1) / n),
        "The bytes are right. Each of the 2(N-1) steps waits for the one before, so each pays alpha.",
    ),
    (_seconds(lambda n: 2, lambda n: 2 * (n - 1) / n), "alpha is paid for each step of a trip, not once a trip."),
    (_seconds(lambda n: 2 * n, lambda n: 2), "A piece makes N - 1 steps a trip: the last rank is where it stays."),
    (
        lambda num_bytes, n, alpha, beta: 2 * (n - 1) * (alpha + num_bytes / n / beta),
        "beta is seconds for a byte, so it multiplies; bytes a second would divide.",
    ),
    (
        lambda num_bytes, n, alpha, beta: 2 * (n - 1) * (alpha + num_bytes / n / 4 * beta),
        "num_bytes counts bytes already, not elements.",
    ),
)
