"""The board tells where a learner stands, and what is kept outlives kernels, two notebooks at once, and damage."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import labs
from labs import progress_file as files
from labs.checks import all_exercises
from labs.progress_file import VARIABLE, ProgressFile, progress_file

ROOT = Path(__file__).parent.parent
SUM, MEAN = "start_here.global_sum", "start_here.global_mean"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A file of progress of this test's own."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def _python(program: str, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_board_lists_every_exercise_under_its_lesson_with_its_state(kept):
    progress_file().record(SUM, "passed")
    progress_file().record(MEAN, "failed")
    board = labs.progress()
    assert {f"{s.lesson}.{s.exercise}" for s in board.standings} == set(all_exercises())
    lines = str(board).splitlines()
    assert lines[0] == f"1 of {len(all_exercises())} exercises passed"
    first = lines.index("00 start here: 1 of 2")
    assert lines[first + 1].split() == ["global_sum", "✓", "passed", "1", "attempt"]
    assert lines[first + 2].split() == ["global_mean", "✗", "failed", "1", "attempt"]
    page = re.sub("<[^>]*>", "", board._repr_html_())
    assert page.count("✓ passed") == 1 and page.count("✗ failed") == 1 and "01 memory math" in page


def test_what_passed_stays_passed_and_a_later_failure_is_said(kept):
    for state in ("failed", "passed", "failed"):
        progress_file().record(SUM, state)
    entry = progress_file().read().entries[SUM]
    assert (entry.best, entry.latest, entry.attempts) == ("passed", "failed", 3)
    assert "✓ passed (latest: failed)" in str(labs.progress())


def test_an_unsolved_or_blocked_check_is_no_attempt(kept):
    for state in ("not attempted", "blocked"):
        progress_file().record(SUM, state)
    entry = progress_file().read().entries[SUM]
    assert (entry.best, entry.attempts) == ("blocked", 0)
    assert labs.progress().to_json().count('"best": "passed"') == 0


def test_check_keeps_its_outcome(kept):
    from known_answers import stub

    labs.check(SUM, lambda number: number)
    labs.check(MEAN, stub)
    entries = progress_file().read().entries
    assert (entries[SUM].latest, entries[MEAN].latest) == ("failed", "not attempted")


def test_progress_survives_a_restart(kept):
    _python(f"from labs.progress_file import progress_file as p; p().record('{SUM}', 'passed')")
    assert _python("import labs; print(labs.progress())").startswith("1 of")


def test_two_notebooks_at_once_lose_nothing(kept):
    program = (
        "import sys; from labs.progress_file import progress_file\n"
        "for _ in range(40): progress_file().record(sys.argv[1], 'failed')"
    )
    notebooks = [subprocess.Popen([sys.executable, "-c", program, name], cwd=ROOT) for name in (SUM, MEAN, SUM)]
    assert [notebook.wait(timeout=60) for notebook in notebooks] == [0, 0, 0]
    entries = progress_file().read().entries
    assert (entries[SUM].attempts, entries[MEAN].attempts) == (80, 40)
    assert sorted(path.name for path in kept.parent.iterdir()) == ["progress.json", "progress.json.lock"]


def test_threads_of_one_kernel_lose_nothing(kept):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: progress_file().record(SUM, "failed"), range(60)))
    assert progress_file().read().entries[SUM].attempts == 60


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "exercises": {"start_here.global_sum": {"best": "great"}}}',
        '{"version": 1, "exercises": {"start_here.global_sum": null}}',
        "\udcff\udcfe",
    ],
)
def test_a_damaged_file_is_set_aside_and_said(kept, damage):
    kept.write_bytes(damage.encode("utf-8", "surrogateescape"))
    board = labs.progress()
    assert "progress.json.damaged-1" in str(board) and "set aside" in board._repr_html_()
    aside = kept.with_name("progress.json.damaged-1")
    assert aside.read_bytes() == damage.encode("utf-8", "surrogateescape")
    progress_file().record(SUM, "passed")
    assert labs.progress().note == "" and "1 of" in str(labs.progress())


def test_a_file_of_another_version_is_set_aside_and_not_called_damaged(kept):
    kept.write_text('{"version": 99, "exercises": {}}')
    note = labs.progress().note
    assert "is of version 99, and this course reads version 1; it was set aside" in note and "damaged;" not in note
    assert kept.with_name("progress.json.damaged-1").exists()


def test_a_check_that_finds_damage_says_so_on_its_card_and_keeps_its_outcome(kept):
    kept.write_text("half a fi")
    verdict = labs.check(SUM, lambda number: number)
    assert verdict.state == "failed" and "set aside" in verdict.note and "set aside" in str(verdict)
    assert progress_file().read().entries[SUM].latest == "failed"
    kept.write_text("again")
    labs.progress()
    assert {path.name for path in kept.parent.glob("*damaged*")} == {
        "progress.json.damaged-1",
        "progress.json.damaged-2",
    }


def test_progress_that_cannot_be_kept_is_a_note_and_no_error(tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("in the way")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a-file" / "progress.json"))
    verdict = labs.check(SUM, None)
    assert verdict.state == "not attempted" and "could not be kept" in verdict.note
    assert "could not be read" in labs.progress().note


def test_reset_forgets_one_exercise_and_no_other(kept, capsys):
    from labs.progress import main

    for name in (SUM, MEAN):
        progress_file().record(name, "passed")
    assert main(["--reset", SUM]) == 0
    assert "1 of" in capsys.readouterr().out
    assert set(progress_file().read().entries) == {MEAN}
    assert main(["--reset", "start_here.global_som"]) == 2
    assert "did you mean start_here.global_sum?" in capsys.readouterr().err


def test_the_command_prints_the_board_and_exports_json_for_an_instructor(kept):
    progress_file().record(SUM, "passed")
    command = [sys.executable, "-m", "labs", "progress"]
    board = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert board.returncode == 0 and board.stdout.startswith("1 of"), board.stderr
    exported = json.loads(subprocess.check_output([*command, "--json"], cwd=ROOT, text=True))
    assert (exported["passed"], exported["total"]) == (1, len(all_exercises()))
    mine = next(line for line in exported["exercises"] if (line["lesson"], line["exercise"]) == tuple(SUM.split(".")))
    assert mine["best"] == "passed" and mine["attempts"] == 1 and mine["passed_at"].endswith("Z")


@pytest.mark.parametrize(
    "before", ["", "import labs.progress;", "from labs import progress;", "from labs import check;"]
)
def test_the_board_is_called_the_same_whatever_was_imported_before_and_needs_no_torch(before):
    shown = _python(f"{before}import labs, sys; print(labs.progress()); print('torch' in sys.modules)")
    assert "exercises passed" in shown and shown.endswith("False\n")


def test_a_test_run_leaves_the_progress_of_the_course_alone(monkeypatch):
    assert os.environ[VARIABLE] == "off", "conftest.py says so for this process and every kernel that nbval starts"
    monkeypatch.delenv(VARIABLE)
    assert progress_file().path is None, "a run of pytest without this conftest.py keeps nothing either"
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(files.os, "access", lambda path, mode: True)  # this checkout may be read-only
    assert progress_file().path == ROOT / ".progress.json"
    assert "/.progress.json*" in (ROOT / ".gitignore").read_text()


def test_an_installed_course_keeps_progress_in_the_folder_for_state(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "ROOT", tmp_path / "site-packages")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert files._default_path() == tmp_path / "distributed-training-labs" / "progress.json"
    file = ProgressFile(files._default_path())
    assert file.record(SUM, "passed") == "" and file.read().entries[SUM].best == "passed"
