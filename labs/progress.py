"""The board: every lesson, every exercise, and how far you are. `labs.progress()` and `python -m labs progress`."""

from __future__ import annotations

import argparse
import html
import json
import sys
import types
from dataclasses import asdict, dataclass
from pathlib import Path

from labs.checks.card import COLORS
from labs.checks.exercise import all_exercises, find_exercise
from labs.checks.verdict import SIGNS
from labs.progress_file import NEW, ROOT, Entry, progress_file
from labs.roster import read_roster


@dataclass(frozen=True)
class Standing:
    """One exercise and what is kept of it."""

    lesson: str
    exercise: str
    entry: Entry

    @property
    def words(self) -> str:
        """Its best state; and the latest, where that is another."""
        best, latest = self.entry.best, self.entry.latest
        now = "" if best == latest or latest == "not attempted" else f" (latest: {latest})"
        return f"{SIGNS[best]} {best}{now}"

    @property
    def attempts(self) -> str:
        count = self.entry.attempts
        return "" if count == 0 else f"{count} attempt{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Board:
    """All exercises, grouped by lesson in the order of the course. `note` is what must be known of the file."""

    lessons: tuple[tuple[str, tuple[Standing, ...]], ...]
    note: str = ""

    @property
    def standings(self) -> tuple[Standing, ...]:
        return tuple(standing for _, standings in self.lessons for standing in standings)

    def to_json(self) -> str:
        """Return one JSON object for an instructor: passed, total, exercises (lesson, exercise, best, latest, ...)."""
        rows = [{"lesson": s.lesson, "exercise": s.exercise, **asdict(s.entry)} for s in self.standings]
        data = {"passed": _num_passed(self.standings), "total": len(rows), "note": self.note, "exercises": rows}
        return json.dumps(data, indent=2)

    def __str__(self) -> str:
        lines = [_summary(self.standings)]
        for title, standings in self.lessons:
            lines.append(f"{title}: {_of(standings)}")
            width = max((len(s.exercise) for s in standings), default=0)
            lines += [f"  {s.exercise:<{width}}  {s.words:<16}  {s.attempts}".rstrip() for s in standings]
        return "\n".join([*lines, f"note: {self.note}"] if self.note else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(_html_lesson(title, standings) for title, standings in self.lessons)
        note = f"<div><b>Note</b> {html.escape(self.note)}</div>" if self.note else ""
        caption = f"<caption style='text-align:left'><b>{_summary(self.standings)}</b></caption>"
        return f"<table style='color:inherit; border-collapse:collapse'>{caption}{rows}</table>{note}"


def board() -> Board:
    """Read what is kept and set it beside all exercises that there are."""
    kept = progress_file().read()
    titles = _titles()
    found: dict[str, list[Standing]] = {title: [] for title in titles.values()}
    for name in all_exercises():
        lesson, _, exercise = name.partition(".")
        standing = Standing(lesson, exercise, kept.entries.get(name, NEW))
        found.setdefault(titles.get(lesson, lesson), []).append(standing)
    return Board(tuple((title, tuple(standings)) for title, standings in found.items()), kept.note)


def reset(exercise: str) -> Board:
    """Forget one exercise, "lesson.exercise", and return the board. Raises ValueError for an unknown one."""
    find_exercise(exercise)
    note = progress_file().reset(exercise)
    found = board()
    return Board(found.lessons, found.note or note)


def _titles() -> dict[str, str]:
    """Return {lesson: "NN lesson"} of the course's notebooks, in order."""
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return {name[3:]: name.replace("_", " ") for name in names}


def _summary(standings: tuple[Standing, ...]) -> str:
    return f"{_num_passed(standings)} of {len(standings)} exercises passed"


def _of(standings: tuple[Standing, ...]) -> str:
    return f"{_num_passed(standings)} of {len(standings)}" if standings else "no exercises"


def _num_passed(standings: tuple[Standing, ...]) -> int:
    return sum(standing.entry.best == "passed" for standing in standings)


def _html_lesson(title: str, standings: tuple[Standing, ...]) -> str:
    cell = "padding:0.15em 1.2em 0.15em 0; text-align:left"
    rule = "border-top:1px solid var(--jp-border-color2, #b0b0b0)"
    head = (
        f"<tr style='background:none; {rule}'><th scope='rowgroup' colspan='2' style='{cell}'>{html.escape(title)}</th>"
        f"<th style='{cell}'>{_of(standings)}</th></tr>"
    )
    rows = "".join(
        f"<tr style='background:none'>"
        f"<td style='{cell}; padding-left:1.2em'>"
        f"<code style='background:none; padding:0'>{html.escape(s.exercise)}</code></td>"
        f"<td style='{cell}'>{_html_words(s)}</td><td style='{cell}'>{s.attempts}</td></tr>"
        for s in standings
    )
    return head + rows


def _html_words(standing: Standing) -> str:
    """The sign in its colour; the word says the same without it."""
    sign, _, words = standing.words.partition(" ")
    if standing.entry.best == "not attempted":
        return f"<span style='opacity:0.7'>{sign} {words}</span>"
    return f"<b><span style='color:{COLORS[standing.entry.best]}'>{sign}</span> {words}</b>"


def main(arguments: list[str] | None = None) -> int:
    """Print the board, or a group's from the files of all its learners; or forget one exercise first (--reset)."""
    parser = argparse.ArgumentParser(prog="python -m labs progress", description="Show which exercises are solved.")
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="a group's: what --json printed, a file each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for an instructor")
    parser.add_argument("--reset", metavar="LESSON.EXERCISE", help="forget one exercise")
    options = parser.parse_args(arguments)
    if options.files and options.reset:
        parser.error("--reset changes your own progress, FILE shows that of others; give one of them")
    try:
        if options.files:
            found = read_roster(options.files, _titles())
        else:
            found = reset(options.reset) if options.reset else board()
    except ValueError as error:
        print(f"progress: {error}", file=sys.stderr)
        return 2
    print(found.to_json() if options.json else found)
    return 0


class _CallableModule(types.ModuleType):
    """Lets `labs.progress()` show the board: the name is this module as soon as anyone imports it."""

    def __call__(self) -> Board:
        return board()


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
