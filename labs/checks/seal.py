"""Finds an answer that puts something in place of the course's own functions: they measure it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class MeterReplaced(Exception):
    """A function of labs is not the one that it was before the answer ran."""


@contextmanager
def sealed() -> Iterator[None]:
    """Run an answer; names of labs that it adds are its own affair. Raises MeterReplaced, naming what was replaced."""
    before = _functions()
    yield
    after = _functions()
    replaced = [
        f"{module}.{name}" for (module, name), value in before.items() if after.get((module, name)) is not value
    ]
    if replaced:
        raise MeterReplaced(f"{', '.join(replaced[:3])} is no longer the course's own")


def _functions() -> dict[tuple[str, str], object]:
    rooms = [(name, room) for name, room in sys.modules.items() if name.startswith("labs.") and room is not None]
    return {(name, key): value for name, room in rooms for key, value in vars(room).items() if callable(value)}
