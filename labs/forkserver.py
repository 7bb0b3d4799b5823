"""The process that forks the ranks: Python's own fork server, with torch and DeepSpeed already imported.

A rank that is spawned imports torch and DeepSpeed for 7 to 12 seconds; a rank that is forked from here starts in
hundredths of a second. The start method is `multiprocessing.get_context("forkserver")`; `torch.multiprocessing`
re-exports that very function. What it adds, tensors in shared memory, is not needed: bytes leave a rank.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from multiprocessing import context as mp_context
from multiprocessing import forkserver, popen_forkserver, process, reduction, util
from pathlib import Path

from labs.preload import FOLDER_VARIABLE, LOG_NAME, READY_NAME

CONTEXT = multiprocessing.get_context("forkserver")
PREFIX = "labs-"
EXIT_SECONDS = 4.0


class PreloadFailed(RuntimeError):
    """The process that forks ranks ended while it was importing torch; the text carries its last words."""


class Server(forkserver.ForkServer):
    """One fork server of our own: a learner's own use of multiprocessing neither meets it nor disturbs it.

    Private names of the standard library in this file: `ForkServer._forkserver_pid`, `read_signed`,
    `Popen._launch` (3.11 to 3.13 are the same in this) and `_config["tempdir"]`.
    """

    def __init__(self):
        super().__init__()
        self.set_forkserver_preload(["labs.preload"])
        self.folder = private_folder()
        self.announced = False

    def ensure_running(self):
        """Start the server if it does not run; returns at once, the imports go on in the background."""
        if not self.alive():
            (self.folder / READY_NAME).unlink(missing_ok=True)
            with _only_for_the_server(self.folder):
                super().ensure_running()

    def alive(self) -> bool:
        if self._forkserver_pid is None:
            return False
        # WNOWAIT: look, and leave the exit status to the standard library.
        return os.waitid(os.P_PID, self._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def report(self) -> dict | None:
        """What labs/preload.py wrote at its end: seconds, missing, num_threads, files; None while it imports."""
        try:
            return json.loads((self.folder / READY_NAME).read_text())
        except FileNotFoundError:
            return None

    def wait_until_ready(self, give_up) -> None:
        """Wait for the imports; `give_up()` is asked between and may raise. Raises PreloadFailed if the server dies."""
        while self.report() is None:
            give_up()
            if not self.alive():
                raise PreloadFailed(_last_words(self.folder / LOG_NAME))
            time.sleep(0.02)

    def edited_files(self) -> list[str]:
        """Files of labs/ that were changed after the server had imported them."""
        files = (self.report() or {}).get("files", {})
        return [file for file, stamp in files.items() if not os.path.exists(file) or os.stat(file).st_mtime_ns != stamp]

    def close(self) -> None:
        """End the server, and with it every process forked from it; takes a few seconds at most."""
        if self._forkserver_pid is not None:
            os.close(self._forkserver_alive_fd)  # asks it to end
            if not self._wait_for_end(EXIT_SECONDS):
                os.kill(self._forkserver_pid, signal.SIGKILL)
                self._wait_for_end(EXIT_SECONDS)
            self._forkserver_pid = self._forkserver_alive_fd = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_end(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._forkserver_pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    return False
                time.sleep(0.01)
        return True

    def fork(self, target, args: tuple, name: str) -> ForkedProcess:
        """Fork a process that runs target(*args)."""
        return ForkedProcess(CONTEXT.Process(target=target, args=args, name=name), self)


class ForkedProcess(popen_forkserver.Popen):
    """One forked process: `pid`, `sentinel` (a descriptor that becomes readable at its end), `poll()`.

    Unlike `Process.start` it never imports the caller's `__main__` in the child, so a script needs no
    `if __name__ == "__main__"`, and it is in no global list of children, so two threads may start ranks at once.
    """

    def __init__(self, process_object, server: Server):
        self._server = server
        super().__init__(process_object)

    def _launch(self, process_object):
        directory = os.getcwd()
        path = [entry or directory for entry in sys.path]
        preparation = {"name": process_object.name, "sys_path": path, "dir": directory}
        message = io.BytesIO()
        mp_context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, message)
            reduction.dump(process_object, message)
        finally:
            mp_context.set_spawning_popen(None)
        self.sentinel, pipe = self._server.connect_to_new_process(self._fds)
        self.finalizer = util.Finalize(self, util.close_fds, (os.dup(pipe), self.sentinel))
        with open(pipe, "wb") as file:
            file.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)

    def signal_group(self, number: int) -> None:
        """Signal the process and whatever it has started itself."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)

    def kill_group(self) -> None:
        self.signal_group(signal.SIGKILL)


_server: Server | None = None
_lock = threading.Lock()


def server() -> Server:
    """Return this process's fork server, started."""
    global _server
    with _lock:
        if _server is None:
            _server = Server()
            atexit.register(_server_at_exit)
        _server.ensure_running()
        return _server


def begin_preload() -> None:
    """Start the imports in the background, in a process that a person started: no rank, no worker, no `python -m`."""
    if os.environ.get("LABS_PRELOAD") == "0" or FOLDER_VARIABLE in os.environ or "RANK" in os.environ:
        return
    if multiprocessing.parent_process() is not None or sys.argv[:1] == ["-m"]:
        return
    # A fork server or a resource tracker of multiprocessing itself: without this, each would start the next, for ever.
    if any("from multiprocessing." in argument for argument in sys.orig_argv):
        return
    with contextlib.suppress(OSError):  # a full disk or too many processes: launch() says so when it matters
        server()


def _server_at_exit() -> None:
    if _server is not None and _owner == os.getpid():
        _server.close()


def private_folder() -> Path:
    """Make a folder that only this user reads, and remove those whose owners died without removing theirs."""
    global _owner
    _owner = os.getpid()
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # The lock lives as long as this process: a folder without one belongs to nobody.
    _locks.append(_try_lock(folder))
    return folder


_owner = 0
_locks: list[int | None] = []


def _try_lock(folder: Path) -> int | None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.stat()
            # A minute of grace: another process may be between making its folder and locking it.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < 60:
                continue
            if (descriptor := _try_lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


@contextlib.contextmanager
def _only_for_the_server(folder: Path):
    """Give the server its folder and the way to labs/ through the environment, for the moment of its start."""
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    mine = {FOLDER_VARIABLE: str(folder), "PYTHONPATH": path}
    before = {name: os.environ.get(name) for name in mine}
    config = process.current_process()._config
    tempdir = config.get("tempdir")
    os.environ.update(mine)
    config["tempdir"] = str(folder)  # the server's own socket file goes there, and so is removed with the folder
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        config.pop("tempdir") if tempdir is None else config.update(tempdir=tempdir)


def _last_words(log: Path) -> str:
    try:
        text = log.read_text(errors="replace").strip()
    except OSError:
        text = ""
    return (
        "the process that starts ranks ended while it was importing torch. "
        f"Its last words: {text[-1500:] or '(none; was it killed? out of memory?)'}\n"
        "Try `python -m labs doctor`, then run the cell again."
    )
