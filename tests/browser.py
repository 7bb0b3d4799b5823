"""A real JupyterLab in a real Chromium, for tests of what a learner sees and clicks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCREENSHOTS = ROOT / "build" / "screenshots"  # git ignores build/
PATIENCE_SECONDS = 120  # a limit, not a measure, of how long anything may take
TOKEN = "only-for-this-test"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def wait_for(condition, what: str):
    """Return the first true value of `condition()`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not come within {PATIENCE_SECONDS} s")


class Server:
    """JupyterLab with the course's settings on a folder of its own; its processes carry a mark."""

    def __init__(self, home: Path):
        self.folder, self._runtime, self._log = home / "course", home / "runtime", home / "server.log"
        for folder in (self.folder, self._runtime, home / "settings"):
            folder.mkdir()
        self.mark = f"LABS_TEST_MARK={home}"
        environment = {
            **os.environ,
            "JUPYTER_TOKEN": TOKEN, "JUPYTER_RUNTIME_DIR": str(self._runtime), "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(ROOT / ".jupyter"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "LABS_TEST_MARK": str(home), "PYTHONPATH": str(ROOT),
            "LABS_PROGRESS_FILE": "off",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0"]
        command += [f"--ServerApp.root_dir={self.folder}", *(["--allow-root"] if os.getuid() == 0 else [])]
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def address(self) -> str:
        def answer():
            if self._process.poll() is not None:
                pytest.fail(f"JupyterLab ended with {self._process.returncode}:\n{self._log.read_text()[-2000:]}")
            with suppress(StopIteration, ValueError, OSError):  # the file comes first, then the port is opened
                url = json.loads(next(self._runtime.glob("jpserver-*.json")).read_text())["url"]
                urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=10).close()
                return url

        return wait_for(answer, "JupyterLab")

    def write(self, name: str, cells: tuple[str, ...]) -> None:
        """Write a notebook of code cells into the server's folder."""
        fields = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = {"metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        content["cells"] = [{**fields, "id": f"cell-{n}", "source": source} for n, source in enumerate(cells)]
        (self.folder / name).write_text(json.dumps(content))

    def ranks(self) -> list[int]:
        """Processes that were forked by a fork server of this JupyterLab's kernels (Linux)."""
        servers = {pid for pid in self._marked() if b"forkserver" in _read(pid, "cmdline")}
        return [pid for pid in servers if _parent(pid) in servers]

    def _marked(self) -> list[int]:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if self.mark.encode() in _read(pid, "environ").split(b"\0")]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # ended, or somebody else's
        return b""


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields and fields[0] not in (b"Z", b"X") else 0


class Notebook:
    """A notebook open in a page."""

    def __init__(self, page, address: str, name: str):
        self.page, self.name, self.url = (
            page,
            name,
            f"{address}lab/tree/{name}?token={TOKEN}&reset",
        )  # no tabs of other tests
        self.open()

    def open(self) -> None:
        """Open the notebook, or load the page again, and wait for its kernel."""
        self.page.goto(self.url)
        self.cell(0).wait_for()
        self.until_idle()

    def cell(self, number: int):
        return self.page.locator(".jp-CodeCell").nth(number)

    @property
    def is_idle(self) -> bool:
        return self.page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").count() > 0

    def until_idle(self) -> None:
        wait_for(lambda: self.is_idle, "a kernel at rest")

    def run(self, number: int):
        """Run a cell to its end and return it: while JupyterLab still connects, it drops the keys or the execution."""
        cell = self.cell(number)
        prompt = cell.locator(".jp-InputArea-prompt")
        before = re.sub(r"\D", "", prompt.inner_text())  # the prompt is empty, then "[ ]:", "[*]:", "[1]:"

        def has_run():
            now = prompt.inner_text()
            if "*" not in now and re.sub(r"\D", "", now) == before:
                cell.locator(".jp-InputArea-editor").click()
                self.page.keyboard.press("Control+Enter")
                self.page.wait_for_timeout(1000)
            return re.sub(r"\D", "", prompt.inner_text()) not in ("", before)

        wait_for(has_run, f"the end of cell {number}")
        return cell

    def save(self) -> None:
        self.page.keyboard.press("Control+s")
        self.page.wait_for_timeout(500)  # asked again and again while cells run: leave them the cores

    def saved(self, folder: Path) -> dict:
        """Return what the file of the notebook holds; no cells while it is being written."""
        try:
            return json.loads((folder / self.name).read_text())
        except ValueError:
            return {"cells": [{"cell_type": "code", "execution_count": None, "outputs": []}]}

    def menu(self, *names: str) -> None:
        """Choose from the menus; a name ends where the menu writes its shortcut."""
        self.page.get_by_role("menuitem", name=names[0], exact=True).click()
        for name in names[1:]:
            self.page.locator(".lm-Menu-item").filter(has_text=re.compile(f"^{re.escape(name)}")).first.click()

    def restart_kernel(self) -> None:
        self.menu("Kernel", "Restart Kernel…")
        self.page.get_by_role("button", name="Confirm Kernel Restart").click()

    def picture(self, name: str) -> None:
        """Keep a picture of the page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
