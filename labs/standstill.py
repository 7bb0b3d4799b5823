"""Seeing that no rank can ever go on, long before the deadline (Linux).

A clock cannot tell a deadlock from slow work. Processes can: where every thread of every rank sleeps, the main threads
inside a call that only another rank ends, and neither a thread nor a byte moves from one look to the next, there is
nobody left to wake anybody. On a busy machine a thread that is due to run does not sleep, so load changes nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from labs.channel import LOOK

LOOK_SECONDS = 0.25
NUM_LOOKS = 3
_DISTRIBUTED = os.sep + os.path.join("torch", "distributed") + os.sep


@dataclass(frozen=True)
class Look:
    """What a rank sees of itself: who could still move, and what would have changed if somebody had."""

    sleeps: bool  # every thread but the one that looks, and no GPU that could work meanwhile
    waits_for_ranks: bool  # the main thread, in a call that another rank ends
    num_bytes: int  # through its sockets until now


def look() -> Look:
    """Look at this rank, from a thread beside its main one."""
    import torch.cuda  # these two here, because they import torch: the parent needs none

    from labs.wire import tcp_sockets

    num_bytes = sum(count.sent_bytes + count.received_bytes for count in tcp_sockets().values())
    sleeps = _others_sleep() and not torch.cuda.is_initialized()  # a GPU works while all threads sleep
    return Look(sleeps, _main_waits_for_ranks(), num_bytes)


def _others_sleep() -> bool:
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
    has_children = any((task / "children").read_text() for task in tasks if (task / "children").exists())
    return not has_children and all(_state(task) == "S" for task in tasks)


def _main_waits_for_ranks() -> bool:
    """Whether the innermost line is one of torch.distributed or calls `wait`, and no other thread runs Python."""
    frames = sys._current_frames()
    frame = frames.pop(threading.main_thread().ident, None)
    frames.pop(threading.get_ident(), None)
    if frame is None or frames:
        return False
    code = frame.f_code
    return _DISTRIBUTED in code.co_filename or "wait" in (*code.co_names, *code.co_freevars)


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
