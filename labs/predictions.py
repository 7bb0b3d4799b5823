"""Predict, run, compare: your number is written down before the run, and set beside theory and measurement after it."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from typing import Any

from labs.units import GB, GiB, KiB, MiB, format_bytes, format_seconds

_BYTES = {"bytes": 1, "byte": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": 2**40}
_BYTES |= {"kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12}
_SECONDS = {"seconds": 1.0, "second": 1.0, "s": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "minutes": 60.0}
_NUMBER = re.compile(r"\s*([-+]?[\d_,]*\.?\d+(?:e[-+]?\d+)?)\s*([A-Za-z]*)\s*", re.IGNORECASE)
# Mistakes of unit that a ratio gives away.
_TELLING = ((GiB / GB, "GiB and GB"), (MiB / 10**6, "MiB and MB"))


@dataclass(frozen=True)
class Prediction:
    """A number that was written down, in the base unit of its question; `value` None: there is none.

    Unit words other than bytes and seconds (ranks, messages, ...) only name what is counted.
    """

    question: str
    unit: str
    value: Any = None
    remark: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"… {self.question}\n  {self.remark}; the run goes on without."
        return f"✎ {self.question}\n  written down: {_worded(self.value, self.unit)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, second = str(self).split("\n")
        return f"<div style='{_FRAME}'>{html.escape(first)}<br><b>{html.escape(second.strip())}</b></div>"

    def compare(self, measured: Any = ..., theory: Any = None, **others: Any) -> Comparison:
        """Set the prediction beside theory and measurement; further values by name, `gloo=...`.

        Plain numbers are in the unit of the question; a text such as "1.5 GiB" carries its own. A measurement that is
        None could not be made on this system, and the table says so; one left out was not to be made.
        """
        rows = {"theory": theory, **{name.replace("_", " "): value for name, value in others.items()}}
        read = {name: _read(value, self.unit) for name, value in rows.items() if value is not None}
        is_asked = measured is not ...
        return Comparison(self, tuple(read.items()), _read(measured, self.unit) if is_asked else None, is_asked)


@dataclass(frozen=True)
class Comparison:
    """Prediction, theory and measurement side by side; each is judged against the measurement.

    Without a measurement the prediction is judged against the first theory.
    """

    prediction: Prediction
    theories: tuple[tuple[str, Any], ...]
    measured: Any = None
    is_measurement_asked: bool = True

    @property
    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """(name, value in words, how far off in words), the learner's own first."""
        unit, mine = self.prediction.unit, self.prediction.value
        truth = self.measured if self.measured is not None else next((value for _, value in self.theories), None)
        own = (_worded(mine, unit), how_far(mine, truth, unit)) if mine is not None else (self.prediction.remark, "")
        theories = [
            (name, _worded(value, unit), how_far(value, self.measured, unit) if self.measured is not None else "")
            for name, value in self.theories
        ]
        measured = _worded(self.measured, unit) if self.measured is not None else "not measured on this system"
        last = [("measured", measured, "")] if self.is_measurement_asked else []
        return (("your prediction", *own), *theories, *last)

    def __str__(self) -> str:
        widths = [max(len(row[column]) for row in self.rows) for column in (0, 1)]
        lines = [f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {off}".rstrip() for name, value, off in self.rows]
        return "\n".join([self.prediction.question, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "padding:0.15em 1.2em 0.15em 0; text-align:left; background:none"
        rows = "".join(
            f"<tr style='background:none'><th scope='row' style='{cell}; font-weight:normal'>{html.escape(name)}</th>"
            f"<td style='{cell}'><b>{html.escape(value)}</b></td><td style='{cell}'>{html.escape(off)}</td></tr>"
            for name, value, off in self.rows
        )
        table = f"<table style='margin:0.2em 0; color:inherit; border-collapse:collapse'>{rows}</table>"
        return f"<div style='{_FRAME}'>{html.escape(self.prediction.question)}{table}</div>"


_FRAME = "border-left:5px solid var(--jp-info-color1, #0277bd); padding:0.2em 0.9em; margin:0.3em 0; max-width:60em"


def predict(question: str, value: Any = None, unit: str = "") -> Prediction:
    """Write a number down before the run: `guess = predict("what will rank 0 hold, in bytes?", 3_600_000)`.

    `value` is a plain number in the unit that the question names ("in bytes", "in ms") or `unit` gives, or a text with
    its own unit ("3.4 MiB"). None or ... means no prediction. Never raises: what cannot be read is said, and the run
    goes on.
    """
    unit = unit or _unit_asked_for(question)
    if value is None or value is ...:
        return Prediction(question, unit, None, "no prediction yet")
    read = _read(value, unit)
    if read is None:
        return Prediction(question, unit, None, f"{value!r} could not be read as a number of {unit or 'anything'}")
    return Prediction(question, unit, read)


def how_far(value: Any, truth: Any, unit: str = "") -> str:
    """Say in words how far a value is from the truth: "exact", "4 % too low", "3.0 times too high"."""
    if truth is None:
        return ""
    if value == truth:
        return "exact"
    if not (_is_number(value) and _is_number(truth)):
        return "not the same"
    if truth == 0 or value == 0 or (value < 0) != (truth < 0):
        return f"off by {_worded(value - truth, unit)}"
    ratio = value / truth
    side = "high" if abs(ratio) > 1 else "low"
    factor = max(ratio, 1 / ratio)
    words = (
        f"{factor:{',.0f' if 100 <= factor < 1e6 else '.3g'}} times too {side}"
        if factor >= 1.995
        else f"{abs(ratio - 1) * 100:.2g} % too {side}"
    )
    words = "nearly exact" if factor < 1.0005 else words
    near = [name for telling, name in _TELLING if unit.lower() in _BYTES and abs(factor / telling - 1) < 0.001]
    return f"{words} (the difference between {near[0]})" if near else words


def _unit_asked_for(question: str) -> str:
    """The unit that a question names last: "in MiB", "how many bytes"."""
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", question)]
    named = [word for before, word in zip(["", *words], words, strict=False) if before in ("in", "many")]
    known = [word for word in named if word in _BYTES or word in _SECONDS]
    return known[-1] if known else ""


def _read(value: Any, unit: str) -> Any:
    """Return bytes, seconds or a plain number, as the unit says; other texts as they are; None if unreadable."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    scale = _BYTES.get(unit.lower()) or _SECONDS.get(unit.lower())
    if _is_number(value):
        return (value * scale if scale not in (None, 1) else value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None if scale else value
    match = _NUMBER.fullmatch(value)
    if match is None:
        return None if scale or not value.strip() else value.strip()
    number = float(match[1].replace("_", "").replace(",", ""))
    table = _BYTES if unit.lower() in _BYTES else _SECONDS if scale else {}
    if match[2] and scale and match[2].lower() not in table:
        return None
    number *= table.get(match[2].lower(), scale or 1)
    return int(number) if number.is_integer() else number


def _worded(value: Any, unit: str) -> str:
    if not _is_number(value):
        return str(value)
    plain = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if unit.lower() in _BYTES:
        small = f"{plain} byte{'' if value == 1 else 's'}"
        return small if abs(value) < KiB else f"{format_bytes(value)} ({value:,.0f} bytes)"
    if unit.lower() in _SECONDS:
        return format_seconds(value)
    return f"{plain} {unit}".strip()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
