"""Files and folders that take the place of others whole, or not at all."""

import os
import stat
from pathlib import Path

import pytest

from labs.whole import problem_of_folder, put_in_place, write_whole


def test_a_new_file_has_the_rights_of_any_other_and_an_old_one_keeps_its_own(tmp_path):
    write_whole(tmp_path / "new", "1")
    (tmp_path / "plain").write_text("1")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    os.chmod(tmp_path / "new", 0o640)
    write_whole(tmp_path / "new", "2")
    assert (tmp_path / "new").read_text() == "2" and stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["new", "plain"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("1")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "2")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "2"


def test_what_is_no_plain_file_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)  # so that writing waits for nobody
    write_whole(tmp_path / "pipe", "words")
    assert os.read(reader, 100) == b"words" and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    os.close(reader)
    write_whole("/dev/null", "words")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "words")
    read, write = os.pipe()
    write_whole(f"/dev/fd/{write}", "words")
    assert os.read(read, 100) == b"words"


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def half(self, text, **more):
        with open(self, "w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", "new words")
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_an_error_names_the_file_that_was_given_and_not_the_one_beside_it(tmp_path):
    for path in (tmp_path / "no" / "such", tmp_path / ("a" * 256)):
        with pytest.raises(OSError) as caught:
            write_whole(path, "words")
        assert caught.value.filename == str(path)


def make(folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_folder_takes_the_place_of_the_one_that_was_put_there_before_and_of_no_other(tmp_path):
    best = tmp_path / "best"
    assert problem_of_folder(best) is None
    put_in_place(make(tmp_path / "one", a="1", b="1"), best)
    assert problem_of_folder(best) is None
    put_in_place(make(tmp_path / "two", a="2"), best)
    assert (best / "a").read_text() == "2" and not (best / "b").exists() and os.listdir(tmp_path) == ["best"]
    assert "holds thesis" in problem_of_folder(make(tmp_path / "mine", thesis="words"))
    assert "is a file" in problem_of_folder(tmp_path / "mine" / "thesis")
    (tmp_path / "empty").mkdir()
    assert problem_of_folder(tmp_path / "empty") is None
    put_in_place(make(tmp_path / "three", a="3"), tmp_path / "empty")
    assert (tmp_path / "empty" / "a").read_text() == "3"


@pytest.mark.parametrize("call", [1, 2])
def test_a_crash_between_two_moves_leaves_a_whole_folder(tmp_path, monkeypatch, call):
    best = tmp_path / "best"
    put_in_place(make(tmp_path / "one", a="1"), best)
    make(tmp_path / "two", a="2")
    moves, move = [], os.replace

    def crash(source, target):
        moves.append(target)
        if len(moves) == call:
            raise KeyboardInterrupt
        move(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(tmp_path / "two", best)
    there = best if call == 1 else tmp_path / "best.before"
    assert (there / "a").read_text() == "1" and (tmp_path / "two" / "a").read_text() == "2"
