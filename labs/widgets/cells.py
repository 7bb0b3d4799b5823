"""One lab a cell: running a cell again ends the labs that it showed before."""

from __future__ import annotations

import sys

# cell -> (execution of the cell, its labs). A lab's run must be found and ended after the cell's names are gone.
_labs: dict[str, tuple[int, list]] = {}


def replace_lab_of_cell(lab) -> None:
    """Close the labs that an earlier execution of the current cell made, and remember this one.

    Where the front end does not say which cell runs (a script, nbconvert), nothing is closed.
    """
    found = _current_cell()
    if found is None:
        return
    cell, execution = found
    before, labs = _labs.get(cell, (execution, []))
    if before != execution:
        for old in labs:
            old.close()
        labs = []
    _labs[cell] = (execution, [*labs, lab])


def _current_cell() -> tuple[str, int] | None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    cell = kernel.get_parent("shell").get("metadata", {}).get("cellId")
    return (cell, shell.execution_count) if cell else None
