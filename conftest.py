"""Kernels that nbval starts import the labs of this checkout, whatever is installed, and keep no progress."""

import functools
import os
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as bootstrap.py sets it for kernels
os.environ["LABS_PROGRESS_FILE"] = "off"  # tests and nbval's kernels solve exercises; a learner's progress is their own


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Lend the kernels of nbval the fork server of this process; all others show what they do on their own.

    A notebook that a learner works in is neither run nor judged: it is theirs, and git has it as it was built.
    """
    from labs import lending, servers

    is_cell = type(item).__name__ == "IPyNbCell"
    lesson = getattr(getattr(item, "callspec", None), "params", {}).get("lesson")
    if is_cell and item.path.parent == Path(ROOT, "notebooks"):
        _leave_work_alone(item.path.stem)
    elif hasattr(lesson, "learner"):
        _leave_work_alone(lesson.name)
    if is_cell:
        os.environ.update(lending.offer(servers.current()))
    else:
        os.environ.pop(lending.LENT_VARIABLE, None)


def _leave_work_alone(name: str) -> None:
    if _is_worked_in(name):
        pytest.skip(f"notebooks/{name}.ipynb holds your work, or was saved: it is left alone")


@functools.cache
def _is_worked_in(name: str) -> bool:
    from labs.in_step import is_worked_in
    from labs.lessons import find_lessons

    lessons = [lesson for lesson in find_lessons() if lesson.name == name]
    return any(is_worked_in(lesson.learner, lesson.expected()[lesson.learner]) for lesson in lessons)
