"""N ranks from a notebook cell, and never a hung kernel: `launch` waits for them, `start` returns at once."""

from __future__ import annotations

import atexit
import difflib
import os
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from labs import forkserver, rank
from labs.failures import LaunchError, RankTimeout, RunCancelled
from labs.pickling import dump_call, load
from labs.supervisor import Crew

MOST_RANKS = 64
_DEFAULT_TIMEOUT_SECONDS = 60.0
_runs: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """A run of several ranks that has been started.

    `state` is "starting", "running", "done", "failed", "cancelled" or "timeout"; `records` grows while ranks emit:
    (rank, record) pairs; `output` holds what ranks printed: (rank, "stdout" or "stderr", line); `startup_seconds` is
    the time from the call until all ranks had joined, None before.
    """

    def __init__(self, call, world_size: int, timeout_seconds: float, on_record, on_end, is_live: bool):
        self.world_size = world_size
        self.state = "starting"
        self.records: list[tuple[int, object]] = []
        self.output: list[tuple[int, str, str]] = []
        self.startup_seconds: float | None = None
        self._call, self._timeout_seconds = call, timeout_seconds
        self._on_record, self._on_end, self._is_live = on_record, on_end, is_live
        self._value, self._error = None, None
        self._is_cancelled = False
        self._started_at = time.monotonic()
        self._asked_at = time.time()
        self._ended = threading.Event()
        self._waker, self._sleeper = socket.socketpair()
        self._thread = threading.Thread(target=self._supervise, name="labs supervisor", daemon=True)

    def wait(self):
        """Wait for the end; returns the value of every rank in order (a RunResult for a config).

        Raises RankFailed, RankTimeout, RunCancelled; KeyboardInterrupt after the ranks are gone.
        """
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            self.cancel()
            self._ended.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def cancel(self) -> None:
        """Ask for the end of every rank and return at once; a run that has ended stays as it is."""
        self._is_cancelled = True
        try:
            self._waker.send(b"!")
        except OSError:
            pass  # it has ended

    def __repr__(self):
        return f"<Run of {self._call.name} on {self.world_size} ranks: {self.state}>"

    def _supervise(self) -> None:
        try:
            values = self._crew().run(self._sleeper, self._joined)
            self._value = self._call.finish([load(value) for value in values], self._asked_at)
            self.state = "done"
        except BaseException as error:
            self._error = error
            self.state = {RankTimeout: "timeout", RunCancelled: "cancelled"}.get(type(error), "failed")
        finally:
            self._waker.close()
            self._sleeper.close()
            self._ended.set()
            if self._on_end is not None:
                self._on_end(self)

    def _crew(self) -> Crew:
        server = forkserver.server()
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=server.folder))
        (folder / rank.JOB_NAME).write_bytes(self._call.data)
        return Crew(
            world_size=self.world_size,
            timeout_seconds=self._timeout_seconds,
            restarts_clock=self._call.reports_progress,
            folder=folder,
            server=server,
            on_message=self._hear,
            cancelled=lambda: self._is_cancelled,
        )

    def _joined(self) -> None:
        self.startup_seconds = time.monotonic() - self._started_at
        self.state = "running"

    def _hear(self, rank_number: int, message) -> None:
        if message.kind == "record":
            record = load(message.payload)
            self.records.append((rank_number, record))
            if self._on_record is not None:
                self._on_record(rank_number, record)
        else:
            line = (rank_number, *message.payload)
            self.output.append(line)
            if self._is_live:
                _show([line])


class _Call:
    """What ranks run: the pickled call, its name, and what to make of the values."""

    def __init__(self, function, arguments: tuple):
        self.name = getattr(function, "__name__", type(function).__name__)
        self.data = dump_call(function, arguments, dict(os.environ))
        self.reports_progress = False

    def finish(self, values: list, started_at: float):
        return values


class _Training(_Call):
    """The training loop on a config."""

    def __init__(self, config):
        super().__init__(_train, (config,))
        self.name, self.config, self.reports_progress = config.strategy, config, True

    def finish(self, values: list, started_at: float):
        from labs.records import RunResult

        return RunResult.from_ranks(self.config, values, started_at)


