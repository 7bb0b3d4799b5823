"""The set-up: two commands, one list of packages in three files, and one sentence when something is missing."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import bootstrap
from labs import doctor

ROOT = Path(__file__).resolve().parent.parent
TOOLS = "make sh bash env id cat cp chmod mkdir rm find dirname".split()

# A Python of any age, which makes a .venv with its like in it; it writes down what it is asked for.
FAKE_PYTHON = f"""#!/bin/sh
case "$1" in -c) echo "probe" ;; *) echo "$*" ;; esac >> "$FAKES/calls"
case "$1 $2" in
  *bootstrap.py*) FAKE_EXECUTABLE="$FAKES/bin/python3" exec {shlex.quote(sys.executable)} "$FAKES/starter.py" "$@" ;;
  "-c "*) echo "$FAKE_ANSWER /usr" ;;
  "-m venv")
    [ -z "$FAKE_VENV_FAILS" ] || {{ echo "$FAKE_VENV_FAILS"; exit 1; }}
    mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo "#!$4/bin/python" > "$4/bin/pip"
    cp "$FAKES/jupyter" "$4/bin/jupyter" ;;
  "-m pip") [ -z "$FAKE_PIP_FAILS" ] || {{ echo "$FAKE_PIP_FAILS"; exit 1; }} ;;
