"""A strategy lab without ranks and without drawing: the test plays the run, and pictures are numbers."""

import threading
from itertools import count

from fake_runs import fake_evals, fake_result, fake_step

PATIENCE_SECONDS = 60  # a limit for hangs, never waited out by a test that passes


class FakeRun:
    """Stands for a run of real ranks: the test emits its records and decides how it ends."""

    def __init__(self):
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.state, self._value = "running", None

    def start(self, config, on_record, on_end):
        self.config, self._on_record, self._on_end = config, on_record, on_end
        self.started.set()
        return self

    def cancel(self):
        self.cancelled.set()

    def emit(self, num_steps):
        for step in range(num_steps):
            for rank in range(self.config.world_size):
                self._on_record(rank, fake_step(self.config, step))
        for rank in range(self.config.world_size):
            self._on_record(rank, fake_evals(self.config)[0])

    def end(self, value, state="done"):
        self._value, self.state = value, state
        self._on_end(self)

    def wait(self):
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class FakePicture:
    """Stands for a drawn figure: no two are equal."""

    numbers = count()
    words = "What is to be seen"

    def png(self, dots_per_inch=100):
        return b"\x89PNG %d" % next(self.numbers)


def draw_at_once(monkeypatch):
    monkeypatch.setattr("labs.widgets.strategy_lab.plot_run", lambda *given: FakePicture())
    monkeypatch.setattr("labs.widgets.compare_page.plot_loss", lambda *given: FakePicture())
    monkeypatch.setattr("labs.widgets.largest_page.plot_largest", lambda *given: FakePicture())
    for name in ("memory", "traffic", "shard_map", "loss", "heat_map", "timelines"):
        monkeypatch.setattr(f"labs.widgets.run_pages.plot_{name}", lambda *given: FakePicture())


def settle(lab):
    assert lab.wait(PATIENCE_SECONDS), "the lab did not come to rest"
    assert "Traceback" not in lab.error.value


def look_at(lab, page):
    """Put a page on top and return its picture."""
    lab.tabs.selected_index = lab.tabs.titles.index(page)
    settle(lab)
    return lab.pages.pages[page].image.value


def look_at_compare(lab):
    lab.tabs.selected_index = lab.tabs.titles.index("Compare")
    settle(lab)


def run_to_end(lab, fake, **fields):
    fake.started.clear()
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.end(fake_result(**{"strategy": "ddp", "world_size": 2, "steps": 6, **fields}))
    settle(lab)
