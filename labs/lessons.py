"""Lesson source -> learner and solution notebooks: `python -m labs.lessons build | check`.

solutions/NN_name.md is the only source. From it come solutions/NN_name.ipynb (answers in place, executed, outputs kept)
and notebooks/NN_name.ipynb (answers blanked, no outputs).
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from labs.checks import STUB_TEXT
from labs.in_step import difference, holds_work, with_kept_outputs
from labs.whole import write_whole

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = f'raise NotImplementedError("{STUB_TEXT}")'
CELL_TIMEOUT_SECONDS = 180
METADATA = {
    "kernelspec": {"display_name": "Distributed Training", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WORK = "holds somebody's work, which is left alone; for a new one move it to another folder, then: make notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class LessonError(ValueError):
    """A lesson that cannot be built; the text names the file, the place and what to try."""


@dataclass(frozen=True)
class Lesson:
    """Where one lesson lives."""

    source: Path

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def solution(self) -> Path:
        return self.source.with_suffix(".ipynb")

    @property
    def learner(self) -> Path:
        return self.source.parent.parent / "notebooks" / self.solution.name

    def expected(self) -> dict[Path, NotebookNode]:
        """Return both notebooks as the source has them, without outputs."""
        solved = read_source(self.source)
        return {self.solution: solved, self.learner: blanked(solved)}


def find_lessons(root: Path = ROOT, names: Iterable[str] = ()) -> list[Lesson]:
    """List the lessons in order; `names` keeps those that start with one of them ("00", "08_strategy_lab").

    Raises LessonError for a name that no lesson has.
    """
    found = [Lesson(path) for path in sorted((root / "solutions").glob("[0-9][0-9]_*.md"))]
    for name in names:
        if not any(lesson.name.startswith(name) for lesson in found):
            raise LessonError(f"no lesson is called {name!r}; there are {', '.join(lesson.name for lesson in found)}")
    return [lesson for lesson in found if not names or lesson.name.startswith(tuple(names))]


def read_source(path: Path) -> NotebookNode:
    """Read a MyST Markdown lesson as a notebook with stable cell ids and fixed metadata."""
    notebook = jupytext.read(path, fmt="md:myst")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        cell.id = _cell_id(cell, seen)
    return notebook


def _cell_id(cell: NotebookNode, seen: Counter[str]) -> str:
    """Name a cell by its first line, so that changing one cell leaves the ids of all others alone."""
    first_line = f"{cell.cell_type}:{cell.source.strip().partition(chr(10))[0]}"
    seen[first_line] += 1
    return hashlib.sha256(f"{first_line}:{seen[first_line]}".encode()).hexdigest()[:12]


def blanked(solved: NotebookNode) -> NotebookNode:
    """Return a copy for learners: every answer replaced by a line that raises NotImplementedError."""
    notebook = copy.deepcopy(solved)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = blank(cell.source)
            cell.outputs, cell.execution_count = [], None
    return notebook


def blank(source: str) -> str:
    """Replace each answer of a cell by one stub line of the same indentation.

    Raises LessonError when a BEGIN has no END, or an END no BEGIN.
    """
    lines, inside = [], False
    for line in source.split("\n"):
        if line.strip() in (BEGIN, END):
            if inside == (line.strip() == BEGIN):
                raise LessonError(f"{BEGIN!r} and {END!r} do not alternate in the cell that starts {source[:60]!r}")
            inside = not inside
            if inside:
                lines.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif not inside:
            lines.append(line)
    if inside:
        raise LessonError(f"{BEGIN!r} has no {END!r} in the cell that starts {source[:60]!r}")
    return "\n".join(lines)


def execute(notebook: NotebookNode, folder: Path, record_timing: bool = False) -> NotebookNode:
    """Run a copy of the notebook in `folder` and return it with tidy outputs, and on request with times of its cells.

    Raises LessonError when a cell fails that is not tagged raises-exception.
    """
    notebook = copy.deepcopy(notebook)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=record_timing,
        store_widget_state=False,
    )
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # this checkout's labs
    try:
        client.execute(env={**os.environ, "PYTHONPATH": search_path, "LABS_PROGRESS_FILE": "off"})
    except CellExecutionError as error:
        raise LessonError(f"a cell failed:\n{error}") from None
    return tidied(notebook)


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Drop what ties outputs to this machine or to a living kernel: paths, widget models, version of Python."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(WIDGET_VIEW, None)  # without its model it would show as an error
            if "text" in output:
                output.text = _without_paths(output.text)
            for kind, value in output.get("data", {}).items():
                output.data[kind] = _without_paths(value) if isinstance(value, str) else value
            if output.output_type == "error":
                output.evalue = _without_paths(output.evalue)
                output.traceback = [_without_paths(line) for line in output.traceback]
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data", True)]  # a notice that was erased
    return notebook


def _without_paths(text: str) -> str:
    if sys.prefix != sys.base_prefix:  # an environment that need not stand in this checkout
        text = text.replace(sys.prefix, ".venv")
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    return re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "this cell", text)


def check(lessons: Iterable[Lesson]) -> list[str]:
    """List the notebooks that are out of step with their source, each with the reason."""
    problems = []
    for lesson in lessons:
        for path, expected in lesson.expected().items():
            if problem := difference(path, expected):
                place = f"{path.parent.name}/{path.name}"
                is_work = path == lesson.learner and holds_work(path, expected)
                problems.append(f"{place} {WORK if is_work else f'{problem}; try: make notebooks'}")
    return problems


def build(lesson: Lesson, force: bool = False) -> list[Path]:
    """Write the notebooks of a lesson that are out of step; returns what was written.

    The solution is executed when its code changed, or `force` is on; a change of prose leaves the outputs as they are.
    Raises LessonError when a cell fails, or when the learner's notebook holds somebody's work and force is off.
    """
    written = []
    for path, expected in lesson.expected().items():
        if not force and difference(path, expected) is None:
            continue
        if path == lesson.solution:
            kept = None if force else with_kept_outputs(path, expected)
            expected = kept or execute(expected, path.parent)
        elif not force and holds_work(path, expected):
            raise LessonError(f"notebooks/{path.name} {WORK}")
        path.parent.mkdir(exist_ok=True)
        write_whole(path, nbformat.writes(expected) + "\n")
        written.append(path)
    return written


def main(argv: list[str] | None = None) -> int:
    """Build or check the notebooks; returns 1 when something is out of step or cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m labs.lessons", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("build", "check"))
    parser.add_argument("names", nargs="*", help="lessons, by the start of their name; all when none is given")
    parser.add_argument("--force", action="store_true", help="build also what is in step, or was worked in")
    options = parser.parse_args(argv)
    try:
        lessons = find_lessons(names=options.names)
        problems = _build_all(lessons, options.force) if options.command == "build" else check(lessons)
    except LessonError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"lessons: {problem}", file=sys.stderr)
    return int(bool(problems))


def _build_all(lessons: list[Lesson], force: bool) -> list[str]:
    """Build what can be built, and list what cannot."""
    problems = []
    for lesson in lessons:
        try:
            paths = build(lesson, force)
            print(f"{lesson.name}: {'built' if paths else 'in step'}", flush=True)
        except LessonError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{lesson.name} cannot be written: {error.strerror or error}: {error.filename}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
