"""Judges of lesson 00: values that every rank must agree on, against sums made in one process."""

from __future__ import annotations

import math

from labs.checks.exercise import Exercise
from labs.checks.ranks import overheard
from labs.checks.verdict import Verdict, failed, passed, row
from labs.launcher import launch

LIMIT_SECONDS = 20.0
# What each rank knows, for groups of two, three and four. No two totals can be mistaken for each other, shares have
# unequal lengths, and one rank holds nothing at all.
NUMBERS = ((2.5, 40.0), (1.0, -7.25, 300.0), (0.5, 20.0, 3000.0, -4.0))
SHARES = (
    ((1.0, 2.0, 3.0, 4.0), (100.0,)),
    ((8.0,), (), (1.0, 2.0, 5.0)),
    ((1.0,), (3.0, 5.0), (10.0, 20.0, 30.0), (7.0, 7.0, 7.0, 7.0, 7.0)),
)


def judge_global_sum(answer):
    """Ask for the sum of one number a rank, on 2, 3 and 4 ranks."""
    for numbers in NUMBERS:
        got, has_heard = _on_ranks(_answer_to_number, answer, numbers)
        total = sum(numbers)
        if problem := _not_numbers(got):
            return problem
        if not _all_close(got, total):
            found = f"{len(numbers)} ranks hold {_listed(numbers)}; their sum is {total:g}."
            return failed(found, _sum_hint(got, numbers, total), *_rows(total, got))
        if silent := _silent(has_heard):
            return silent
    return passed("Every rank returns the same sum, on 2, 3 and 4 ranks.")


def _sum_hint(got, numbers, total) -> str:
    if _same(got, numbers):
        return (
            "Each rank returns its own number. Only a collective, such as dist.all_reduce, lets ranks hear each other."
        )
    if _close(got[0], total):
        return "Rank 0 is right and another is not: dist.reduce gives the result to one rank, dist.all_reduce to all."
    if _all_close(got, total / len(numbers)):
        return "That is the mean. The sum is asked for."
    if _same(got, [number * len(numbers) for number in numbers]):
        return "The ranks hold different numbers, so one of them times world_size is not their sum."
    if _same(got, [int(sum(map(int, numbers)))] * len(numbers)):
        return "The fractions are lost: make the tensor of a floating-point type."
    return _disagreement(got)


def judge_global_mean(answer):
    """Ask for the mean over all elements of unequal shares, on 2, 3 and 4 ranks."""
    for shares in SHARES:
        got, has_heard = _on_ranks(_answer_to_share, answer, shares)
        elements = [element for share in shares for element in share]
        mean = sum(elements) / len(elements)
        if problem := _not_numbers(got):
            return problem
        if not _all_close(got, mean):
            found = (
                f"{len(shares)} ranks hold shares of {_listed(map(len, shares))} elements; their mean is {mean:.4g}."
            )
            return failed(found, _mean_hint(got, shares), *_rows(mean, got))
        if silent := _silent(has_heard):
            return silent
    return passed("Every rank returns the mean over all elements, also where a rank holds none.")


def _mean_hint(got, shares) -> str:
    means = [sum(share) / len(share) if share else math.nan for share in shares]
    if _same(got, means):
        return "Each rank returns the mean of its own share: no rank has heard of the others yet."
    if _all_close(got, sum(means) / len(means)):
        return (
            "That is the mean of the means. A rank with one element weighs as much in it as a rank with four. "
            "Add up what a mean is made of, and divide once, at the end."
        )
    if any(math.isnan(value) for value in got):
        return "The mean of an empty share is nan, and nan spreads. Communicate the sum and the count instead."
    if _all_close(got, sum(map(sum, shares)) / len(shares)):
        return "The sum is right; it is divided by the number of ranks instead of the number of elements."
    if _all_close(got, sum(map(sum, shares))):
        return "That is the sum of all elements. Their number, over all ranks, is missing below it."
    return _disagreement(got)


def _disagreement(got) -> str:
    if _all_close(got, got[0]):
        return "All ranks agree on another number: write down by hand what the collective adds up."
    return "The ranks do not agree: each must use the result of a collective that gives it to all ranks."


def _on_ranks(harness, answer, brought) -> tuple[list, list[bool]]:
    """Return what each rank returned, and whether it had heard anything from the others."""
    pairs = launch(harness, answer, brought, world_size=len(brought), timeout_seconds=LIMIT_SECONDS)
    return [value for value, _ in pairs], [has_heard for _, has_heard in pairs]


def _silent(has_heard) -> Verdict | None:
    """Refuse right numbers of a rank that nobody has told anything."""
    if all(has_heard):
        return None
    found = f"The numbers are right, and rank {has_heard.index(False)} has received nothing from the others."
    return failed(found, "What the others hold can come from them alone: let a collective carry it.")


def _answer_to_number(answer, numbers) -> tuple[float | str, bool]:
    """Run the answer on one rank with the number that only this rank is given."""
    import torch.distributed as dist

    value, has_heard = overheard(answer, numbers[dist.get_rank()])
    return _number(value), has_heard


def _answer_to_share(answer, shares) -> tuple[float | str, bool]:
    import torch
    import torch.distributed as dist

    value, has_heard = overheard(answer, torch.tensor(shares[dist.get_rank()]))
    return _number(value), has_heard


def _number(value):
    """A number or a tensor of one as a float; anything else as text, for the judge to name."""
    if value is None or isinstance(value, (str, bytes)):
        return repr(value)
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)


def _not_numbers(got):
    """Refuse what is no number on some rank; None when all are numbers."""
    rank, value = next(((rank, value) for rank, value in enumerate(got) if isinstance(value, str)), (None, None))
    if rank is None:
        return None
    hint = "Return one number, or a tensor that holds one."
    if value == "None":
        hint = "Your function returned None. Does every way through it end in a return?"
    return failed(f"Rank {rank} returns no number.", hint, row(f"rank {rank}", "a number", value))


def _rows(expected, got):
    return [row(f"rank {rank} returns", expected, value) for rank, value in enumerate(got)]


def _close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(value) and math.isnan(expected))


def _same(values, expected) -> bool:
    return all(_close(value, wanted) for value, wanted in zip(values, expected, strict=True))


def _all_close(values, expected: float) -> bool:
    return _same(values, [expected] * len(values))


def _listed(values) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


EXERCISES = {
    "global_sum": Exercise(
        asked="Return, on every rank, the sum of the numbers of all ranks.",
        judge=judge_global_sum,
        hints=(
            "A rank knows only its own number. Which call lets every rank hear all others?",
            "Put the number into a tensor, let dist.all_reduce add it up in place, take the number out again.",
            "total = torch.tensor(number, dtype=torch.float64), then dist.all_reduce(total), then return total.item().",
        ),
    ),
    "global_mean": Exercise(
        asked="Return, on every rank, the mean over the elements of all shares.",
        judge=judge_global_mean,
        hints=(
            "What is a mean made of? Which of its parts may be added up over ranks?",
            "Add up the sums of all ranks, add up the numbers of elements of all ranks, divide once at the end.",
            "pair = torch.tensor([share.sum(), len(share)]), dist.all_reduce(pair), and return pair[0] / pair[1].",
        ),
    ),
}
