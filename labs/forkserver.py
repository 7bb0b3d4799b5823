"""The process that forks the ranks: Python's own fork server, with torch and DeepSpeed already imported.

A rank that is spawned imports torch and DeepSpeed for 7 to 12 seconds; a rank that is forked from here starts in
hundredths of a second. The start method is `multiprocessing.get_context("forkserver")`; `torch.multiprocessing`
re-exports that very function. What it adds, tensors in shared memory, is not needed: bytes leave a rank.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing import context as mp_context
from multiprocessing import forkserver, popen_forkserver, process, reduction, util
from pathlib import Path

from labs.failures import LaunchError
from labs.folders import LOG_NAME, READY_NAME, SERVER_VARIABLE, private_folder

CONTEXT = multiprocessing.get_context("forkserver")
_EXIT_SECONDS = 4.0


class ServerEnded(LaunchError):
    """The process that forks ranks has ended by itself; the text carries its last words."""


class Server(forkserver.ForkServer):
    """One fork server of our own: a learner's own use of multiprocessing neither meets it nor disturbs it.

    Private names of the standard library in this file, checked on 3.11 to 3.13: `_forkserver_pid`,
    `_forkserver_alive_fd`, `_forkserver_address`, `read_signed`, `Popen._launch`, `_config["tempdir"]`.
    """

    is_lent = False

    def __init__(self, reason: str = ""):
        super().__init__()
        self.set_forkserver_preload(["labs.preload"])
        self.folder = self._home = private_folder()  # of the runs, and of the server's own files
        self._reason, self._was_announced = reason, False
        self._check = threading.Lock()

    def ensure_running(self) -> None:
        """Start the server if it does not run; returns at once, the imports go on in the background."""
        if not self.is_alive():
            (self.folder / READY_NAME).unlink(missing_ok=True)
            with _only_for_the_server(self.folder):
                super().ensure_running()

    def is_alive(self) -> bool:
        with self._check:
            if self._forkserver_pid is None:
                return False
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._forkserver_pid, os.WNOHANG) == (0, 0):
                    return True
            os.close(self._forkserver_alive_fd)
            self._forkserver_pid = self._forkserver_alive_fd = self._forkserver_address = None
            return False

    def report(self) -> dict | None:
        """What labs/preload.py wrote at its end: seconds, missing, num_threads, files; None while it imports."""
        try:
            return json.loads((self._home / READY_NAME).read_text())
        except FileNotFoundError:
            return None

    def wait_until_ready(self, give_up=lambda: None) -> None:
        """Wait for the imports; `give_up()` is asked between and may raise. Raises ServerEnded."""
        while self.report() is None:
            give_up()
            if not self.is_alive():
                raise ServerEnded(self.last_words())
            time.sleep(0.02)

    def announce(self, show):
        """Say once, with `show(text)`, that the imports are not done yet; returns what takes the words away again."""
        if self._was_announced or self.report() is not None:
            return lambda: None
        self._was_announced = True
        work = "importing torch and DeepSpeed for the ranks (about 10 s, once per kernel)."
        return show(f"Warming up: {self._reason}{work}")

    def edited_files(self) -> list[str]:
        """Files of labs/, relative to it, that were changed after the server had imported them."""
        files = (self.report() or {}).get("files", {})
        edited = [file for file, stamp in files.items() if _changed_at(file) != stamp]
        return [os.path.relpath(file, Path(__file__).parent) for file in edited]

    def last_words(self) -> str:
        """Why the server ended, as far as it could say."""
        try:
            text = (self._home / LOG_NAME).read_text(errors="replace").strip()[-1500:]
        except OSError:
            text = ""
        return (
            "the process that starts ranks has ended. Its last words: "
            f"{text or '(none; was it killed? out of memory?)'}\n"
            "Try `python -m labs doctor`, then run the cell again."
        )

    def close(self) -> None:
        """End the server, and with it every process forked from it; takes some seconds at most."""
        if self.is_alive():
            with self._check:
                pid, self._forkserver_pid = self._forkserver_pid, None
                os.close(self._forkserver_alive_fd)
            os.kill(pid, signal.SIGTERM)
            if not _has_ended(pid, _EXIT_SECONDS):
                os.kill(pid, signal.SIGKILL)
                _has_ended(pid, _EXIT_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fork(self, target, arguments: tuple, name: str) -> ForkedProcess:
        """Fork a process that runs target(*arguments). Raises ServerEnded."""
        try:
            return ForkedProcess(CONTEXT.Process(target=target, args=arguments, name=name), self)
        except (EOFError, ConnectionError, BrokenPipeError):
            raise ServerEnded(self.last_words()) from None


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

    def kill_descendants(self) -> None:
        """Kill what the process, now gone, has left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def _only_for_the_server(folder: Path):
    """Give the server its folder and the way to labs/ through the environment, for the moment of its start."""
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    mine = {SERVER_VARIABLE: f"{os.getpid()}:{folder}", "PYTHONPATH": path}
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


def _changed_at(file: str) -> int | None:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return None


def _has_ended(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
    return True
