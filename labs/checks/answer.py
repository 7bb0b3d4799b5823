"""The learner's function as a judge sees it: it runs in processes of its own, so it can neither hang nor harm."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labs.failures import CannotSend, Failure, RankDeadlock, RankFailed, RankTimeout, describe, render_failure

STUB_TEXT = "put your answer in place of this line"  # what an exercise raises as NotImplementedError until it is solved
LIMIT_SECONDS = 15.0


class AnswerRaised(Exception):
    """The answer raised, or ended its process; the text is a traceback of the learner's own lines."""


class AnswerEndless(Exception):
    """The answer did not come back within its limit; the text shows where it was."""


@dataclass(frozen=True)
class Raised:
    """What one case gave in place of a value: the error."""

    failure: Failure

    def __str__(self) -> str:
        return self.failure.headline.splitlines()[-1]

    @property
    def traceback(self) -> str:
        return learners_lines(render_failure(self.failure))


class Answer:
    """A learner's function. Called by a judge, it runs on a rank of its own and is stopped after `LIMIT_SECONDS`.

    Sent to ranks as an argument (`launch(harness, answer, ...)`) it arrives there as the bare function. Calling it
    raises AnswerRaised when the function raises, AnswerEndless when it does not come back; `check` says so in words.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments):
        outcome = outcomes(self, [arguments])[0]
        if isinstance(outcome, Raised):
            raise AnswerRaised(outcome.traceback)
        return outcome

    def __reduce__(self):
        return _itself, (self.function,)


def as_answer(value: Any) -> Any:
    """Wrap a function; any other value is an answer as it stands."""
    return Answer(value) if callable(value) else value


def bare(answer: Any) -> Any:
    """Return what the learner wrote."""
    return answer.function if isinstance(answer, Answer) else answer


def outcomes(answer: Answer, cases: Sequence[tuple], limit_seconds: float = LIMIT_SECONDS) -> list[Any]:
    """Call the answer once a case, all in one process; returns a value or a Raised for each, in order.

    What it prints is shown for the first case alone. Raises AnswerEndless when all cases together take longer than
    the limit [seconds], AnswerRaised when the process ended.
    """
    from labs.launcher import launch

    try:
        return launch(_call_each, answer, list(cases), world_size=1, timeout_seconds=limit_seconds)[0]
    except RankTimeout as error:
        if is_machine_at_fault(error):
            raise
        where = "\n".join(error.stacks.values())
        why = f"It was stopped after {limit_seconds:g} s"
        if isinstance(error, RankDeadlock):
            why = "It waits for what never comes"
        raise AnswerEndless(f"{why}, in this line:\n{where}") from None
    except RankFailed as error:
        raise AnswerRaised(learners_lines(error.traceback)) from None


def is_machine_at_fault(error: RankTimeout) -> bool:
    """Whether the ranks never met, so that no line of the learner has run."""
    return any("not joined" in state for state in error.collectives.values())


def learners_lines(traceback: str) -> str:
    """Drop the lines of the harness that called the answer; they are all there is when the call itself went wrong."""
    return re.sub(r"^  labs/checks/.*, line \d+, in .*\n(    .*\n)?", "", traceback, flags=re.MULTILINE)


def error_hint(traceback: str, answer: Any = None) -> str:
    """The next step after an error; `answer` tells whether the call that failed was the check's own."""
    last = traceback.rpartition("\n")[2]
    names_a_line = ", line " in traceback
    if "Received data size doesn't match" in traceback:
        return "The ranks met in different collectives. Every rank must issue the same ones, in the same order."
    if "MeterReplaced" in last:
        return "The check measures with these functions. Leave them as they are."
    if "cannot be sent back" in last:
        return "Return what the exercise asks for, finished: list(...) makes a list of a generator."
    if "'Shape' object has no attribute" in last:
        return "The spec of a check holds sizes alone, of which nobody can build a model: count from the sizes."
    if "but hook returned" in last:
        return "What a hook returns takes the place of what it was called with. Let it return nothing."
    if called := re.search(r"TypeError: (\S+)\(\) .*(positional|keyword) argument", last):
        if called[1] == _full_name(bare(answer)):
            return "The check calls your function as its first line stood: take the same arguments, in the same order."
        if not names_a_line:
            return (
                "A function that you handed on as a hook takes other arguments than it is called with. "
                "def f(*_) takes any."
            )
    if "'NoneType' object is not callable" in last and not names_a_line:
        return (
            "Somebody was given None where a function belongs: f(x) calls f at once, and hands on what it returns. "
            "Hand on f itself, or lambda *_: f(x)."
        )
    return "Mend the line shown above."


def _full_name(function: Any) -> str:
    """The name by which Python calls a function in an error."""
    return getattr(function, "__qualname__", f"{type(function).__qualname__}.__call__")


def is_stub(traceback: str) -> bool:
    """Whether an error is that of an exercise which is not solved yet."""
    return STUB_TEXT in traceback.rpartition("NotImplementedError: ")[2]


def stub_words(answer: Any, traceback: str) -> str:
    """Say which function is not written yet: the answer itself, or one that it calls."""
    called = re.findall(r", in (\w+)$", traceback, re.MULTILINE)
    if called and called[-1] != getattr(answer, "name", called[-1]):
        return f"It calls {called[-1]}, which still raises NotImplementedError."
    return "The function still raises NotImplementedError."


def _itself(function):
    return function


def _call_each(function, cases: list[tuple]) -> list[Any]:
    values = []
    for case in cases:
        with contextlib.redirect_stdout(io.StringIO()) if values else contextlib.nullcontext():
            values.append(call(function, case))
    return values


def call(function: Callable, case: tuple) -> Any:
    """Call a function and return its value, or a Raised."""
    try:
        return _sendable(function(*case))
    except CannotSend as error:
        return Raised(Failure(str(error)))
    except Exception as error:
        return Raised(describe(error))


def _sendable(value: Any) -> Any:
    """Find out now, and not when all values travel together, that one cannot."""
    from labs.pickling import dump_value

    dump_value(value, "value", "your function")
    return value
