"""The right and wrong answers of all lessons, each judged once in a test run."""

from __future__ import annotations

import functools
import importlib
from contextlib import contextmanager
from types import FunctionType
from typing import NamedTuple

import labs.checks
from labs.checks import STUB_TEXT, Verdict, all_exercises, check
from labs.checks.exercise import reference

HANG_SECONDS = 4.0  # answers that hang are part of the lists; an honest one takes a tenth of this


class Mistake(NamedTuple):
    """A wrong answer and a part of the hint that it must get. Two with the same part are one mistake, made twice."""

    exercise: str
    answer: object
    hint: str


def stub(*_, **__):
    raise NotImplementedError(STUB_TEXT)


def right_answers() -> list[tuple[str, object]]:
    """All right ones: those of the lists, and the reference solution of every exercise."""
    listed = [pair for lesson in lessons() for pair in _list(lesson, "RIGHT")]
    return [*listed, *((name, written_out(reference(name))) for name in all_exercises())]


def written_out(solution):
    """A copy of the course's own solution, as of somebody who wrote the same: that one itself is no answer."""
    if isinstance(solution, type):
        return type(solution.__name__, solution.__bases__, dict(vars(solution)))
    if isinstance(solution, FunctionType):
        code, scope = solution.__code__, solution.__globals__
        return FunctionType(code, scope, solution.__name__, solution.__defaults__, solution.__closure__)
    return solution


def mistakes() -> list[Mistake]:
    return [Mistake(*entry) for lesson in lessons() for entry in _list(lesson, "WRONG")]


def lessons() -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in all_exercises()))


def _list(lesson: str, name: str) -> list:
    """A list of tests/wrong_answers/<lesson>.py; empty where there is no such file, which is for a test to find."""
    try:
        return getattr(importlib.import_module(f"wrong_answers.{lesson}"), name)
    except ModuleNotFoundError as error:
        if error.name != f"wrong_answers.{lesson}":
            raise
        return []


@functools.cache
def verdict_on(mistake: Mistake) -> Verdict:
    """Check a wrong answer, with little patience for one that hangs."""
    with limit_of_ranks(mistake.exercise, HANG_SECONDS):
        return check(mistake.exercise, mistake.answer)


@contextmanager
def limit_of_ranks(exercise: str, seconds: float):
    """Change how long the judge of an exercise waits for ranks, where it has such a limit."""
    judge = importlib.import_module(f"{labs.checks.__name__}.{exercise.partition('.')[0]}")
    before = getattr(judge, "LIMIT_SECONDS", None)
    if before is not None:
        judge.LIMIT_SECONDS = seconds
    yield
    if before is not None:
        judge.LIMIT_SECONDS = before
