"""Questions about processes that tests ask."""

from __future__ import annotations

import time
from pathlib import Path


def becomes_true(fact, seconds: float = 20.0) -> bool:
    """Whether `fact()` comes true before the limit; asks again and again, so a fast machine does not wait."""
    until = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def children(pid: int) -> list[int]:
    """Living children of a process, zombies left out (Linux)."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return [child for child in found if is_running(child)]


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
