"""Building a lesson: answers are blanked, what is in step is left, and so is what a learner works in."""

import re
import subprocess

import nbformat
import pytest

from labs import in_step, lessons
from labs.lessons import BEGIN, END, STUB, LessonError, find_lessons


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


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


def work(kind: str, notebook) -> None:
    """Do to a learner's notebook what learners do."""
    cell = notebook.cells[1]
    if kind == "answered, outputs cleared":
        cell.source = cell.source.replace(STUB, "return 2 * x")
    elif kind == "answered below the stub as a comment":
        cell.source = cell.source.replace(STUB, f"# {STUB}\n    return 2 * x")
    elif kind == "run":
        cell.execution_count, cell.outputs = 1, [nbformat.v4.new_output("stream", text="mine")]
    elif kind == "run, prints nothing":
        cell.execution_count = 1
    elif kind == "a cell added":
        notebook.cells.append(nbformat.v4.new_code_cell("mine = 1"))
    elif kind == "saved":
        notebook.metadata["language_info"]["version"] = "3.12.1"


WORK = (
    "answered, outputs cleared",
    "answered below the stub as a comment",
    "run",
    "run, prints nothing",
    "a cell added",
)


def worked_in(made, kind: str) -> bytes:
    lessons.build(made)
    notebook = read(made.learner)
    work(kind, notebook)
    nbformat.write(notebook, made.learner)
    return made.learner.read_bytes()


@pytest.mark.parametrize("kind", WORK)
def test_work_in_a_learner_notebook_is_not_overwritten(made, kind):
    before = worked_in(made, kind)
    made.source.write_text(SOURCE.replace("double(4)", "double(5)"))
    with pytest.raises(LessonError, match="holds somebody's work, which is left alone"):
        lessons.build(made)
    assert made.learner.read_bytes() == before
    assert "holds somebody's work" in lessons.check([made])[0]
    made.learner.rename(made.learner.with_name("elsewhere"))
    assert made.learner in lessons.build(made) and lessons.check([made]) == []


def test_a_notebook_that_was_only_saved_is_built_again(made):
    worked_in(made, "saved")
    assert "as when an editor has saved it; try: make notebooks" in lessons.check([made])[0]
    assert lessons.build(made) == [made.learner]


def test_what_a_merge_has_left_of_a_notebook_is_said_and_left_alone(made):
    lessons.build(made)
    made.learner.write_text("<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> theirs\n")
    made.solution.write_text(made.learner.read_text())
    assert in_step.difference(made.learner, made.expected()[made.learner]).startswith("is no notebook any more")
    with pytest.raises(LessonError, match="left alone"):
        lessons.build(made)
    assert in_step.difference(made.solution, made.expected()[made.solution]) is None, "that one is nobody's work"


def test_work_in_one_lesson_keeps_no_other_from_being_built(made, monkeypatch, capsys):
    worked_in(made, "run")
    made.source.write_text(SOURCE.replace("double(4)", "double(5)"))
    other = made.source.with_name("01_other.md")
    other.write_text(SOURCE)
    monkeypatch.setattr(lessons, "find_lessons", lambda names: find_lessons(made.source.parent.parent))
    assert lessons.main(["build"]) == 1
    assert "01_other: built" in (printed := capsys.readouterr()).out and "00_small.ipynb holds" in printed.err


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def is_left_alone(made) -> bool:
    return in_step.is_worked_in(made.learner, made.expected()[made.learner])


@pytest.mark.parametrize("kind", [*WORK, "saved"])
def test_the_tests_leave_alone_what_a_learner_works_in_and_judge_what_is_committed(made, kind):
    folder = made.source.parent.parent
    lessons.build(made)
    assert not is_left_alone(made), "there is no git here, so a difference is a fault"
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it was built")
    assert not is_left_alone(made), "it is in step"
    worked_in(made, kind)
    assert is_left_alone(made)
    source = made.source.read_text()
    made.source.write_text(source.replace("Some prose.", "Other prose."))
    assert not is_left_alone(made), "the source has changed and was not built"
    made.source.write_text(source)
    git(folder, "commit", "-qam", "work that nobody should commit")
    assert not is_left_alone(made)


def test_a_learner_notebook_that_was_edited_in_place_of_its_source_is_judged(made):
    folder = made.source.parent.parent
    lessons.build(made)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it was built")
    notebook = read(made.learner)
    notebook.cells[0].source += " Added in the wrong place."
    nbformat.write(notebook, made.learner)
    assert not is_left_alone(made) and "differs from its source" in lessons.check([made])[0]


def test_a_cell_that_fails_stops_the_build(made):
    made.source.write_text(SOURCE.replace(":tags: [raises-exception]\n", "").replace("double(4)", "undefined"))
    with pytest.raises(LessonError, match="undefined"):
        lessons.build(made)


def test_an_unknown_lesson_is_named_with_the_known_ones():
    with pytest.raises(LessonError, match="'99'.*00_start_here"):
        find_lessons(names=["99"])


def test_a_folder_that_nobody_may_write_is_said_in_a_sentence(made, monkeypatch, capsys):
    """As a plain file in the folder's place, since the superuser may write anywhere."""
    (made.source.parent.parent / "notebooks").write_text("in the way")
    monkeypatch.setattr(lessons, "find_lessons", lambda names: [made])
    assert lessons.main(["build"]) == 1
    assert re.search("^lessons: 00_small cannot be written: .*notebooks", capsys.readouterr().err, re.M)
