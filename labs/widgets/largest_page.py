"""The page that answers: what is the largest model that fits under this many MiB on each rank?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.largest import Largest, largest_models
from labs.plots import plot_largest, table_largest
from labs.records import MODEL_STATES, STATES, RunResult
from labs.units import MiB
from labs.widgets.run_pages import LIVE_DPI, NO_CHOICE, Page

DEFAULT_MIB = 4.0
COUNTED = {"states alone": MODEL_STATES, "states and activations": STATES}


class LargestPage:
    """A cap, what counts against it, the answer for every strategy, and a button that runs that of the chosen one.

    `on_change()` is called when the question changes, `on_run(config)` when the answer is to be run.
    """

    def __init__(self, on_change: Callable[[], None], on_run: Callable[[ModelTrainingConfig], None]):
        look = {"style": {"description_width": "initial"}}
        self.cap_mib = widgets.BoundedFloatText(
            DEFAULT_MIB,
            min=0.1,
            max=4096,
            step=0.5,
            description="cap on each rank [MiB]",
            layout={"width": "240px"},
            **look,
        )
        self.counted = widgets.Dropdown(
            options=[(name, name) for name in COUNTED], description="counted", layout={"width": "230px"}, **look
        )
        self.run_button = widgets.Button(description="Run it", icon="play", disabled=True, layout={"width": "230px"})
        self.page = Page()
        row = widgets.HBox([self.cap_mib, self.counted, self.run_button], layout={"flex_flow": "row wrap"})
        self.screen = widgets.VBox([row, self.page.screen])
        self._answer: Largest | None = None
        self._can_run = True
        for control in (self.cap_mib, self.counted):
            control.observe(lambda change: (self.forget(), on_change()), names="value")
        self.run_button.on_click(lambda button: self._answer and on_run(self._answer.config))

    @property
    def cap_bytes(self) -> float:
        return self.cap_mib.value * MiB

    def allow(self, can_run: bool) -> None:
        """Offer the button, or not while another run is in progress."""
        self._can_run = can_run
        self.run_button.disabled = not can_run or self._answer is None

    def forget(self) -> None:
        """Offer an answer no longer, because the question has changed; `draw` brings the next one."""
        self._answer = None
        self.allow(self._can_run)

    def clear(self) -> None:
        """Take an answer off the page, so that it is not taken for that to another question until `draw` comes."""
        self.forget()
        self.page.show(None, None, LIVE_DPI, "drawing")

    def draw(self, config: ModelTrainingConfig | None, results: Mapping[str, RunResult], dots_per_inch: int) -> None:
        """Answer for a choice, with what runs of exactly these models have held; None is a choice that cannot run."""
        if config is None:
            return self.page.show(None, None, dots_per_inch, NO_CHOICE)
        states = COUNTED[self.counted.value]
        found = largest_models(config, self.cap_bytes, states)
        answer = found[config.strategy]
        self._answer = answer if isinstance(answer, Largest) else None
        layers = f": {answer.num_layers} layers" if self._answer else ""
        self.run_button.description = f"Run {config.strategy}{layers}"
        self.allow(self._can_run)
        measured = {name: held for name, one in found.items() if (held := _held(one, results, states)) is not None}
        question = found, self.cap_bytes, measured
        words = _words(found, measured, config.strategy)
        self.page.show(plot_largest(*question), table_largest(*question), dots_per_inch, words)


def _held(one: Largest | str, results: Mapping[str, RunResult], states: tuple[str, ...]) -> int | None:
    """Return what the fullest rank held in the latest kept run of this model, strategy and batch; None if none ran."""
    if isinstance(one, str):
        return None
    runs = [run for run in results.values() if _same_bytes(run.config, one.config)]
    if not runs:
        return None
    return max(sum(rank.memory.states[state].measured_bytes for state in states) for rank in runs[-1].ranks)


def _same_bytes(one: ModelTrainingConfig, other: ModelTrainingConfig) -> bool:
    names = (
        "model", "strategy", "world_size", "batch_size", "gradient_accumulation_steps", "use_mixed_precision",
        "offload", "activation_checkpointing", "data",
    )  # fmt: skip
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _words(found: Mapping[str, Largest | str], measured: Mapping[str, int], strategy: str) -> str:
    """Say what the run of the chosen strategy's answer has shown, or why there is no answer."""
    one = found[strategy]
    if isinstance(one, str):
        return f"{strategy}: {one}"
    if strategy not in measured:
        return "Deeper and shallower versions of the chosen model. Which strategy fits the most layers?"
    apart = measured[strategy] - one.held_bytes
    return (
        f"{strategy}, {one.num_layers} layers: predicted {one.held_bytes:,} bytes on the fullest rank, "
        f"measured {measured[strategy]:,}, {abs(apart):,} apart."
    )
