"""The verbs a learner types: judge an answer, ask for a hint, go on with what is solved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labs.checks.answer import LIMIT_SECONDS, as_answer
from labs.checks.exercise import STUB_TEXT, Exercise, find_exercise, reference
from labs.checks.verdict import Blocked, Verdict, blocked, failed, not_attempted

_passed: dict[str, Any] = {}  # the answers that passed in this session, by exercise


def check(exercise: str, answer: Any) -> Verdict:
    """Judge an answer by running it, on real ranks where the exercise needs them; keeps the state for `progress()`.

    `exercise` is "lesson.exercise", for instance "start_here.global_mean"; `answer` is the function that you wrote.
    Raises ValueError for an exercise that does not exist, listing those of the lesson.
    """
    found = find_exercise(exercise)
    verdict = _named(_judged(found.judge, answer), exercise, found)
    if verdict.state == "passed":
        _passed[exercise] = answer
    return verdict


def solved(exercise: str, answer: Any) -> Any:
    """Return your answer if its check passed in this session, else the course's own; one line says which.

    So a lesson goes on when an exercise is not solved yet. Raises ValueError for an unknown exercise.
    """
    own = reference(exercise)
    if exercise in _passed and _is_same(_passed[exercise], answer):
        print(f"{exercise}: going on with yours.")
        return answer
    why = "yours has changed since its check" if exercise in _passed else "yours has not passed its check yet"
    print(f"{exercise}: going on with the course's own; {why}.")
    return own


def _is_same(before: Any, now: Any) -> bool:
    """Whether an answer is the one that passed, also when its cell was run again without a change."""
    if before is now:
        return True
    if callable(before) or callable(now):
        code = getattr(before, "__code__", None)
        return code is not None and code == getattr(now, "__code__", None)
    return type(before) is type(now) and bool(before == now)


def _judged(judge: Callable[[Any], Verdict], answer: Any) -> Verdict:
    """Run a judge; an answer that raises or never comes back is a finding, and so is a machine that cannot run it."""
    from labs.failures import CannotSend, LaunchError, RankFailed, RankTimeout

    if answer is None or answer is ...:
        return not_attempted("There is no answer yet.")
    try:
        return _verdict(judge(as_answer(answer)))
    except Blocked as error:
        return blocked(str(error))
    except RankTimeout as error:
        return _never_came_back(error)
    except CannotSend as error:
        return failed(f"Your function could not be sent to its ranks.\n{error}", "Keep what it needs inside it.")
    except (RankFailed, NotImplementedError) as error:
        if STUB_TEXT in str(error):
            return not_attempted("The function still raises NotImplementedError.")
        return failed(f"Your function raised an error.\n{error}", "Mend the line shown above.")
    except LaunchError as error:
        return blocked(f"The ranks could not be started.\n{error}", "python -m labs doctor says what is missing.")


def _verdict(found) -> Verdict:
    """Take a (state, found, hint) triple for the Verdict it stands for."""
    return found if isinstance(found, Verdict) else Verdict(*found)


def _never_came_back(error) -> Verdict:
    if len(error.collectives) == 1:
        stack = "\n".join(error.stacks.values())
        found = f"Your function did not come back within {LIMIT_SECONDS:g} s. It was here:\n{stack}"
        return failed(found, "A loop does not end, or it waits for something that never comes.")
    hint = "Every rank must issue the same collectives, in the same order."
    return failed(f"Your function did not come back on every rank.\n{error}", hint)


def _named(verdict: Verdict, name: str, exercise: Exercise) -> Verdict:
    return Verdict(verdict.state, verdict.found, verdict.hint, verdict.rows, name, exercise.asked, verdict.note)
