"""Laws of the notebooks. That they run and give the outputs that are kept is nbval's part: pytest collects
notebooks/ and solutions/ themselves (pyproject.toml), a kernel at a time.
"""

import re
from pathlib import Path

import nbformat
import pytest

from labs import lessons
from labs.lessons import BEGIN, END, STUB, find_lessons

LESSONS = find_lessons()
MAX_CELLS, MAX_CODE_LINES, MAX_WORDS = 45, 12, 80
MAX_CHARACTERS = 92  # of a code line: what JupyterLab shows beside its file list on a laptop, without scrolling
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def both(lesson):
    return [(path.parent.name, read(path)) for path in (lesson.learner, lesson.solution)]


@every_lesson
def test_both_notebooks_are_in_step_with_their_source(lesson):
    problems = lessons.check([lesson])
    assert problems == [], "\n".join(problems)


def test_every_notebook_has_a_source():
    names = {path.stem for folder in ("notebooks", "solutions") for path in (lessons.ROOT / folder).glob("*.ipynb")}
    assert names <= {lesson.name for lesson in LESSONS}


@every_lesson
def test_filling_the_answers_into_the_learner_notebook_gives_the_solution(lesson):
    answers = re.compile(rf"^ *{BEGIN}$.*?^ *{END}$", re.MULTILINE | re.DOTALL)
    for learner, solution in zip(read(lesson.learner).cells, read(lesson.solution).cells, strict=True):
        source = learner.source
        for answer in answers.findall(solution.source):
            indented_stub = re.compile(rf"^ *{re.escape(STUB)}$", re.MULTILINE)
            source = indented_stub.sub(lambda _, answer=answer: answer, source, count=1)
        assert source == solution.source


@every_lesson
def test_a_learner_notebook_has_stubs_and_neither_answers_nor_outputs(lesson):
    notebook = read(lesson.learner)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert BEGIN not in text and END not in text
    assert text.count(STUB) == lesson.source.read_text().count(BEGIN) >= 1
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))


@every_lesson
def test_a_solution_notebook_was_run_to_its_end_without_an_unexpected_error(lesson):
    cells = code_cells(read(lesson.solution))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        raised = [output for output in cell.outputs if output.output_type == "error"]
        assert bool(raised) == ("raises-exception" in cell.metadata.get("tags", [])), cell.source


@every_lesson
def test_a_solution_passes_every_check_it_calls(lesson):
    for cell in code_cells(read(lesson.solution)):
        if re.search(r"^check\(", cell.source, re.MULTILINE):
            assert "passed." in str(cell.outputs), cell.source


@every_lesson
def test_no_notebook_knows_the_machine_it_was_built_on(lesson):
    for place, notebook in both(lesson):
        assert notebook.metadata == lessons.METADATA, place
        assert all("execution" not in cell.metadata for cell in notebook.cells)
    for path in (lesson.learner, lesson.solution):
        text = path.read_text()
        assert "metadata.widgets" not in text and lessons.WIDGET_VIEW not in text
        for place in (str(lessons.ROOT), str(Path.home()), "/tmp/", "/home/", "/.venv", "ipykernel_"):
            assert place not in text, f"{place} stands in {path.name}"


@every_lesson
def test_a_lesson_keeps_its_length(lesson):
    notebook = read(lesson.solution)
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    assert len(kinds) <= MAX_CELLS
    assert "ccc" not in kinds, "three code cells in a row"
    for cell in code_cells(notebook):
        assert len(cell.source.splitlines()) <= MAX_CODE_LINES, cell.source
        assert max(map(len, cell.source.splitlines())) <= MAX_CHARACTERS, cell.source


@every_lesson
def test_the_prose_respects_the_reader(lesson):
    for cell in read(lesson.learner).cells:
        if cell.cell_type != "markdown":
            continue
        belittling = re.search(r"\b(simply|just|obviously|of course|trivial(ly)?|easy|easily)\b", cell.source, re.I)
        assert not belittling, f"{belittling[0]!r} calls a thing easy: {cell.source}"
        for paragraph in re.split(r"\n\s*\n|\n(?=[-*|#>] |\d+\. )", cell.source):
            assert len(paragraph.split()) <= MAX_WORDS, paragraph


@every_lesson
def test_a_lesson_has_its_header_and_its_foot(lesson):
    text = "\n".join(cell.source for cell in read(lesson.learner).cells)
    parts = ("**Question**", "**You will be able to**", "**Time**", "**Builds on**", "**For the instructor**")
    for part in (*parts, "## Key points", "## Sources", "## Test yourself"):
        assert part in text, part
    assert text.count("<details>") >= 3, "three questions with answers that fold out"


LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
NAMED = re.compile(r"\blessons?\s+(\d\d(?:(?:,| and| to|, and)\s+\d\d)*)", re.I)


def relative_links(text):
    """[(what it says, where it leads)] of the links that stay inside the course."""
    return [(said, to) for said, to in LINK.findall(text) if not re.match(r"[a-z]+:|#", to)]


def named_lessons(text):
    """Numbers of the lessons that a text names, be it "lesson 02" or "Lessons 01, 03 and 05"."""
    return {number for names in NAMED.findall(text) for number in re.findall(r"\d\d", names)}


def prose(path):
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


@every_lesson
def test_every_relative_link_of_a_lesson_leads_to_a_file_and_to_the_lesson_it_names(lesson):
    for path in (lesson.learner, lesson.solution):
        for said, to in relative_links(prose(path)):
            target = path.parent / to.partition("#")[0]
            assert target.is_file(), f"{path.name}: [{said}]({to}) leads nowhere"
            assert named_lessons(said) <= {target.name[:2]}, f"{path.name}: [{said}]({to}) is another lesson"


@every_lesson
def test_every_lesson_that_a_lesson_names_exists(lesson):
    assert named_lessons(prose(lesson.learner)) <= {other.name[:2] for other in LESSONS}


def test_the_laws_of_links_see_every_form_of_them():
    links = "[Lesson 02](02_a.ipynb), [docs](https://x.org/a), <https://x.org>, [here](#b)"
    text = f"{links}; lessons 01, 03 and 05, lesson\n07"
    assert relative_links(text) == [("Lesson 02", "02_a.ipynb")]
    assert named_lessons(text) == {"01", "02", "03", "05", "07"}
