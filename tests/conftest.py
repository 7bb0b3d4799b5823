"""What tests of ranks share: the proof that nothing is left behind."""

from __future__ import annotations

import pytest
from processes import children


@pytest.fixture
def nothing_left():
    """After the test: the fork server has no child, and its folder holds no run."""
    yield
    from labs import servers

    server = servers.current()
    assert children(server._forkserver_pid) == []
    assert list(server.folder.glob("run-*")) == []
