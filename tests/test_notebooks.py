"""Laws of the notebooks. That they run and give the outputs that are kept is nbval's part: pytest collects
notebooks/ and solutions/ themselves (pyproject.toml), a kernel at a time.
"""

import re
from pathlib import Path

import nbformat
import pytest

from labs import lessons
from labs.lessons import BEGIN, END, STUB, LessonError, find_lessons

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
    assert lessons.check([lesson]) == [], "run: make notebooks"


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
        assert not belittling, cell.source
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


def test_blanking_replaces_each_answer_by_one_stub_of_its_indentation():
    source = f"def f(x):\n    {BEGIN}\n    y = x\n    return y\n    {END}\n\nz = 1\n{BEGIN}\nz = 2\n{END}"
    assert lessons.blank(source) == f"def f(x):\n    {STUB}\n\nz = 1\n{STUB}"


@pytest.mark.parametrize("source", [BEGIN, END, f"{BEGIN}\n{BEGIN}\n{END}", f"{BEGIN}\n{END}\n{END}"])
def test_an_answer_without_both_its_ends_is_refused(source):
    with pytest.raises(LessonError, match="SOLUTION"):
        lessons.blank(source)


SOURCE = """# A title

Some prose.

```{code-cell} ipython3
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
```

```{code-cell} ipython3
:tags: [raises-exception]

print(double(4))
```
"""


@pytest.fixture
def made(tmp_path):
    """A small lesson in a folder of its own."""
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "00_small.md").write_text(SOURCE)
    return find_lessons(tmp_path)[0]


def test_a_lesson_is_built_once_and_again_only_when_its_source_changes(made):
    assert len(lessons.build(made)) == 2 and lessons.check([made]) == []
    assert "8" in str(code_cells(read(made.solution))[1].outputs)
    assert lessons.build(made) == []
    made.source.write_text(SOURCE.replace("double(4)", "double(5)"))
    assert [problem.split()[0] for problem in lessons.check([made])] == [
        "solutions/00_small.ipynb",
        "notebooks/00_small.ipynb",
    ]


def test_a_change_of_prose_keeps_the_outputs_of_the_code(made):
    lessons.build(made)
    marked = read(made.solution)
    code_cells(marked)[1].outputs[0].text = "marked\n"
    nbformat.write(marked, made.solution)
    made.source.write_text(SOURCE.replace("Some prose.", "Other prose."))
    lessons.build(made)
    assert "Other prose." in read(made.solution).cells[0].source and lessons.check([made]) == []
    assert code_cells(read(made.solution))[1].outputs[0].text == "marked\n"
    made.source.write_text(SOURCE.replace("2 * x", "3 * x"))
    lessons.build(made)
    assert "12" in code_cells(read(made.solution))[1].outputs[0].text


def test_two_builds_give_the_same_files(made):
    lessons.build(made)
    first = made.solution.read_bytes(), made.learner.read_bytes()
    lessons.build(made, force=True)
    assert (made.solution.read_bytes(), made.learner.read_bytes()) == first


def test_changing_one_cell_leaves_the_ids_of_the_others_alone(made):
    before = [cell.id for cell in lessons.read_source(made.source).cells]
    made.source.write_text(SOURCE.replace("Some prose.", "Some prose.\n\n+++\n\nMore of it."))
    after = [cell.id for cell in lessons.read_source(made.source).cells]
    assert len(after) == len(before) + 1 and set(before) < set(after)


def test_work_in_a_learner_notebook_is_not_overwritten(made):
    lessons.build(made)
    worked_in = read(made.learner)
    worked_in.cells[1].source = "mine"
    worked_in.cells[1].outputs = [nbformat.v4.new_output("stream", text="mine")]
    nbformat.write(worked_in, made.learner)
    with pytest.raises(LessonError, match="somebody works in it"):
        lessons.build(made)
    assert read(made.learner).cells[1].source == "mine"


def test_a_cell_that_fails_stops_the_build(made):
    made.source.write_text(SOURCE.replace(":tags: [raises-exception]\n", "").replace("double(4)", "undefined"))
    with pytest.raises(LessonError, match="undefined"):
        lessons.build(made)


def test_an_unknown_lesson_is_named_with_the_known_ones():
    with pytest.raises(LessonError, match="'99'.*00_start_here"):
        find_lessons(names=["99"])
