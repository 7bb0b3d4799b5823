"""What is found in a DeepSpeed config, and pydantic's refusals as findings. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from labs.ds_config.keys import REMOVED_ZERO, homes_of, nearest, path_of

Level = Literal["error", "warning", "note"]
LEVELS = ("error", "warning", "note")
_LONGEST = 60  # characters of a value in a sentence


@dataclass(frozen=True)
class Finding:
    """One thing to know about a config.

    error: DeepSpeed refuses the config. warning: it takes the config and does something else than the config says, or
    stops later. note: it does what the config says, and there is more to know.
    """

    level: Level
    key: str
    what: str
    why: str
    fix: str

    def printable(self) -> Finding:
        """Return the finding with control characters and broken Unicode of the config's keys written out."""
        return Finding(self.level, *(_printable(text) for text in (self.key, self.what, self.why, self.fix)))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("ascii", "backslashreplace").decode("ascii") for c in text)


class Refusal(Exception):
    """DeepSpeed would stop reading here."""

    def __init__(self, key: str, what: str, why: str, fix: str):
        super().__init__(what)
        self.finding = Finding("error", key, what, why, fix)


def shown(value) -> str:
    """Write a value as JSON would, shortened."""
    named = {True: "true", False: "false", None: "null"}
    text = named[value] if isinstance(value, bool) or value is None else _written(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _written(value) -> str:
    if isinstance(value, str):
        return '"' + value.encode("ascii", "backslashreplace").decode() + '"'
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return "a very large number"
    return repr(value)


def object_at(config: dict, block: str) -> dict:
    """Return a block, {} where there is none; refuse what is no object."""
    value = config.get(block.rpartition(".")[2], {})
    if not isinstance(value, dict):
        raise Refusal(block, f"{block} is {shown(value)}", "DeepSpeed reads an object here", _object_fix(block))
    return value


def _object_fix(block: str) -> str:
    name = block.rpartition(".")[2]
    example = '{"stage": 2}' if name == "zero_optimization" else '{"enabled": true}'
    example = '{"device": "cpu"}' if name.startswith("offload") else example
    example = '{"type": "AdamW", "params": {}}' if name in ("optimizer", "scheduler") else example
    return f'write "{name}": {example}, or leave {name} out'


def of_validation(block: str, error: ValidationError) -> list[Finding]:
    """Turn pydantic's problems into findings."""
    return [_of_problem(block, problem) for problem in error.errors(include_url=False)]


def _of_problem(block: str, problem: dict) -> Finding:
    *inner, last = [str(part) for part in problem["loc"]] or [""]
    block = path_of(block, ".".join(inner)) if inner else block
    key = path_of(block, last) if last else block
    if problem["type"] == "extra_forbidden":
        return _unknown_key(block, last)
    reason = problem["msg"]
    if problem["type"] in ("value_error", "assertion_error"):
        reason = str(problem["ctx"]["error"])
        if not last:
            return Finding("error", block, reason, "DeepSpeed checks the whole block", "change one of the two")
        return Finding("error", key, f"{key} is {shown(problem['input'])}", f"it {reason}", "change or leave it out")
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return Finding(
            "error", key, f"{key} is {shown(problem['input'])}", "DeepSpeed reads an object here", _object_fix(key)
        )
    reason = reason.removeprefix("Input ").replace("0, 1, 2, 3 or 3", "0, 1, 2 or 3")
    return Finding("error", key, f"{key} is {shown(problem['input'])}", f"it {reason}", "change or leave it out")


def _unknown_key(block: str, key: str) -> Finding:
    what, why = f"{block} has no key {shown(key)}", "DeepSpeed refuses unknown keys in this block"
    homes, near = homes_of(key, not_in=block), nearest(key, block)
    if block in ("bf16", "bfloat16") and "fp16" in homes:
        why = "bf16 has the range of fp32 and needs no loss scale"
        return Finding("error", path_of(block, key), what, why, "leave it out; it belongs to fp16 alone")
    if near:
        fix = f"did you mean {near}?"
    elif homes:
        fix = f"it belongs to {homes[0]}" if homes[0] else "it belongs to the top level, outside of every block"
    else:
        fix = REMOVED_ZERO.get(key, "leave it out")
    return Finding("error", path_of(block, key), what, why, fix)
