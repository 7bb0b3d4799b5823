"""The house rules: imports go down a floor, and what answers at once imports no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LABS = Path(__file__).resolve().parent.parent / "labs"
FLOORS = {
    0: "units errors whole spec config records moments engine_facts named_models",
    1: "widths activations memory traffic schedule ds_layout ds_schedule largest"
    " footprint puzzle step_traffic ds_estimator scenario fit ds_config",
    2: "workload data measure recorder wire collectives timeline gathered replay sharded_step peaks",
    3: "strategies",
    4: "train traced stopping observe rank launcher forkserver lending servers preload supervisor channel failures hang"
    " standstill pickling job folders notice",
    5: "plots widgets checks panel progress progress_file roster predictions in_step lessons lesson_time doctor bench"
    " train_command explain_command __main__",
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms.split()}
LONGEST_FILE = 300


def rooms():
    """Yield (room, file) of every Python file of the package; a folder is one room."""
    for path in sorted(LABS.rglob("*.py")):
        if path.parent != LABS or path.name != "__init__.py":
            yield path.relative_to(LABS).parts[0].removesuffix(".py"), path


def imported_rooms(path):
    """Return the rooms of labs that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "labs":
            names = [f"labs.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("labs.")}
    return found


def test_every_room_has_a_floor():
    assert {room for room, _ in rooms()} - FLOOR_OF.keys() == set()


def test_imports_never_go_up_a_floor():
    climbing = [
        f"{path.relative_to(LABS)} (floor {FLOOR_OF[room]}) imports labs.{other} (floor {FLOOR_OF[other]})"
        for room, path in rooms()
        for other in sorted(imported_rooms(path))
        if FLOOR_OF[other] > FLOOR_OF[room]
    ]
    assert climbing == []


def test_floors_without_torch_do_not_import_it():
    names = [room for floor in (0, 1) for room in FLOORS[floor].split() if list(LABS.glob(f"{room}*"))]
    program = "import importlib, sys\n" + "".join(f"importlib.import_module('labs.{name}')\n" for name in names)
    assert run(program + "print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_import_labs_imports_neither_torch_nor_pydantic():
    assert run("import labs, sys; print('torch' in sys.modules, 'pydantic' in sys.modules)") == "False False"


def test_import_labs_takes_less_than_half_a_second():
    """A promise to every notebook, so it is held here; the best of five spares it the noise of a shared machine."""
    program = "import time; begin = time.process_time(); import labs; print(time.process_time() - begin)"
    assert min(float(run(program)) for _ in range(5)) < 0.5


@pytest.mark.parametrize("path", sorted(LABS.rglob("*.py")), ids=lambda path: str(path.relative_to(LABS)))
def test_a_file_holds_one_idea(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def test_the_code_is_linted_and_formatted():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "labs", "tests"], cwd=LABS.parent, text=True,
                              capture_output=True)  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_training_loop_reads_in_two_minutes():
    assert len((LABS / "train.py").read_text().splitlines()) < 80


def run(program):
    """Run a program in a Python of its own and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=LABS.parent)
    return done.stdout.strip()
