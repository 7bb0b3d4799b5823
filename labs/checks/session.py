"""The verbs a learner types: judge an answer, ask for a hint, go on with what is solved."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from labs.checks.answer import (
    AnswerEndless,
    AnswerRaised,
    as_answer,
    error_hint,
    is_machine_at_fault,
    is_stub,
    learners_lines,
    stub_words,
)
from labs.checks.borrowed import is_borrowed
from labs.checks.exercise import find_exercise, reference
from labs.checks.verdict import Blocked, Verdict, blocked, failed, not_attempted, shortened
from labs.progress_file import progress_file

_passed: dict[str, Any] = {}  # the answers that passed in this session, by exercise
_COLLECTIVES = "Every rank must issue the same collectives, in the same order."
_MESSAGES = "Each receive needs a send on the rank that it names, and no circle of ranks may wait for one another."
_BORROWED = (
    "A tick is for what you wrote yourself; labs.hint helps in three steps. A lesson goes on without a tick: `solved` "
    "hands on the course's own where yours has not passed."
)
_DOCTOR = "`python -m labs doctor` says what is missing."


def check(exercise: str, answer: Any) -> Verdict:
    """Judge an answer by running it, on real ranks where the exercise needs them; keeps the state for `progress()`.

    `exercise` is "lesson.exercise", for instance "start_here.global_mean"; `answer` is the function that you wrote.
    Raises ValueError for an exercise that does not exist, listing those of the lesson.
    """
    found = find_exercise(exercise)
    verdict = _no_function(exercise, answer) or judged(found.judge, answer)
    if verdict.state == "passed" and callable(answer) and is_borrowed(exercise, answer):
        verdict = failed("It is right, and the course's own solution does the work.", _BORROWED)
    verdict = dataclasses.replace(verdict, exercise=exercise, asked=found.asked)
    if verdict.state == "passed":
        _passed[exercise] = answer
    return dataclasses.replace(verdict, note=progress_file().record(exercise, verdict.state) or verdict.note)


def _no_function(exercise: str, answer: Any) -> Verdict | None:
    """Refuse a value where a function is asked for: mostly the function was called by mistake."""
    if answer is None or answer is ... or callable(answer) or not callable(reference(exercise)):
        return None
    found = f"{shortened(repr(answer), 60)} is no function."
    return failed(found, f'Give the function itself, without brackets: check("{exercise}", {exercise.split(".")[1]})')


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


def judged(judge: Callable[[Any], Verdict], answer: Any) -> Verdict:
    """Run a judge; an answer that raises or never comes back is a finding, and so is a machine that cannot run it."""
    from labs.failures import CannotSend, LaunchError, RankFailed, RankTimeout
    from labs.forkserver import ServerEnded

    if answer is None or answer is ...:
        return not_attempted("There is no answer yet.")
    answer = as_answer(answer)
    try:
        return judge(answer)
    except AnswerEndless as error:
        return failed(
            f"Your function did not come back.\n{error}", "Which loop does not end, or what does it wait for?"
        )
    except AnswerRaised as error:
        return _raised(answer, str(error), "Your function raised an error.")
    except RankTimeout as error:
        return blocked(f"The ranks never met.\n{error}", _DOCTOR) if is_machine_at_fault(error) else _hung(error)
    except CannotSend as error:
        return failed(f"Your function could not be sent to its ranks.\n{error}", "Make what it needs inside of it.")
    except RankFailed as error:
        return _raised(answer, error.traceback, f"Your function raised an error: {str(error).partition(chr(10))[0]}.")
    except Blocked as error:
        return blocked(str(error))
    except (LaunchError, ServerEnded, OSError, ImportError) as error:
        return blocked(f"The check could not run.\n{type(error).__name__}: {error}", _DOCTOR)
    except Exception as error:  # a value that no judge foresaw; never a bare traceback
        found = f"The check could not read what your function returned.\n{type(error).__name__}: {error}"
        return failed(found, "Return what the exercise asks for, of that type.")


def _raised(answer: Any, traceback: str, found: str) -> Verdict:
    if is_stub(traceback):
        return not_attempted(stub_words(answer, traceback))
    traceback = learners_lines(traceback)
    return failed(f"{found}\n{traceback}", error_hint(traceback, answer))


def _hung(error) -> Verdict:
    """Some ranks wait: say for each whether it came back from the learner's function, and if not, where it is."""
    lines = []
    for rank, state in error.collectives.items():
        stack = error.stacks[rank]
        mine = [line for line in stack.splitlines() if not line.startswith("  labs/")]
        if state.startswith("returned") or not any(", line " in line for line in mine):
            lines.append(f"rank {rank}: came back from your function")
        else:
            lines += [f"rank {rank}: {state.partition('; it has not issued barrier')[0]}", stack]
    found = "Your function did not come back on every rank.\n" + "\n".join(lines)
    waiting = "\n".join(
        stack for rank, stack in error.stacks.items() if not error.collectives[rank].startswith("returned")
    )
    return failed(found, _MESSAGES if re.search(r"\b(send|recv|exchange)\(", waiting) else _COLLECTIVES)
