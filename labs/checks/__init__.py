"""Judges of exercises: `check("lesson.exercise", answer)` runs an answer and says what is right, wrong, and why."""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["passed", "failed", "not attempted", "blocked"]
STUB_TEXT = "put your answer in place of this line"  # what an exercise raises as NotImplementedError until it is solved
SIGNS = {"passed": "✓", "failed": "✗", "not attempted": "…", "blocked": "!"}
Finding = tuple[State, str, str]  # state, evidence, hint
Judge = Callable[[Callable[..., Any]], Finding]


@dataclass(frozen=True)
class Verdict:
    """What a judge found: the state, one sentence of evidence, and a hint made for this mistake (empty when passed)."""

    exercise: str
    state: State
    found: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{SIGNS[self.state]} {self.exercise}: {self.state}. {self.found}{hint}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        hint = f"<br><b>hint:</b> {_as_html(self.hint)}" if self.hint else ""
        head = f"<b>{SIGNS[self.state]} {html.escape(self.exercise)}: {self.state}.</b>"
        style = "border-left:4px solid currentColor; padding:0.3em 0.8em"
        return f"<div role='status' style='{style}'>{head} {_as_html(self.found)}{hint}</div>"


def _as_html(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


def check(exercise: str, answer: Callable[..., Any]) -> Verdict:
    """Judge an answer by running it, on real ranks where the exercise needs them.

    `exercise` is "lesson.exercise", for instance "start_here.global_mean".
    Raises ValueError for an exercise that does not exist, listing those of the lesson.
    """
    lesson, _, name = exercise.partition(".")
    judges = _judges(lesson)
    if name not in judges:
        known = ", ".join(f"{lesson}.{known}" for known in judges) or "none in a lesson of that name"
        raise ValueError(f"exercise {exercise!r} is not known; known are {known}")
    return Verdict(exercise, *_judged(judges[name], answer))


def _judged(judge: Judge, answer: Callable[..., Any]) -> Finding:
    """Run a judge; an answer that raises or never comes back is a finding, too."""
    from labs.failures import RankFailed, RankTimeout

    try:
        return judge(answer)
    except RankTimeout as error:
        hint = "Every rank must issue the same collectives, in the same order."
        return "failed", f"Your function did not come back on every rank.\n{error}", hint
    except (RankFailed, NotImplementedError) as error:
        if STUB_TEXT in str(error):
            return "not attempted", "The function still raises NotImplementedError.", ""
        return "failed", f"Your function raised an error.\n{error}", "Mend the line shown above."


def _judges(lesson: str) -> dict[str, Judge]:
    try:
        return importlib.import_module(f"labs.checks.{lesson}").JUDGES
    except ModuleNotFoundError as error:
        if error.name != f"labs.checks.{lesson}":
            raise
        return {}
