"""Private folders for processes that belong together, and the removal of those whose owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "labs-"
SERVER_VARIABLE = "LABS_SERVER"  # tells the fork server, and nobody else, "pid of its owner:its folder"
LOG_NAME, READY_NAME = "preload.log", "ready.json"  # what labs/preload.py writes there
# The path of a socket may have 103 bytes on macOS and 107 on Linux; "/labs-12345678/listener-12345678" takes 32.
_MOST_BYTES = 70
_GRACE_SECONDS = 60.0  # another process may be between making its folder and locking it
_locks: list[int | None] = []  # open descriptors: a lock lives as long as its process


def private_folder() -> Path:
    """Make a folder that only this user may enter, and first remove the folders of processes that were killed."""
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > _MOST_BYTES:
        place = Path("/tmp")
    remove_ownerless(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    _locks.append(_lock(folder))
    return folder


def remove_ownerless(place: Path, grace_seconds: float = _GRACE_SECONDS) -> None:
    """Remove this user's folders in `place` that no living process has locked."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < grace_seconds:
                continue
            if (descriptor := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _lock(folder: Path) -> int | None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
