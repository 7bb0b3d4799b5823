"""A fork server that is lent: ranks are forked from it, and it outlives whoever borrowed it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import becomes_true, children, is_running

import labs
from labs import forkserver, lending, servers

ROOT = Path(labs.__file__).parent.parent
LAUNCH = """
import labs, os
from labs import servers
print(labs.launch(os.getppid), servers.current().is_lent, flush=True)
"""


@pytest.fixture
def lender(nothing_left):
    server = servers.current()
    server.wait_until_ready()
    return server


def borrow(source: str, server, folder: Path) -> str:
    """Run a program that finds the offer of a server; returns what it prints."""
    environment = {**os.environ, **lending.offer(server), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_ranks_of_another_process_are_forked_from_the_lent_server_which_goes_on(lender, tmp_path):
    pid = lender._forkserver_pid
    for _ in range(2):
        assert borrow(LAUNCH, lender, tmp_path) == f"[{pid}, {pid}] True"
    assert is_running(pid) and list(tmp_path.iterdir()) == []
    assert labs.launch(os.getppid) == [pid, pid]


def test_what_a_borrower_does_to_its_ranks_is_not_seen_by_the_next(lender, tmp_path):
    source = """
import labs, math, os
def spoil():
    os.environ["SPOILT"] = "yes"
    math.pi = 3
def look():
    return os.environ.get("SPOILT"), round(math.pi, 2)
"""
    assert borrow(f"{source}\nlabs.launch(spoil); print(labs.launch(look)[0])", lender, tmp_path) == "(None, 3.14)"


def test_ranks_end_with_the_borrower_that_is_killed(lender, tmp_path):
    source = """
import labs, os, signal, time
def work():
    print("here", flush=True)
    time.sleep(1000)
run = labs.start(work)
while len(run.output) < 2: time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""
    borrow(source, lender, tmp_path)
    assert becomes_true(lambda: children(lender._forkserver_pid) == [], seconds=5)
    assert is_running(lender._forkserver_pid)


def changed(offer: dict[str, str], place: int, value) -> str:
    words = json.loads(offer[lending.LENT_VARIABLE])
    words[place] = value
    return json.dumps(words)


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2**22 + 1), (3, "/nowhere"), (4, "/another/checkout/labs"), (5, "/another/python")],
    ids=["it has ended", "its folder is gone", "another labs", "another Python"],
)
def test_an_offer_that_does_not_hold_is_passed_over(lender, monkeypatch, place, value):
    monkeypatch.setenv(lending.LENT_VARIABLE, changed(lending.offer(lender), place, value))
    assert lending.borrowed() is None


def test_a_key_without_which_the_server_would_not_fork_is_handed_on(lender, monkeypatch):
    monkeypatch.setattr(lender, "_forkserver_authkey", b"\x00a key of Python 3.14", raising=False)
    monkeypatch.setenv(*lending.offer(lender).popitem())
    taken = lending.borrowed()
    assert taken._forkserver_authkey == b"\x00a key of Python 3.14"
    taken.close()


def test_an_offer_made_before_labs_was_edited_is_passed_over(lender, monkeypatch):
    monkeypatch.setenv(*lending.offer(lender).popitem())
    taken = lending.borrowed()
    assert taken is not None
    taken.close()
    file, stamp = lender.report()["files"].popitem()
    monkeypatch.setattr(lending.BorrowedServer, "report", lambda _: {"files": {file: stamp - 1}})
    assert lending.borrowed() is None


def test_a_borrower_whose_lender_was_killed_goes_on_with_a_server_of_its_own(tmp_path):
    lender = forkserver.Server()
    lender.ensure_running()
    lender.wait_until_ready()
    source = f"""
import labs, os, signal
from labs import forkserver, servers
print(labs.launch(len, "x"), servers.current().is_lent)
os.kill({lender._forkserver_pid}, signal.SIGKILL)
try:
    labs.launch(len, "x")
except forkserver.ServerEnded:
    print("ended")
print(labs.launch(len, "x"), servers.current().is_lent)
"""
    try:
        assert borrow(source, lender, tmp_path).splitlines() == ["[1, 1] True", "ended", "[1, 1] False"]
    finally:
        lender.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["", "{", "1", "null", "[]", '{"pid": 1}'])
def test_words_that_are_no_offer_are_passed_over(monkeypatch, words):
    monkeypatch.setenv(lending.LENT_VARIABLE, words)
    assert lending.borrowed() is None