def _train(config):
    """Run on each rank; imported there, because labs.train imports torch and a notebook need not."""
    from labs.train import train_rank

    return train_rank(config)


def start(
    function: Callable,
    *arguments,
    world_size: int | None = None,
    timeout_seconds: float | None = None,
    on_record: Callable | None = None,
    on_end: Callable | None = None,
    **unknown,
) -> Run:
    """Start `function(*arguments)` on `world_size` ranks (2 unless said otherwise) and return at once.

    `function` may be defined in a notebook cell, or be a ModelTrainingConfig: then the training loop runs, on the
    config's own world_size. In it torch.distributed is initialised. `timeout_seconds` (60) counts from when all ranks have
    joined, for a config from its last record. `on_record(rank, record)` and `on_end(run)` are called on the
    supervisor's thread.
    Raises ValueError or TypeError for bad arguments, CannotSend for what cannot be pickled.
    """
    run = _prepare(function, arguments, world_size, timeout_seconds, on_record, on_end, True, unknown)
    run._thread.start()
    return run


def launch(
    function: Callable,
    *arguments,
    world_size: int | None = None,
    timeout_seconds: float | None = None,
    **unknown,
):
    """Run `function(*arguments)` on `world_size` ranks and return the list of their values, in order of rank.

    Arguments and errors are those of `start` and `Run.wait`. What ranks print is shown at the end, rank by rank.
    """
    run = _prepare(function, arguments, world_size, timeout_seconds, None, None, False, unknown)
    try:
        run._thread.start()
        return run.wait()
    except KeyboardInterrupt:
        run.cancel()
        run._ended.wait()
        raise
    finally:
        _show(sorted(run.output, key=lambda line: line[0]))


def _prepare(function, arguments, world_size, timeout_seconds, on_record, on_end, is_live, unknown) -> Run:
    if rank.current() is not None:
        raise LaunchError("a rank cannot launch ranks: call labs.launch from the notebook, not inside the function")
    if unknown:
        raise TypeError(_unknown_option(next(iter(unknown)), function))
    call, own_world_size = _call_of(function, arguments)
    world_size = _checked_world_size(world_size, own_world_size)
    timeout_seconds = _DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    if not timeout_seconds > 0:
        raise ValueError(f"timeout_seconds={timeout_seconds!r} is refused: it must be a number above 0; try 60")
    run = Run(call, world_size, timeout_seconds, on_record, on_end, is_live)
    _runs.add(run)
    return run


def _call_of(function, arguments: tuple) -> tuple[_Call, int | None]:
    """Tell a config from a function without importing pydantic for the sake of a function."""
    config_room = sys.modules.get("labs.config")
    if config_room is not None and isinstance(function, config_room.ModelTrainingConfig):
        return _Training(function), function.world_size
    if not callable(function):
        raise TypeError(f"launch needs a function or a ModelTrainingConfig, not {function!r}")
    return _Call(function, arguments), None


def _checked_world_size(given, own: int | None) -> int:
    if own is not None:
        if given not in (None, own):
            remedy = f"try config.replace(world_size={given})"
            raise ValueError(f"world_size={given} is refused: the config says {own}; {remedy}")
        return own
    if given is None:
        return 2
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"world_size={given!r} is refused: it is a number of processes; try world_size=2")
    if not 1 <= given <= MOST_RANKS:
        raise ValueError(f"world_size={given} is refused: this machine runs 1 to {MOST_RANKS} ranks; try world_size=2")
    return given


def _unknown_option(name: str, function) -> str:
    near = difflib.get_close_matches(name, ("world_size", "timeout_seconds", "on_record", "on_end"), n=1)
    if near:
        return f"launch has no option {name!r}; did you mean {near[0]}?"
    called = getattr(function, "__name__", "function")
    return (
        f"launch has no option {name!r}. Arguments of your function go by position, or through "
        f"functools.partial({called}, {name}=...)"
    )


def _show(lines: list[tuple[int, str, str]]) -> None:
    for rank_number, stream, text in lines:
        print(f"rank {rank_number}: {text}", file=sys.stdout if stream == "stdout" else sys.stderr)


@atexit.register
def _end_all_runs() -> None:
    for run in list(_runs):
        if not run._ended.is_set() and run._thread.is_alive():
            run.cancel()
            run._ended.wait(10)
