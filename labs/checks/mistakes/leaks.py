"""Mistakes in pipelines: what leaks from the test set into predictions, and the hint for each way."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row

SELECTED_SHARE, DECONTAMINATED_SHARE, CHOSEN_SHARE = (
    0.87,
    0.8,
    0.85,
)  # of right predictions; the course has 0.92 or more
LEFT_OVER_SHARE = 0.2  # of predictions that change: where no copy is left out, half of them do
_ALL_COPIES = (
    "Training still sees rows of the test set, and a nearest row at distance 0 hands over its label. Leave out "
    "every training row that equals some row of rows[is_test], in all columns, whatever its label."
)
_SOME_COPIES = (
    "Most copies are gone, some are left. Compare values by ==: distances from torch.cdist are rounded, and those of "
    "equal rows are not all 0."
)


def of_selection(seen: Sequence) -> Verdict | None:
    verdict = _of_shape(seen) or _of_labels(
        seen,
        "Which step sees rows[is_test] and their labels before the prediction? Whatever is chosen by labels is a part "
        "of training: choose the columns with rows[~is_test] and labels[~is_test].",
    )
    return verdict or _of_rows(seen) or _of_learning(seen, SELECTED_SHARE, _selection_hint)


def of_decontamination(seen: Sequence) -> Verdict | None:
    hint = "The labels of the test set must take no part at all: leave rows out by their values alone."
    verdict = _of_shape(seen) or _of_labels(seen, hint)
    if verdict:
        return verdict
    if changed := _changed(seen, "copies_flipped"):
        found = f"Training rows that also stand in the test set got other labels, and {changed} predictions changed."
        is_rest = changed < LEFT_OVER_SHARE * sum(len(one.plain) for one in seen)
        return failed(found, _SOME_COPIES if is_rest else _ALL_COPIES, row("predictions that change", 0, changed))
    return _of_learning(seen, DECONTAMINATED_SHARE, _decontamination_hint) or _of_doubles(seen)


def _of_doubles(seen) -> Verdict | None:
    forgotten = sum(one.forgotten for one in seen)
    if not forgotten:
        return None
    found = "It does not leak. Training rows that stand twice, and not in the test set, are left out as well."
    hint = "Only what also stands in rows[is_test] leaves. Twice in training is no leak, and the other rows are needed."
    return failed(found, hint, row("doubled training rows that are not known again", 0, forgotten))


def of_choice(seen: Sequence) -> Verdict | None:
    if verdict := _of_shape(seen):
        return verdict
    if num_rows := sum(one.fitted_on_test for one in seen):
        found = "A candidate was fitted with rows of the test set."
        hint = "fit(rows, labels) gets training rows alone, in every call, the last one too."
        return failed(found, hint, row("test rows given for fitting", 0, num_rows))
    hint = "The winner is chosen by its score on the test set, so the score is a part of the choice. Cut a validation "
    hint += "part off the training rows, and choose by that."
    verdict = _of_labels(seen, hint) or _of_rows(seen)
    return verdict or _by_heart(seen) or _of_learning(seen, CHOSEN_SHARE, _choice_hint)


def empty_hint(traceback: str) -> str | None:
    """The hint for an error in a model or a rank that has no rows; None for another error."""
    if "dimension 0 with size 0" in traceback or "does not have an identity" in traceback:
        return "A rank may hold no row at all: it has no first row and no largest value, but sums of nothing are 0."
    if "tuple index out of range" in traceback and ".chunk(" in traceback:
        return "chunk makes fewer parts than ranks where there are fewer rows; rows[rank::world_size] may be empty."
    if "argmin(): Expected reduction dim" not in traceback:
        return None
    return (
        "Nothing is left to fit. A copy agrees in all columns at once; a row that shares single values with test rows "
        "is none: (rows[:, None] == rows[is_test]).all(2).any(1)"
    )


def _of_shape(seen) -> Verdict | None:
    """A function that predicts one label a row, the same in two calls, and each row by itself."""
    for one in seen:
        parts = ("plain", "again", "alone", "labels_flipped", "half_flipped", "rows_replaced", "copies_flipped")
        texts = [value for value in (getattr(one, part) for part in parts) if isinstance(value, str)]
        if texts:
            hint = (
                "Return a function: it is given new rows, also such as you do not have yet, and predicts a label each."
            )
            expected = "a function that returns one prediction a row"
            return failed("What comes back cannot be used on new rows.", hint, row("returned", expected, texts[0]))
    for one in seen:
        if len(others := one.plain[(one.plain != 0) & (one.plain != 1)]):
            hint = (
                "Return the label itself: the larger of two scores by argmax, a probability by > 0.5. nan is neither."
            )
            return failed("Some predictions are no label.", hint, row("a prediction", "0 or 1", others[0].item()))
    if changed := _changed(seen, "again"):
        found = "Two calls with the same data give different predictions, so nobody can say what tampering does."
        hint = "Give every generator of random numbers a fixed seed."
        return failed(found, hint, row("predictions that change", 0, changed))
    if any((one.plain[-len(one.alone) :] != one.alone).any() for one in seen):
        found = "A new row gets another prediction when other new rows stand beside it."
        hint = "The returned function computes statistics of what it is given. Learn from training rows alone."
        return failed(found, hint)
    return None


def _of_labels(seen, hint: str) -> Verdict | None:
    # Whoever compares classes by distance sees no difference when all labels are exchanged, but when half of them are.
    changed = max(_changed(seen, "labels_flipped"), _changed(seen, "half_flipped"))
    if not changed:
        return None
    found = (
        f"Test labels were exchanged, and {changed} of {sum(len(one.expected) for one in seen)} predictions changed."
    )
    return failed(found, hint, row("predictions that change", 0, changed))


def _of_rows(seen) -> Verdict | None:
    changed = _changed(seen, "rows_replaced")
    if not changed:
        return None
    found = f"Half of the test rows were replaced before fitting, and {changed} predictions changed."
    hint = "A statistic or a choice is made from all rows. Everything that is learnt, means and deviations too, comes "
    hint += "from rows[~is_test]."
    return failed(found, hint, row("predictions that change", 0, changed))


def _by_heart(seen) -> Verdict | None:
    if not all((one.plain == one.choices["by heart"]).all() for one in seen):
        return None
    found = "It does not leak, and it chooses the candidate that knows the training rows by heart and nothing else."
    hint = (
        "On the rows that a candidate was fitted with, learning by heart looks best. Choose by training rows that it "
    )
    hint += "was not fitted with."
    return failed(found, hint)


def _of_learning(seen, least: float, hint_for) -> Verdict | None:
    share = sum(int((one.plain == one.expected).sum()) for one in seen) / sum(len(one.expected) for one in seen)
    if share >= least:
        return None
    found = f"It does not leak, and {share:.0%} of its predictions are right where {least:.0%} and more can be."
    hint = hint_for(seen) if share > 1 - least else "It tells the classes apart, and calls each by the other's label."
    return failed(found, hint, row("right predictions", f"{least:.0%} or more", f"{share:.0%}"))


def _selection_hint(seen) -> str:
    if all((one.plain == one.plain[0]).all() for one in seen):
        return "Every row gets the same label. Honest is not enough: fit the model with the training rows."
    return (
        "Nothing useful is selected. Keep the columns whose class means lie farthest apart in the training rows, and "
        "use the same columns for new rows."
    )


def _decontamination_hint(seen) -> str:
    if all((one.plain == one.plain[0]).all() for one in seen):
        return "Every row gets the same label. Honest is not enough: predict by the rows that are left."
    return "Too much is left out of training, or something else than the nearest row decides: leave out copies alone."


def _choice_hint(seen) -> str:
    for place in ("first", "last"):
        if all((one.plain == one.choices[place]).all() for one in seen):
            return f"The {place} candidate is taken, whatever it is worth. Score every one, and take the best."
    return (
        "The best candidate is not among those chosen. Score every one on training rows that it was not fitted with, "
        "and on enough of them: of three rows, guessing may get all right."
    )


def _changed(seen, part: str) -> int:
    return sum(int((one.plain != getattr(one, part)).sum()) for one in seen)
