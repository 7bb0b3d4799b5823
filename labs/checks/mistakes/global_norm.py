"""Mistakes in the norm of a sharded gradient: what each rank returned and sent, and the hint for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isclose, isfinite

from labs.checks.verdict import Verdict, failed, row

TOLERANCE = 1e-4  # relative; torch adds 1e-6 to the norm before it divides
SMALL_BYTES = 16  # a number or two; everything else is a shard

HANG_HINT = (
    "Every rank must make the same calls, with one number each, however many shards it owns: also a rank that owns "
    "none. Add up first, call once, after the loop."
)

Facts = Sequence[Sequence]  # by rank, by case


def shard_error_hint(traceback: str) -> str | None:
    """The hint for an error on the rank that owns nothing; None for another error."""
    nothing = ("non-empty TensorList", "non-empty list of Tensors", "reduce() of empty", "max() arg is an empty")
    if any(words in traceback for words in nothing):
        return "A rank may own no shard at all: begin with torch.zeros(()) and add to it."
    if "Received data size doesn't match" in traceback:
        return (
            "The ranks called with tensors of different sizes. Shards differ in size; and on a rank without any, "
            "Python's sum is the integer 0, which takes 8 bytes: begin with torch.zeros(())."
        )
    if "list index out of range" in traceback:
        return "A rank may own no shard at all: do not ask for the first one."
    if "division by zero" in traceback:
        return "A gradient may be 0 everywhere. Divide only when the norm is above the limit."
    return None


def of_norm_values(ranks: Facts, about: str = "returns") -> Verdict | None:
    """Whether every rank returned the norm of the whole gradient, without its loss scale."""
    for facts in by_case(ranks):
        expected = whole_norm(facts[0].case)
        for fact in facts:
            if fact.value is None:
                found = f"Rank {fact.rank} {about} {fact.returned}."
                return failed(found, "Return the norm: one number, or a tensor that holds one.")
            if not is_near(fact.value, expected):
                found = f"In the case of {fact.case}, rank {fact.rank} {about} another norm."
                return failed(found, _norm_hint(ranks, fact), row("norm of the whole gradient", expected, fact.value))
    return None


def whole_norm(case) -> float:
    """The norm of all shards of all ranks, in fp64, without the loss scale."""
    return two_norm(everything(case)) / case.loss_scale


def _norm_hint(ranks: Facts, fact) -> str:
    finite = [
        f for facts in ranks for f in facts if f.case.infinite_rank is None and str(f.case.dtype)[6:] == "float32"
    ]
    if all(is_near(f.value, whole_norm(f.case)) for f in finite):
        if fact.case.infinite_rank is not None:
            return (
                "One inf anywhere must make the norm inf, or nan, on every rank: that is how all know to skip a step."
            )
        return (
            "Squares of bf16 numbers, added up in bf16, lose what is smaller than a 256th of the sum. "
            "Make each shard fp32 first: shard.float()."
        )
    for way, hint in WRONG_NORMS:
        if all(_agrees(f, way) for f in finite):
            return hint
    if len({f.value for f in finite if f.case == fact.case}) > 1:
        return "The ranks disagree, so each would clip by another factor. After the all_reduce all hold the same sum."
    return "Follow one case: the square of each element, added up over all tensors and ranks, then the root, once."


def _agrees(fact, way: Callable) -> bool:
    shards = all_shards(fact.case)
    scale = fact.case.loss_scale
    return is_near(fact.value, way(shards, fact.rank) / scale) or (
        scale != 1 and is_near(fact.value, way(shards, fact.rank))
    )


def _root_of_each(numbers: Iterable[float]) -> float:
    return sum(number**2 for number in numbers) ** 0.5


WRONG_NORMS: tuple[tuple[Callable, str], ...] = (
    (
        lambda shards, rank: two_norm(shards[rank]),
        "That is the norm of this rank's own shards. Each rank sees another one, and no error says so: add up over "
        "all ranks.",
    ),
    (
        lambda shards, rank: sum(two_norm(own) for own in shards),
        "Those are norms of ranks, added up. Lengths do not add up, squares do: square, sum, all_reduce, root.",
    ),
    (
        lambda shards, rank: sum(two_norm([shard]) for own in shards for shard in own),
        "Those are norms of tensors, added up. Add up their squares, and take the root once, at the end.",
    ),
    (
        lambda shards, rank: max(two_norm(own) for own in shards),
        "That is the largest norm of one rank. The whole gradient is longer than each of its parts: add squares up.",
    ),
    (
        lambda shards, rank: two_norm([shard for own in shards for shard in own]) ** 2,
        "That is the square of the norm. Take the root after the all_reduce.",
    ),
    (
        lambda shards, rank: two_norm([shard for own in shards for shard in own]) / len(shards) ** 0.5,
        "The squares were divided by the number of ranks. Replicas are averaged; shards are parts, and add up.",
    ),
    (
        lambda shards, rank: two_norm([shard for own in shards for shard in own]) / len(shards),
        "The norm was divided by the number of ranks. Replicas are averaged; shards are parts, and add up.",
    ),
    (
        lambda shards, rank: sum(float(shard.double().abs().sum()) for own in shards for shard in own),
        "Those are absolute values, added up. The 2-norm adds squares, and takes the root.",
    ),
    (
        lambda shards, rank: max((float(s.abs().max()) for own in shards for s in own if s.numel()), default=0.0),
        "That is the largest element. The 2-norm adds up the squares of all of them.",
    ),
    (
        lambda shards, rank: (
            two_norm([s for own in shards for s in own]) / sum(s.numel() for own in shards for s in own) ** 0.5
        ),
        "That is the root of the mean square. The norm is the root of the sum: do not divide by the number of "
        "elements.",
    ),
    (
        lambda shards, rank: two_norm(shards[0]),
        "That is the norm of rank 0's shards, on all ranks. Add up over all ranks: all_reduce, not broadcast.",
    ),
)


def of_untouched(ranks: Facts) -> Verdict | None:
    """Whether measuring left the shards alone."""
    from labs.checks.shards import shards_of

    for facts in ranks:
        for fact in facts:
            before = shards_of(fact.case, fact.rank)
            if not all(is_equal(after, own) for after, own in zip(fact.after, before, strict=True)):
                found = f"The norm is right. In the case of {fact.case}, rank {fact.rank} has other gradients."
                return failed(found, "Measure without changing: square() and float() make new tensors, square_() none.")
    return None


def of_traffic(ranks: Facts, most_calls: int = 1) -> Verdict | None:
    """Whether a number travelled, and not the gradient."""
    for fact in (fact for facts in ranks for fact in facts):
        sizes = [call.size_bytes for call in fact.calls]
        limit = SMALL_BYTES * len(ranks)
        if sum(sizes) > limit and any(call.size_bytes > limit for call in fact.calls):
            found = f"The numbers are right. In the case of {fact.case}, shards travel ({fact.calls[0].kind})."
            hint = "Whoever gathers the shards needs room for the whole gradient. One number a rank is enough."
            return failed(found, hint, row("bytes of all calls", f"at most {limit}", sum(sizes)))
        if len(sizes) > most_calls:
            found = f"The numbers are right, in {len(sizes)} collectives."
            hint = "Add up this rank's squares first, then call once: each call pays latency."
            return failed(found, hint, row("collectives", most_calls, len(sizes)))
    return None


def by_case(ranks: Facts) -> Iterable[tuple]:
    return zip(*ranks, strict=True)


def all_shards(case) -> list[list]:
    from labs.checks.shards import WORLD_SIZE, shards_of

    return [shards_of(case, rank) for rank in range(WORLD_SIZE)]


def everything(case) -> list:
    return [shard for own in all_shards(case) for shard in own]


def two_norm(shards) -> float:
    return float(sum(float(shard.double().square().sum()) for shard in shards)) ** 0.5


def is_near(built: float | None, expected: float) -> bool:
    if built is None:
        return False
    if not isfinite(expected):
        return not isfinite(built)
    return isclose(built, expected, rel_tol=TOLERANCE, abs_tol=1e-9)


def is_equal(built, expected) -> bool:
    import torch

    return built.shape == expected.shape and torch.allclose(
        built.float(), expected.float(), rtol=TOLERANCE, atol=1e-7, equal_nan=True
    )
