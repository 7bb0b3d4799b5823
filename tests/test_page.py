"""The labs in a real JupyterLab page, on a projector's 1280 x 720: what a learner sees, clicks and types.

All tests share one server and one page; each begins by running its cell again, which ends what was there.
"""

import json
import re
import shutil
from urllib.parse import urlsplit

import pytest
from browser import CHROMIUM, FLAGS, PATIENCE_SECONDS, ROOT, SCREENSHOTS, Notebook, Server, wait_for

CELLS = (
    "import labs\n"
    "lab = labs.strategy_lab(labs.ModelTrainingConfig(world_size=2, steps=25, batch_size=8, eval_every=5))\n"
    "lab",
    "labs.memory_explorer()",
    "labs.check('memory_math.state_bytes', lambda *given: 0)",
    "from labs.checks.reference import memory_math\nlabs.check('memory_math.state_bytes', memory_math.state_bytes)",
)
STATUS_AND_PICTURE = (
    "cell => [cell.innerText, [...cell.querySelectorAll('img.labs-picture')].map(img => img.src).join()]"
)
LONG_RUN_STEPS = "5000"  # ended long before

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(400),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium fonts-dejavu"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("jupyter"))
    server.write("lab.ipynb", CELLS)
    shutil.copy(ROOT / "notebooks" / "00_start_here.ipynb", server.folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    page.requests_made = []
    page.on("request", lambda request: page.requests_made.append(request.url))
    page.errors = []
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))
    yield page
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "last.png")


@pytest.fixture(scope="module")
def notebook(server, page):
    return Notebook(page, server.address, "lab.ipynb")


@pytest.fixture
def lab(notebook):
    return Lab(notebook)


class Lab:
    """The strategy lab of the notebook's first cell, begun anew."""

    def __init__(self, notebook: Notebook):
        self.notebook, self.page = notebook, notebook.page
        self.cell = notebook.run(0)
        self.button("Run").wait_for()
        self.visible_picture.wait_for()
        self.cell.locator(".widget-tab").evaluate("tab => tab.scrollIntoView({block: 'end'})")

    def button(self, name: str):
        """Find a button by its words; its icon is part of its accessible name."""
        return self.cell.locator("button.jupyter-button").filter(has_text=re.compile(f"^{name}$"))

    @property
    def visible_picture(self):
        return self.cell.locator("img.labs-picture:visible").first

    def control(self, label: str):
        field = self.cell.locator(".widget-inline-hbox").filter(has=self.page.get_by_text(label, exact=True))
        return field.locator("select, input, .noUi-handle").first

    def choose(self, label: str, option: str) -> None:
        self.control(label).select_option(option)

    def steps(self, number: str) -> None:
        self.control("optimizer steps").fill(number)
        self.control("optimizer steps").press("Enter")
        self.open("Export")
        self.cell.get_by_text(f"steps={number}").wait_for()

    def open(self, tab: str) -> None:
        self.cell.get_by_role("tab", name=tab, exact=True).click()

    def until_drawn(self, tab: str) -> None:
        """Wait for the picture of a tab, which has a page of its own."""
        self.cell.get_by_role("tab", name=tab, exact=True, selected=True).wait_for()
        self.visible_picture.wait_for()

    def until(self, words: str) -> None:
        self.cell.get_by_text(words).first.wait_for()

    def run_to_end(self, name: str) -> None:
        self.button("Run").click()
        self.until(f"kept as {name}")

    def kept(self) -> int:
        return self.cell.locator(".widget-checkbox").filter(has_text="overlay").count()


