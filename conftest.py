"""Kernels that nbval starts import the labs of this checkout, whatever is installed, and keep no progress."""

import os
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as bootstrap.py sets it for kernels
os.environ["LABS_PROGRESS_FILE"] = "off"  # tests and nbval's kernels solve exercises; a learner's progress is their own


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Lend the kernels of nbval the fork server of this process; all others show what they do on their own."""
    from labs import lending, servers

    if type(item).__name__ == "IPyNbCell":
        os.environ.update(lending.offer(servers.current()))
    else:
        os.environ.pop(lending.LENT_VARIABLE, None)
