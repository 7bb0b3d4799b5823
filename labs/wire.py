"""Bytes that a rank's sockets really carried, and seconds that it really waited.

What measures must not be measured: metrics travel over an `InstrumentGroup`, whose sockets and calls are left out.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class SocketBytes:
    """Bytes that went through one TCP connection since it was opened."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class InstrumentGroup:
    """A gloo process group of all ranks that carries measurements; its sockets (inodes) are left out of the count."""

    group: dist.ProcessGroup
    sockets: frozenset[int]

    @property
    def name(self) -> str:
        return self.group.group_name


def new_instrument_group() -> InstrumentGroup:
    """Open a group for metrics, barriers of the meters and the like. Collective: every rank calls it once."""
    before = set(tcp_sockets())
    group = dist.new_group(backend="gloo")
    return InstrumentGroup(group, frozenset(set(tcp_sockets()) - before))


def tcp_sockets() -> dict[int, SocketBytes]:
    """Return {inode: bytes} for every connected TCP socket of this process; {} where the system is not Linux.

    Sockets of the rendezvous store (port MASTER_PORT) are left out: they carry no tensors.
    """
    found = {}
    for descriptor in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:["):
                with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                    if _carries_tensors(connection):
                        found[int(name[8:-1])] = _read_counters(connection)
        except OSError:  # closed meanwhile, or not connected
            continue
    return found


def _carries_tensors(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    ports = {connection.getsockname()[1], connection.getpeername()[1]}
    return int(os.environ.get("MASTER_PORT") or 0) not in ports


def _read_counters(connection: socket.socket) -> SocketBytes:
    """Read the kernel's counters; what waits in the send queue counts as sent, a retransmission only once.

    Source: struct tcp_info in linux/tcp.h (Linux 4.19 and newer): offsets 128, 144, 200, 208.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < 216:
        raise OSError("this kernel does not count sent bytes")
    (received,), (queued,) = struct.unpack_from("Q", info, 128), struct.unpack_from("I", info, 144)
    transmitted, retransmitted = struct.unpack_from("QQ", info, 200)
    return SocketBytes(transmitted - retransmitted + queued, received)


class WireMeter:
    """Counts the bytes of this rank's gloo sockets between `start()` and `stop()`, pauses left out.

    Every reading stands between two barriers of the instrument group, so that all ranks read at the same point of the
    program and no peer runs ahead; then both directions are exact to the byte. All ranks call the same methods.
    `available` is False where the kernel has no such counters or the tensors do not travel over gloo.
    """

    def __init__(self, instrument: InstrumentGroup):
        self._instrument = instrument
        self._since: dict[int, SocketBytes] | None = None
        self._sent = self._received = 0
        self.available = bool(tcp_sockets()) and dist.get_backend() == "gloo"
        self.available |= dist.get_world_size() == 1

    def start(self) -> None:
        """Begin to count, from zero."""
        self._sent = self._received = 0
        self._since = self._read()

    def stop(self) -> tuple[int | None, int | None]:
        """Return (sent, received) bytes since `start()`; (None, None) where they cannot be known."""
        self._close()
        return (self._sent, self._received) if self.available else (None, None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside, an evaluation for example."""
        self._close()
        try:
            yield
        finally:
            self._since = self._read()

    def _close(self) -> None:
        if self._since is None:
            raise RuntimeError("the meter is not running; call start() first")
        before, now = self._since, self._read()
        self.available &= before.keys() <= now.keys()  # the count of a closed socket is lost
        for inode in before.keys() & now.keys():
            self._sent += now[inode].sent_bytes - before[inode].sent_bytes
            self._received += now[inode].received_bytes - before[inode].received_bytes
        for inode in now.keys() - before.keys():
            if now[inode].sent_bytes and now[inode].received_bytes:  # else a greeting, or a stranger at gloo's door
                self._sent += now[inode].sent_bytes
                self._received += now[inode].received_bytes
        self._since = None

    def _read(self) -> dict[int, SocketBytes]:
        dist.barrier(group=self._instrument.group)
        sockets = tcp_sockets()
        dist.barrier(group=self._instrument.group)
        return {inode: count for inode, count in sockets.items() if inode not in self._instrument.sockets}


def measured_bytes(call: Callable[[], object]) -> SocketBytes | None:
    """Run `call()` on this rank and return what its sockets carried meanwhile, gloo's headers included.

    Collective: every rank calls it, each with its part. None where the system does not count (see `WireMeter`).
    """
    meter = WireMeter(new_instrument_group())
    meter.start()
    call()
    sent, received = meter.stop()
    return None if sent is None else SocketBytes(sent, received)


class WaitClock:
    """Seconds that the calling thread slept, waiting for something else: communication that no computation hides.

    `lap()` returns (waited, elapsed) seconds since the last lap. Elapsed time is split in three: the thread computed
    (its own CPU time), it was ready but another process had the core, or it slept. Only sleep counts as waiting, so
    ranks that share cores do not mistake each other's work for communication. A collective that runs while the thread
    computes is hidden and does not count; sleep() and waiting for a file do count. On systems other than Linux the
    time without a core counts as waiting too.
    """

    def __init__(self):
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._last = self._read()

    def lap(self) -> tuple[float, float]:
        """Return (waited, elapsed) [seconds] since the last lap, and begin the next."""
        now = self._read()
        (wall, awake), self._last = (now[0] - self._last[0], now[1] - self._last[1]), now
        return min(max(0.0, wall - awake), wall), wall

    def _read(self) -> tuple[float, float]:
        """Return (wall, computed + ready) [seconds]."""
        computed, ready = time.thread_time(), 0
        try:
            with open(self._path) as file:
                ready = int(file.read().split()[1])  # nanoseconds; Source: linux/Documentation/scheduler/sched-stats
        except (OSError, ValueError, IndexError):
            pass
        return time.perf_counter(), computed + ready / 1e9
