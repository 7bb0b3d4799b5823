"""`ModelTrainingConfig`: one validated, frozen description of a training run. No torch."""

from __future__ import annotations

from contextlib import suppress
from math import cos, pi
from typing import Literal

from pydantic import Field, model_validator

from labs.errors import ConfigError, FriendlyModel
from labs.spec import ModelSpec
from labs.units import format_count

__all__ = ["ConfigError", "ModelTrainingConfig", "STRATEGIES", "TABLES"]

Strategy = Literal["single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3"]
STRATEGIES: tuple[str, ...] = Strategy.__args__
# Tables that scikit-learn installs with itself: (rows, features, classes).
TABLES = {"digits": (1797, 64, 10), "breast_cancer": (569, 30, 2), "wine": (178, 13, 3), "iris": (150, 4, 3)}

# Larger models are for planning: no laptop trains them.
TRAINABLE = {"num_layers": 96, "hidden_size": 4096, "context": 4096}


class ModelTrainingConfig(FriendlyModel):
    """Everything that decides a run. Every field means the same under every strategy.

    `batch_size` counts samples per optimizer step over all ranks and micro-batches. Mixed precision is bf16 for
    parameters in compute, gradients and the wire, with fp32 master weights and fp32 optimizer states.
    Raises ConfigError: what was given, why not, what to try.
    """

    architecture_name: str = "distributed-training-ddp-fsdp-deepspeed"
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    use_mixed_precision: bool = True
    strategy: Strategy = "ddp"
    world_size: int = Field(2, ge=1, le=64)
    steps: int = Field(100, ge=1)
    gradient_accumulation_steps: int = Field(1, ge=1)
    max_grad_norm: float | None = Field(1.0, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    warmup_steps: int = Field(10, ge=0)
    eval_every: int = Field(50, ge=0, description="0: evaluate after the last step only")
    early_stopping_patience: int | None = Field(
        None, ge=1, description="end after so many evaluations without a better"
    )
    best_checkpoint: str | None = Field(None, min_length=1, description="folder for the weights of the best evaluation")
    seed: int = Field(0, ge=0, lt=2**31)
    offload: bool = False
    activation_checkpointing: bool = False
    model: ModelSpec = ModelSpec()
    data: Literal["text", "digits", "breast_cancer", "wine", "iris"] = "text"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given):
        """Fill what a given field implies: `single` means one rank, a table its mlp, few steps a short warm-up."""
        if not isinstance(given, dict):
            return given  # pydantic says what is wanted
        given = dict(given)
        if given.get("strategy") == "single":
            given.setdefault("world_size", 1)
        if given.get("data") in tuple(TABLES) and given.get("model") is None:
            _, features, classes = TABLES[given["data"]]
            given["model"] = ModelSpec(kind="mlp", num_layers=2, num_features=features, num_classes=classes)
        if isinstance(given.get("model"), str):
            given["model"] = ModelSpec.from_name(given["model"])
        with suppress(KeyError, TypeError, ValueError, OverflowError):  # refused further down
            given.setdefault("warmup_steps", min(10, max(0, int(given["steps"]) // 10)))
        return given

    @model_validator(mode="after")
    def _refuse_what_no_engine_can_do(self):
        checks = (_model_problem, _world_problem, _batch_problem, _offload_problem, _data_problem, _warmup_problem)
        for problem in (*checks, _stopping_problem):
            if sentence := problem(self):
                raise ValueError(sentence)
        return self

    @property
    def micro_batch_size(self) -> int:
        """Samples that one rank computes at once."""
        return self.batch_size // (self.world_size * self.gradient_accumulation_steps)

    @property
    def tokens_per_step(self) -> int:
        """Tokens (text) or rows (tables) of one optimizer step over all ranks."""
        return self.batch_size * (self.model.context if self.model.kind == "gpt" else 1)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a step (counted from 0): linear warm-up, then cosine down to a tenth."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.1 + 0.45 * (1 + cos(pi * done)))

    def evaluates_after(self, step: int) -> bool:
        """Whether the validation set is measured after this step (counted from 0)."""
        return step + 1 == self.steps or (self.eval_every > 0 and (step + 1) % self.eval_every == 0)

    def may_end_after(self, step: int) -> bool:
        """Whether the run can end with this step (counted from 0): the last one, or one that stops it early."""
        return step + 1 == self.steps or (self.early_stopping_patience is not None and self.evaluates_after(step))

    def twin(self) -> ModelTrainingConfig:
        """The same run in one process, in one micro-batch: what every strategy must agree with."""
        return self.replace(strategy="single", world_size=1, gradient_accumulation_steps=1, offload=False)


def _model_problem(config: ModelTrainingConfig) -> str | None:
    if config.model.kind == "llama":
        return (
            f"a model of kind 'llama' with {format_count(config.model.num_parameters)} parameters is for planning and "
            "too large to train here; try model='small', or labs.footprint for the planning"
        )
    for name, limit in TRAINABLE.items():
        if (given := getattr(config.model, name)) > limit:
            return f"{name} {given} is for planning: models that are trained here stop at {limit}; try {name}={limit}"
    return None


def _world_problem(config: ModelTrainingConfig) -> str | None:
    if config.strategy == "single" and config.world_size != 1:
        return f"strategy 'single' runs on one rank, not {config.world_size}; try world_size=1 or strategy='ddp'"
    if config.strategy == "hsdp" and config.world_size % 2:
        return (
            f"hsdp replicates shards over two groups, so world_size {config.world_size} must be even; "
            f"try {config.world_size + 1}, or strategy='fsdp'"
        )
    return None


def _batch_problem(config: ModelTrainingConfig) -> str | None:
    parts = config.world_size * config.gradient_accumulation_steps
    if config.batch_size % parts == 0:
        return None
    whole, rest = divmod(config.batch_size, parts)
    return (
        f"batch_size {config.batch_size} does not divide by world_size {config.world_size} x "
        f"gradient_accumulation_steps {config.gradient_accumulation_steps} = {parts}; "
        f"try batch_size={max(1, whole + (2 * rest > parts)) * parts}"
    )


def _offload_problem(config: ModelTrainingConfig) -> str | None:
    if config.offload and config.strategy in ("single", "ddp"):
        return (
            f"{config.strategy} has no sharded state to offload, so offload=True would be ignored; "
            "try strategy='fsdp' or 'zero3', or offload=False"
        )
    return None


def _data_problem(config: ModelTrainingConfig) -> str | None:
    kind = "gpt" if config.data == "text" else "mlp"
    if config.model.kind != kind:
        given = config.model.kind
        return f"data {config.data!r} needs a model of kind {kind!r}, not {given!r}; try ModelSpec(kind={kind!r})"
    if kind == "mlp":
        _, features, classes = TABLES[config.data]
        if (config.model.num_features, config.model.num_classes) != (features, classes):
            return (
                f"the table {config.data!r} has {features} features and {classes} classes, the model expects "
                f"{config.model.num_features} and {config.model.num_classes}; "
                f"try ModelSpec(kind='mlp', num_features={features}, num_classes={classes})"
            )
    elif config.model.vocab_size < 256:
        return f"text is read byte by byte, so vocab_size {config.model.vocab_size} is too small; try vocab_size=256"
    return None


def _warmup_problem(config: ModelTrainingConfig) -> str | None:
    if config.warmup_steps > config.steps:
        return (
            f"warmup_steps {config.warmup_steps} is longer than the run of {config.steps} steps, so the learning rate "
            f"would never reach {config.learning_rate}; try warmup_steps={config.steps // 10}"
        )
    return None


def _stopping_problem(config: ModelTrainingConfig) -> str | None:
    patience = config.early_stopping_patience
    if patience is None or 0 < config.eval_every * (patience + 1) < config.steps:
        return None
    return (
        f"early_stopping_patience {patience} with eval_every {config.eval_every} cannot end a run of {config.steps} "
        f"steps early: it takes {patience + 1} evaluations; "
        + (f"try eval_every={most}" if (most := (config.steps - 1) // (patience + 1)) else "try more steps")
    )
