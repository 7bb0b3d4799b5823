"""One process that forks ranks, for several notebooks: its owner lends it to the Python processes that it starts.

The owner puts the words of `offer()` into the environment. Who finds them there forks its ranks from the lent server
instead of importing torch and DeepSpeed for a server of its own. Ranks are forks, as ever, and end with the notebook
that started them; the server ends with its owner. Where it has ended, or labs/ was edited since it was loaded, or
another Python or another labs/ asks, the offer is void and a server of one's own is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from labs import forkserver

LENT_VARIABLE = "LABS_LENT_SERVER"
_LABS = str(Path(__file__).parent)


def offer(server: forkserver.Server) -> dict[str, str]:
    """Return the environment that lends this server to processes started with it.

    From Python 3.14 on a server forks only for those who know its key; others may read neither this process's
    environment nor that of those who borrow.
    """
    key = getattr(server, "_forkserver_authkey", None) or b""
    words = [server._forkserver_pid, server._forkserver_address, key.hex(), str(server.folder), _LABS, sys.prefix]
    return {LENT_VARIABLE: json.dumps(words)}


def borrowed() -> BorrowedServer | None:
    """Return the server that the environment offers; None without an offer that holds."""
    try:
        pid, address, key, folder, labs, prefix = json.loads(os.environ.get(LENT_VARIABLE, ""))
    except (ValueError, TypeError):  # no JSON, or other JSON
        return None
    if (labs, prefix) != (_LABS, sys.prefix):
        return None
    server = BorrowedServer(pid, address, bytes.fromhex(key), Path(folder))
    if server.is_alive() and not server.edited_files():
        return server
    server.close()
    return None


class BorrowedServer(forkserver.Server):
    """A server of somebody else: it is asked for ranks, never started nor ended. Its private names are the base's."""

    is_lent = True

    def __init__(self, pid: int, address: str, key: bytes, home: Path):
        super().__init__()
        self._home = home
        self._forkserver_pid, self._forkserver_address, self._forkserver_authkey = pid, address, key
        # Every fork is sent a pipe that keeps its server alive, and closes it. This one keeps nothing alive.
        self._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def ensure_running(self) -> None:
        """Do nothing: its owner has started it."""

    def is_alive(self) -> bool:
        """Whether the offer stands, its process runs and its folder, removed at its end, is there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._forkserver_pid, 0)
            return LENT_VARIABLE in os.environ and self._home.exists()
        return False

    def fork(self, target, arguments: tuple, name: str) -> forkserver.ForkedProcess:
        try:
            return super().fork(target, arguments, name)
        except forkserver.ServerEnded:
            os.environ.pop(LENT_VARIABLE, None)  # killed, and not yet buried by its owner: believe in it no more
            raise

    def close(self) -> None:
        """Give it back: the next run has a server of its own."""
        os.close(self._forkserver_alive_fd)
        shutil.rmtree(self.folder, ignore_errors=True)
