"""Which process forks the ranks of this Python process: one of its own, started early, or one that is lent to it."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
import threading

from labs.folders import SERVER_VARIABLE
from labs.forkserver import Server
from labs.lending import borrowed

_server: Server | None = None
_owner = 0
_lock = threading.Lock()


def current(may_replace: bool = False) -> Server:
    """Return this process's fork server, started or borrowed; a new one if labs/ was edited since and `may_replace`."""
    global _server, _owner
    with _lock:
        if _owner != os.getpid():  # never use the server of the process that forked this one
            _server, _owner = None, os.getpid()
        edited = _server.edited_files() if _server is not None and may_replace else []
        if edited:
            _server.close()
            _server = Server(f"labs/{edited[0]} was changed (restart the kernel so that the notebook sees it too); ")
        if _server is not None and _server.is_lent and not _server.is_alive():
            _server.close()
            _server = None
        if _server is None:
            _server = borrowed() or Server()
        _server.ensure_running()
        return _server


def begin_preload() -> None:
    """Start the imports in the background, in a process that a person started: no rank, no worker, no `python -m`."""
    if os.environ.get("LABS_PRELOAD") == "0" or SERVER_VARIABLE in os.environ or "RANK" in os.environ:
        return
    if multiprocessing.parent_process() is not None or sys.argv[:1] == ["-m"]:
        return
    if any("from multiprocessing." in argument for argument in sys.orig_argv):  # a helper of multiprocessing's own
        return
    with contextlib.suppress(OSError):  # a full disk or too many processes: launch() says so when it matters
        current()


@atexit.register
def _close_at_exit() -> None:
    if _server is not None and _owner == os.getpid():
        _server.close()
