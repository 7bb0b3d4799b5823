"""The doctor: each line is ok, or names what is wrong and the command that mends it."""

import json
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import labs
from labs import doctor, launcher
from labs.units import GiB, MiB

ROOT = Path(__file__).resolve().parent.parent
Usage = namedtuple("Usage", "total used free")
NAMES = "system, Python, cores, memory, free disk, temp folder, /dev/shm, versions, loopback, two ranks".split(", ")


def test_a_machine_that_runs_this_suite_has_no_line_that_fails():
    report = labs.doctor()
    assert [line.name for line in report.lines] == NAMES
    assert [line for line in report.lines if line.state == "fail"] == []


def test_the_doctor_is_a_callable_and_a_module_in_whatever_order_they_are_used():
    program = (
        "import labs; first = labs.doctor; import labs.doctor; from labs import doctor\n"
        "from labs.doctor import examine, Report\n"
        "assert first is labs.doctor is doctor and callable(doctor), doctor\n"
        "labs.doctor.CHECKS = ()\n"
        "assert labs.doctor() == Report(()) == examine()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def cgroup(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    "quota, state", [("max 100000", "ok"), ("200000 100000", "ok"), ("150000 100000", "ok"), ("100000 100000", "warn")]
)
def test_cores_are_what_the_container_allows(monkeypatch, tmp_path, quota, state):
    monkeypatch.setattr(doctor, "CGROUP", cgroup(tmp_path, cpu_max=quota))
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    holds(doctor.check_cores(), state, "docker run --cpus 2")


