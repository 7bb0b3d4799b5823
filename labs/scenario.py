"""`Scenario`: a training set-up to plan, of any size; a live run is one kind of it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from labs.config import ModelTrainingConfig, Strategy
from labs.ds_layout import bucket_elements
from labs.errors import FriendlyModel
from labs.spec import ModelSpec

DEFAULT_CONTEXT = 4096  # tokens; models that could read more are seldom trained on more
SHARDED = ("fsdp", "hsdp")


class Scenario(FriendlyModel):
    """A model, a strategy, a number of ranks, and what else decides the bytes of one rank.

    precision: "fp32"; "bf16-mixed" and "fp16-mixed" (2 bytes in compute, fp32 master weights and optimizer); "bf16"
    (everything in 2 bytes, no master weights but those of ZeRO). activation_checkpointing: "selective" computes norms,
    activation functions and attention scores again, "full" whole blocks. attention: "flash" keeps no scores, "eager"
    keeps them. `context` is the model's own, at most 4096, when not given. `shard_size` is for hsdp: the ranks that
    share one copy, half of them when not given. The last two fields are DeepSpeed's `reduce_bucket_size` and
    `stage3_max_live_parameters`, with its own defaults.
    Raises ConfigError: what was given, why not, what to try.
    """

    model: ModelSpec
    strategy: Strategy = "fsdp"
    world_size: int = Field(8, ge=1, le=100_000)
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16"] = "bf16-mixed"
    optimizer: Literal["adamw", "sgd", "momentum", "adamw-8bit"] = "adamw"
    offload: Literal["none", "optimizer", "optimizer+parameters"] = "none"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    attention: Literal["flash", "eager"] = "flash"
    micro_batch_size: int = Field(1, ge=1)
    gradient_accumulation_steps: int = Field(1, ge=1)
    context: int | None = Field(None, ge=2)
    shard_size: int | None = Field(None, ge=1)
    bucket_elements: int = Field(500_000_000, ge=1)
    live_elements: int = Field(1_000_000_000, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given):
        """Fill what a given field implies: a name means its model, `single` one rank, hsdp two copies."""
        given = dict(given)
        if isinstance(given.get("model"), str):
            given["model"] = ModelSpec.from_name(given["model"])
        if isinstance(given.get("model"), dict):
            given["model"] = ModelSpec(**given["model"])
        if given.get("strategy") == "single":
            given.setdefault("world_size", 1)
        if given.get("context") is None and isinstance(given.get("model"), ModelSpec):
            given["context"] = min(given["model"].context, DEFAULT_CONTEXT)
        if given.get("strategy") == "hsdp" and given.get("shard_size") is None:
            given["shard_size"] = max(1, given.get("world_size", 8) // 2)
        return given

    @model_validator(mode="after")
    def _refuse_what_no_engine_can_do(self):
        for problem in (_world_problem, _offload_problem, _context_problem, _optimizer_problem):
            if sentence := problem(self):
                raise ValueError(sentence)
        return self

    @classmethod
    def of_run(cls, config: ModelTrainingConfig) -> Scenario:
        """Describe a live run of this course as a scenario; DeepSpeed's settings are those that its engine uses."""
        offload = {"fsdp": "optimizer+parameters", "hsdp": "optimizer+parameters", "zero3": "optimizer+parameters"}
        return cls(
            model=config.model,
            strategy=config.strategy,
            world_size=config.world_size,
            precision="bf16-mixed" if config.use_mixed_precision else "fp32",
            offload=offload.get(config.strategy, "optimizer") if config.offload else "none",
            activation_checkpointing="full" if config.activation_checkpointing else "none",
            micro_batch_size=config.micro_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            context=config.model.context,
            bucket_elements=bucket_elements(p.num_elements for p in config.model.parameters()),
            live_elements=0,
        )

    @property
    def width(self) -> int:
        """Bytes of one element in compute and on the wire."""
        return 4 if self.precision == "fp32" else 2

    @property
    def shards(self) -> int:
        """Ranks that share one copy of a sharded state."""
        return self.shard_size if self.strategy == "hsdp" else self.world_size

    @property
    def trained_model(self) -> ModelSpec:
        """The model as it computes: on samples of `context` tokens. Its parameters are those of `model`."""
        return self.model.replace(context=self.context)


def _world_problem(scenario: Scenario) -> str | None:
    world, shards = scenario.world_size, scenario.shard_size
    if scenario.strategy == "single" and world != 1:
        return f"strategy 'single' runs on one rank, not {world}; try world_size=1 or strategy='ddp'"
    if scenario.strategy != "hsdp":
        if shards is not None:
            return f"shard_size {shards} is for hsdp, strategy {scenario.strategy!r} would ignore it; leave it out"
        return None
    if world == 1:
        return "hsdp keeps copies of the model on groups of ranks, so world_size 1 is too small; try world_size=2"
    if world % shards or shards == world:
        near = next(size for size in range(min(shards, world // 2), 0, -1) if world % size == 0)
        return (
            f"hsdp keeps copies of the model on groups of shard_size {shards} ranks, of which world_size {world} must "
            f"hold two or more; try shard_size={near}"
        )
    return None


def _offload_problem(scenario: Scenario) -> str | None:
    strategy, offload = scenario.strategy, scenario.offload
    if offload == "none":
        return None
    if strategy in ("single", "ddp"):
        return (
            f"{strategy} has no sharded state to offload, so offload={offload!r} would be ignored; "
            "try strategy='fsdp' or 'zero3', or offload='none'"
        )
    if strategy in SHARDED and offload == "optimizer":
        return (
            f"{strategy} moves shards together with their optimizer states, so offload='optimizer' is not possible; "
            "try offload='optimizer+parameters'"
        )
    if strategy in ("zero1", "zero2") and offload != "optimizer":
        return f"{strategy} keeps all parameters on the device, only zero3 can offload them; try offload='optimizer'"
    return None


def _context_problem(scenario: Scenario) -> str | None:
    if scenario.model.kind == "gpt" and scenario.context > scenario.model.context:
        return (
            f"context {scenario.context} is longer than the {scenario.model.context} positions that the model has; "
            f"try context={scenario.model.context}, or a model with a larger context"
        )
    if scenario.attention == "eager" and scenario.model.kind == "mlp":
        return "a model of kind 'mlp' has no attention, so attention='eager' would be ignored; leave it out"
    return None


def _optimizer_problem(scenario: Scenario) -> str | None:
    if scenario.optimizer == "adamw-8bit" and scenario.offload != "none":
        return (
            "optimizer 'adamw-8bit' updates on the device, so it cannot be combined with "
            f"offload={scenario.offload!r}; try optimizer='adamw' or offload='none'"
        )
    return None
