"""The course's Jupyter: a kernel that finds its tools, a server for this machine alone, and no news from the web."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from processes import becomes_true

import bootstrap

ROOT = Path(__file__).resolve().parent.parent


def test_the_kernel_finds_the_tools_of_its_environment_without_activation_and_lets_idle_threads_sleep(
    tmp_path, monkeypatch
):
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "a-tool-of-the-course"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    monkeypatch.setattr(bootstrap, "VENV", str(tmp_path))
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", sys.executable)
    bootstrap.register_kernel()
    manager = KernelManager(kernel_name="python3")
    manager._kernel_spec = KernelSpec.from_resource_dir(str(tmp_path / "share/jupyter/kernels/python3"))
    program = "import os, subprocess; print(os.environ['OMP_WAIT_POLICY'])\n"
    program += "print(subprocess.getoutput('a-tool-of-the-course; env true && echo others too'))"
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    manager.start_kernel(env={**inherited, "PATH": "/usr/bin:/bin"})
    client = manager.client()
    client.start_channels()
    words: list[str] = []
    try:
        client.wait_for_ready(timeout=60)
        client.execute_interactive(
            program, timeout=60, output_hook=lambda m: words.append(m["content"].get("text", ""))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "".join(words) == "PASSIVE\nfound\nothers too\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab with the course's settings and nobody's own; yields what it wrote about itself."""
    folder = tmp_path_factory.mktemp("server")
    env = {name: text for name, text in os.environ.items() if name != "JUPYTER_TOKEN"}
    env |= {"JUPYTER_CONFIG_DIR": str(ROOT / ".jupyter"), "JUPYTER_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(folder), "JUPYTERLAB_WORKSPACES_DIR": str(folder)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", f"--ServerApp.root_dir={folder}"]
    command += ["--allow-root"] if os.getuid() == 0 else []
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        assert becomes_true(lambda: about(folder) or process.poll() is not None, 100)
        assert about(folder), (folder / "log").read_text()
        yield about(folder)
    finally:
        process.terminate()
        process.wait(30)


def about(folder: Path) -> dict | None:
    """What a server has written about itself, once it is there and whole and the port that it names is open."""
    try:
        found = json.loads(next(folder.glob("jpserver-*.json")).read_text())
        socket.create_connection((found["hostname"], found["port"]), timeout=10).close()
        return found
    except (StopIteration, ValueError, OSError):
        return None


def ask(server: dict, path: str, token: str | None = None) -> dict:
    headers = {"Authorization": f"token {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(server["url"] + path, headers=headers), timeout=30) as answer:
        return json.load(answer)


def test_the_server_answers_on_this_machine_alone(server):
    assert server["hostname"] == "127.0.0.1"


def test_the_server_asks_for_a_token_of_its_own(server):
    assert len(server["token"]) >= 32
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask(server, "api/contents")
    assert ask(server, "api/contents", server["token"])["type"] == "directory"


def test_the_server_offers_no_news_and_looks_for_none(server):
    path = "lab/api/settings/@jupyterlab/apputils-extension:notification"
    settings = ask(server, path, server["token"])
    chosen = {name: value["default"] for name, value in settings["schema"]["properties"].items()}
    assert (chosen["fetchNews"], chosen["checkForUpdates"]) == ("false", False)
    assert ask(server, "lab/api/news", server["token"])["news"] == []
    assert ask(server, "lab/api/update", server["token"])["notification"] is None


def test_the_list_of_files_leaves_its_width_to_the_names_of_the_lessons(server):
    settings = ask(server, "lab/api/settings/@jupyterlab/filebrowser-extension:browser", server["token"])
    assert settings["schema"]["properties"]["showLastModifiedColumn"]["default"] is False


def test_no_page_loses_its_kernel_to_a_ping_that_was_never_sent():
    """jupyter_server 2.21 looks for an answer before its first ping: a limit of one interval cuts every page off."""
    settings = json.loads((ROOT / ".jupyter/jupyter_lab_config.json").read_text())["ServerApp"]["tornado_settings"]
    interval, limit = settings["ws_ping_interval"], settings["ws_ping_timeout"]
    assert interval == 0 or limit > interval
