"""What an exercise is, and where its judge is found."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labs.checks.verdict import Verdict


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson.

    `asked` is one sentence for the card. `judge` gets the answer and returns a Verdict. `hints` are three steps: a
    nudge, the approach, almost the answer. The reference solution is labs/checks/reference/<lesson>.py, same name.
    """

    asked: str
    judge: Callable[[Any], Verdict]
    hints: tuple[str, ...] = ()


def find_exercise(name: str) -> Exercise:
    """Return the exercise called "lesson.exercise". Raises ValueError for an unknown one, listing the lesson's."""
    if not isinstance(name, str):
        raise ValueError(f"an exercise is named by a text such as 'start_here.global_sum', not by {name!r}")
    lesson, _, exercise = name.partition(".")
    exercises = exercises_of(lesson)
    if exercise in exercises:
        return exercises[exercise]
    known = ", ".join(f"{lesson}.{other}" for other in exercises) or "none in a lesson of that name"
    near = difflib.get_close_matches(name, all_exercises(), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"exercise {name!r} is not known; known are {known}{meant}")


def exercises_of(lesson: str) -> dict[str, Exercise]:
    """Return {name: Exercise} of a lesson, in its order; {} for a lesson without exercises."""
    try:
        room = importlib.import_module(f"labs.checks.{lesson}")
    except ModuleNotFoundError as error:
        if error.name != f"labs.checks.{lesson}":
            raise
        return {}
    return getattr(room, "EXERCISES", {})


def all_exercises() -> tuple[str, ...]:
    """Name every exercise, "lesson.exercise". Imports the judges, but no torch."""
    from labs.checks import reference as solutions  # a lesson with exercises has a file of solutions there

    rooms = [room.name for room in pkgutil.iter_modules(solutions.__path__)]
    return tuple(f"{lesson}.{name}" for lesson in rooms for name in exercises_of(lesson))


def reference(name: str) -> Any:
    """Return the course's own solution of an exercise. Raises ValueError for an exercise that has none."""
    find_exercise(name)
    lesson, _, exercise = name.partition(".")
    try:
        return getattr(importlib.import_module(f"labs.checks.reference.{lesson}"), exercise)
    except (ModuleNotFoundError, AttributeError):
        raise ValueError(f"the course keeps no reference solution of {name!r}") from None
