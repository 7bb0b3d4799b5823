"""Where states of exercises are kept: a local JSON file that survives restarts, two notebooks at once, and damage."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from labs.whole import write_whole

try:
    import fcntl
except ImportError:  # a system without ranks; reading and writing still work there
    fcntl = None

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "LABS_PROGRESS_FILE"  # a path; "off" keeps progress in this process only
FILE_NAME = ".progress.json"
VERSION = 1
State = Literal["passed", "failed", "not attempted", "blocked"]
ORDER: tuple[State, ...] = ("not attempted", "blocked", "failed", "passed")  # from least to best


@dataclass(frozen=True)
class Entry:
    """What is kept of one exercise: best and latest state, number of real attempts, times as UTC text."""

    best: State
    latest: State
    attempts: int
    passed_at: str
    checked_at: str

    def after(self, state: State, now: str) -> Entry:
        """Return the entry after one more check."""
        best = max(self.best, state, key=ORDER.index)
        attempts = self.attempts + (state in ("passed", "failed"))
        return Entry(best, state, attempts, self.passed_at or (now if state == "passed" else ""), now)


NEW = Entry("not attempted", "not attempted", 0, "", "")


@dataclass(frozen=True)
class Kept:
    """Everything that is kept, by "lesson.exercise". `note` says what a reader must know of the file, or is empty."""

    entries: dict[str, Entry]
    note: str = ""


class _Damaged(Exception):
    """The file is there, and is not what this course writes; the text says in what way."""


class _OtherVersion(ValueError):
    """A whole file, of another version of the course."""


class ProgressFile:
    """One file of progress; `path` None keeps it in this object only."""

    def __init__(self, path: Path | None):
        self.path = path
        self._memory = Kept({})

    def read(self) -> Kept:
        """Return what is kept; a damaged file is set aside, and the note says where."""
        if self.path is None:
            return self._memory
        try:
            return self._load()
        except _Damaged:
            with self._locked():
                return self._load_or_set_aside()

    def record(self, exercise: str, state: State) -> str:
        """Keep the outcome of one check; returns a note for the person, empty when all is well."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return self._change(lambda entries: {**entries, exercise: entries.get(exercise, NEW).after(state, now)})

    def reset(self, exercise: str) -> str:
        """Forget one exercise; returns a note as `record` does."""
        return self._change(lambda entries: {name: entry for name, entry in entries.items() if name != exercise})

    def _change(self, change) -> str:
        if self.path is None:
            self._memory = replace(self._memory, entries=change(self._memory.entries))
            return ""
        try:
            with self._locked():
                kept = self._load_or_set_aside()
                self._save(change(kept.entries))
                return kept.note
        except OSError as error:
            return f"progress could not be kept in {self.path}: {error.strerror or error}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out; where the file system knows no locks or refuses, go on without."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(open(self.path.with_name(self.path.name + ".lock"), "w"))
                if fcntl is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self) -> Kept:
        try:
            return Kept(parsed(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Kept({})
        except OSError as error:
            return Kept({}, f"progress in {self.path} could not be read: {error.strerror or error}")
        except _OtherVersion as error:
            raise _Damaged(f"is of {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _Damaged("was damaged") from error

    def _load_or_set_aside(self) -> Kept:
        try:
            return self._load()
        except _Damaged as reason:
            return Kept({}, self._set_aside(str(reason)))

    def _set_aside(self, reason: str) -> str:
        """Move a file that cannot be read out of the way: nothing of it is lost."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            os.replace(self.path, aside)
        except OSError:
            return f"the progress file {self.path} {reason}, and was left alone"
        return f"the progress file {reason}; it was set aside as {aside.name}, and a new one begun"

    def _save(self, entries: dict[str, Entry]) -> None:
        data = {"version": VERSION, "exercises": {name: asdict(entry) for name, entry in sorted(entries.items())}}
        write_whole(self.path, json.dumps(data, indent=1) + "\n")


def parsed(text: str) -> dict[str, Entry]:
    """Return what the text of a progress file keeps. Raises ValueError and its like for any other text."""
    data = json.loads(text)
    if data["version"] != VERSION:
        raise _OtherVersion(f"version {data['version']}, and this course reads version {VERSION}")
    entries = {name: Entry(**entry) for name, entry in data["exercises"].items()}
    for entry in entries.values():
        if not (entry.best in ORDER and entry.latest in ORDER and isinstance(entry.attempts, int)):
            raise ValueError(f"no such state: {entry}")
    return entries


_files: dict[str, ProgressFile] = {}


def progress_file() -> ProgressFile:
    """Return the file that this process uses now: LABS_PROGRESS_FILE, else one in the course folder or at home.

    Under a test run nothing is kept on disk unless the variable names a file: a learner's progress is their own.
    """
    where = os.environ.get(VARIABLE) or ("off" if "PYTEST_CURRENT_TEST" in os.environ else str(_default_path()))
    if where not in _files:
        _files[where] = ProgressFile(None if where == "off" else Path(where).expanduser())
    return _files[where]


def _default_path() -> Path:
    """The course folder when this package lies in one and may write there, else the user's folder for state."""
    if (ROOT / "pyproject.toml").exists() and os.access(ROOT, os.W_OK):
        return ROOT / FILE_NAME
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home, "distributed-training-labs", FILE_NAME.lstrip("."))
