"""Mistakes in counting right predictions over ranks, and the hint for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row


def of_accuracy(by_rank: Sequence, sets: Sequence) -> Verdict | None:
    """Numbers first, then who predicted what: a right number of which nothing was shared is refused, too."""
    wrong_ones = [index for index, (count, wrong) in enumerate(sets) if not _is_right(by_rank, index, count, wrong)]
    for index in wrong_ones:
        if text := next((v for v in _values(by_rank, index) if isinstance(v, str)), None):
            hint = "Return one number on every rank: does every way through your function end in a return?"
            return failed("The function returns no number.", hint, row("returned", "a number", text))
    # A set that divides hides most mistakes, so the first that does not is shown.
    for index, (count, wrong) in enumerate(sets):
        if index in wrong_ones or (not wrong_ones and not _is_shared(by_rank, index, count)):
            return _verdict(by_rank, index, count, wrong)
    silent = [rank for rank, seen in enumerate(by_rank) if not all(seen.has_heard)]
    if silent:
        found = f"The numbers are right, and rank {silent[0]} has received nothing from the others."
        return failed(found, "How many are right elsewhere, the other ranks know alone: add up over ranks.")
    return None


def _values(by_rank, index: int) -> list:
    return [seen.values[index] for seen in by_rank]


def _is_right(by_rank, index: int, count: int, wrong) -> bool:
    expected = 1 - len(wrong) / count
    return all(not isinstance(v, str) and math.isclose(v, expected, abs_tol=1e-6) for v in _values(by_rank, index))


def _is_shared(by_rank, index: int, count: int) -> bool:
    most = -(-count // len(by_rank))
    predicted = [seen.predicted[index] for seen in by_rank]
    return sorted(sum(predicted, [])) == list(range(count)) and max(map(len, predicted)) <= most


def _verdict(by_rank, index: int, count: int, wrong) -> Verdict:
    expected, values = 1 - len(wrong) / count, _values(by_rank, index)
    predicted = [seen.predicted[index] for seen in by_rank]
    times = Counter(sum(predicted, []))
    is_right = _is_right(by_rank, index, count, wrong)
    found = f"{count} rows on {len(by_rank)} ranks, {count - len(wrong)} of them predicted right. "
    found += "The number is right; the work is not shared as asked." if is_right else "The number is wrong."
    rows = [] if is_right else [row(f"rank {rank} returns", expected, value) for rank, value in enumerate(values)]
    rows.append(row("rows predicted by each rank", _even(count, len(by_rank)), [len(rows) for rows in predicted]))
    return failed(found, _hint(values, predicted, times, count, wrong), *rows)


def _even(count: int, world: int) -> list[int]:
    return [len(range(rank, count, world)) for rank in range(world)]


def _hint(values, predicted, times: Counter, count: int, wrong) -> str:
    sharing = _sharing_hint(predicted, times, count)
    if sharing:
        return sharing
    if any(isinstance(v, float) and math.isnan(v) for v in values):
        return "nan comes from a rank with an empty share: a mean of nothing. Add up counts, divide by len(labels)."
    if hint := next((hint for expected, hint in _ways(predicted, count, wrong) if _same(values, expected)), None):
        return hint
    if max(map(len, predicted)) > -(-count // len(values)) and _same(values, [1 - len(wrong) / count] * len(values)):
        return "Shares may differ by one row. rows[rank::world_size] cuts them so."
    if _same(values, [0.0] * len(values)):
        return "A whole number divided by // is 0 here. A share is divided by /."
    exact = 1 - len(wrong) / count
    if all(isinstance(v, float) and abs(v - exact) < 0.006 for v in values):
        return "Nearly: it is rounded. Return the number as it is, and round where it is shown."
    if _same(values[:1], [exact]):
        return "Rank 0 is right and another is not: dist.reduce gives the sum to one rank, dist.all_reduce to all."
    return "Add up over ranks: how many are right. Divide once: by how many rows there are."


def _sharing_hint(predicted, times: Counter, count: int) -> str | None:
    """The hint for rows that are predicted by nobody, or more than once."""
    world = len(predicted)
    if all(len(rows) >= count for rows in predicted):
        return f"Every rank predicts all rows, so {world} ranks do the work of one, {world} times. Share the rows out."
    if 0 < sum(bool(rows) for rows in predicted) < min(world, count):
        return "Some ranks predict nothing, and wait for those that do. rows[rank::world_size] gives each a share."
    if len(times) < count:
        missing = sorted(set(range(count)) - set(times))
        return f"Rows {missing} are predicted by nobody. What is left after dividing evenly counts as well."
    if max(times.values()) > 1:
        twice = sorted(number for number, seen in times.items() if seen > 1)
        return (
            f"Rows {twice} are predicted more than once. torch's DistributedSampler repeats rows until all shares are "
            "equal, which is fine for training. Evaluate rows[rank::world_size]: shares may differ by one."
        )
    return None


def _ways(predicted, count: int, wrong) -> list[tuple[list[float], str]]:
    """What known mistakes return on each rank, when every row is predicted once, and the hint for each."""
    world, right = len(predicted), count - len(wrong)
    own = [sum(number not in wrong for number in rows) / len(rows) if rows else 0.0 for rows in predicted]
    of_means = (
        "That is the mean of the ranks' accuracies: a row on a rank with few rows weighs more. Add up the right "
        "predictions over ranks, and divide once, by len(labels)."
    )
    alone = "Each rank judges its own rows alone. Add up the right predictions over ranks, divide by len(labels)."
    twice = "Divided by the ranks as well: the sum over ranks is complete, divide it by len(labels) alone."
    return [
        (own, alone),
        ([sum(own) / sum(map(bool, predicted))] * world, of_means),
        ([sum(own) / world] * world, of_means),
        ([float(right)] * world, "That is the number of right predictions. Divide it by the number of rows."),
        ([100 * right / count] * world, "That is in percent. Return a share, between 0 and 1."),
        ([1 - right / count] * world, "That is the share of wrong predictions."),
        ([right / count / world] * world, twice),
    ]


def _same(values, expected) -> bool:
    return all(
        not isinstance(v, str) and math.isclose(v, e, abs_tol=1e-6) for v, e in zip(values, expected, strict=True)
    )
