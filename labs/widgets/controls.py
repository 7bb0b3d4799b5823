"""The choices of a run as labelled controls, and back."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from labs.config import ConfigError, ModelTrainingConfig
from labs.spec import PRESETS, ModelSpec
from labs.units import format_count

STRATEGIES = {  # short enough for the box of the control
    "single": "one process",
    "ddp": "whole copies",
    "fsdp": "all states cut",
    "hsdp": "cut in halves",
    "zero1": "optimizer cut",
    "zero2": "+ gradients",
    "zero3": "+ parameters",
}
MOST_RANKS = 8  # for a laptop; a config with more of them keeps them
LEARNING_RATES = tuple(float(f"{digit}e{power}") for power in (-5, -4, -3, -2) for digit in (1, 2, 5)) + (0.1,)
_LOOK = {"style": {"description_width": "102px"}, "layout": {"width": "274px"}}  # three columns beside the side bar


class Controls:
    """One control for each choice; `read()` turns them into a config, on top of the fields that have no control."""

    def __init__(self, base: ModelTrainingConfig, on_change: Callable[[], None]):
        self._base = base
        self._models = {name: ModelSpec.from_name(name) for name in PRESETS}
        if base.model not in self._models.values():
            self._models["as given"] = base.model
        self._add_shape(base)
        self._add_numerics(base)
        for control in self.all.values():
            control.observe(lambda change: on_change(), names="value")

    def _add_shape(self, base: ModelTrainingConfig) -> None:
        strategies = [(f"{name}: {about}", name) for name, about in STRATEGIES.items()]
        model = next(name for name, spec in self._models.items() if spec == base.model)
        self.strategy = widgets.Dropdown(description="strategy", options=strategies, value=base.strategy, **_LOOK)
        most = max(MOST_RANKS, base.world_size)
        self.world_size = widgets.IntSlider(base.world_size, 1, most, description="ranks", **_LOOK)
        self.model = widgets.Dropdown(description="model", options=self._model_options(), value=model, **_LOOK)
        self.batch_size = _whole_number("global batch", base.batch_size, 4096)
        self.accumulation = _whole_number("accumulation", base.gradient_accumulation_steps, 64)
        self.steps = _whole_number("optimizer steps", base.steps, 10_000)

    def _add_numerics(self, base: ModelTrainingConfig) -> None:
        rates = sorted({*LEARNING_RATES, base.learning_rate})
        precisions = [("bf16, fp32 masters", True), ("fp32 throughout", False)]
        norm = base.max_grad_norm or 0.0
        self.learning_rate = widgets.SelectionSlider(
            description="learning rate",
            options=[(f"{rate:.3g}", rate) for rate in rates],
            value=base.learning_rate,
            **_LOOK,
        )
        self.mixed_precision = widgets.Dropdown(
            description="precision", options=precisions, value=base.use_mixed_precision, **_LOOK
        )
        self.max_grad_norm = widgets.BoundedFloatText(
            norm, min=0, max=max(1e6, norm), step=0.1, description="clip (0: off)", **_LOOK
        )
        self.offload = _tick("offload to the host", base.offload)
        self.activation_checkpointing = _tick("activation checkpointing", base.activation_checkpointing)

    @property
    def all(self) -> dict[str, widgets.Widget]:
        """The controls by name, in the order of the screen."""
        return {name: value for name, value in vars(self).items() if isinstance(value, widgets.Widget)}

    def choose(self, strategy: str, model: ModelSpec) -> None:
        """Set strategy and model; a model that is not offered yet is added."""
        name = next((name for name, spec in self._models.items() if spec == model), None)
        if name is None:
            name = f"{model.num_layers} layers of {model.hidden_size}"
            self._models[name] = model
            self.model.options = self._model_options()
        self.model.value, self.strategy.value = name, strategy

    def _model_options(self) -> list[tuple[str, str]]:
        return [(f"{name} ({format_count(spec.num_parameters)})", name) for name, spec in self._models.items()]

    def read(self) -> ModelTrainingConfig:
        """Build the config that the controls describe. Raises ConfigError for a combination that cannot run.

        Where the error names fields that have no control, it says where they come from.
        """
        kept = {name: getattr(self._base, name) for name in type(self._base).model_fields}
        if self._base.warmup_steps == type(self._base)(steps=self._base.steps).warmup_steps:
            del kept["warmup_steps"]  # it follows the steps, as it does in a config that does not name it
        chosen = {
            "strategy": self.strategy.value,
            "world_size": self.world_size.value,
            "model": self._models[self.model.value],
            "batch_size": self.batch_size.value,
            "gradient_accumulation_steps": self.accumulation.value,
            "steps": self.steps.value,
            "learning_rate": self.learning_rate.value,
            "use_mixed_precision": self.mixed_precision.value,
            "max_grad_norm": self.max_grad_norm.value or None,
            "offload": self.offload.value,
            "activation_checkpointing": self.activation_checkpointing.value,
        }
        try:
            return type(self._base)(**{**kept, **chosen})
        except ConfigError as problem:
            hidden = [name for name in type(self._base).model_fields if name not in chosen and name in str(problem)]
            if not hidden:
                raise
            names = " and ".join(hidden)
            raise ConfigError(f"{problem} ({names}: no control here; change the config in the cell)") from None

    def screen(self) -> widgets.Widget:
        """Lay the controls out in columns that wrap on a narrow page."""
        columns = [
            [self.strategy, self.world_size, self.model, self.steps],
            [self.batch_size, self.accumulation, self.learning_rate, self.max_grad_norm],
            [self.mixed_precision, self.offload, self.activation_checkpointing],
        ]
        return widgets.Box([widgets.VBox(column) for column in columns], layout={"flex_flow": "row wrap"})


def _whole_number(description: str, value: int, most: int) -> widgets.BoundedIntText:
    return widgets.BoundedIntText(value, min=1, max=max(most, value), description=description, **_LOOK)


def _tick(description: str, value: bool) -> widgets.Checkbox:
    return widgets.Checkbox(
        value, description=description, indent=False, layout={"width": "260px", "margin": "2px 12px"}
    )
