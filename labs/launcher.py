"""N ranks from a notebook cell, and never a hung kernel: `launch` waits for them, `start` returns at once."""

from __future__ import annotations

import atexit
import contextlib
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from labs import notice, rank, servers
from labs.failures import LaunchError, RankTimeout, RunCancelled
from labs.job import Job, make_job
from labs.pickling import load
from labs.supervisor import Crew

_STATES = {RankTimeout: "timeout", RunCancelled: "cancelled"}
_runs: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """A run of several ranks that has been started.

    `state` is "starting", "running", "done", "failed", "cancelled" or "timeout"; `records` grows while ranks emit:
    (rank, record) pairs; `output` holds what ranks printed: (rank, "stdout" or "stderr", line); `startup_seconds` is
    the time from the call until all ranks had joined, None before.
    """

    def __init__(self, job: Job, on_record: Callable | None, on_end: Callable | None, is_live: bool):
        self.world_size = job.world_size
        self.state = "starting"
        self.records: list[tuple[int, object]] = []
        self.output: list[tuple[int, str, str]] = []
        self.startup_seconds: float | None = None
        self._job, self._on_record, self._on_end, self._is_live = job, on_record, on_end, is_live
        self._value, self._error = None, None
        self._is_cancelled = False
        self._started_at = time.monotonic()
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
        with contextlib.suppress(OSError):  # it has ended
            self._waker.send(b"!")

    def __repr__(self):
        return f"<Run of {self._job.name} on {self.world_size} ranks: {self.state}>"

    # What the supervisor's thread calls.

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def on_ready(self) -> None:
        self._hide_notice()

    def on_joined(self) -> None:
        self.startup_seconds = time.monotonic() - self._started_at
        self.state = "running"

    def on_message(self, rank_number: int, message) -> None:
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

    def _begin(self) -> None:
        """Start the supervisor; if the fork server still imports torch, say so once."""
        self._server = servers.current(may_replace=not _others_run(self))
        self._hide_notice = self._server.announce(notice.show)
        self._thread.start()

    def _supervise(self) -> None:
        try:
            values = self._crew().run(self, self._sleeper)
            self._value = self._job.finish([load(value) for value in values], self.startup_seconds)
            self.state = "done"
        except BaseException as error:
            self._error = error
            self.state = next((word for kind, word in _STATES.items() if isinstance(error, kind)), "failed")
        finally:
            self._hide_notice()
            self._waker.close()
            self._sleeper.close()
            self._ended.set()
            if self._on_end is not None:
                self._on_end(self)

    def _crew(self) -> Crew:
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._server.folder))
        (folder / rank.JOB_NAME).write_bytes(self._job.data)
        return Crew(self.world_size, self._job.timeout_seconds, self._job.reports_progress, folder, self._server)


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

    `function` may be defined in a notebook cell; in it torch.distributed is initialised. It may also be a
    ModelTrainingConfig: then the training loop runs, on the config's own world_size. `timeout_seconds` counts from when
    all ranks have joined (60 unless said otherwise), for a config from its last record (300); ranks that wait for one
    another are ended at once (Linux). `on_record(rank, record)`
    and `on_end(run)` are called on the supervisor's thread. What ranks print is shown as it arrives.
    Raises ValueError or TypeError for bad arguments, CannotSend for what cannot be pickled.
    """
    run = _prepare(function, arguments, world_size, timeout_seconds, on_record, on_end, True, unknown)
    run._begin()
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
        run._begin()
        return run.wait()
    except KeyboardInterrupt:
        run.cancel()
        if run._thread.is_alive():
            run._ended.wait()
        raise
    finally:
        _show(sorted(run.output, key=lambda line: line[0]))


def _prepare(function, arguments, world_size, timeout_seconds, on_record, on_end, is_live, unknown) -> Run:
    if rank.current() is not None:
        raise LaunchError("a rank cannot launch ranks: call labs.launch from the notebook, not inside the function")
    job = make_job(function, arguments, world_size, timeout_seconds, unknown)
    run = Run(job, on_record, on_end, is_live)
    _runs.add(run)
    return run


def _others_run(run: Run) -> bool:
    return any(other is not run and other._thread.is_alive() for other in list(_runs))


def _show(lines: list[tuple[int, str, str]]) -> None:
    for rank_number, stream, text in lines:
        print(f"rank {rank_number}: {text}", file=sys.stdout if stream == "stdout" else sys.stderr)


@atexit.register
def _end_all_runs() -> None:
    for run in list(_runs):
        if run._thread.is_alive():
            run.cancel()
            run._ended.wait(10)
