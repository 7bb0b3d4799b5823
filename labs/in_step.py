"""Is a notebook what its source gives? And if not, is that because somebody works in it?"""

from __future__ import annotations

import copy
import re
import subprocess
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labs.checks import STUB_TEXT

_LIVE_STUB = re.compile(rf"^\s*raise NotImplementedError\(.*{re.escape(STUB_TEXT)}", re.MULTILINE)
BUILT_ID = re.compile(r"[0-9a-f]{12}")  # of a cell that came from a source; editors name theirs in other ways


def difference(path: Path, expected: NotebookNode) -> str | None:
    """Say how a notebook on disk differs from its source, outputs aside; None when it is in step."""
    if not path.exists():
        return "is missing"
    found = read(path)
    if found is None:
        return "is no notebook any more; did a merge leave its marks in it?"
    return difference_of(found, expected)


def difference_of(found: NotebookNode, expected: NotebookNode) -> str | None:
    """Say how a notebook differs from what its source gives, outputs aside; None when it does not."""
    if len(found.cells) != len(expected.cells):
        return f"has {len(found.cells)} cells, its source {len(expected.cells)}"
    for index, (cell, wanted) in enumerate(zip(found.cells, expected.cells, strict=True)):
        for part in ("cell_type", "id", "source", "metadata"):
            if cell.get(part) != wanted[part]:
                return f"differs from its source in the {part} of cell {index}: {wanted.source[:60]!r}"
    if found.metadata != expected.metadata:
        return "has other metadata than its source gives, as when an editor has saved it"
    return None


def read(path: Path) -> NotebookNode | None:
    """Read a notebook; None where there is none in the file, or no file."""
    try:
        return nbformat.read(path, as_version=4)
    except (
        FileNotFoundError,
        ValueError,
        KeyError,
        AttributeError,
    ):  # no JSON (nbformat's error is a ValueError), or other JSON
        return None


def with_kept_outputs(path: Path, expected: NotebookNode) -> NotebookNode | None:
    """Return the notebook with the outputs that stand in the file, when only prose differs; None when code does."""
    found, built = read(path), copy.deepcopy(expected)
    ran = [cell for cell in (found.cells if found else ()) if cell.cell_type == "code"]
    to_run = [cell for cell in built.cells if cell.cell_type == "code"]
    if [(cell.source, cell.metadata) for cell in ran] != [(cell.source, cell.metadata) for cell in to_run]:
        return None
    for cell, old in zip(to_run, ran, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return built if all(cell.execution_count for cell in to_run) else None


def holds_work(path: Path, expected: NotebookNode) -> bool:
    """Tell whether somebody has run, answered or added a cell; what was built from an older source holds no work."""
    if not path.exists():
        return False
    found = read(path)
    return found is None or _has_work(found, expected)


def _has_work(found: NotebookNode, expected: NotebookNode) -> bool:
    stubs = {cell.id for cell in expected.cells if STUB_TEXT in cell.source}
    return any(
        cell.get("outputs")
        or cell.get("execution_count")
        or not BUILT_ID.fullmatch(cell.get("id", ""))
        or (cell.id in stubs and not _LIVE_STUB.search(cell.source))  # also where it was kept as a comment
        for cell in found.cells
    )


def is_worked_in(path: Path, expected: NotebookNode) -> bool:
    """Tell whether a notebook is as it was built in git, and not here, because somebody works in it or has saved it.

    False in a clean checkout, and wherever git does not answer: then a difference is a fault.
    """
    found = read(path)
    if found is None or _is_blank(found, expected):
        return False
    found.metadata = expected.metadata  # whoever saves it changes that
    if not _has_work(found, expected) and difference_of(found, expected):
        return False
    try:
        command = ["git", "show", f"HEAD:./{path.name}"]
        committed = subprocess.run(command, cwd=path.parent, capture_output=True, check=True).stdout
        return _is_blank(nbformat.reads(committed.decode(), as_version=4), expected)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False


def _is_blank(found: NotebookNode, expected: NotebookNode) -> bool:
    return difference_of(found, expected) is None and not _has_work(found, expected)
