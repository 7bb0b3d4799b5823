"""Judging a pure function: the same cases for the answer and for the truth, and a hint for each known mistake."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from labs.checks.answer import Answer, Raised, call, error_hint, is_stub, outcomes, stub_words
from labs.checks.verdict import Row, Verdict, failed, in_words, not_attempted, passed, row

EXACT = 0.0
SEED = 20
MOST_ROWS = 3
Misconception = tuple[Callable[..., Any], str]


def draw(count: int, /, *, seed: int = SEED, **choices: Sequence | Callable[[random.Random], Any]) -> list[tuple]:
    """Draw `count` cases, the same every time: `draw(10, num_params=range(1, 10**9), precision=("fp32", "bf16"))`.

    A choice is a sequence to pick from, or a function of a random.Random. The names are for the reader.
    """
    rng = random.Random(seed)
    return [tuple(pick(rng) if callable(pick) else rng.choice(pick) for pick in choices.values()) for _ in range(count)]


def agree(built: Any, expected: Any, tolerance: float = EXACT) -> bool:
    """Whether two values are the same, element by element; numbers to the relative tolerance, nan equals nan.

    Numbers, texts, None, tensors, arrays, lists and tuples (as each other), and dicts of these.
    """
    built, expected = _plain(built), _plain(expected)
    if isinstance(expected, dict) and isinstance(built, dict):
        return built.keys() == expected.keys() and all(agree(built[k], v, tolerance) for k, v in expected.items())
    if isinstance(expected, list) and isinstance(built, list):
        same_length = len(built) == len(expected)
        return same_length and all(agree(b, e, tolerance) for b, e in zip(built, expected, strict=True))
    if _is_number(expected) and _is_number(built):
        if built == expected or (built != built and expected != expected):
            return True
        return tolerance > 0 and math.isclose(built, expected, rel_tol=tolerance, abs_tol=0.0)
    return type(built) is type(expected) and built == expected


def compare(
    answer: Answer,
    truth: Callable[..., Any],
    cases: Sequence[tuple],
    misconceptions: Sequence[Misconception] = (),
    tolerance: float = EXACT,
    otherwise: str = "",
) -> Verdict:
    """Judge a pure function on cases (tuples of arguments), against `truth` on the same cases.

    `misconceptions` are (wrong function, hint): when the answer agrees with one wherever that one differs from the
    truth, its hint is shown. `otherwise` is the hint for any other mistake. `tolerance` is relative; 0 is exact.
    Raises AssertionError when no case tells a misconception from the truth: then a case is missing.
    """
    cases = list(cases)
    expected = [truth(*case) for case in cases]
    built = outcomes(answer, cases)
    wrong = [i for i in range(len(cases)) if not agree(built[i], expected[i], tolerance)]
    known = [(_values(function, cases), hint) for function, hint in misconceptions]
    for (values, _), (function, _) in zip(known, misconceptions, strict=True):
        assert any(not agree(v, e, tolerance) for v, e in zip(values, expected, strict=True)), function
    if stubs := [value.traceback for value in built if isinstance(value, Raised) and is_stub(value.traceback)]:
        return not_attempted(stub_words(answer, stubs[0]))
    if not wrong:
        how = "exactly" if tolerance == EXACT else f"to within {tolerance:.2g} of each"
        return passed(f"All {len(cases)} cases come out as expected, {how}.")
    found = _found(built, wrong, len(cases))
    shown = wrong[: 1 if isinstance(built[wrong[0]], Raised) else MOST_ROWS]
    hint = (
        _whole_hint(built, known, tolerance)
        or _shape_hint(answer, built, expected, wrong)
        or _part_hint(built, expected, known, tolerance)
        or otherwise
        or "Compute the first line by hand, and see where your number parts from it."
    )
    return failed(found, hint, *(_row(truth, answer, cases[i], expected[i], built[i]) for i in shown))


def _found(built, wrong, num_cases) -> str:
    raised = [built[i] for i in wrong if isinstance(built[i], Raised)]
    found = f"{len(wrong)} of {num_cases} cases came out wrong"
    if not raised:
        return f"{found}."
    return f"{found}, {'all' if len(raised) == len(wrong) else len(raised)} with an error.\n{raised[0].traceback}"


def _whole_hint(built, known, tolerance) -> str:
    """The hint of the wrong function that gives the very same values."""
    for values, hint in known:
        if all(agree(b, v, tolerance) for b, v in zip(built, values, strict=True)):
            return hint
    return ""


def _part_hint(built, expected, known, tolerance) -> str:
    """The hint of a wrong function that is one mistake among several: it agrees where that one shows."""
    for values, hint in known:
        telling = [i for i, value in enumerate(values) if not agree(value, expected[i], tolerance)]
        if all(agree(built[i], values[i], tolerance) for i in telling):
            return hint
    return ""


def _shape_hint(answer, built, expected, wrong) -> str:
    """Name a mistake that can be seen from the values alone."""
    if raised := [built[i].traceback for i in wrong if isinstance(built[i], Raised)]:
        return error_hint(raised[0], answer) if len(raised) == len(wrong) else ""
    if all(built[i] is None for i in wrong) and all(expected[i] is not None for i in wrong):
        return "Your function returned None. Does every way through it end in a return?"
    for i in wrong:
        kind, wanted = _kind(built[i]), _kind(expected[i])
        if kind != wanted:
            return f"Your function returned {kind}; what is asked for is {wanted}."
    if any(_is_endless(built[i]) and not _is_endless(expected[i]) for i in wrong):
        return "A number came out as nan or inf: look for a division by zero, or for inf minus inf."
    if all(isinstance(expected[i], int) and agree(built[i], expected[i], 1e-12) for i in wrong):
        return "Nearly: a division with / makes a float, which rounds large numbers. Whole numbers are divided with //."
    ratios = {_ratio(b, e) for b, e in zip(built, expected, strict=True) if not agree(b, 0) or not agree(e, 0)}
    if len(built) > 2 and len(ratios) == 1 and (ratio := ratios.pop()) is not None:
        return f"In every case your number is {ratio:g} times the expected one: a factor is missing or too much."
    return ""


def _kind(value: Any) -> str:
    value = _plain(value)
    if _is_number(value):
        return "a number"
    words = {str: "a text", bool: "True or False", list: "a list", dict: "a dict", type(None): "None"}
    return words.get(type(value), f"a {type(value).__name__}")


def _is_endless(value: Any) -> bool:
    value = _plain(value)
    return _is_number(value) and not math.isfinite(value)


def _ratio(built, expected) -> float | None:
    built, expected = _plain(built), _plain(expected)
    is_usable = _is_number(built) and _is_number(expected) and expected and math.isfinite(built)
    return float(f"{built / expected:.6g}") if is_usable else None


def _row(truth, answer: Answer, case: tuple, expected, built) -> Row:
    names = list(inspect.signature(truth).parameters)
    arguments = ", ".join(f"{name}={_argument(value)}" for name, value in zip(names, case, strict=False))
    return row(f"{answer.name}({arguments})", expected, repr(built) if isinstance(built, str) else built)


def _argument(value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"  # as it can be copied into a cell
    return repr(value) if isinstance(value, str) else in_words(value, 60)


def _values(function, cases) -> list[Any]:
    return [call(function, case) for case in cases]


def _plain(value: Any) -> Any:
    """Tensors, arrays, tuples as lists; numbers of any kind as Python's own, whose == cannot be another one."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Fraction):
        value = value.numerator if value.denominator == 1 else value.numerator / value.denominator
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return list(value) if isinstance(value, tuple) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
