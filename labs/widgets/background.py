"""One thread that does the slow work of a widget, so that a click is answered at once."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

LEAST_SECONDS = 0.25  # between two rounds of repeated work: at most four pictures a second
REST_FACTOR = 1.5  # rest this many times as long as the work took: ranks need the cores more than the picture does


class Background:
    """Does the latest job of each name on one thread; the thread lives while there is work.

    `on_error(text)` hears of a job that raised. A job that is replaced before its turn never runs.
    """

    def __init__(self, on_error: Callable[[str], None]):
        self._on_error = on_error
        self._jobs: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._hurry = self._closed = False
        self._rested_at = 0.0
        self._thread: threading.Thread | None = None

    def do(self, name: str, job: Callable[[], None], at_once: bool = False) -> None:
        """Ask for a job and return; it runs with the next round, or without waiting for one."""
        with self._changed:
            if self._closed:
                return
            self._jobs.pop(name, None)
            self._jobs[name] = job
            self._hurry = self._hurry or at_once
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="labs widget", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_until_idle(self, timeout_seconds: float | None = None) -> bool:
        """Wait for all jobs asked for so far; returns False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_seconds)

    def close(self) -> None:
        """Forget what has not begun, and take no more jobs."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while jobs := self._next_round():
            began = time.monotonic()
            for job in jobs:
                self._try(job)
            elapsed = time.monotonic() - began
            self._rested_at = began + max(LEAST_SECONDS, (1 + REST_FACTOR) * elapsed)

    def _next_round(self) -> list[Callable[[], None]]:
        """Wait for the turn of the next jobs and take them; without jobs the thread ends, a later job starts another.

        The wait before the first round lets a dragged slider come to rest before anything is drawn.
        """
        with self._changed:
            if self._jobs:
                seconds = max(LEAST_SECONDS, self._rested_at - time.monotonic())
                self._changed.wait_for(lambda: self._hurry or self._closed, seconds)
            jobs = list(self._jobs.values())
            self._jobs.clear()
            self._hurry = False
            if not jobs:
                self._thread = None
                self._changed.notify_all()
            return jobs

    def _try(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:
            self._on_error(traceback.format_exc())