esac
"""
FAKE_JUPYTER = """#!/bin/sh
echo "jupyter $*"
echo "config: $JUPYTER_CONFIG_DIR"
"""
# Runs bootstrap.py for the fake Python, which it takes for its own, on a disk of any size.
STARTER = """
import os, runpy, shutil, sys
sys.executable, sys.argv = os.environ["FAKE_EXECUTABLE"], sys.argv[1:]
free_bytes = int(float(os.environ["FAKE_FREE_GIB"]) * 2**30)
shutil.disk_usage = lambda place: shutil._ntuple_diskusage(free_bytes, 0, free_bytes)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Course:
    """A copy of what `make lab` needs, on a machine that is whatever a test makes of it."""

    def __init__(self, folder: Path):
        self.root, self.fakes = folder / "course", folder / "fakes"
        (self.fakes / "bin").mkdir(parents=True)
        self.root.mkdir()
        for name in ("Makefile", "bootstrap.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        for tool in TOOLS:
            (self.fakes / "bin" / tool).symlink_to(shutil.which(tool))
        (self.fakes / "starter.py").write_text(STARTER)
        for name, text in {"bin/python3": FAKE_PYTHON, "jupyter": FAKE_JUPYTER}.items():
            (self.fakes / name).write_text(text)
            (self.fakes / name).chmod(0o755)

    def make(self, *arguments, answer="3 12 1", free_gib=50.0, **fakes):
        environment = {"PATH": str(self.fakes / "bin"), "HOME": str(self.fakes), "FAKES": str(self.fakes)}
        environment |= {"FAKE_ANSWER": answer, "FAKE_FREE_GIB": str(free_gib), "PYTHONDONTWRITEBYTECODE": "1", **fakes}
        self.calls_file.write_text("")
        return subprocess.run(
            ["make", "--no-print-directory", *arguments],
            cwd=self.root, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip

    @property
    def calls_file(self) -> Path:
        return self.fakes / "calls"

    def calls(self, start: str) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if line.startswith(start)]


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def says_one_sentence(done, *words) -> None:
    """The whole complaint is one line of `setup:`, with these words in it, and the status tells of it."""
    complaint = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert done.returncode != 0
    assert len(complaint) == 1 and complaint[0].startswith("setup: "), done.stderr
    assert [word for word in words if word not in complaint[0]] == [], complaint[0]


def test_the_first_make_installs_everything_and_the_second_nothing(course):
    first = course.make("lab")
    assert first.returncode == 0, first.stderr
    assert len(course.calls("-m venv")) == len(course.calls("-m pip")) == len(course.calls("-m ipykernel")) == 1
    assert "-c constraints.txt -e .[test,author]" in course.calls("-m pip")[0]
    second = course.make("lab", FAKE_PIP_FAILS="no network")
    assert second.returncode == 0, second.stderr
    assert course.calls("-m venv") == course.calls("-m pip") == course.calls("-m ipykernel") == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_list_is_installed_again_into_the_same_environment(course, name):
    course.make("lab")
    with open(course.root / name, "a") as file:
        file.write("# a change\n")
    assert course.make("lab").returncode == 0
    assert (len(course.calls("-m pip")), len(course.calls("-m venv"))) == (1, 0)


def test_an_interrupted_install_is_taken_up_again(course):
    assert course.make("lab", FAKE_PIP_FAILS="ERROR: killed").returncode != 0
    assert course.make("lab").returncode == 0
    assert (len(course.calls("-m pip")), len(course.calls("-m venv"))) == (1, 0)


def test_an_environment_that_was_moved_with_the_folder_is_made_anew(course):
    course.make("lab")
    course.root = course.root.rename(course.root.with_name("moved"))
    assert course.make("lab").returncode == 0
    assert len(course.calls("-m venv")) == len(course.calls("-m pip")) == 1


def test_options_and_settings_reach_jupyterlab(course):
    done = course.make("lab", "ARGS=--no-browser --port 8899")
    assert re.search(r"^jupyter lab .*--no-browser --port 8899$", done.stdout, re.MULTILINE)
    assert f"config: {course.root}/.jupyter" in done.stdout
    assert ("--allow-root" in done.stdout) == (os.getuid() == 0)


def test_make_test_prepares_the_environment_too_and_passes_options(course):
    assert course.make("test", "ARGS=-k doctor").returncode == 0
    assert (len(course.calls("-m pip")), course.calls("-m pytest")) == (1, ["-m pytest -k doctor"])


@pytest.mark.parametrize("target", ["lab", "doctor"])
@pytest.mark.parametrize("answer", ["2 7 0", "3 9 1", "3 10 1", "3 15 1"])
def test_a_python_that_does_not_fit_is_named_in_one_sentence(course, answer, target):
    version = ".".join(answer.split()[:2])
    done = course.make(target, answer=answer)
    says_one_sentence(done, f"Python {version}", "3.11 to 3.14 is needed", "apt-get install", "make lab PYTHON=")
    assert not (course.root / ".venv").exists()


def test_a_newer_python_under_another_name_is_found(course):
    other = course.fakes / "bin" / "python3.12"
    other.write_text(FAKE_PYTHON.replace("$FAKE_ANSWER", "3 12 1"))
    other.chmod(0o755)
    done = course.make("lab", answer="3 9 1")
    assert done.returncode == 0, done.stderr
    assert str(other) in done.stdout


def test_no_python_at_all_is_said_in_one_sentence(course):
    (course.fakes / "bin" / "python3").unlink()
    says_one_sentence(course.make("lab"), "python3 was not found", "apt-get install python3-venv")


def test_a_python_without_venv_names_the_package_that_brings_it(course):
    done = course.make("lab", answer="3 11 0")
    says_one_sentence(done, "virtual environment", "sudo apt-get install python3.11-venv", "make command again")


def test_a_venv_that_fails_names_its_reason_and_the_package(course):
    done = course.make("lab", FAKE_VENV_FAILS="Error: ensurepip is not available")
    says_one_sentence(done, "ensurepip is not available", "sudo apt-get install python3.12-venv")


def test_a_full_disk_is_noticed_before_the_install(course):
    says_one_sentence(course.make("lab", free_gib=3.2), "3.2 GiB", "4", "rm -rf ~/.cache/pip")
    assert course.calls("-m venv") == course.calls("-m pip") == []


@pytest.mark.parametrize(
    "words, mend",
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError': /x", "connect to a network"),
        ("ERROR: Could not fetch URL: NameResolutionError\nERROR: No matching distribution", "HTTPS_PROXY"),
        ("ERROR: [Errno 28] No space left on device", "rm -rf ~/.cache/pip"),
        ("noise\nERROR: something else\nERROR: more", "(ERROR: something else)"),
        ("error: subprocess-exited-with-error\n      ERROR: deep inside\n", "(ERROR: deep inside)"),
        ("", "make clean lab"),
    ],
)
def test_a_failure_of_pip_becomes_one_sentence(course, words, mend):
    done = course.make("lab", FAKE_PIP_FAILS=words or " ")
    says_one_sentence(done, mend)
    assert (course.root / ".venv" / "install.log").read_text().strip() == words.strip()
    assert not (course.root / ".venv" / "installed.txt").exists()


