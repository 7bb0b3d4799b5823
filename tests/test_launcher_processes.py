"""Promises of the launcher that only whole processes can show: real kernels, scripts, a broken torch."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch.multiprocessing
from jupyter_client import KernelManager
from processes import becomes_true, children, is_running

import labs
from labs import folders, forkserver, servers

ROOT = Path(labs.__file__).parent.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A place of its own for temporary files, so that what is left behind can be counted."""
    folder = tmp_path_factory.mktemp("private")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield folder


def left_in(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()]


def run_python(source: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=ROOT, **options)


class Notebook:
    """A real ipykernel: `run` a cell and get its text and its error."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(ROOT))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid
        self.displays: list[dict] = []

    def begin(self, cell: str) -> str:
        return self.client.execute(cell)

    def result(self, request: str, timeout: float = 120) -> tuple[str, str]:
        """Return (text, error) of a cell when it has ended."""
        text, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "execute_result":
                text += content["data"]["text/plain"]
            elif message["msg_type"] == "display_data":
                self.displays.append(content["data"])
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}\n" + "\n".join(content["traceback"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return text, error

    def run(self, cell: str) -> tuple[str, str]:
        return self.result(self.begin(cell))

    def wait_for_text(self, wanted: str) -> None:
        while wanted not in self.client.get_iopub_msg(timeout=120)["content"].get("text", ""):
            pass

    def stop(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=False)


@pytest.fixture(scope="module")
def notebook(place):
    """One kernel for the tests that need one; the last of them kills it."""
    notebook = Notebook()
    yield notebook
    notebook.stop()


SLEEPING = """
import labs, time
def work():
    import torch.distributed as dist
    print("pid", __import__("os").getpid())
    time.sleep(1000)
run = labs.start(work, world_size=3)
while len(run.output) < 3:
    time.sleep(0.02)
from labs import servers
print("PIDS", *(line[2].split()[1] for line in run.output), servers.current()._forkserver_pid)
"""


def test_a_function_of_a_cell_that_uses_globals_of_the_notebook_runs_on_ranks(notebook):
    notebook.run("import labs\nimport torch.distributed as dist\noffset = 10\nclass Shift:\n    by = 5")
    notebook.run("def work():\n    return dist.get_rank() + offset + Shift.by")
    assert notebook.run("labs.launch(work)") == ("[15, 16]", "")

    # The notice "Warming up" is a widget alone: a saved cell must not depend on how early it ran.
    assert [set(data) for data in notebook.displays] == [{"application/vnd.jupyter.widget-view+json"}]

    text, error = notebook.run("def work():\n    scale = 0\n    return offset / scale\nlabs.launch(work)")
    assert "Cell In[4], line 3, in work\n    return offset / scale\nZeroDivisionError" in error
    assert "launcher.py" not in error, "the frames of labs/ bury the message"

    notebook.run("def work():\n    import inspect\n    return inspect.getsource(work)")
    text, error = notebook.run("print(labs.launch(work, world_size=1)[0])")
    assert text == "def work():\n    import inspect\n    return inspect.getsource(work)\n\n"


def test_interrupting_a_kernel_ends_the_ranks_and_the_next_run_works(notebook):
    notebook.run("import labs, time")
    cell = "def work():\n    print('here')\n    time.sleep(1000)\n"
    cell += "run = labs.start(work)\nwhile len(run.output) < 2: time.sleep(0.02)\n"
    cell += "print('waiting', flush=True)\nlabs.launch(time.sleep, 1000)"
    request = notebook.begin(cell)
    notebook.wait_for_text("waiting")
    os.killpg(notebook.pid, signal.SIGINT)  # as Jupyter does: the whole process group
    text, error = notebook.result(request)
    assert error.startswith("KeyboardInterrupt")
    # A run in the background goes on: only the cell was interrupted.
    assert notebook.run("run.state") == ("'running'", "")
    notebook.run("run.cancel()")
    assert notebook.run("labs.launch(len, 'four')") == ("[4, 4]", "")
    assert notebook.run("from labs import servers\nlist(servers.current().folder.glob('run-*'))") == ("[]", "")


def test_two_notebooks_at_once_have_their_own_ranks(notebook, place):
    other = Notebook()
    try:
        cell = "import labs, time\nfrom labs import servers\n"
        cell += "print(labs.launch(len, 'abc'), servers.current()._forkserver_pid)"
        requests = [(each, each.begin(cell)) for each in (notebook, other)]
        answers = [each.result(request)[0].split("]") for each, request in requests]
        assert [answer[0] for answer in answers] == ["[3, 3", "[3, 3"]
        assert answers[0][1] != answers[1][1]
    finally:
        other.begin("run = labs.start(time.sleep, 1000)")
        other.stop()
    assert len(left_in(place)) == 1, "an orderly end leaves a folder behind"


def test_killing_a_kernel_ends_its_ranks_and_removes_its_folder(notebook, place):
    text, error = notebook.run(SLEEPING)
    pids = [int(pid) for pid in text.partition("PIDS")[2].split()]
    assert len(pids) == 4 and all(map(is_running, pids)) and len(left_in(place)) == 1
    pids += children(notebook.pid)
    os.kill(notebook.pid, signal.SIGKILL)
    assert becomes_true(lambda: not any(map(is_running, pids)), seconds=5)
    assert becomes_true(lambda: left_in(place) == [], seconds=5)


def test_killing_a_process_whose_ranks_hold_the_interpreter_lock_ends_them_too(place):
    source = """
