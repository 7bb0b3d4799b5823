"""What ranks run: a function or the training loop, checked and pickled before any process starts."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from labs.pickling import dump_call
from labs.whole import problem_of_folder

MOST_RANKS = 64
_OPTIONS = ("world_size", "timeout_seconds", "on_record", "on_end")


@dataclass(frozen=True)
class Job:
    """A pickled call for `world_size` ranks; `finish(values, startup_seconds)` makes what the caller gets."""

    name: str
    world_size: int
    timeout_seconds: float
    reports_progress: bool  # a record restarts the clock: a training run may take long, but no step may
    data: bytes
    finish: Callable


def make_job(function, arguments: tuple, world_size, timeout_seconds, unknown: dict) -> Job:
    """Check what a person gave to launch or start.

    Raises TypeError or ValueError in words, CannotSend for what cannot be pickled.
    """
    if unknown:
        raise TypeError(_unknown_option(next(iter(unknown)), function))
    if timeout_seconds is not None and not (_is_number(timeout_seconds) and timeout_seconds > 0):
        raise ValueError(f"timeout_seconds={timeout_seconds!r} is refused: it must be a number above 0; try 60")
    if _is_config(function):
        return _training(function, arguments, world_size, timeout_seconds or 300.0)
    if not callable(function):
        raise TypeError(f"launch needs a function or a ModelTrainingConfig, not {function!r}")
    world_size = 2 if world_size is None else _checked(world_size)
    name = getattr(function, "__name__", type(function).__name__)
    data = dump_call(function, arguments, dict(os.environ))
    return Job(name, world_size, timeout_seconds or 60.0, False, data, lambda values, _: values)


def _training(config, arguments: tuple, world_size, timeout_seconds: float) -> Job:
    if arguments:
        raise TypeError(f"a config needs no further arguments; got {arguments[0]!r}")
    if world_size not in (None, config.world_size):
        remedy = f"try config.replace(world_size={world_size})"
        raise ValueError(f"world_size={world_size} is refused: the config says {config.world_size}; {remedy}")
    if config.best_checkpoint and (problem := problem_of_folder(config.best_checkpoint)):
        from labs.errors import ConfigError  # here: it brings pydantic, which a function needs not

        raise ConfigError(f"best_checkpoint {config.best_checkpoint} {problem}")

    started_at = time.time()

    def finish(values, _):
        from labs.records import RunResult

        return RunResult.from_ranks(config, values, started_at)

    data = dump_call(_train, (config,), dict(os.environ))
    return Job(config.strategy, config.world_size, timeout_seconds, True, data, finish)


def _train(config):
    """Run on each rank; imported there, because labs.train imports torch and a notebook need not."""
    from labs.train import train_rank

    return train_rank(config)


def _is_config(function) -> bool:
    """Whether it is a ModelTrainingConfig, without importing pydantic for the sake of a function."""
    room = sys.modules.get("labs.config")
    return room is not None and isinstance(function, room.ModelTrainingConfig)


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked(world_size) -> int:
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size={world_size!r} is refused: it is a number of processes; try world_size=2")
    if not 1 <= world_size <= MOST_RANKS:
        reason = f"one machine runs 1 to {MOST_RANKS} ranks"
        raise ValueError(f"world_size={world_size} is refused: {reason}; try world_size=2")
    return world_size


def _unknown_option(name: str, function) -> str:
    near = difflib.get_close_matches(name, _OPTIONS, n=1)
    if near:
        return f"launch has no option {name!r}; did you mean {near[0]}?"
    called = getattr(function, "__name__", "function")
    return (
        f"launch has no option {name!r}. Arguments of your function go by position, or through "
        f"functools.partial({called}, {name}=...)"
    )