def test_clean_removes_what_make_made(course):
    course.make("lab")
    before = {path.name for path in course.root.iterdir()}
    (course.root / "distributed_training_labs.egg-info").mkdir()
    (course.root / "labs" / "__pycache__").mkdir(parents=True)
    assert course.make("clean").returncode == 0
    assert {path.name for path in course.root.iterdir()} == before - {".venv"} | {"labs"}
    assert list((course.root / "labs").iterdir()) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_git_ignores_what_make_and_jupyter_leave_behind():
    left = ".venv/bin/python distributed_training_labs.egg-info/PKG-INFO build/x .jupyter/lab/user-settings/x"
    left += " .jupyter/migrated labs/__pycache__/x.pyc notebooks/.ipynb_checkpoints/x.ipynb .pytest_cache/x"
    left += " mine-1/00_start_here.ipynb"
    done = subprocess.run(["git", "check-ignore", *left.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == left.split()


# The three lists


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> list[str]:
    extras = pyproject()["optional-dependencies"]
    return pyproject()["dependencies"] + extras["test"] + extras["author"]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def test_environment_yml_mirrors_pyproject():
    *conda, pip = environment()["dependencies"]
    assert pip["pip"] == ["-c constraints.txt", *requirements(), "-e ."]
    assert [name.partition("=")[0] for name in conda] == ["python", "pip"]
    assert environment()["channels"] == ["conda-forge", "nodefaults"]
    assert environment()["variables"] == {"DS_BUILD_OPS": "0"}


def test_every_requirement_has_a_pin_that_it_allows():
    wanted = [Requirement(text) for text in requirements()]
    assert [r.name for r in wanted if pins()[canonicalize_name(r.name)] not in r.specifier] == []


def test_pins_hold_for_every_index_and_machine():
    assert [version for version in pins().values() if not re.fullmatch(r"[\w.]+", version)] == []
    assert (pins()["torch"], pins()["deepspeed"]) == ("2.13.0", "0.19.8")


def test_everything_that_a_requirement_brings_along_is_pinned():
    """What the packages that are installed here ask for, down to the last; torch's CUDA libraries come with torch."""
    open_ends, seen = [Requirement(text) for text in requirements()], set()
    while open_ends:
        wanted = open_ends.pop()
        key = (canonicalize_name(wanted.name), *sorted(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in metadata.requires(wanted.name) or []:
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                open_ends.append(needed)
    names = {key[0] for key in seen if not key[0].startswith(("nvidia-", "cuda-")) and key[0] != "triton"}
    assert names - pins().keys() == set()


@pytest.mark.parametrize("version", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_every_pin_runs_on_every_supported_python(version):
    """Debian's 3.11.2 counts, too, not only the newest of a line; who is not here as pinned is not asked."""
    here = {canonicalize_name(found.metadata["Name"]): found for found in metadata.distributions()}
    as_pinned = [here[name] for name, pin in pins().items() if name in here and here[name].version.split("+")[0] == pin]
    assert len(as_pinned) > len(pins()) / 2
    refusing = [d.name for d in as_pinned if version not in SpecifierSet(d.metadata.get("Requires-Python") or "")]
    assert refusing == []


def test_everybody_means_the_same_pythons():
    supported = SpecifierSet(pyproject()["requires-python"])
    assert (bootstrap.OLDEST, bootstrap.NEWEST) == (doctor.OLDEST_PYTHON, doctor.NEWEST_PYTHON) == ((3, 11), (3, 14))
    assert ("3.10.9" in supported, "3.11.0" in supported, "3.14.0" in supported) == (False, True, True)
    assert environment()["dependencies"][0].removeprefix("python=") in supported
