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
    look = _functions  # an answer that replaces it is seen by the one that stands here
    before = look()
    yield
    after = look()
    replaced = [
        f"{module}.{name}" for (module, name), value in before.items() if after.get((module, name)) is not value
    ]
    if replaced:
        raise MeterReplaced(f"{', '.join(replaced[:3])} is no longer the course's own")


def _functions() -> dict[tuple[str, str], object]:
    """Functions and classes of the rooms of labs, and the methods of these classes."""
    found = {}
    for room, module in list(sys.modules.items()):
        if not room.startswith("labs.") or module is None:
            continue
        for name, value in list(vars(module).items()):
            if callable(value):
                found[room, name] = value
            if isinstance(value, type) and value.__module__ == room:
                methods = {key: method for key, method in vars(value).items() if callable(method) or _is_bound(method)}
                found |= {(room, f"{name}.{key}"): method for key, method in methods.items()}
    return found


def _is_bound(value: object) -> bool:
    return isinstance(value, (property, staticmethod, classmethod))
