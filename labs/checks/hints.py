"""Hints in steps: a nudge, then the approach, then almost the answer."""

from __future__ import annotations

import html
from dataclasses import dataclass

from labs.checks.exercise import find_exercise

STEPS = ("nudge", "approach", "almost the answer")
_shown: dict[str, int] = {}  # steps asked for in this session, by exercise


@dataclass(frozen=True)
class Hints:
    """The steps of one exercise, the first `num_open` of them unfolded. Unfolding more needs no kernel."""

    exercise: str
    steps: tuple[str, ...]
    num_open: int

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.exercise} has no hints; its check gives one for each mistake."
        lines = [f"hint {n + 1} of {len(self.steps)} ({STEPS[n]}): {self.steps[n]}" for n in range(self.num_open)]
        if self.num_open < len(self.steps):
            lines.append(f'more: hint("{self.exercise}") again')
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.steps:
            return f"<div>{html.escape(str(self))}</div>"
        parts = "".join(self._step(n) for n in range(len(self.steps)))
        style = "border-left:5px solid var(--jp-info-color1, #0277bd); padding:0.2em 0.9em; max-width:60em"
        name = f"<code style='background:none; padding:0'>{html.escape(self.exercise)}</code>"
        return f"<div style='{style}'><b>Hints</b> {name}{parts}</div>"

    def _step(self, n: int) -> str:
        summary = f"<summary style='cursor:pointer'>{n + 1} of {len(self.steps)}: {STEPS[n]}</summary>"
        text = html.escape(self.steps[n]).replace("\n", "<br>")
        body = f"<div style='padding:0.2em 0 0.2em 1.2em'>{text}</div>"
        return f"<details{' open' if n < self.num_open else ''} style='margin-top:0.3em'>{summary}{body}</details>"


def hint(exercise: str) -> Hints:
    """Show the first hint of an exercise, and one step more each time it is asked again in this session.

    Raises ValueError for an exercise that does not exist, listing those of the lesson.
    """
    steps = find_exercise(exercise).hints
    _shown[exercise] = min(_shown.get(exercise, 0) + 1, len(steps))
    return Hints(exercise, steps, _shown[exercise])