import labs, time, os, signal
def work():
    import ctypes, os
    print(os.getpid())
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex), library.pthread_mutex_lock(mutex)
run = labs.start(work)
while len(run.output) < 2: time.sleep(0.02)
print("PIDS", *(line[2] for line in run.output), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pids = [int(pid) for pid in run_python(source).stdout.partition("PIDS")[2].split()]
    assert len(pids) == 2
    assert becomes_true(lambda: not any(map(is_running, pids)), seconds=5)
    assert becomes_true(lambda: left_in(place) == [], seconds=5)


def test_killing_a_process_that_warms_up_ends_the_warming_up(place):
    source = """
import labs, os, signal
from labs import servers
print(servers.current()._forkserver_pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid = int(run_python(source).stdout)
    assert becomes_true(lambda: not is_running(pid), seconds=5)
    assert becomes_true(lambda: left_in(place) == [], seconds=5)


def test_a_script_needs_no_main_guard_and_leaves_nothing(place, tmp_path):
    script = tmp_path / "learner.py"
    script.write_text(
        "import labs\nprint('once')\n"
        "class Point:\n    x = 3\n"
        "def work():\n    return Point().x\n"
        "print(labs.launch(work))\nlabs.start(__import__('time').sleep, 1000)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=150)
    assert done.stdout.splitlines() == ["once", "[3, 3]"]
    assert "Traceback" not in done.stderr and done.returncode == 0
    assert left_in(place) == []


def test_importing_labs_imports_neither_torch_nor_numpy_and_starts_one_process(place):
    source = """
import labs, os, sys
from labs import servers
from processes import children
print({"torch", "numpy", "deepspeed", "pydantic", "IPython"} & set(sys.modules))
servers.current().wait_until_ready()
print(children(servers.current()._forkserver_pid), servers.current().report()["num_threads"])
"""
    done = run_python(source, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    assert done.stdout == "set()\n[] 1\n", done.stderr  # one thread: nothing is lost in a fork


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_learners_own_multiprocessing_imports_labs_and_starts_no_further_server(method, tmp_path):
    """Its children, and its fork server, import labs too: a server started there would start the next, for ever."""
    script = tmp_path / "learner.py"
    script.write_text(f"""
import multiprocessing
import labs
from labs import servers

def has_a_server():
    return servers._server is not None

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    if {method!r} == "forkserver":
        context.set_forkserver_preload(["labs"])
    with context.Pool(1) as pool:
        print(has_a_server(), pool.apply(has_a_server))
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True False\n", done.stderr


def test_the_start_method_is_the_one_that_torch_offers():
    assert torch.multiprocessing.get_context is multiprocessing.get_context
    assert forkserver.CONTEXT.get_start_method() == "forkserver"


def broken(tmp_path: Path, module: str, body: str) -> dict[str, str]:
    """An environment where importing `module` runs `body` instead."""
    (tmp_path / f"{module}.py").write_text(body)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}


def test_a_warming_up_that_dies_is_an_error_with_its_last_words(place, tmp_path):
    body = "import os, sys\nprint('the disk is on fire', file=sys.stderr, flush=True)\nos._exit(1)"
    source = "import labs, sys; sys.path.insert(0, sys.path.pop())\nlabs.launch(len, 'x')"
    done = run_python(source, env=broken(tmp_path, "torch", body))
    assert done.returncode == 1
    assert "ServerEnded: the process that starts ranks has ended. Its last words: the disk is on fire" in done.stderr
    assert left_in(place) == []


def test_ranks_run_without_deepspeed_and_the_report_says_what_is_missing(place, tmp_path):
    source = """
import labs
from labs import servers
print(labs.launch(len, "four"))
print(sorted(servers.current().report()["missing"].items())[0])
"""
    done = run_python(source, env=broken(tmp_path, "deepspeed", "raise ImportError('no such wheel')"))
    assert done.stdout.splitlines() == ["[4, 4]", "('deepspeed', 'ImportError: no such wheel')"], done.stderr


def test_an_edited_file_of_labs_is_used_by_the_next_run(monkeypatch):
    labs.launch(len, "x")
    before = servers.current()
    file = next(file for file in before.report()["files"] if file.endswith("units.py"))
    stamps = dict(before.report()["files"])
    monkeypatch.setattr(before, "report", lambda: {"files": {**stamps, file: stamps[file] - 1}})
    assert before.edited_files() == ["units.py"]
    pid = before._forkserver_pid
    assert labs.launch(len, "four") == [4, 4]
    assert servers.current() is not before and not is_running(pid) and not before.folder.exists()


def test_a_fork_server_that_was_killed_is_replaced_by_the_next_run():
    pid = servers.current()._forkserver_pid
    os.kill(pid, signal.SIGKILL)
    assert becomes_true(lambda: not is_running(pid))
    assert labs.launch(len, "four") == [4, 4]


def test_a_folder_leaves_room_for_the_path_of_a_socket_however_long_tmpdir_is(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 150)))
    folder = folders.private_folder()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "listener-12345678"))
    finally:
        shutil.rmtree(folder)


def test_a_folder_whose_owner_was_killed_is_removed_and_others_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = folders.private_folder()
    ownerless = tmp_path / f"{folders.PREFIX}ownerless"
    ownerless.mkdir()
    folders.remove_ownerless(tmp_path, grace_seconds=3600)
    assert ownerless.exists(), "another process may be about to lock it"
    folders.remove_ownerless(tmp_path, grace_seconds=0)
    assert mine.exists() and not ownerless.exists()
    assert mine.stat().st_mode & 0o777 == 0o700
