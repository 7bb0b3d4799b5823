"""Finds an answer that lets the course's own solution of the same exercise do the work."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from labs.checks.exercise import reference

_GIVES_SOLUTIONS = ("solved", "reference")  # of labs.checks, called with the name of an exercise


def is_borrowed(exercise: str, answer: Any) -> bool:
    """Whether an answer is the course's own, or names it in its code, in a class, in a helper of the same module.

    Solutions of other exercises are no matter: a lesson hands them on by `solved`. Nothing is run, so a name that is
    put together out of pieces is not seen; who goes to such lengths has done more than the exercise asks for.
    """
    own = reference(exercise)
    home, seen, left = _root(answer), [], [answer]
    while left:
        value = left.pop()
        if value is own:
            return True
        if not any(value is other for other in seen):
            seen.append(value)
            left += _parts(value, home)
            if isinstance(value, FunctionType) and exercise in _constants(value.__code__):
                left += [own for used in _used(value) if _gives_solutions(used)]
    return False


def _parts(value: Any, home: str) -> Iterator[Any]:
    """Yield what a value is made of, if the learner made it: the insides of libraries do not count."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif _root(value) != home:
        return
    elif isinstance(value, FunctionType):
        yield from _used(value)
    elif isinstance(value, type):
        yield from (*value.__bases__, *vars(value).values())
    else:
        yield from (type(value), *getattr(value, "__dict__", {}).values())


def _used(function: FunctionType) -> Iterator[Any]:
    """Yield what a function can reach by the names in its code: variables, defaults, what modules of labs hold."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}  # of variables, attributes, modules
    variables = {
        step.argval
        for code in _codes(function.__code__)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held += [function.__globals__[name] for name in variables if name in function.__globals__]
    left = [*held, *(sys.modules[name] for name in names if name in sys.modules)]
    seen: list[Any] = []
    while left:
        value = left.pop()
        if any(value is other for other in seen):
            continue
        seen.append(value)
        if isinstance(value, ModuleType):
            room = vars(value) if value.__name__.partition(".")[0] == "labs" else {}
            left += [room[name] for name in names if name in room]
        else:
            yield value


def _gives_solutions(value: Any) -> bool:
    is_ours = str(getattr(value, "__module__", "")).startswith("labs.checks")
    return is_ours and getattr(value, "__name__", "") in _GIVES_SOLUTIONS


def _root(value: Any) -> str:
    """The first name of the module that a function or class stands in, or the class of any other value."""
    while isinstance(value, (partial, MethodType)):
        value = value.func if isinstance(value, partial) else value.__func__
    made = value if isinstance(value, (FunctionType, type)) else type(value)
    return str(made.__module__).partition(".")[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _constants(code: CodeType) -> list[Any]:
    return [constant for inner in _codes(code) for constant in inner.co_consts]


def _is_filled(cell) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
