"""One screen: choose a strategy, run it on real ranks, watch it, keep it, compare it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

import ipywidgets as widgets

from labs.config import ConfigError, ModelTrainingConfig
from labs.plots import (
    plot_bytes,
    plot_comparison,
    plot_curves,
    plot_run,
    plot_shard_map,
    table_comparison,
    table_layer_norms,
    table_loss,
    table_memory,
    table_shard_map,
    table_traffic,
)  # fmt: skip
from labs.records import RunResult
from labs.units import format_bytes
from labs.widgets.background import Background
from labs.widgets.cells import replace_lab_of_cell
from labs.widgets.code_panel import CodePanel
from labs.widgets.controls import Controls
from labs.widgets.kept_runs import KeptRuns
from labs.widgets.pictures import close_with_children, hidden_image, show
from labs.widgets.static_view import StaticView
from labs.widgets.watch import Watch, predicted_memory, preview

_TABLES = (table_loss, table_layer_norms, table_memory, table_traffic)
LIVE_DPI, FINAL_DPI = 90, 130


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
        self._has_run = self._is_closed = False
        self._background = Background(self._show_error)
        self._make_outputs()
        self.controls = Controls(config, self._choice_changed)
        self.kept = KeptRuns(self._kept_changed)
        self.code = CodePanel()
        self.screen = self._lay_out()
        self._static = StaticView(self.screen)
        self._choice_changed()

    def _make_outputs(self) -> None:
        self.verdict, self.status, self.error = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.cancel_button = widgets.Button(description="Cancel", icon="stop", disabled=True)
        self.progress = widgets.IntProgress(0, 0, 1, description="progress", layout={"width": "320px"})
        self.curves, self.bars, self.shard_map, self.comparison = (hidden_image() for _ in range(4))
        self.numbers, self.shard_table, self.comparison_table = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.run_button.on_click(lambda button: self._run_clicked())
        self.cancel_button.on_click(lambda button: self._cancel_clicked())

    def _lay_out(self) -> widgets.Widget:
        pages = {
            "Run": widgets.VBox([self.curves, self.bars, self.numbers]),
            "Who keeps what": widgets.VBox([self.shard_map, self.shard_table]),
            "Kept runs": widgets.VBox([self.kept.list, self.comparison, self.comparison_table]),
            "Code": self.code.screen,
        }
        tabs = widgets.Tab(list(pages.values()), titles=list(pages))
        buttons = widgets.HBox([self.run_button, self.cancel_button, self.progress, self.status])
        return widgets.VBox([self.controls.screen(), self.verdict, buttons, self.error, tabs])

    @property
    def config(self) -> ModelTrainingConfig:
        """The run that the controls describe now. Raises ConfigError while they describe none."""
        return self.controls.read()

    @property
    def results(self) -> dict[str, RunResult]:
        """The kept runs by name, oldest first."""
        return self.kept.results

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
        close_with_children(self.screen)

    def _ipython_display_(self) -> None:
        self._static.display()

    # Choosing -----------------------------------------------------------------------------------------------------

    def _choice_changed(self) -> None:
        """Judge the choice at once; draw what follows from it in the background."""
        try:
            config = self.config
        except ConfigError as problem:
            self.verdict.value = _verdict(f"&#10007; <b>This cannot run:</b> {escape(str(problem))}")
            self.code.show(None)
            self.run_button.disabled = True
            return
        self.verdict.value = _verdict(f"&#10003; {escape(_promise(config))}")
        self.code.show(config)
        self.run_button.disabled = self._watch is not None
        self._background.do("shard map", partial(self._draw_shard_map, config))
        if not self._has_run:
            self._background.do("picture", lambda: self._draw(preview(config), LIVE_DPI))

    def _draw_shard_map(self, config: ModelTrainingConfig) -> None:
        show(self.shard_map, plot_shard_map(config), FINAL_DPI)
        self.shard_table.value = table_shard_map(config)._repr_html_()

    # Running ------------------------------------------------------------------------------------------------------

    def _run_clicked(self) -> None:
        if self._watch is not None or self._is_closed:
            return
        watch = self._watch = Watch(self.config)
        self._has_run = True
        self.run_button.disabled, self.cancel_button.disabled = True, False
        self.progress.max, self.progress.value, self.progress.bar_style = watch.config.steps, 0, "info"
        self.error.value, self.status.value = "", escape(watch.status())
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
        else:
            self._draw(watch.view(), LIVE_DPI)

    def _something_arrived(self, watch: Watch) -> None:
        self._background.do("picture", partial(self._draw_live, watch))

    def _draw_live(self, watch: Watch) -> None:
        if watch.ended.is_set():
            return
        self.progress.value = watch.num_steps
        self.status.value = escape(watch.status())
        show(self.curves, plot_curves(watch.view()), LIVE_DPI)

    def _draw(self, run, dots_per_inch: int) -> None:
        show(self.curves, plot_curves(run), dots_per_inch)
        show(self.bars, plot_bytes(run), dots_per_inch)
        tables = "".join(table(run)._repr_html_() for table in _TABLES)
        self.numbers.value = f"<details><summary>The same in numbers</summary>{tables}</details>"

    def _cancel_clicked(self) -> None:
        if self._watch is not None:
            self.cancel_button.disabled = True
            self.status.value = "cancelling"
            self._watch.cancel()

    def _end(self, watch: Watch, run) -> None:
        """Leave the run's last picture, or the words of its error, where the run was."""
        try:
            result = run.wait()
        except Exception as problem:
            return self._close_run(watch, _how_it_ended(watch, run), None if watch.is_cancelled else problem)
        self.progress.value = watch.config.steps
        name = self.kept.add(result)
        self._draw(result, FINAL_DPI)
        self._static.update(plot_run(result))
        self._close_run(watch, f"done in {sum(step.seconds for step in result.steps):.1f} s, kept as {name}")

    def _close_run(self, watch: Watch, status: str, problem: Exception | None = None) -> None:
        self.progress.bar_style = "danger" if problem else "warning" if watch.is_cancelled else "success"
        self.status.value = escape(status)
        self.error.value = (
            f'<pre role="alert">{escape(f"{type(problem).__name__}: {problem}")}</pre>' if problem else ""
        )
        self._watch = None
        self.cancel_button.disabled = True
        self._choice_changed()  # Run is offered again if the choice can run
        watch.ended.set()

    # Comparing ----------------------------------------------------------------------------------------------------

    def _kept_changed(self) -> None:
        self._background.do("comparison", self._draw_comparison)

    def _draw_comparison(self) -> None:
        runs = self.kept.overlaid
        show(self.comparison, plot_comparison(runs) if runs else None, FINAL_DPI)
        self.comparison_table.value = table_comparison(runs)._repr_html_() if runs else ""

    def _show_error(self, text: str) -> None:
        self.error.value = f'<pre role="alert">{escape(text)}</pre>'


def _verdict(words: str) -> str:
    return f'<div role="status" style="line-height:1.4">{words}</div>'


def _promise(config: ModelTrainingConfig) -> str:
    """Say what arithmetic promises before the run."""
    ranks = predicted_memory(config)
    totals = [sum(states.values()) for states in ranks]
    fullest = ranks[totals.index(max(totals))]
    parts = ", ".join(f"{state.replace('_', ' ')} {format_bytes(size)}" for state, size in fullest.items() if size)
    each = "each rank" if min(totals) == max(totals) else "the fullest rank"
    samples = f"{config.micro_batch_size} sample{'s' if config.micro_batch_size > 1 else ''} at once on a rank"
    return f"{samples}; predicted: {each} holds {format_bytes(max(totals))} ({parts})"


def _how_it_ended(watch: Watch, run) -> str:
    word = "cancelled" if watch.is_cancelled else getattr(run, "state", "failed")
    return f"{word} after {watch.num_steps} of {watch.config.steps} steps"
