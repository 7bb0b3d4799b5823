"""The learner's function as a judge sees it: it runs in processes of its own, so it can neither hang nor harm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

LIMIT_SECONDS = 15.0


class Answer:
    """A learner's function. Called by a judge, it runs on a rank of its own and is stopped after `LIMIT_SECONDS`.

    Sent to ranks as an argument (`launch(harness, answer, ...)`) it arrives there as the bare function. Calling it
    raises RankFailed with the learner's line when it raises, RankTimeout when it does not come back.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments):
        from labs.launcher import launch

        return launch(_call, self, arguments, world_size=1, timeout_seconds=LIMIT_SECONDS)[0]

    def __reduce__(self):
        return _itself, (self.function,)


def _itself(function):
    return function


def _call(function, arguments: tuple):
    return function(*arguments)


def as_answer(value: Any) -> Any:
    """Wrap a function; any other value is an answer as it stands."""
    return Answer(value) if callable(value) else value


def bare(answer: Any) -> Any:
    """Return what the learner wrote."""
    return answer.function if isinstance(answer, Answer) else answer


def outcomes(answer: Answer, cases: list[tuple], limit_seconds: float = LIMIT_SECONDS) -> list[Any]:
    """Call the answer once a case, all in one process; returns the values in order.

    Raises RankFailed for the first case that raises, RankTimeout for the limit [seconds] of all cases together.
    """
    from labs.launcher import launch

    run = functools.partial(launch, _call_each, answer, cases, world_size=1, timeout_seconds=limit_seconds)
    return run()[0]


def _call_each(function, cases: list[tuple]) -> list[Any]:
    return [function(*case) for case in cases]
