"""What a model is made of, by arithmetic alone: names, shapes, units. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from pydantic import Field, model_validator

from labs.errors import ConfigError, FriendlyModel


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter tensor: its name and shape as the built model has them, and the FSDP unit that gathers it."""

    name: str
    shape: tuple[int, ...]
    unit: str  # "root" or "blocks.i"
    trainable: bool = True

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def decays(self) -> bool:
        """Weight decay applies to matrices; norms and biases are spared."""
        return len(self.shape) >= 2


class ModelSpec(FriendlyModel):
    """A TinyGPT ("gpt") or a classifier for tables ("mlp"), small enough for a laptop.

    The three switches `residual`, `norm` and `init_scale` exist to make a deep stack misbehave on purpose.
    """

    kind: Literal["gpt", "mlp"] = "gpt"
    num_layers: int = Field(4, ge=1, le=96)
    hidden_size: int = Field(64, ge=1, le=4096)
    num_heads: int = Field(4, ge=1)
    context: int = Field(64, ge=2, le=4096, description="tokens in one sample")
    vocab_size: int = Field(256, ge=2)
    tied_embedding: bool = True
    residual: bool = True
    norm: bool = True
    init_scale: float = Field(1.0, gt=0, le=100)
    num_features: int = Field(64, ge=1, description="columns of the table (mlp)")
    num_classes: int = Field(10, ge=2, description="classes of the table (mlp)")

    @model_validator(mode="after")
    def _heads_divide_hidden(self):
        if self.kind == "gpt" and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not split into {self.num_heads} heads of equal width; "
                f"try num_heads={_largest_divisor(self.hidden_size, self.num_heads)} or a multiple of {self.num_heads}"
            )
        return self

    @classmethod
    def from_name(cls, name: str, **changes) -> ModelSpec:
        """Return a preset by name, with single fields changed.

        Raises ConfigError for an unknown name, listing the known ones.
        """
        if name not in PRESETS:
            raise ConfigError(f"model {name!r} is not known; the known names are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """List the distinct parameter tensors in the order of `named_parameters()`; a tied head is not listed twice."""
        return _gpt_parameters(self) if self.kind == "gpt" else _mlp_parameters(self)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.num_elements for parameter in self.parameters())

    def buffers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """List the fp32 buffers as (name, shape): the table's mean and standard deviation, none for text."""
        size = (self.num_features,)
        return (("mean", size), ("std", size)) if self.kind == "mlp" else ()


PRESETS: dict[str, dict] = {
    "tiny": dict(num_layers=4, hidden_size=64, num_heads=4, context=64),
    "small": dict(num_layers=6, hidden_size=128, num_heads=4, context=64),
    "base": dict(num_layers=10, hidden_size=384, num_heads=6, context=128),
}


def layer_of(parameter_name: str) -> str:
    """Name the layer that a parameter belongs to: 'blocks.3.up.weight' -> 'blocks.3', 'head.weight' -> 'head'."""
    parts = parameter_name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]


def _gpt_parameters(spec: ModelSpec) -> tuple[ParameterSpec, ...]:
    hidden = spec.hidden_size
    found = [
        ParameterSpec("token_embedding.weight", (spec.vocab_size, hidden), "root"),
        ParameterSpec("position_embedding.weight", (spec.context, hidden), "root"),
    ]
    for index in range(spec.num_layers):
        unit = f"blocks.{index}"
        found += _norm(f"{unit}.norm1", hidden, unit, spec.norm)
        found += _linear(f"{unit}.qkv", hidden, 3 * hidden, unit)
        found += _linear(f"{unit}.proj", hidden, hidden, unit)
        found += _norm(f"{unit}.norm2", hidden, unit, spec.norm)
        found += _linear(f"{unit}.up", hidden, 4 * hidden, unit)
        found += _linear(f"{unit}.down", 4 * hidden, hidden, unit)
    found += _norm("final_norm", hidden, "root", spec.norm)
    if not spec.tied_embedding:
        found.append(ParameterSpec("head.weight", (spec.vocab_size, hidden), "root"))
    return tuple(found)


def _mlp_parameters(spec: ModelSpec) -> tuple[ParameterSpec, ...]:
    hidden = spec.hidden_size
    found = _linear("stem", spec.num_features, hidden, "root")
    for index in range(spec.num_layers):
        unit = f"blocks.{index}"
        found += _norm(f"{unit}.norm", hidden, unit, spec.norm)
        found += _linear(f"{unit}.linear", hidden, hidden, unit)
    return tuple(found + _linear("head", hidden, spec.num_classes, "root"))


def _linear(name: str, inputs: int, outputs: int, unit: str) -> list[ParameterSpec]:
    return [ParameterSpec(f"{name}.weight", (outputs, inputs), unit), ParameterSpec(f"{name}.bias", (outputs,), unit)]


def _norm(name: str, width: int, unit: str, present: bool) -> list[ParameterSpec]:
    if not present:
        return []
    return [ParameterSpec(f"{name}.weight", (width,), unit), ParameterSpec(f"{name}.bias", (width,), unit)]


def _largest_divisor(number: int, at_most: int) -> int:
    return next(d for d in range(min(number, at_most), 0, -1) if number % d == 0)
