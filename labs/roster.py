"""A group's progress on one page, from the files that learners hand in. Reads them, and changes none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from labs.checks.exercise import all_exercises
from labs.progress_file import parsed

MOST_NAMED = 5  # exercises that are named below the table


@dataclass(frozen=True)
class Learner:
    """One file: whose it is, {exercise: best state}, and what must be known of it."""

    name: str
    best: dict[str, str]
    note: str = ""

    def num_passed(self, exercises: Iterable[str]) -> int:
        return sum(self.best.get(name) == "passed" for name in exercises)


@dataclass(frozen=True)
class Roster:
    """All learners beside all lessons; `lessons` is {"NN": names of its exercises}."""

    lessons: dict[str, tuple[str, ...]]
    learners: tuple[Learner, ...]

    def to_json(self) -> str:
        """Return one JSON object: learners (learner, passed, total, note, exercises {name: best state})."""
        names = all_exercises()
        rows = [
            {"learner": one.name, "passed": one.num_passed(names), "total": len(names), "note": one.note}
            | {"exercises": one.best}
            for one in self.learners
        ]
        return json.dumps({"learners": rows}, indent=2)

    def __str__(self) -> str:
        columns = [*self.lessons.values(), all_exercises()]
        rows = [["passed in lesson", *self.lessons, "all"], ["exercises", *(str(len(names)) for names in columns)]]
        for one in self.learners:
            none = "?" if one.note and not one.best else "·"
            rows.append([one.name, *(str(one.num_passed(names) or none) for names in columns)])
        widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
        lines = ["  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]) for first, *others in rows]
        return "\n".join(
            [*lines, *self._stuck(), *(f"note: {one.name}: {one.note}" for one in self.learners if one.note)]
        )

    def _stuck(self) -> list[str]:
        """Name the exercises that most learners have tried without passing."""
        tried = Counter(name for one in self.learners for name, best in one.best.items() if best == "failed")
        worst = sorted(tried.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMED]
        return ["tried, not passed yet: " + ", ".join(f"{name} ({count})" for name, count in worst)] if worst else []


def read_roster(paths: Iterable[Path], titles: dict[str, str]) -> Roster:
    """Read one file a learner; `titles` is {lesson: "NN lesson"} in order."""
    names = all_exercises()
    lessons = {
        title.partition(" ")[0]: tuple(name for name in names if name.partition(".")[0] == lesson)
        for lesson, title in titles.items()
    }
    return Roster(lessons, _told_apart([(path, read_learner(path)) for path in paths]))


def _told_apart(read: list[tuple[Path, Learner]]) -> tuple[Learner, ...]:
    """Put the folder before a name that several files have, as where each learner has a folder."""
    count = Counter(one.name for _, one in read)
    return tuple(
        replace(one, name=f"{path.resolve().parent.name}/{one.name}") if count[one.name] > 1 else one
        for path, one in read
    )


def read_learner(path: Path) -> Learner:
    """Read what `progress --json` printed, or the file that progress is kept in; what is neither becomes a note."""
    name = path.resolve().parent.name if path.name.startswith(".") else path.stem
    try:
        best = _best(path.read_text(encoding="utf-8"))
    except OSError as error:
        return Learner(name, {}, f"{path} cannot be read: {error.strerror or error}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"is of {error}" if str(error).startswith("version") else "is damaged, or no file of progress"
        return Learner(name, {}, f"{path} {reason}; ask for python -m labs progress --json > {name}.json again")
    unknown = sorted(best.keys() - set(all_exercises()))
    note = f"not in this version of the course, and left out: {', '.join(unknown)}" if unknown else ""
    return Learner(name, {key: state for key, state in best.items() if key not in unknown}, note)


def _best(text: str) -> dict[str, str]:
    """Return {exercise: best state} of either form."""
    data = json.loads(text)
    if "version" in data:
        return {name: entry.best for name, entry in parsed(text).items()}
    return {f"{row['lesson']}.{row['exercise']}": str(row["best"]) for row in data["exercises"]}
