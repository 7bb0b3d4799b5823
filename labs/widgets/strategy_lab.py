"""One screen: choose a strategy, run it on real ranks, watch it, keep it, compare it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

import ipywidgets as widgets

from labs.config import ConfigError, ModelTrainingConfig
from labs.plots import plot_run
from labs.records import RunResult
from labs.widgets.background import Background
from labs.widgets.cells import replace_lab_of_cell
from labs.widgets.compare_page import ComparePage
from labs.widgets.controls import Controls
from labs.widgets.export_page import CHOICE as EXPORTED
from labs.widgets.export_page import ExportPage
from labs.widgets.largest_page import LargestPage
from labs.widgets.pictures import close_with_children, line, screen
from labs.widgets.promise import promise
from labs.widgets.run_pages import FINAL_DPI, LIVE_DPI, RunPages
from labs.widgets.shown import CHOICE, LATEST, Shown
from labs.widgets.static_view import StaticView
from labs.widgets.watch import Watch

FIRST_PAGE, LIVE_PAGE = "Memory", "Loss"


def strategy_lab(config: ModelTrainingConfig | None = None) -> StrategyLab:
    """Show the strategy lab below a cell, its controls set to a config or to the defaults.

    Running the cell again ends the lab that it showed before, and that lab's run.
    """
    lab = StrategyLab(config or ModelTrainingConfig())
    replace_lab_of_cell(lab)
    return lab


def _start(config, on_record, on_end):
    from labs.launcher import start  # here, so that the controls stand before the launcher is loaded

    return start(config, on_record=on_record, on_end=on_end)


class StrategyLab:
    """The screen and what it holds: `config`, `results` by name, `run_button`, `cancel_button`, `controls`.

    Handlers of clicks only set widgets; starting and drawing happen on one thread of the lab (`Background`), and
    records arrive on the launcher's. `start(config, on_record, on_end)` can be replaced in tests.
    """

    def __init__(self, config: ModelTrainingConfig, start: Callable = _start):
        self._start = start
        self._watch: Watch | None = None  # the run in progress
        self._is_closed = False
        self._background = Background(self._show_error)
        self.controls = Controls(config, self._choice_changed)
        self.shown, self.pages = Shown(self._draw_soon), RunPages()
        self.compare, self.export = ComparePage(self._kept_changed, reserved=(CHOICE, LATEST, EXPORTED)), ExportPage()
        self.largest = LargestPage(self._draw_soon, self._run_largest)
        self._make_buttons()
        self.screen = self._lay_out()
        self._static = StaticView(self.screen)
        self._choice_changed()

    def _make_buttons(self) -> None:
        self.verdict, self.status, self.error = line(), line(), widgets.HTML()
        self.run_button = widgets.Button(
            description="Run", icon="play", button_style="primary", layout={"width": "92px"}
        )
        self.cancel_button = widgets.Button(description="Cancel", icon="stop", disabled=True, layout={"width": "92px"})
        self.progress = widgets.IntProgress(0, 0, 1, description="progress", layout={"width": "230px"})
        self.progress.style.description_width = "initial"
        self.numbers = widgets.ToggleButton(description="Numbers", icon="table", layout={"width": "100px"})
        self.run_button.on_click(lambda button: self._run_clicked())
        self.cancel_button.on_click(lambda button: self._cancel_clicked())
        self.numbers.observe(lambda change: self._show_numbers(change["new"]), names="value")

    def _lay_out(self) -> widgets.Widget:
        pages = {name: page.screen for name, page in self.pages.pages.items()}
        pages |= {"Compare": self.compare.screen, "Largest": self.largest.screen, "Export": self.export.screen}
        self.tabs = widgets.Tab(list(pages.values()), titles=list(pages), selected_index=list(pages).index(FIRST_PAGE))
        self.tabs.observe(lambda change: self._turn_page(), names="selected_index")
        row = [self.run_button, self.cancel_button, self.progress, self.shown.control, self.numbers]
        buttons = widgets.HBox(row, layout={"flex_flow": "row wrap"})
        return screen([self.controls.screen(), self.verdict, buttons, self.status, self.error, self.tabs])

    @property
    def config(self) -> ModelTrainingConfig:
        """The run that the controls describe now. Raises ConfigError while they describe none."""
        return self.controls.read()

    @property
    def results(self) -> dict[str, RunResult]:
        """The kept runs by name, oldest first."""
        return self.compare.kept.results

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the run and the drawing have ended (blocks the kernel); returns False when time is over first."""
        watch = self._watch
        if watch is not None and not watch.ended.wait(timeout_seconds):
            return False
        return self._background.wait_until_idle(timeout_seconds)

    def close(self) -> None:
        """Cancel the run, forget what is still to be drawn, and take the screen away."""
        self._is_closed = True
        self._background.close()
        if self._watch is not None:
            self._watch.cancel()
            self._watch.ended.set()  # nobody hears of its end any more
        close_with_children(self.screen)

    def _ipython_display_(self) -> None:
        self._static.display()

    # Choosing -----------------------------------------------------------------------------------------------------

    def _choice_changed(self) -> None:
        """Judge the choice at once; draw what follows from it in the background."""
        try:
            config = self.config
        except ConfigError as problem:
            config, words = None, f"&#10007; <b>This cannot run:</b> {escape(str(problem))}"
        else:
            words = f"&#10003; {escape(promise(config))}"
        self.largest.forget()
        self._draw_soon()
        self.verdict.value = f'<div role="status">{words}</div>'
        self.export.offer(config, self.results)
        self._offer_run(config is not None and self._watch is None)

    def _offer_run(self, can_run: bool) -> None:
        self.run_button.disabled = not can_run
        self.largest.allow(can_run)

    def _run_largest(self, config: ModelTrainingConfig) -> None:
        self.controls.choose(config.strategy, config.model)
        self._run_clicked()

    # Showing ------------------------------------------------------------------------------------------------------

    @property
    def page(self) -> str:
        """The name of the page on top."""
        return self.tabs.titles[self.tabs.selected_index or 0]

    def _show_numbers(self, shown: bool) -> None:
        for page in (*self.pages.pages.values(), self.largest.page):
            page.show_numbers(shown)

    def _turn_page(self) -> None:
        self.pages.clear(self.page, self.shown.view(self._config_or_none()))
        if self.page == "Largest":
            self.largest.clear()
        self._draw_soon(at_once=True)

    def _draw_soon(self, at_once: bool = False) -> None:
        self._background.do("picture", self._draw, at_once)

    def _draw(self) -> None:
        """Draw the page on top, if it does not show what it should."""
        if self.page == "Compare":
            self.compare.draw(FINAL_DPI)
        elif self.page == "Largest":
            self.largest.draw(self._config_or_none(), self.results, FINAL_DPI)
        elif self.page in self.pages.pages:
            view = self.shown.view(self._config_or_none())
            self.pages.draw(self.page, view, LIVE_DPI if self._watch else FINAL_DPI)

    def _config_or_none(self) -> ModelTrainingConfig | None:
        try:
            return self.config
        except ConfigError:
            return None

    # Running ------------------------------------------------------------------------------------------------------

    def _run_clicked(self) -> None:
        config = self._config_or_none()  # None: the click was under way when the button was disabled
        if self._watch is not None or self._is_closed or config is None:
            return
        watch = self._watch = self.shown.latest = Watch(config)
        self._offer_run(False)
        self.cancel_button.disabled = False
        self.progress.max, self.progress.value, self.progress.bar_style = watch.config.steps, 0, "info"
        self.error.value, self.status.value = "", escape(watch.status())
        if not self.results and self.page == FIRST_PAGE:
            self.tabs.selected_index = self.tabs.titles.index(LIVE_PAGE)
        self.shown.offer(self.results, LATEST)
        self._background.do("start", partial(self._start_run, watch), at_once=True)

    def _start_run(self, watch: Watch) -> None:
        try:
            watch.follow(
                self._start(
                    watch.config,
                    on_record=lambda rank, record: watch.hear(rank, record) and self._something_arrived(watch),
                    on_end=lambda run: self._background.do("end", partial(self._end, watch, run), at_once=True),
                )
            )
        except Exception as problem:
            self._close_run(watch, "failed to start", problem)

    def _something_arrived(self, watch: Watch) -> None:
        self._background.do("news", partial(self._tell, watch))

    def _tell(self, watch: Watch) -> None:
        if not watch.ended.is_set():
            self.progress.value = watch.num_steps
            self.status.value = escape(watch.status())
            self._draw()

    def _cancel_clicked(self) -> None:
        if self._watch is not None:
            self.cancel_button.disabled = True
            self._watch.cancel()
            self.status.value = self._watch.status()

    def _end(self, watch: Watch, run) -> None:
        """Leave the run's last picture, or the words of its error, where the run was."""
        try:
            result = run.wait()
        except Exception as problem:
            return self._close_run(watch, watch.ending(run), None if watch.is_cancelled else problem)
        watch.is_cancelled = False  # it came too late
        self.progress.value = watch.config.steps
        self.shown.latest = None
        try:
            name = self.compare.kept.add(result)
            self.shown.offer(self.results, name)
            self._static.update(plot_run(result))
        except Exception as problem:  # a lab that cannot draw must not wait for this run for ever
            return self._close_run(watch, "the run is done, and cannot be shown", problem)
        early = "" if len(result.steps) == watch.config.steps else f"; it ended {result.ended_because}"
        self._close_run(watch, f"done in {sum(step.seconds for step in result.steps):.1f} s, kept as {name}{early}")

    def _close_run(self, watch: Watch, status: str, problem: Exception | None = None) -> None:
        self.progress.bar_style = "danger" if problem else "warning" if watch.is_cancelled else "success"
        self.status.value = escape(status)
        self.error.value = _alert(f"{type(problem).__name__}: {problem}") if problem else ""
        self.cancel_button.disabled = True
        self._watch = None
        self._choice_changed()  # Run is offered again if the choice can run
        watch.ended.set()

    def _kept_changed(self) -> None:
        self.shown.offer(self.results)
        self.export.offer(self._config_or_none(), self.results)
        self._draw_soon()

    def _show_error(self, text: str) -> None:
        self.error.value = _alert(text)


def _alert(text: str) -> str:
    return f'<pre role="alert">{escape(text)}</pre>'
