"""What a model is made of, by arithmetic alone: names, shapes, units. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Literal

from pydantic import Field, model_validator

from labs.errors import FriendlyModel


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter tensor: its name and shape as the built model has them, and the FSDP unit that gathers it."""

    name: str
    shape: tuple[int, ...]
    unit: str  # "root" or "blocks.i"
    trainable: bool = True

    @cached_property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def decays(self) -> bool:
        """Weight decay applies to matrices; norms and biases are spared."""
        return len(self.shape) >= 2


class LlamaShape(FriendlyModel):
    """What the Llama family has and TinyGPT has not: grouped queries, a gated feed-forward layer, experts."""

    intermediate_size: int = Field(
        ge=1, description="width of the feed-forward layer, of one expert where there are many"
    )
    num_kv_heads: int = Field(ge=1, description="heads of keys and values, each shared by a group of query heads")
    head_size: int | None = Field(None, ge=1, description="hidden_size / num_heads when not given")
    num_experts: int = Field(1, ge=1)
    experts_per_token: int = Field(1, ge=1)
    qkv_bias: bool = False
    proj_bias: bool = False
    mlp_bias: bool = False


class ModelSpec(FriendlyModel):
    """A TinyGPT ("gpt") or a classifier for tables ("mlp"); or a "llama", which is for planning alone.

    The three switches `residual`, `norm` and `init_scale` exist to make a deep stack misbehave on purpose.
    """

    kind: Literal["gpt", "mlp", "llama"] = "gpt"
    num_layers: int = Field(4, ge=1, le=1024)
    hidden_size: int = Field(64, ge=1, le=2**17)
    num_heads: int = Field(4, ge=1)
    context: int = Field(64, ge=2, le=2**24, description="tokens in one sample")
    vocab_size: int = Field(256, ge=2)
    tied_embedding: bool = True
    residual: bool = True
    norm: bool = True
    init_scale: float = Field(1.0, gt=0, le=100)
    num_features: int = Field(64, ge=1, description="columns of the table (mlp)")
    num_classes: int = Field(10, ge=2, description="classes of the table (mlp)")
    llama: LlamaShape | None = Field(None, description="what kind 'llama' has beside the fields above")

    @model_validator(mode="after")
    def _refuse_what_does_not_go_together(self):
        for problem in (_heads_problem, _llama_problem):
            if sentence := problem(self):
                raise ValueError(sentence)
        return self

    @classmethod
    def from_name(cls, name: str, **changes) -> ModelSpec:
        """Return a preset ("tiny") or a published model ("llama-3-8b") by name, with single fields changed.

        Raises ConfigError for an unknown name, listing the known ones, the nearest first.
        """
        from labs import named_models

        return named_models.find(name, **changes)

    @classmethod
    def from_hf_config(cls, path) -> ModelSpec:
        """Read the shape of a model from a Hugging Face config.json, or from the folder that holds one.

        Raises ConfigError for a file that cannot be read, a model_type that is not known, or a size that is missing.
        """
        from labs import named_models

        return named_models.from_hf_config(path)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """List the distinct parameter tensors in the order of `named_parameters()`; a tied head is not listed twice."""
        return {"gpt": _gpt_parameters, "mlp": _mlp_parameters, "llama": _llama_parameters}[self.kind](self)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.num_elements for parameter in self.parameters())

    @property
    def num_active_parameters(self) -> int:
        """Parameters that compute one token: all but those of the experts that the router leaves out."""
        if self.llama is None:
            return self.num_parameters
        idle = self.llama.num_experts - self.llama.experts_per_token
        expert = sum(p.num_elements for p in self.parameters() if ".experts.0." in p.name)
        return self.num_parameters - idle * expert

    def buffers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """List the fp32 buffers as (name, shape): the table's mean and standard deviation, none for text."""
        size = (self.num_features,)
        return (("mean", size), ("std", size)) if self.kind == "mlp" else ()


# Small enough to train on a laptop. Published models, for planning, are in labs/named_models.py.
PRESETS: dict[str, dict] = {
    "tiny": dict(num_layers=4, hidden_size=64, num_heads=4, context=64),
    "small": dict(num_layers=6, hidden_size=128, num_heads=4, context=64),
    "base": dict(num_layers=10, hidden_size=384, num_heads=6, context=128),
}


def layer_of(parameter_name: str) -> str:
    """Name the layer that a parameter belongs to: 'blocks.3.up.weight' -> 'blocks.3', 'head.weight' -> 'head'."""
    parts = parameter_name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]


