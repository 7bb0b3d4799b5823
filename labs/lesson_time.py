"""How long a lesson takes: `python -m labs.lesson_time` measures its computing and counts its reading.

Computing: seconds of all cells of the solved lesson, run now in one kernel. Reading: words and lines of the learner's
notebook at the paces below. Exercises: the minutes that the lesson's own header gives them; no count can know those.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nbformat import NotebookNode

from labs.lessons import Lesson, LessonError, execute, find_lessons, read_source

WORDS_A_MINUTE = 150  # to study; plain reading is about 240 (Brysbaert 2019, doi 10.1016/j.jml.2019.104047)
CODE_LINES_A_MINUTE = 20
MINUTES_A_PREDICTION, MINUTES_AN_OUTPUT = 0.5, 0.2  # to write a number down; to look at what a cell shows
HEADER = re.compile(
    r"^\*\*Time\*\* (?P<all>\d+) minutes: (?P<reading>\d+) of reading and running, "
    r"(?:(?P<lab>\d+) in the lab, )?(?P<exercises>\d+) of (?:exercises|decisions)\.",
    re.M,
)
COLUMNS = "lesson words code predictions exercises counted stated computing".split()


@dataclass(frozen=True)
class LessonTime:
    """What of a lesson can be counted, and what its header states [minutes]."""

    name: str
    num_words: int
    num_code_lines: int
    num_code_cells: int
    num_predictions: int
    num_exercises: int
    stated_minutes: int
    stated_reading_minutes: int
    stated_lab_minutes: int
    stated_exercise_minutes: int

    @property
    def reading_minutes(self) -> float:
        """Minutes to read prose and code, look at outputs and write predictions down; computing comes on top."""
        reading = self.num_words / WORDS_A_MINUTE + self.num_code_lines / CODE_LINES_A_MINUTE
        looking = self.num_code_cells * MINUTES_AN_OUTPUT
        return reading + looking + self.num_predictions * MINUTES_A_PREDICTION


def count(lesson: Lesson) -> LessonTime:
    """Count words, lines, predictions and exercises of what the learner opens.

    Raises LessonError when the header does not state the minutes in the form that every lesson has.
    """
    cells = lesson.expected()[lesson.learner].cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code_cells = [cell.source for cell in cells if cell.cell_type == "code"]
    code = "\n".join(code_cells)
    stated = HEADER.search(prose)
    if stated is None:
        raise LessonError(
            f"{lesson.source.name} does not say how long it takes; write, as a paragraph of its header: "
            "**Time** 60 minutes: 30 of reading and running, 30 of exercises."
        )
    return LessonTime(
        lesson.name,
        len(re.sub(r"</?\w[^<>\n]*>|\]\([^)]*\)", " ", prose).split()),
        sum(bool(line.strip()) for line in code.splitlines()),
        len(code_cells),
        prose.count("**Predict"),
        len(re.findall(r"\bcheck\(\"", code)),
        *(int(stated[part] or 0) for part in ("all", "reading", "lab", "exercises")),
    )


def computing_seconds(notebook: NotebookNode) -> list[float]:
    """Return the seconds of each code cell of a notebook that was executed with its timing recorded."""
    return [_seconds(cell) for cell in notebook.cells if cell.cell_type == "code"]


def _seconds(cell: NotebookNode) -> float:
    marks = cell.metadata["execution"]
    begin, end = (datetime.fromisoformat(marks[name]) for name in ("iopub.execute_input", "shell.execute_reply"))
    return (end - begin).total_seconds()


def report(lessons: Iterable[Lesson]) -> None:
    """Run each solved lesson and print a row for it: what was counted, what is stated, what its cells took.

    Raises LessonError when a cell fails, or a header states no minutes.
    """
    print("{:22}{:>7}{:>6}{:>13}{:>11}{:>13}{:>8}{:>11}".format(*COLUMNS))
    total = 0.0
    for lesson in lessons:
        time = count(lesson)
        seconds = computing_seconds(execute(read_source(lesson.source), lesson.source.parent, record_timing=True))
        total += sum(seconds)
        print(
            f"{time.name:22}{time.num_words:7}{time.num_code_lines:6}{time.num_predictions:13}{time.num_exercises:11}"
            f"{time.reading_minutes:9.0f} min{time.stated_reading_minutes:5} of {time.stated_minutes}"
            f"{sum(seconds):9.1f} s   slowest cell {max(seconds):.1f} s",
            flush=True,
        )
    print(f"computing, all of them: {total:.0f} s")


def main(argv: list[str] | None = None) -> int:
    """Time the named lessons, or all; returns 1 when one of them cannot be timed."""
    parser = argparse.ArgumentParser(prog="python -m labs.lesson_time", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="lessons, by the start of their name; all when none is given")
    try:
        report(find_lessons(names=parser.parse_args(argv).names))
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
