"""Mistakes in statistics and counts over ranks, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row

WORLD_SIZE = 3  # one of the ranks holds no rows
TOLERANCE = 1e-6  # of one standard deviation
MOST_BYTES = 20_000  # of a table of 240,000


def of_scaling(by_rank: Sequence, columns: Sequence[str], table, long_table) -> Verdict | None:
    """`by_rank` holds, for each rank, what it got for the table and for the long one."""
    return (
        _of_late_fitting(by_rank)
        or _of_statistics([both[0] for both in by_rank], columns, table)
        or _of_long_statistics([both[1] for both in by_rank], long_table)
        or _of_traffic([both[1] for both in by_rank])
    )


def _of_late_fitting(by_rank) -> Verdict | None:
    """Transforming learns nothing: no calls, and each row by itself."""
    for rank, (seen, _) in enumerate(by_rank):
        if seen.num_late_calls:
            found = f"transform makes {seen.num_late_calls} collectives."
            hint = "Statistics are fitted once, in fit. A rank that has a row to scale must not need the others for it."
            return failed(found, hint, row("collectives in transform", 0, seen.num_late_calls))
        if not seen.has_shape:
            found = f"On rank {rank} transform does not return a tensor of the shape of its rows."
            return failed(found, "Return the scaled rows, [num_rows, columns].")
        if not _near(seen.twice[0], seen.twice[1]):
            found = "The same row is scaled differently the second time."
            hint = "transform changes what fit has kept, so the order of the test rows decides. Learn in fit alone."
            return failed(found, hint)
        if not _near(seen.alone, seen.beside):
            found = "The same row is scaled differently when other rows stand beside it."
            hint = "transform computes statistics of what it is given: of the test set. Use those that fit has kept."
            return failed(found, hint)
    return None


def _of_statistics(seen, columns, table) -> Verdict | None:
    for rank, one in enumerate(seen):
        zero, step = one.built
        wrong = [
            number
            for number in range(len(columns))
            if not (abs(zero[number]) < TOLERANCE * 10 and abs(step[number] - 1) < TOLERANCE * 10)
        ]
        if wrong:
            return _statistics_verdict(seen, rank, wrong, columns, table)
    return None


def _statistics_verdict(seen, rank: int, wrong: list[int], columns, table) -> Verdict:
    zero, step = seen[rank].built
    hint = _statistics_hint(seen, wrong, columns, table)
    rows = [
        row(f"rank {rank}, column {columns[n]!r}: mean and mean + 1 std become", "0 and 1", _pair(zero[n], step[n]))
        for n in wrong[:3]
    ]
    return failed(
        f"Rows are not scaled by the mean and deviation of all {_num_rows(table)} training rows.", hint, *rows
    )


def _pair(zero, step) -> str:
    return f"{float(zero):.4g} and {float(zero + step):.4g}"


def _num_rows(table) -> int:
    return sum(len(table(rank)) for rank in range(WORLD_SIZE))


def _statistics_hint(seen, wrong: list[int], columns, table) -> str:
    """Look for known mistakes in the first column, which any of them changes, then in the others."""
    import torch

    if not all(_near(one.alone, seen[0].alone) for one in seen):
        return "The ranks do not agree: each scales by its own rows. Sum over ranks before you divide."
    zero, step = seen[0].built
    tables = [table(rank) for rank in range(WORLD_SIZE)]
    if 0 in wrong and torch.isnan(zero[0]):
        return "nan comes from a rank without rows: the mean of nothing. Its sum and its count are 0: add those up."
    if 0 in wrong and (hint := _known_hint(seen[0], tables)):
        return hint
    return _column_hint(wrong, zero, step, seen[0].std, columns)


def _column_hint(wrong: list[int], zero, step, std, columns) -> str:
    """The hint that the set of wrong columns gives away."""
    import torch

    if 1 in wrong and abs(zero[1]) > 1e-3 and 0 not in wrong:
        return "The times are wrong, and their mean as well: float32 knows 1.7e9 to 128 seconds. Compute in float64."
    if abs(step - std).max() < 1e-6 * std.max():
        return "The mean is taken away, and rows are not divided by the deviation."
    if 1 in wrong and set(wrong) <= {1, 2}:
        return (
            "The times are wrong: mean of squares minus square of mean. Both are near 3e18, where neighbours in "
            "float64 lie 512 apart, and the variance is 400. Add up squares of deviations from the common mean."
        )
    if 2 in wrong and set(wrong) <= {2, 4} and not torch.isfinite(step[2]):
        return "A column that never varies has deviation 0, and nothing divides by 0. Only centre it: deviation 1."
    if 4 in wrong and set(wrong) <= {2, 4}:
        return (
            "A small column is not one without variation. Add nothing to a deviation and cut none off: replace alone "
            "what lies within rounding of its mean, std <= 1e-12 * mean.abs()."
        )
    if wrong == [2]:
        return (
            "0.1 in each row: through rounding its deviation comes out as about 1e-17, not 0, and a step of 1 becomes "
            "enormous. Take as constant what lies within rounding of its mean: std <= 1e-12 * mean.abs()."
        )
    return f"Look at column {columns[wrong[0]]!r}. Count, sum and squared deviations are what ranks may add up."


def _known_hint(seen, tables) -> str | None:
    """The hint for statistics of the first column that a known mistake gives."""
    import torch

    zero, step = (float(values[0]) for values in seen.built)
    built_std = float(seen.std[0]) / step if step else 0.0
    built_mean = float(seen.mean[0]) - zero * built_std
    own = [rows[:, 0] for rows in tables if len(rows)]
    means = torch.stack([rows.mean() for rows in own])
    if _is(built_mean, means[0]):
        return "These are the statistics of rank 0 alone. The other ranks' rows are training rows, too."
    if _is(built_mean, means.mean()) or _is(built_mean, means.sum() / WORLD_SIZE):
        return "That is the mean of the ranks' means: 7 rows weigh as much as 41. Add up sums and counts, divide once."
    if not _is(built_mean, torch.cat(own).mean()):
        return None
    return _deviation_hint(built_std, own)


def _deviation_hint(built_std: float, own: list) -> str | None:
    """The hint for a deviation, beside the right mean; `own` holds the first column of each rank that has rows."""
    import torch

    every = torch.cat(own)
    variances, plain = (torch.stack([rows.var(correction=c) for rows in own]) for c in (1, 0))
    counts = torch.tensor([len(rows) for rows in own], dtype=torch.float64)
    if _is(built_std, every.std()):
        return "Divided by count - 1. Divide by count, as scikit-learn's StandardScaler does."
    if _is(built_std, every.var(correction=0)):
        return "The mean is right, and rows are divided by the variance: the root is missing."
    averages = [var.mean() for var in (variances, plain)] + [var.sqrt().mean() ** 2 for var in (variances, plain)]
    pooled = [(counts * plain).sum() / counts.sum(), plain.sum() / WORLD_SIZE, (plain.sqrt().sum() / WORLD_SIZE) ** 2]
    if any(_is(built_std, value.sqrt()) for value in averages + pooled):
        return (
            "The mean is right. The deviation is the ranks' own, averaged: what lies between the ranks' means is "
            "missing. Take deviations from the common mean."
        )
    return None


def _is(value: float, expected) -> bool:
    return abs(value / float(expected) - 1) < 1e-4


def _of_long_statistics(seen, long_table) -> Verdict | None:
    for rank, one in enumerate(seen):
        zero, step = one.built
        if bool((zero.abs() < TOLERANCE).all() and ((step - 1).abs() < TOLERANCE).all()):
            continue
        worst = int(zero.abs().argmax())
        found = f"Of a table in float32, {_num_rows(long_table):,} rows around 10,000, the statistics are inexact."
        hint = "Sums of thousands of float32 numbers lose digits. Make rows float64 first: rows.double()."
        return failed(found, hint, row(f"rank {rank}: the mean and mean + 1 std become", "0 and 1 within 1e-6",
                                       f"{float(zero[worst]):.3g} and {float((zero + step)[worst]):.7g}"))  # fmt: skip
    return None


def _of_traffic(seen) -> Verdict | None:
    for rank, one in enumerate(seen):
        if not one.call_bytes and one.received_bytes == 0:
            found = f"The numbers are right, and rank {rank} has received nothing from the others."
            return failed(found, "What lies on other ranks can be known from them alone: let sum_over_ranks carry it.")
        moved = max(one.call_bytes, one.received_bytes or 0)
        if moved > MOST_BYTES:
            found = "The numbers are right, and the rows themselves travel: every rank fetches the training set."
            hint = "A rank needs three sums, as long as a row. Add up count, sum and squared deviations over ranks."
            return failed(found, hint, row(f"bytes that move through rank {rank}", f"below {MOST_BYTES:,}", moved))
    return None


def _near(built, expected) -> bool:
    import torch

    return torch.allclose(built, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
