"""The life of one rank: be forked, join the others, run the function, send its result, leave.

A rank leaves by `os._exit`: taking a process group down can deadlock (the destructor of ProcessGroupGloo joins its
thread while it holds the interpreter lock). A rank never prints: the parent
shows what the learner prints.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path

from labs.channel import LEAVE, LOOK, REPORT, Channel, LineStream
from labs.failures import CannotSend, Failure, describe
from labs.hang import last_collectives
from labs.pickling import dump_value, load_call
from labs.standstill import look

JOB_NAME = "job.pickle"
_PR_SET_PDEATHSIG = 1
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class RankInfo:
    """Where this rank stands: its number among all, its number on this machine, its share of the cores."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    num_threads: int


@dataclass(frozen=True)
class Seat:
    """What the launcher tells a rank: its number, the folder of the run, and how long gloo may wait at most."""

    rank: int
    world_size: int
    folder: str
    gloo_timeout_seconds: float

    def file(self, name: str) -> str:
        return os.path.join(self.folder, f"rank{self.rank}.{name}")


_info: RankInfo | None = None
_channel: Channel | None = None


def current() -> RankInfo | None:
    """Return where this process stands among the ranks, or None outside a rank."""
    return _info


def emit(record) -> None:
    """Send a record to the process that started this rank, at once; does nothing outside a launched rank.

    Raises CannotSend if the record cannot be pickled.
    """
    if _channel is not None:
        _channel.send("record", dump_value(record, "record", "emit()"))


def join_world(store_path: str | None = None, timeout_seconds: float = 1800.0) -> RankInfo:
    """Join the process group that RANK, WORLD_SIZE and LOCAL_RANK describe, and return this rank's place in it.

    With store_path the ranks of one machine meet in that file (no port is opened) over gloo; without it they meet as
    torchrun's environment says, over NCCL where each rank has a GPU and gloo elsewhere.
    """
    global _info
    _quiet()
    # Read when the group is made: the last collectives are kept, so that a hang can be explained.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    import torch
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    os.environ.setdefault("LOCAL_SIZE", str(local_world_size))  # DeepSpeed asks for it under this name
    num_threads = max(1, _num_cores() // local_world_size)
    torch.set_num_threads(num_threads)
    _take_a_core(local_rank, local_world_size)
    backend, rendezvous = "gloo", f"file://{store_path}" if store_path else "env://"
    if store_path is None and torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size:
        backend = "nccl"
        torch.cuda.set_device(local_rank)
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)  # gloo would listen on the machine's outer address
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=timeout)
    _info = RankInfo(rank, world_size, local_rank, local_world_size, num_threads)
    return _info


def main(seat: Seat, end: socket.socket) -> None:
    """Run one launched rank from its fork to its end; never returns."""
    global _channel
    try:
        _channel = channel = Channel(end)
        _isolate(seat)
        threading.Thread(target=_answer_parent, args=(channel,), daemon=True, name="labs watcher").start()
        _work(seat, channel)
        for child in multiprocessing.active_children():
            child.terminate()
        # The parent says LEAVE when all ranks are done: until then this rank's sockets stay open for the others.
        threading.Event().wait()
    finally:
        os._exit(1)


def _work(seat: Seat, channel: Channel) -> None:
    try:
        function, arguments, environment = load_call(Path(seat.folder, JOB_NAME).read_bytes())
        _lend_to_main(function)
        os.environ.update(environment)
        _set_environment(seat)
        join_world(os.path.join(seat.folder, "store"), seat.gloo_timeout_seconds)
        channel.send("joined", threading.get_ident())
        _capture_prints(channel)
        value = function(*arguments)
        result = dump_value(value, "value", f"`{getattr(function, '__name__', 'your function')}`")
        _flush()
        channel.send("value", result)
    except BaseException as error:  # SystemExit too: a rank that leaves without a result has failed
        _flush()
        channel.send("failed", _describe(error))


def _describe(error: BaseException) -> Failure:
    failure = describe(error)
    if isinstance(error, SystemExit):
        return Failure(f"ended before its result: {failure.headline} was raised (sys.exit?)", failure.frames)
    if isinstance(error, CannotSend):
        return Failure(str(error))
    return failure


def _lend_to_main(function) -> None:
    """Put the names that the function uses into `__main__`, where pickle looks for the classes of a notebook."""
    if getattr(function, "__module__", None) == "__main__":
        scope = getattr(function, "__globals__", {})  # a class or an object that is called has none
        names = {name: value for name, value in scope.items() if not name.startswith("__")}
        vars(sys.modules["__main__"]).update(names)


def _isolate(seat: Seat) -> None:
    """Make this process die with its parents, deaf to Ctrl-C, and silent; keep a way to look at its stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no core file is left
    os.setpgid(0, 0)  # what the learner's function starts can then be ended together with the rank
    _die_with_fork_server()
    log = os.open(seat.file("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    stack = os.open(seat.file("stack"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    faulthandler.enable(file=stack)  # a crash in native code
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)  # the parent asks: it works in native code too


def _die_with_fork_server() -> None:
    """Ask Linux to kill this process with the fork server, and stop holding the fork server up.

    The server ends when every holder of its `alive` pipe has ended. A rank that is stuck in native code with the
    interpreter lock cannot watch its parent; once it holds no end of that pipe, the server goes with the notebook's
    process and takes the rank along. Private: ForkServer._forkserver_alive_fd and others (see labs/forkserver.py).
    """
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _answer_parent(channel: Channel) -> None:
    """Leave when told, end when the parent is gone, look or report the last collectives when asked."""
    while (request := channel.wait_for_request()) in (LOOK, REPORT):
        with contextlib.suppress(OSError):
            channel.send(*(("look", look()) if request == LOOK else ("collectives", last_collectives())))
    if request == LEAVE:
        os._exit(0)
    os.killpg(0, signal.SIGKILL)


def _set_environment(seat: Seat) -> None:
    rank, world_size = str(seat.rank), str(seat.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    os.environ.update(LOCAL_SIZE=world_size, MASTER_ADDR="127.0.0.1", MASTER_PORT="0", DS_ACCELERATOR="cpu")
    os.environ["GLOO_SOCKET_IFNAME"] = _LOOPBACK  # listen to this machine only
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # forks share the state; ranks that were spawned would not


def _quiet() -> None:
    """Drop the warnings that libraries address to their own developers; the learner's own stay."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", module=r"(torch|deepspeed)\b")


def _capture_prints(channel: Channel) -> None:
    sys.stdout, sys.stderr = LineStream(channel, "stdout", 1), LineStream(channel, "stderr", 2)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.finish() if isinstance(stream, LineStream) else stream.flush()


def _take_a_core(local_rank: int, local_world_size: int) -> None:
    """Stay on one core if ranks outnumber cores; does nothing on systems that cannot.

    A collective is a relay between gloo's threads of all ranks. Where they take turns on few cores, the system moves
    them about: on 2 cores 4 ranks need twice as long for a small all_gather as with a fixed core each.
    """
    if hasattr(os, "sched_setaffinity") and local_world_size > _num_cores():
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})  # of this thread, and of those that it starts


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
