"""Seeing that no rank can ever go on, long before the deadline (Linux).

A clock cannot tell a deadlock from slow work. Processes can: where every thread of every rank sleeps without a limit,
the main threads inside a call that only another rank ends, and neither a thread nor a byte moves from one look to the
next, there is nobody left to wake anybody. On a busy machine a thread that is due to run does not sleep, so load
changes nothing.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from labs.channel import LOOK

LOOK_SECONDS = 0.25
NUM_LOOKS = 3
NUM_GLANCES, GLANCE_SECONDS = 8, 0.003  # within a look: gloo's threads wake many times a second, only to look around
LONG_SECONDS = 900.0  # gloo itself waits for twice as long; who sets a limit of their own sets a shorter one
# What waits for other ranks: torch.distributed, DDP, and hooks that C++ calls in a backward pass.
_DISTRIBUTED = tuple(os.path.join(os.sep, "torch", *rest) for rest in (("distributed", ""), ("nn", "parallel", "")))
_BACKWARD = os.path.join(os.sep, "torch", "autograd", "graph.py")

# How Linux shows a thread that waits for another thread to wake it: the call futex(address, kind, value, limit).
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(os.uname().machine if hasattr(os, "uname") else "")
_KIND, _FOR_SECONDS, _UNTIL, _BY_CALENDAR = 127, 0, 9, 256


@dataclass(frozen=True)
class Look:
    """What a rank sees of itself: who could still move, and what would have changed if somebody had."""

    sleeps: bool  # every thread but the one that looks, none by the clock, and no GPU that could work meanwhile
    waits_for_ranks: bool  # the main thread, in a call that another rank ends
    num_bytes: int  # through its sockets until now


def look() -> Look:
    """Look at this rank, from a thread beside its main one."""
    import torch.cuda  # these two here, because they import torch: the parent needs none

    from labs.wire import tcp_sockets

    num_bytes = sum(count.sent_bytes + count.received_bytes for count in tcp_sockets().values())
    sleeps = _others_sleep_at_once() and not torch.cuda.is_initialized()  # a GPU works while all threads sleep
    return Look(sleeps, _main_waits_for_ranks(), num_bytes)


def _others_sleep_at_once() -> bool:
    """Whether there is a moment in which nobody is awake; who waits for a core is awake at every glance."""
    for _ in range(NUM_GLANCES):
        if _others_sleep():
            return True
        time.sleep(GLANCE_SECONDS)
    return False


def _others_sleep() -> bool:
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
    has_children = any((task / "children").read_text() for task in tasks if (task / "children").exists())
    runs_python = len(sys._current_frames()) > 2  # in another thread than the main one and this one: it may do anything
    return not has_children and not runs_python and all(_state(task) == "S" and not _wakes(task) for task in tasks)


def _main_waits_for_ranks() -> bool:
    """Whether the main thread waits for another thread, in torch.distributed, in a backward pass or in a `wait`."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    if frame is None or _futex(Path(f"/proc/self/task/{os.getpid()}")) is None:  # it reads, polls or sleeps
        return False
    code = frame.f_code
    is_call_of_torch = code.co_filename.endswith(_BACKWARD) or any(part in code.co_filename for part in _DISTRIBUTED)
    return is_call_of_torch or "wait" in (*code.co_names, *code.co_freevars)


def _futex(task: Path) -> tuple[int, int] | None:
    """The kind of a thread's futex call and the address of its limit; None while it is in no such call."""
    number, *words = (task / "syscall").read_text().split() if (task / "syscall").exists() else ("",)
    return (int(words[1], 16), int(words[3], 16)) if number == str(_FUTEX) else None


def _wakes(task: Path) -> bool:
    """Whether a thread that waits for another one will soon wake by itself."""
    kind, limit = _futex(task) or (0, 0)
    if not limit:
        return False
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # an address that is no more is an error there, no crash
        memory.seek(limit)
        words = memory.read(16)
    if len(words) < 16:  # it woke meanwhile
        return True
    seconds, _ = struct.unpack("qq", words)
    clock = time.time if kind & _BY_CALENDAR else time.monotonic
    left = {_FOR_SECONDS: seconds, _UNTIL: seconds - clock()}.get(kind & _KIND, 0.0)
    return left < LONG_SECONDS


class Watch:
    """Looks at all ranks of a run again and again, and asks them to look while none of them moves."""

    def __init__(self):
        self._next_at = 0.0
        self._switches: list[int | None] = []
        self._looks: list[tuple[Look, ...]] = []

    def is_deadlock(self, members) -> bool:
        """Whether no rank can go on, for certain; to be asked often."""
        if time.monotonic() < self._next_at:
            return False
        self._next_at = time.monotonic() + LOOK_SECONDS
        before, self._switches = self._switches, [_switches(member.process.pid) for member in members]
        if None in self._switches or before != self._switches:
            self._looks = []
            return False
        looks = tuple(member.look for member in members)
        self._looks = [*self._looks, looks] if all(map(_is_stuck, looks, members)) else []
        for member in members:
            member.look = None
            member.inbox.ask(LOOK)
        return len(self._looks) >= NUM_LOOKS and len(set(self._looks[-NUM_LOOKS:])) == 1


def _is_stuck(look: Look | None, member) -> bool:
    return look is not None and look.sleeps and (look.waits_for_ranks or member.value is not None)


def _switches(pid: int) -> int | None:
    """How often the main thread of a process has given its core back; None while it does not sleep."""
    task = Path(f"/proc/{pid}/task/{pid}")
    try:
        lines = (task / "status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line) if _state(task) == "S" else None
    except OSError:
        return None


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
