"""The strategy lab in a real JupyterLab page: what a learner sees and clicks."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 120
TOKEN = "only-for-this-test"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LONG_RUN_STEPS = 5000  # cancelled long before its end
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
CELLS = (
    "import labs\n"
    "lab = labs.strategy_lab(labs.ModelTrainingConfig(world_size=2, steps=25, batch_size=8, eval_every=5))\n"
    "lab",
    "other = labs.strategy_lab(); other",
)
# Runs in the page: click one button, and return the milliseconds until another one changes its state.
CLICK_AND_TIME = """([clicked, answering]) => new Promise(resolve => {
    const before = answering.disabled, start = performance.now();
    new MutationObserver((_, observer) => {
        if (answering.disabled !== before) { observer.disconnect(); resolve(performance.now() - start); }
    }).observe(answering, {attributes: true});
    clicked.click();
})"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(400),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium fonts-dejavu"),
]


def wait_for(condition, what: str):
    """Return the first true value of `condition()`; a limit, not a measure, of how long it may take."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not come within {PATIENCE_SECONDS} s")


@pytest.fixture
def served(tmp_path):
    """Serve a folder with one notebook through JupyterLab with the course's settings; yields (folder, address)."""
    folder, runtime = tmp_path / "course", tmp_path / "runtime"
    folder.mkdir()
    runtime.mkdir()
    write_notebook(folder / "lab.ipynb")
    environment = {
        **os.environ,
        "JUPYTER_TOKEN": TOKEN, "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(ROOT / ".jupyter"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"), "IPYTHONDIR": str(tmp_path / "ipython"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", f"--ServerApp.root_dir={folder}"]
    command += ["--allow-root"] if os.getuid() == 0 else []
    with open(tmp_path / "server.log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield folder, address_of(server, runtime, tmp_path / "server.log")
    finally:
        server.terminate()
        server.wait(30)


def write_notebook(path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{n}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for n, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.write_text(
        json.dumps({"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})
    )


def address_of(server, runtime: Path, log: Path) -> str:
    def answer():
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with {server.returncode}:\n{log.read_text()[-2000:]}")
        return [json.loads(path.read_text()) for path in runtime.glob("jpserver-*.json") if path.stat().st_size]

    return wait_for(answer, "JupyterLab")[0]["url"]


@pytest.fixture
def page(served):
    """A page with the notebook open; yields (page, folder, addresses of all requests so far)."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    folder, address = served
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 1250})
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}lab/tree/lab.ipynb?token={TOKEN}")
        page.locator(".jp-CodeCell").nth(1).wait_for()
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for()
        yield page, folder, requests
        page.screenshot(path=folder.parent / "last.png")
        print("open dialogs:", page.locator("dialog").all_inner_texts())
        browser.close()


def run_cell(page, number: int) -> None:
    """Run a cell, and see its number change: JupyterLab drops the keys while it still connects to the kernel."""
    cell = page.locator(".jp-CodeCell").nth(number)
    prompt = cell.locator(".jp-InputArea-prompt")
    before = prompt.inner_text()

    def runs():
        cell.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
        return prompt.inner_text() != before

    wait_for(runs, f"the start of cell {number}")


def lab_in(page, number: int):
    """The output area of a cell, with its lab on the screen."""
    output = page.locator(".jp-CodeCell").nth(number)
    button(output, "Run").wait_for()
    output.locator("img").first.wait_for()
    return output


def click_and_time(page, lab, clicked: str, answering: str) -> float:
    return page.evaluate(CLICK_AND_TIME, [button(lab, name).element_handle() for name in (clicked, answering)])


def button(lab, name: str):
    """Find a button by its words; its icon is part of its accessible name."""
    return lab.locator("button.widget-button").filter(has_text=re.compile(f"^{name}$"))


def choose(lab, control: str, option: str) -> None:
    lab.locator(".widget-dropdown").filter(has_text=control).locator("select").select_option(option)


def test_a_learner_runs_watches_cancels_and_compares_in_the_page(page, tmp_path, record_property):
    page, folder, requests = page
    run_cell(page, 0)
    lab = lab_in(page, 0)
    run_cell(page, 1)
    other = lab_in(page, 1)
    page.screenshot(path=tmp_path / "0-before.png")

    choose(lab, "strategy", "zero2: and gradients cut")
    lab.get_by_text("predicted: ").wait_for()
    picture = lab.locator("img").first
    milliseconds = [click_and_time(page, lab, "Run", "Cancel")]
    seen: list[str] = []  # (picture, status) pairs while it trains

    def has_ended():
        seen.append(f"{picture.get_attribute('src')} {lab.get_by_text('of 25, loss').count()}")
        return lab.get_by_text("kept as zero2 x 2").count()

    wait_for(has_ended, "the end of the run")
    live = {line.split()[0] for line in seen if line.endswith(" 1")}
    assert len(live) >= 2, "the picture did not change while the run was training"
    lab.get_by_text("The same in numbers").click()
    lab.get_by_text("Bytes held, predicted / measured").wait_for()
    lab.screenshot(path=tmp_path / "1-run.png")

    steps = lab.locator(".widget-text").filter(has_text="optimizer steps").locator("input")
    steps.fill(str(LONG_RUN_STEPS))
    steps.press("Enter")
    lab.get_by_text(f"steps={LONG_RUN_STEPS}").wait_for(state="attached")
    milliseconds.append(click_and_time(page, lab, "Run", "Cancel"))
    lab.get_by_text(f"of {LONG_RUN_STEPS}, loss").wait_for()
    milliseconds.append(click_and_time(page, lab, "Cancel", "Cancel"))
    lab.get_by_text("cancelled after").wait_for()
    assert other.get_by_text("kept as").count() == 0

    for name in ("Who keeps what", "Kept runs", "Code"):
        lab.get_by_role("tab", name=name).click()
        lab.screenshot(path=tmp_path / f"2-{name.split()[0].lower()}.png")
    lab.get_by_text("result = launch(config)").wait_for()
    button(lab, "Export config").click()
    lab.get_by_text("python -m labs train --config run.json").wait_for()
    assert json.loads((folder / "run.json").read_text())["strategy"] == "zero2"

    save_and_check(page, folder)
    run_cell(page, 0)
    page.wait_for_function("document.querySelectorAll('.jp-CodeCell')[0].querySelectorAll('.widget-tab').length == 1")
    outside = [url for url in requests if urlsplit(url).hostname not in (None, "", "127.0.0.1", "localhost")]
    assert outside == []
    record_property("click_to_answer_ms", [round(number, 1) for number in milliseconds])
    print(f"\nclick to answer: {[round(number, 1) for number in milliseconds]} ms (run, run, cancel)")
    assert min(milliseconds) < 5000  # an answer at all; the aim of 100 ms is reported, not asserted on a busy machine


def save_and_check(page, folder: Path) -> None:
    """The saved output carries the picture of the finished run for readers without a kernel."""
    page.keyboard.press("Control+s")

    def bundle():
        try:
            outputs = json.loads((folder / "lab.ipynb").read_text())["cells"][0]["outputs"]
        except ValueError:  # being written
            return None
        return outputs and outputs[-1]["data"]

    data = wait_for(bundle, "the saved notebook")
    assert {"image/png", "text/plain", "application/vnd.jupyter.widget-view+json"} <= set(data)
