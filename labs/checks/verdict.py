"""What a judge says of an answer, and the verbs that say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "failed", "not attempted", "blocked"]
SIGNS: dict[State, str] = {"passed": "✓", "failed": "✗", "not attempted": "…", "blocked": "!"}


@dataclass(frozen=True)
class Row:
    """One line of a comparison: what was looked at, what was expected there, what the answer built."""

    what: str
    expected: str
    built: str


@dataclass(frozen=True)
class Verdict:
    """What was found: a sentence of evidence, expected beside built, and a hint made for this very mistake.

    `exercise` and `asked` are filled in by `check`; a judge leaves them empty.
    """

    state: State
    found: str
    hint: str = ""
    rows: tuple[Row, ...] = ()
    exercise: str = ""
    asked: str = ""
    note: str = ""

    def __str__(self) -> str:
        from labs.checks.card import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from labs.checks.card import as_html

        return as_html(self)


class Blocked(Exception):
    """Raised where a part of the machine is missing: the check can say neither yes nor no. The text says which."""


def passed(found: str) -> Verdict:
    """The answer is right; `found` is the evidence, in one sentence."""
    return Verdict("passed", found)


def failed(found: str, hint: str, *rows: Row) -> Verdict:
    """The answer is wrong; `hint` is made for this mistake, each row sets expected beside built."""
    return Verdict("failed", found, hint, rows)


def not_attempted(found: str) -> Verdict:
    """There is no answer yet."""
    return Verdict("not attempted", found)


def blocked(found: str, mend: str = "") -> Verdict:
    """A part of the machine is missing, so nothing can be said about the answer; `mend` says what to do."""
    return Verdict("blocked", found, mend)


def row(what: str, expected: object, built: object) -> Row:
    """Set expected beside built: numbers with thousands separators, texts as they are, anything else as Python does.

    Of two dicts with the same keys only the items that differ are shown.
    """
    if isinstance(expected, dict) and isinstance(built, dict) and expected.keys() == built.keys():
        differing = [key for key in expected if in_words(expected[key]) != in_words(built[key])] or list(expected)
        expected, built = ({key: side[key] for key in differing} for side in (expected, built))
    words = in_words(expected), in_words(built)
    if words[0] == words[1]:  # the difference is in digits that were rounded away, or in the type
        words = shortened(repr(expected)), shortened(repr(built))
    return Row(what, *words)


def in_words(value: object, most: int = 200) -> str:
    """Write a value so that two can be compared by eye, cut after `most` characters."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return f"{value:,.0f}" if whole else f"{value:,.1f}" if 1e5 < abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (tuple, list)):
        return shortened("[" + ", ".join(in_words(item, most) for item in value[: most // 2]) + "]", most)
    if isinstance(value, dict):
        return shortened(", ".join(f"{key}: {in_words(item, most)}" for key, item in value.items()), most)
    return shortened(str(value), most)


def shortened(text: str, most: int = 200) -> str:
    """Cut a text after `most` characters."""
    return text if len(text) <= most else text[: most - 2] + " …"