@pytest.mark.parametrize("limit, state", [(8 * GiB, "ok"), (2 * GiB, "warn"), (GiB, "fail"), ("max", "ok")])
def test_memory_is_what_the_container_allows(monkeypatch, tmp_path, limit, state):
    monkeypatch.setattr(doctor, "CGROUP", cgroup(tmp_path, memory_max=str(limit)))
    monkeypatch.setattr(doctor.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 16 * GiB // 4096)
    holds(doctor.check_memory(), state, "docker run --memory 4g")


@pytest.mark.parametrize("free_bytes, state", [(2 * GiB, "ok"), (GiB // 2, "warn"), (GiB // 8, "fail")])
def test_free_disk_is_counted(monkeypatch, free_bytes, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: Usage(9 * GiB, 0, free_bytes))
    holds(doctor.check_disk(), state, "rm -rf ~/.cache/pip")


@pytest.mark.parametrize("free_bytes, state", [(50 * MiB, "warn"), (64 * MiB, "ok"), (4 * MiB, "fail")])
def test_a_small_temporary_folder_is_named_and_is_no_small_disk(monkeypatch, tmp_path, free_bytes, state):
    """A container may give 50 MiB of memory to /tmp: enough for a run, and no cleaning of the disk makes it larger."""
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda at: Usage(9 * GiB, 0, free_bytes if str(at) == str(tmp_path) else 2 * GiB)
    )
    line = doctor.check_temporary_folder()
    holds(line, state, "export TMPDIR=")
    assert (str(tmp_path) in line.found) == (state != "ok") and doctor.check_disk().state == "ok"


@pytest.mark.parametrize("total_bytes, state", [(64 * MiB, "ok"), (8 * MiB, "warn"), (0, "warn")])
def test_shared_memory_is_measured(monkeypatch, total_bytes, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: Usage(total_bytes, 0, total_bytes))
    holds(doctor.check_shared_memory(), state, "docker run --shm-size 1g")


def test_shared_memory_that_nobody_may_write_fails(monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda place, mode: False)
    holds(doctor.check_shared_memory(), "fail", "mount /dev/shm")


@pytest.mark.parametrize("version, state", [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 15, 0), "fail")])
def test_a_python_that_torch_has_no_wheel_for_fails(monkeypatch, version, state):
    monkeypatch.setattr(doctor.sys, "version_info", version)
    holds(doctor.check_python(), state, "make clean lab PYTHON=python3.11")


@pytest.mark.parametrize("platform, state", [("win32", "fail"), ("linux", "ok"), ("darwin", "ok")])
def test_windows_is_sent_to_its_linux(monkeypatch, platform, state):
    monkeypatch.setattr(doctor.sys, "platform", platform)
    holds(doctor.check_system(), state, "wsl --install")


@pytest.mark.parametrize(
    "installed, state, found",
    [
        ({}, "ok", "torch 2.13.0"),
        ({"torch": "2.12.1"}, "warn", "torch 2.12.1 (tested: 2.13.0)"),
        ({"deepspeed": "", "torch": ""}, "fail", "missing: torch, deepspeed"),
        ({"ruff": ""}, "ok", "nbval 0.11.0"),
        ({"ruff": "0.1"}, "warn", "ruff 0.1"),
    ],
)
def test_versions_are_held_against_the_tested_ones(monkeypatch, installed, state, found):
    versions = doctor.tested_versions() | installed
    monkeypatch.setattr(doctor, "_installed", versions.get)
    line = doctor.check_versions()
    holds(line, state, "pip install -c constraints.txt -e ." if sys.prefix != sys.base_prefix else "make lab")
    assert found in line.found


def test_a_build_suffix_is_no_other_version(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: doctor.tested_versions()[name] + "+cpu")
    assert doctor.check_versions().state == "ok"


def test_a_machine_without_loopback_fails(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    holds(doctor.check_loopback(), "fail", "ip link set lo up")


def test_a_loopback_that_is_down_fails(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    holds(doctor.check_loopback(), "fail", "ip link set lo up")


@pytest.mark.parametrize("sums, state", [([3.0, 3.0], "ok"), ([1.0, 2.0], "fail")])
def test_two_ranks_that_disagree_fail(monkeypatch, sums, state):
    monkeypatch.setattr(launcher, "launch", lambda *arguments, **options: sums)
    holds(doctor.check_two_ranks(), state, "make doctor")


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch):
    def check_the_moon():
        raise RuntimeError("behind a cloud\n  a long\n  story\nand an end")

    def check_the_tide():
        import no_such_module  # noqa: F401

    monkeypatch.setattr(doctor, "CHECKS", (check_the_moon, check_the_tide, doctor.check_system))
    moon, tide, system = doctor.examine().lines
    holds(moon, "fail", "make")
    holds(tide, "fail", "make")
    assert (moon.name, moon.found) == ("the moon", "could not be examined: RuntimeError: behind a cloud; and an end")
    assert (tide.found, system.state) == ("could not be examined without no_such_module", "ok")


def holds(line: doctor.Line, state: str, mend: str) -> None:
    """The state is this one, and a command stands beside it exactly when it is not ok."""
    assert line.state == state, line
    assert mend in line.mend if state != "ok" else not line.mend, line
    assert line.found


OK = doctor.Line("one", "ok", "fine")
WARN = doctor.Line("two", "warn", "so so & <so>", "a && b")
FAIL = doctor.Line("three", "fail", "broken", "make well")


@pytest.mark.parametrize(
    "lines, state, status", [((OK,), "ok", 0), ((WARN, OK), "warn", 0), ((OK, FAIL, WARN), "fail", 1)]
)
def test_the_worst_line_decides_the_exit_status(monkeypatch, capsys, lines, state, status):
    monkeypatch.setattr(doctor, "CHECKS", tuple(lambda line=line: line for line in lines))
    assert doctor.main([]) == status
    text = capsys.readouterr().out
    assert all(part in text for line in lines for part in (line.name, line.state, line.found, line.mend))
    assert doctor.main(["--json"]) == status
    printed = json.loads(capsys.readouterr().out)
    assert printed["state"] == state
    assert [doctor.Line(**line) for line in printed["lines"]] == list(lines)


def test_a_notebook_shows_a_table_in_which_words_stay_words():
    page = doctor.Report((OK, WARN))._repr_html_()
    assert "so so &amp; &lt;so&gt;" in page and "<code>a &amp;&amp; b</code>" in page
    assert page.count("<tr>") == 3


@pytest.mark.parametrize("command", [("labs.doctor",), ("labs", "doctor")])
def test_a_bare_python_gets_its_report_too(command):
    python = [sys.executable, "-S", "-m"]  # -S leaves site-packages out
    done = subprocess.run([*python, *command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (1, "")
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["Python"]["state"] == lines["loopback"]["state"] == "ok"
    assert "missing: torch, deepspeed" in lines["versions"]["found"]
    assert lines["two ranks"]["found"] == "could not be examined without torch"
    assert lines["two ranks"]["state"] == "fail" and lines["two ranks"]["mend"]
