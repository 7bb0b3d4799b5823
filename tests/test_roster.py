"""An instructor sees a whole group on one page, and no file that was handed in is changed."""

import json

import pytest

from labs.checks import all_exercises
from labs.progress import board, main
from labs.progress_file import VARIABLE, progress_file

SUM, MEAN = "start_here.global_sum", "start_here.global_mean"


@pytest.fixture
def handed_in(tmp_path, monkeypatch):
    """What five learners send: an export, the file itself, half a file, another version's, and none."""
    own = tmp_path / "seat_2" / ".progress.json"
    monkeypatch.setenv(VARIABLE, str(own))
    progress_file().record(SUM, "passed")
    progress_file().record(MEAN, "failed")
    (tmp_path / "seat_1.json").write_text(board().to_json())
    (tmp_path / "half.json").write_text(own.read_text()[:200])
    (tmp_path / "other.json").write_text('{"version": 99, "exercises": {}}')
    return [tmp_path / "seat_1.json", own, tmp_path / "half.json", tmp_path / "other.json", tmp_path / "nobody.json"]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_group_stands_on_one_page_a_row_each_and_every_bad_file_is_said(handed_in, capsys):
    assert main([str(path) for path in handed_in]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, total, seat_1, seat_2, half, other, nobody = (line.split() for line in lines[:7])
    assert head[-3:] == ["08", "09", "all"] and total[-1] == str(len(all_exercises()))
    assert (seat_1[0], seat_1[1], seat_1[-1]) == ("seat_1", "1", "1")
    assert seat_2 == ["seat_2", *seat_1[1:]], "the file itself counts as its export does, under the name of its folder"
    assert {text for row in (half, other, nobody) for text in row[1:]} == {"?"}, "unknown is not nothing passed"
    assert lines[7] == f"tried, not passed yet: {MEAN} (2)"
    assert "half.json is damaged" in lines[8]
    assert "is of version 99, and this course reads version 1" in lines[9]
    assert "nobody.json cannot be read: No such file" in lines[10]


def test_files_of_one_name_in_a_folder_each_are_told_apart(handed_in, tmp_path, capsys):
    paths = []
    for seat in ("seat_3", "seat_4"):
        paths.append(tmp_path / seat / "progress.json")
        paths[-1].parent.mkdir()
        paths[-1].write_text(handed_in[0].read_text())
    main([str(path) for path in [*paths, handed_in[0]]])
    rows = capsys.readouterr().out.splitlines()[2:5]
    assert [row.split()[0] for row in rows] == ["seat_3/progress", "seat_4/progress", "seat_1"]


def test_reading_a_group_changes_no_file_so_that_it_can_be_read_again(handed_in, capsys):
    folder = handed_in[0].parent
    before = contents(folder)
    pages = []
    for _ in range(2):
        main([str(path) for path in handed_in])
        pages.append(capsys.readouterr().out)
    assert contents(folder) == before and pages[0] == pages[1]


def test_a_group_is_exported_for_other_programs(handed_in, capsys):
    main(["--json", *(str(path) for path in handed_in)])
    seat_1, seat_2, half, *_ = json.loads(capsys.readouterr().out)["learners"]
    shown = [seat_1[part] for part in ("learner", "passed", "total", "note")]
    assert shown == ["seat_1", 1, len(all_exercises()), ""]
    assert seat_1["exercises"][MEAN] == seat_2["exercises"][MEAN] == "failed"
    assert half["exercises"] == {} and "damaged" in half["note"]


def test_an_exercise_that_this_version_does_not_know_is_left_out_and_said(handed_in, capsys):
    export = handed_in[0]
    export.write_text(export.read_text().replace('"global_sum"', '"of_old"'))
    main([str(export)])
    printed = capsys.readouterr().out
    assert printed.splitlines()[2].split()[-1] == "·" and "left out: start_here.of_old" in printed


def test_a_group_cannot_be_reset(handed_in, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(handed_in[0]), "--reset", SUM])
    assert ended.value.code == 2 and "give one of them" in capsys.readouterr().err
