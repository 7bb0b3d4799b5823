"""Judges of lesson 09: what changes when the test set is tampered with, and what ranks count; never seconds."""

from __future__ import annotations

from functools import partial

from labs.checks.answer import learners_lines
from labs.checks.exercise import Exercise
from labs.checks.mistakes import counts, leaks, shares
from labs.checks.verdict import Verdict, failed, passed
from labs.failures import RankFailed

LIMIT_SECONDS = 20.0


def _launch(harness: str, answer, world_size: int, module: str) -> list:
    """Run a harness of labs.checks.<module> with the answer on ranks."""
    from importlib import import_module

    from labs.launcher import launch

    return launch(
        getattr(import_module(f"labs.checks.{module}"), harness),
        answer,
        world_size=world_size,
        timeout_seconds=LIMIT_SECONDS,
    )


def _facts_of(harness: str, answer, world_size: int, module: str) -> list | Verdict:
    """As `_launch`; an error whose cause is known becomes a verdict with its own hint."""
    try:
        return _launch(harness, answer, world_size, module)
    except RankFailed as error:
        if hint := leaks.empty_hint(error.traceback):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise


def _judge_pipeline(harness: str, mistakes, evidence: str, answer) -> Verdict:
    seen = _facts_of(harness, answer, 1, "tampering")
    return seen if isinstance(seen, Verdict) else mistakes(seen[0]) or passed(evidence)


judge_select = partial(
    _judge_pipeline,
    "selected",
    leaks.of_selection,
    "Exchanging test labels or replacing test rows changes no prediction; and the columns that "
    "tell are found among 3,000.",
)
judge_decontaminate = partial(
    _judge_pipeline,
    "decontaminated",
    leaks.of_decontamination,
    "Changing the labels of training copies of test rows changes no prediction, and the other rows are still used.",
)
judge_choose = partial(
    _judge_pipeline,
    "chosen",
    leaks.of_choice,
    "Exchanging test labels does not change the choice; the one that learns by heart and those that guess lose.",
)


def judge_standardizer(answer) -> Verdict:
    from labs.checks.shares import COLUMNS, long_table_of, table_of

    by_rank = _facts_of("scaled", answer, shares.WORLD_SIZE, "shares")
    if isinstance(by_rank, Verdict):
        return by_rank
    verdict = shares.of_scaling(by_rank, COLUMNS, table_of, long_table_of)
    moved = max(both[1].call_bytes for both in by_rank)
    return verdict or passed(
        "Three ranks, one without rows, scale alike and as one process would, times and constant columns too; "
        f"{moved} bytes of sums travel for 20,000 rows, and none in transform."
    )


def judge_accuracy(answer) -> Verdict:
    from labs.checks.shares import EVALUATORS, SETS

    by_rank = _facts_of("counted", answer, EVALUATORS, "shares")
    if isinstance(by_rank, Verdict):
        return by_rank
    verdict = counts.of_accuracy(by_rank, SETS)
    sizes = ", ".join(str(count) for count, _ in SETS)
    return verdict or passed(
        f"Sets of {sizes} rows on {EVALUATORS} ranks: exact on every rank, each row predicted once."
    )


EXERCISES = {
    "select": Exercise(
        asked="Return a function that predicts, with columns that are selected without the test rows.",
        judge=judge_select,
        hints=(
            "Which of the steps is given test rows, or their labels?",
            "Begin by cutting: train_rows = rows[~is_test]. Whatever is chosen or averaged sees these alone.",
            "columns = best_columns(rows[~is_test], labels[~is_test], 20); predict = nearest_mean(rows[~is_test][:, "
            "columns], labels[~is_test]); return lambda new: predict(new[:, columns])",
        ),
    ),
    "decontaminate": Exercise(
        asked="Return a function that predicts by the nearest training row, without copies of test rows among them.",
        judge=judge_decontaminate,
        hints=(
            "What does the nearest row say when the test row itself stands in training?",
            "Compare every row with every test row, in all columns; keep for training what equals none of them.",
            "copy = (rows[:, None] == rows[is_test]).all(2).any(1), then nearest_row(rows[~copy], labels[~copy]): test "
            "rows equal themselves, so they are left out as well.",
        ),
    ),
    "choose": Exercise(
        asked="Return the best of many models, fitted and chosen without the test set.",
        judge=judge_choose,
        hints=(
            "A choice is a part of training. On which rows may it be made?",
            "Cut the training rows into a part to fit and a part to score. Take the candidate with the best score.",
            "models = [fit(train_rows[:60], train_labels[:60]) for fit in fits]; return the one with most right "
            "predictions of train_rows[60:]: max(models, key=...)",
        ),
    ),
    "standardizer": Exercise(
        asked="Fit mean and standard deviation on the training rows of all ranks; scale any rows by them.",
        judge=judge_standardizer,
        hints=(
            "What may be added up over ranks, so that a rank with no rows adds nothing?",
            "First count and sum, in float64, for the common mean; then the squares of the deviations from it. A "
            "column that never varies keeps deviation 1.",
            "mean = sum_over_ranks(rows.double().sum(0)) / sum_over_ranks(len(rows)); std = (sum_over_ranks((rows - "
            "mean).square().sum(0)) / count).sqrt(); std.where(std > 1e-12 * mean.abs(), 1)",
        ),
    ),
    "accuracy": Exercise(
        asked="Return the exact share of right predictions on every rank; each rank predicts its own share of rows.",
        judge=judge_accuracy,
        hints=(
            "Shares need not be equal. Which number may be added up over ranks?",
            "Rank r takes every world_size-th row from r on, and counts its right predictions. The sum over ranks is "
            "divided by the number of all rows.",
            "mine = slice(rank, None, world_size); right = (predict(rows[mine]) == labels[mine]).sum(); "
            "(sum_over_ranks(right) / len(labels)).item()",
        ),
    ),
}