def code_cells(content: dict) -> list[dict]:
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def test_lesson_00_runs_from_its_menu_to_its_last_cell(server, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    lesson = Notebook(page, server.address, "00_start_here.ipynb")

    def has_run():
        if page.locator("dialog").count():  # what JupyterLab says when it still connects
            page.keyboard.press("Escape")
        prompts = "".join(page.locator(".jp-InputArea-prompt").all_inner_texts())
        if not lesson.is_idle:
            return page.wait_for_timeout(500)
        if not re.search(r"\d|\*", prompts):
            lesson.menu("Run", "Run All Cells")
            return page.wait_for_timeout(1000)
        lesson.save()  # the page holds the cells in view alone, the file holds all
        return all(cell["execution_count"] for cell in code_cells(lesson.saved(server.folder)))

    wait_for(has_run, "the last cell")
    for cell in code_cells(lesson.saved(server.folder)):
        is_meant_to_fail = "raises-exception" in cell["metadata"].get("tags", [])
        assert is_meant_to_fail == any(output["output_type"] == "error" for output in cell["outputs"]), cell["source"]
    lesson.picture("00-start-here")
    lesson.menu("File", "Close and Shut Down Notebook")
    page.get_by_role("button", name="Ok").click()
    page.close()


def test_a_double_click_on_run_starts_one_run_which_is_seen_to_progress_and_measured(lab, server):
    assert lab.page.get_by_role("tab", name="Memory", exact=True).get_attribute("aria-selected") == "true"
    lab.notebook.picture("1-before-the-run")
    lab.choose("strategy", "zero2: + gradients")
    lab.until("will hold 1.91 MiB of states")
    lab.button("Run").dblclick()
    seen = set()

    def has_ended():
        text, picture = lab.cell.evaluate(STATUS_AND_PICTURE)
        if progress := re.search(r"step \d+ of 25", text):
            seen.add((progress[0], picture))
        return "kept as zero2 x 2" in text

    wait_for(has_ended, "the end of the run")
    assert len({step for step, _ in seen}) > 1 and len({picture for _, picture in seen}) > 1, seen
    lab.notebook.picture("2-loss")
    lab.open("Memory")
    lab.button("Numbers").click()
    lab.until("+0 B")  # apart: measured and predicted
    lab.visible_picture.wait_for()
    lab.notebook.picture("3-memory-in-numbers")
    lab.button("Numbers").click()
    for number, name in enumerate(("Memory", "Wire", "Shards", "Norms", "Timeline"), 4):
        lab.open(name)
        lab.until_drawn(name)
        lab.notebook.picture(f"{number}-{name.lower()}")
    assert lab.kept() == 1 and server.ranks() == []


def test_two_runs_are_compared_by_what_differs(lab):
    lab.run_to_end("ddp x 2")
    lab.choose("strategy", "fsdp: all states cut")
    lab.run_to_end("fsdp x 2")
    lab.open("Compare")
    lab.until("What was chosen differently, and what was measured")
    rows = lab.cell.locator("table:visible th[scope=row]").all_inner_texts()
    assert rows[0] == "strategy" and rows[1] == "last loss [nats]"
    lab.visible_picture.wait_for()
    assert lab.visible_picture.get_attribute("title").startswith("Final training losses lie")
    lab.notebook.picture("9-compare")


def test_the_largest_model_under_a_cap_is_run_and_meets_its_prediction(lab):
    lab.open("Largest")
    lab.choose("strategy", "zero1: optimizer cut")
    lab.button("Run zero1: 8 layers").click()
    lab.until("kept as zero1 x 2")
    lab.until("predicted 3,804,800 bytes on the fullest rank, measured 3,804,800, 0 apart.")
    lab.notebook.picture("10-largest")


def test_cancel_leaves_no_rank_behind_and_the_choice_can_be_exported(lab, server):
    lab.steps(LONG_RUN_STEPS)
    lab.button("Run").click()
    lab.until(f"of {LONG_RUN_STEPS}, loss")
    assert len(server.ranks()) == 2
    lab.button("Cancel").click()
    lab.until("cancelled after")
    assert server.ranks() == []
    lab.until("torchrun --standalone --nproc-per-node 2 -m labs train --config run.json")
    lab.notebook.picture("11-export")
    lab.button("Save").click()
    lab.until("run.json holds the choice")
    assert json.loads((server.folder / "run.json").read_text())["steps"] == int(LONG_RUN_STEPS)


def test_the_keyboard_alone_chooses_runs_looks_and_cancels(lab, server):
    press = lab.page.keyboard.press
    lab.control("strategy").focus()
    press("ArrowDown")
    press("Tab")
    press("ArrowRight")
    press("ArrowRight")
    press("m")  # a shortcut of JupyterLab, which would turn the cell into text
    lab.until("2 samples at once")
    assert lab.control("strategy").input_value().startswith("fsdp")
    walk(lab, "Run")
    press("Enter")
    lab.until("of 25, loss")
    walk(lab, "Cancel")
    press("Space")
    lab.until("cancelled after")
    walk(lab, "Numbers")
    press("Space")
    walk(lab, "Memory")  # the first of the tabs; arrows go on from there
    for _ in range(4):
        press("ArrowRight")
    press("Enter")
    lab.until("Gradient norm before clipping, measured")
    lab.notebook.picture("12-keyboard")
    assert server.ranks() == []


def walk(lab: Lab, name: str) -> None:
    """Press Tab until the focus is on something with these words."""
    for _ in range(30):
        if lab.page.evaluate("document.activeElement.innerText.trim()") == name:
            return
        lab.page.keyboard.press("Tab")
    pytest.fail(f"the key Tab never reaches {name}")


def test_every_control_has_a_label_that_names_it(lab):
    lab.open("Largest")
    fields = lab.cell.locator("select:visible, input:visible")
    unnamed = [field for field in fields.all() if not field.evaluate("field => field.labels.length")]
    assert fields.count() > 10 and unnamed == []


def test_a_dark_page_shows_its_pictures_dark(lab):
    lab.notebook.menu("Settings", "Theme", "JupyterLab Dark")
    lab.page.locator("body[data-jp-theme-light='false']").wait_for(state="attached")
    assert "invert" in lab.visible_picture.evaluate("picture => getComputedStyle(picture).filter")
    lab.page.locator("#jupyterlab-splash").wait_for(state="detached")
    lab.notebook.picture("13-dark")
    lab.notebook.menu("Settings", "Theme", "JupyterLab Light")
    lab.page.locator("body[data-jp-theme-light='true']").wait_for(state="attached")


def test_a_narrow_page_cuts_no_name_of_a_tab(lab, page):
    page.set_viewport_size({"width": 900, "height": 720})
    tabs = lab.cell.locator(".lm-TabBar-tabLabel").evaluate_all(
        "labels => labels.map(label => [label.innerText, label.scrollWidth - label.parentElement.clientWidth,"
        " label.getBoundingClientRect().right - label.closest('.widget-tab').getBoundingClientRect().right])"
    )
    assert len(tabs) == 9 and all(cut <= 0 and beyond <= 0 for _, cut, beyond in tabs), tabs
    lab.notebook.picture("13-narrow")
    page.set_viewport_size({"width": 1280, "height": 720})


def test_a_slider_of_the_memory_explorer_is_dragged_and_the_answer_follows(lab, notebook):
    explorer = notebook.run(1)
    explorer.get_by_text("It fits").or_(explorer.get_by_text("break it")).first.wait_for()
    explorer.locator("img:visible").first.wait_for()
    slider = explorer.locator(".widget-inline-hbox").filter(has=notebook.page.get_by_text("ranks", exact=True))
    slider.scroll_into_view_if_needed()
    handle, before = slider.locator(".noUi-handle").bounding_box(), explorer.locator("[role=status]").inner_text()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    notebook.page.mouse.move(x, y)
    notebook.page.mouse.down()
    notebook.page.mouse.move(x - 60, y, steps=4)
    notebook.page.mouse.up()
    wait_for(lambda: explorer.locator("[role=status]").inner_text() != before, "another answer")
    notebook.picture("14-explorer")


def test_a_check_fails_with_a_hint_and_passes(lab, notebook):
    failed = notebook.run(2)
    failed.get_by_text("memory_math.state_bytes").first.wait_for()
    assert "failed" in failed.locator(".jp-OutputArea-output").inner_text().lower()
    passed = notebook.run(3)
    passed.get_by_text("memory_math.state_bytes").nth(1).wait_for()
    assert "passed" in passed.locator(".jp-OutputArea-output").inner_text().lower()
    notebook.picture("15-checks")


def test_a_reload_in_the_middle_of_a_run_finds_the_run_and_its_end(lab, server):
    lab.steps(LONG_RUN_STEPS)
    lab.button("Run").click()
    lab.until(f"of {LONG_RUN_STEPS}, loss")
    lab.notebook.save()
    wait_for(lambda: lab.notebook.saved(server.folder)["cells"][0]["outputs"], "the saved notebook")
    lab.notebook.open()
    lab.until(f"of {LONG_RUN_STEPS}, loss")
    assert len(server.ranks()) == 2
    lab.button("Cancel").click()
    lab.until("cancelled after")
    assert server.ranks() == []


def test_a_restarted_kernel_takes_its_ranks_along_and_runs_again(lab, server):
    lab.steps(LONG_RUN_STEPS)
    lab.button("Run").click()
    lab.until(f"of {LONG_RUN_STEPS}, loss")
    lab.notebook.restart_kernel()
    wait_for(lambda: server.ranks() == [], "the end of the ranks")
    lab.notebook.until_idle()
    again = Lab(lab.notebook)
    again.run_to_end("ddp x 2")


def test_the_saved_output_has_a_picture_for_readers_without_a_kernel_and_nothing_came_from_outside(lab, server, page):
    lab.run_to_end("ddp x 2")

    def bundle():
        lab.notebook.save()
        outputs = lab.notebook.saved(server.folder)["cells"][0]["outputs"]
        return outputs and "image/png" in outputs[-1]["data"] and outputs[-1]["data"]

    data = wait_for(bundle, "the saved picture")
    assert {"text/plain", "application/vnd.jupyter.widget-view+json"} <= set(data)
    outside = [url for url in page.requests_made if urlsplit(url).hostname not in (None, "", "127.0.0.1", "localhost")]
    assert outside == []
    broken = [text for text in page.errors if "setting state" in text or "Could not create" in text]
    assert broken == []  # a widget that the page cannot show
