"""Sending a function, its arguments and its result to another process, and naming what cannot be sent."""

from __future__ import annotations

import importlib
import io
import linecache
import os
import pickle
import sys
from collections import ChainMap
from types import CodeType, FunctionType, ModuleType

import cloudpickle

from labs.failures import CannotSend

_DEEPEST = 4


def _reduce_code(code: CodeType):
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)[:2]
    return _code_of_file, (code.co_filename, make, arguments)


def _code_of_file(filename: str, make, arguments: tuple) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but code keeps the name of its file, so that a traceback points at the learner's line."""

    dispatch_table = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, value):
        """Send modules of special types by name, too: cloudpickle does so for plain ones alone.

        torch.distributed.config is one. A function that uses `dist` and any attribute called `config` drags it along.
        """
        is_special = isinstance(value, ModuleType) and type(value) is not ModuleType
        if is_special and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def dump(value) -> bytes:
    """Pickle by value what was defined in a notebook or script, by reference what can be imported."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def load(data: bytes):
    """Unpickle what `dump` wrote."""
    return pickle.loads(data)


def dump_call(function, arguments: tuple, environment: dict[str, str]) -> bytes:
    """Pickle a call and the source of its cell. Raises CannotSend naming the variable that cannot be sent."""
    try:
        return dump((function, arguments, environment, _source_without_file(function)))
    except Exception as error:
        raise CannotSend(_blame_call(function, arguments, error)) from None


def load_call(data: bytes):
    """Return (function, arguments, environment); inspect.getsource works in the rank as in the notebook."""
    function, arguments, environment, sources = load(data)
    linecache.cache.update(sources)
    return function, arguments, environment


def dump_value(value, what: str, whose: str) -> bytes:
    """Pickle what leaves a rank. Raises CannotSend with the way to the part that cannot be pickled."""
    try:
        return dump(value)
    except Exception as error:
        path, part, why = _find_culprit(value, what, error)
        raise CannotSend(
            f"the {what} of {whose} cannot be sent back to the notebook: {path} is a {type(part).__name__} ({why}). "
            "Return numbers, text, lists, dicts, arrays or tensors."
        ) from None


def _source_without_file(function) -> dict:
    """The lines of the cell that defines the function: a rank finds them nowhere."""
    filename = getattr(getattr(function, "__code__", None), "co_filename", "")
    lines = linecache.getlines(filename) if filename and not os.path.exists(filename) else []
    return {filename: (sum(map(len, lines)), None, lines, filename)} if lines else {}


def _find_culprit(value, path: str, error: Exception) -> tuple[str, object, str]:
    """Go down to the smallest part that cannot be pickled; returns its path, itself and the reason."""
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            if why := _why_not(part):
                value, path, error = part, path + step, why
                break
        else:
            break
    return path, value, str(error)


def _parts(value):
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif not isinstance(value, (type, FunctionType, ModuleType)):
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _why_not(value) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error
    return None


def _blame_call(function, arguments: tuple, error: Exception) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    for kind, path, value in _used_by(function, arguments):
        if why := _why_not(value):
            path, part, reason = _find_culprit(value, path, why)
            return (
                f"the {kind} `{path}` that your function `{name}` uses cannot be sent to another process: "
                f"it is a {type(part).__name__} ({reason}). Create it inside the function, or pass what it is made of."
            )
    return f"your function `{name}` cannot be sent to another process: {error}"


def _used_by(function, arguments: tuple):
    """Yield (kind, name, value) of what travels with a call: arguments, its object, closure, globals, defaults."""
    yield from (("argument", f"args[{index}]", value) for index, value in enumerate(arguments))
    if hasattr(function, "func") and hasattr(function, "keywords"):  # functools.partial
        yield from (("argument", f"args[{index}]", value) for index, value in enumerate(function.args))
        yield from (("argument", key, value) for key, value in function.keywords.items())
        function = function.func
    if getattr(function, "__self__", None) is not None:
        yield "object", "self", function.__self__
        function = getattr(function, "__func__", function)
    yield from _used_by_function(function, set())


def _used_by_function(function, seen: set[int]):
    code = getattr(function, "__code__", None)
    if code is None or id(function) in seen:
        return
    seen.add(id(function))
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    used = [("variable", name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    used += [("global", name, function.__globals__[name]) for name in _names(code) if name in function.__globals__]
    used += [("default", f"default {n}", value) for n, value in enumerate(function.__defaults__ or ())]
    for _kind, _name, value in used:
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _used_by_function(value, seen)  # the name that blocks is in there, not this one
    yield from used


def _is_filled(cell) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: CodeType):
    """Names of globals that a function and the functions inside it may look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