def backward_order(parameters: Iterable[ParameterSpec]) -> list[ParameterSpec]:
    """Sort parameters as the backward pass completes their gradients: last module first, a linear's bias first.

    A tied embedding is listed where its first use stands, and is therefore last.
    """
    modules = [list(group) for _, group in groupby(parameters, key=lambda p: p.name.rpartition(".")[0])]
    found = []
    for module in reversed(modules):
        is_linear = len(module[0].shape) >= 2
        found += reversed(module) if is_linear else module
    return found


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


def _llama_parameters(spec: ModelSpec) -> tuple[ParameterSpec, ...]:
    found = [ParameterSpec("token_embedding.weight", (spec.vocab_size, spec.hidden_size), "root")]
    for index in range(spec.num_layers):
        found += _llama_block(spec, f"blocks.{index}")
    found.append(ParameterSpec("final_norm.weight", (spec.hidden_size,), "root"))
    if not spec.tied_embedding:
        found.append(ParameterSpec("head.weight", (spec.vocab_size, spec.hidden_size), "root"))
    return tuple(found)


def _llama_block(spec: ModelSpec, unit: str) -> list[ParameterSpec]:
    """RMSNorm has a gain and no bias; keys and values are narrower than queries; every expert is a gated layer."""
    shape, hidden = spec.llama, spec.hidden_size
    queries, keys = (heads * head_size(spec) for heads in (spec.num_heads, shape.num_kv_heads))
    found = [ParameterSpec(f"{unit}.norm1.weight", (hidden,), unit)]
    for name, width in (("q", queries), ("k", keys), ("v", keys)):
        found += _linear(f"{unit}.{name}", hidden, width, unit, shape.qkv_bias)
    found += _linear(f"{unit}.proj", queries, hidden, unit, shape.proj_bias)
    found.append(ParameterSpec(f"{unit}.norm2.weight", (hidden,), unit))
    if shape.num_experts > 1:
        found += _linear(f"{unit}.router", hidden, shape.num_experts, unit, bias=False)
    for expert in range(shape.num_experts):
        name = f"{unit}.experts.{expert}" if shape.num_experts > 1 else unit
        found += _linear(f"{name}.gate", hidden, shape.intermediate_size, unit, shape.mlp_bias)
        found += _linear(f"{name}.up", hidden, shape.intermediate_size, unit, shape.mlp_bias)
        found += _linear(f"{name}.down", shape.intermediate_size, hidden, unit, shape.mlp_bias)
    return found


def head_size(spec: ModelSpec) -> int:
    """Width of one attention head [elements]."""
    return spec.llama and spec.llama.head_size or spec.hidden_size // spec.num_heads


def _linear(name: str, inputs: int, outputs: int, unit: str, bias: bool = True) -> list[ParameterSpec]:
    weight = ParameterSpec(f"{name}.weight", (outputs, inputs), unit)
    return [weight, ParameterSpec(f"{name}.bias", (outputs,), unit)] if bias else [weight]


def _norm(name: str, width: int, unit: str, present: bool) -> list[ParameterSpec]:
    if not present:
        return []
    return [ParameterSpec(f"{name}.weight", (width,), unit), ParameterSpec(f"{name}.bias", (width,), unit)]


def _heads_problem(spec: ModelSpec) -> str | None:
    free = spec.kind == "mlp" or (spec.llama and spec.llama.head_size)
    if free or spec.hidden_size % spec.num_heads == 0:
        return None
    return (
        f"hidden_size {spec.hidden_size} does not split into {spec.num_heads} heads of equal width; "
        f"try num_heads={_largest_divisor(spec.hidden_size, spec.num_heads)} or a multiple of {spec.num_heads}"
    )


def _llama_problem(spec: ModelSpec) -> str | None:
    if (spec.kind == "llama") != (spec.llama is not None):
        needs = "needs" if spec.kind == "llama" else "has no use for"
        return f"a model of kind {spec.kind!r} {needs} llama=LlamaShape(...); try ModelSpec.from_name('llama-3-8b')"
    if spec.kind != "llama":
        return None
    if (spec.residual, spec.norm, spec.init_scale) != (True, True, 1.0):
        return "residual, norm and init_scale change models that are trained here, not kind 'llama'; try kind='gpt'"
    shape = spec.llama
    if spec.num_heads % shape.num_kv_heads:
        return (
            f"{spec.num_heads} query heads do not split over num_kv_heads {shape.num_kv_heads}; "
            f"try num_kv_heads={_largest_divisor(spec.num_heads, shape.num_kv_heads)}"
        )
    if shape.experts_per_token > shape.num_experts:
        return (
            f"experts_per_token {shape.experts_per_token} is more than the {shape.num_experts} experts there are; "
            f"try experts_per_token={shape.num_experts}"
        )
    return None


def _largest_divisor(number: int, at_most: int) -> int:
    return next(d for d in range(min(number, at_most), 0, -1) if number % d == 0)
