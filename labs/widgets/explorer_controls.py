"""The choices of the memory explorer as labelled controls, and back into a scenario."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from labs.config import STRATEGIES
from labs.errors import ConfigError
from labs.named_models import NAMED_MODELS
from labs.scenario import Scenario
from labs.spec import PRESETS, ModelSpec
from labs.units import format_count

RANKS = tuple(2**power for power in range(11))
MICRO_BATCHES = tuple(2**power for power in range(8))
CONTEXTS = tuple(2**power for power in range(6, 18))
CAPACITIES = (8, 16, 24, 32, 40, 48, 80, 96, 141, 192, 288)  # GiB of devices that are sold, as their makers name them
CHOICES = {
    "precision": {"bf16-mixed": "bf16, fp32 masters", "fp32": "fp32 throughout", "bf16": "bf16 throughout"},
    "optimizer": {"adamw": "AdamW", "adamw-8bit": "AdamW, 8-bit states", "momentum": "SGD, momentum", "sgd": "SGD"},
    "offload": {
        "none": "nothing",
        "optimizer": "optimizer states",
        "optimizer+parameters": "optimizer states, parameters",
    },
    "activation_checkpointing": {"none": "none", "selective": "selective", "full": "full, by block"},
}
LABELS = {"activation_checkpointing": "checkpointing"}
_LOOK = {"style": {"description_width": "100px"}, "layout": {"width": "330px"}}


class ExplorerControls:
    """One control for each choice; `read()` turns them into a scenario, on top of the fields without a control."""

    def __init__(self, base: Scenario, capacity_gib: int, on_change: Callable[[], None]):
        if capacity_gib not in CAPACITIES:
            raise ConfigError(f"a device of {capacity_gib} GiB is not offered; try one of {_listed(CAPACITIES)}")
        self._base = base
        self._models = {name: ModelSpec.from_name(name) for name in (*PRESETS, *NAMED_MODELS)}
        if base.model not in self._models.values():
            self._models["as given"] = base.model
        self._add_shape(base)
        self._add_numbers(base, capacity_gib)
        for name, labels in CHOICES.items():
            setattr(self, name, _dropdown(LABELS.get(name, name), labels, getattr(base, name)))
        self.model.observe(lambda change: self._limit_context(), names="value")
        for control in self.all.values():
            control.observe(lambda change: on_change(), names="value")

    def _add_shape(self, base: Scenario) -> None:
        models = {name: f"{name} ({format_count(spec.num_parameters)})" for name, spec in self._models.items()}
        chosen = next(name for name, spec in self._models.items() if spec == base.model)
        self.model = _dropdown("model", models, chosen)
        self.strategy = _dropdown("strategy", {name: name for name in STRATEGIES}, base.strategy)

    def _add_numbers(self, base: Scenario, capacity_gib: int) -> None:
        self.world_size = _slider("ranks", RANKS, base.world_size)
        self.micro_batch_size = _slider("micro batch", MICRO_BATCHES, base.micro_batch_size)
        self.context = _slider("context", self._contexts(base.model), base.context)
        self.capacity_gib = _dropdown("device [GiB]", {size: str(size) for size in CAPACITIES}, capacity_gib)

    @property
    def all(self) -> dict[str, widgets.Widget]:
        """The controls by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, widgets.Widget)}

    def read(self, strategy: str | None = None) -> Scenario:
        """Build the scenario of the controls, or of another strategy. Raises ConfigError for what is not possible."""
        fields = {name: getattr(self, name).value for name in CHOICES}
        fields |= {name: getattr(self, name).value for name in ("world_size", "micro_batch_size", "context")}
        strategy = strategy or self.strategy.value
        if strategy == "single":
            fields["world_size"] = 1
        return self._base.replace(**fields, strategy=strategy, model=self._models[self.model.value], shard_size=None)

    def screen(self) -> widgets.Widget:
        """Lay the controls out in columns that wrap on a narrow page."""
        columns = [
            [self.model, self.strategy, self.world_size, self.capacity_gib],
            [self.precision, self.optimizer, self.offload],
            [self.activation_checkpointing, self.micro_batch_size, self.context],
        ]
        return widgets.Box([widgets.VBox(column) for column in columns], layout={"flex_flow": "row wrap"})

    def _limit_context(self) -> None:
        """Offer the lengths that the chosen model can read, and keep the nearest to the one before."""
        offered, before = self._contexts(self._models[self.model.value]), self.context.value
        if offered != self.context.options:
            self.context.options = offered
            self.context.value = max((length for length in offered if length <= before), default=offered[0])

    def _contexts(self, model: ModelSpec) -> tuple[int, ...]:
        """A learned position embedding ends at the model's context; rotated positions do not."""
        longest = model.context if model.kind == "gpt" else CONTEXTS[-1]
        return tuple(length for length in CONTEXTS if length <= longest) or (model.context,)


def _dropdown(description: str, labels: dict, value) -> widgets.Dropdown:
    options = [(label, key) for key, label in labels.items()]
    return widgets.Dropdown(description=description, options=options, value=value, **_LOOK)


def _slider(description: str, values: tuple[int, ...], value: int) -> widgets.SelectionSlider:
    options = sorted({*values, value})
    return widgets.SelectionSlider(description=description, options=options, value=value, **_LOOK)


def _listed(values) -> str:
    return ", ".join(map(str, values))
