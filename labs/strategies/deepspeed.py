"""ZeRO-1, ZeRO-2 and ZeRO-3 by DeepSpeed 0.19.8. What DeepSpeed holds, and where, is in deepspeed_states.py."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from labs.config import ModelTrainingConfig
from labs.ds_layout import bucket_elements
from labs.spec import layer_of
from labs.strategies import deepspeed_states as states
from labs.strategies.base import ADAMW, Engine, parameter_groups
from labs.workload import checkpoint_activations


def _import_deepspeed():
    """Import DeepSpeed without a word and without a compiler.

    Without a GPU the accelerator must be named before the import, or DeepSpeed warns and guesses. The table of
    operators that could be compiled is filled on first access, by running compilers; an empty one says that none can,
    and DeepSpeed then calls torch alone.
    """
    was_named = "DS_ACCELERATOR" in os.environ
    if not was_named and not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.utils import logger
    if not was_named:
        os.environ.pop("DS_ACCELERATOR", None)
    logger.handlers = [logging.NullHandler()]  # ranks send records; they never print
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


deepspeed = _import_deepspeed()
_TAG = "run"  # DeepSpeed's name for the sub-directory of one checkpoint


class ZeROEngine(Engine):
    """What the three stages share: one AdamW, and DeepSpeed's own backward, boundary of accumulation and step.

    In mixed precision DeepSpeed rounds the model to bf16 first and takes its fp32 master weights from that, so they
    begin up to 0.2 % away from the twin's. Its master weights are a copy of their own in fp32 runs too.
    """

    stage: int

    def __init__(self, model: nn.Module, config: ModelTrainingConfig, bucket: int | None = None):
        super().__init__(model, config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        self.module = model
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        groups = parameter_groups(dict(model.named_parameters()), config.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True, **ADAMW)
        bucket = bucket or bucket_elements([p.numel() for p in self.names if p.requires_grad])
        settings = deepspeed_config(config, self.stage, bucket)
        self.ds, self.zero, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    def forward_loss(self, batch):
        return self.ds(*(tensor.to(self.ds.device) for tensor in batch))

    def _backward(self, loss):
        self.ds.backward(loss)
        if not self.is_last_micro_batch:
            self.ds.step()  # counts the micro-batch; DeepSpeed updates nothing before the last one

    def step(self):
        self.ds.step()
        return float(self.ds.get_global_grad_norm())

    def set_learning_rate(self, learning_rate):
        self.zero.set_lr(learning_rate)

    def layer_grad_norms(self, group=None):
        layers = list(dict.fromkeys(layer_of(name) for p, name in self.names.items() if p.requires_grad))
        squares = torch.zeros(len(layers), dtype=torch.float64, device=self.ds.device)
        for parameter, gradient in self._gradient_slices():
            squares[layers.index(layer_of(self.names[parameter]))] += gradient.double().square().sum()
        dist.all_reduce(squares, group=group)
        return dict(zip(layers, squares.sqrt().tolist(), strict=True))

    def _passing_gradients(self):
        return [p.grad for p in self.names if p.grad is not None]

    def save(self, path):
        self.ds.save_checkpoint(str(path), tag=_TAG)

    def load(self, path):
        if not (Path(path) / _TAG).is_dir():  # DeepSpeed's own answer depends on the stage: an assert, or a warning
            raise FileNotFoundError(
                f"{path} holds no checkpoint of {self.config.strategy}; give the directory that save() wrote"
            )
        self.ds.load_checkpoint(str(path), tag=_TAG)


class ZeRO1Engine(ZeROEngine):
    """Every rank updates its part of the flat parameters; gradients stay whole until the last micro-batch."""

    stage = 1
    shards = frozenset({"optimizer", "master_weights"})

    def _gradient_slices(self):
        return states.flat_gradient_slices(self.zero)

    def held(self):
        return states.flat_held(self.zero, self.module)

    def live_parameters(self):
        return self.held()["parameters"]

    def _passing_gradients(self):
        return [*states.flat_buckets(self.zero), *super()._passing_gradients()]

    def full_parameters(self):
        return states.flat_full_parameters(self.zero, self.names, self.ds.device)


class ZeRO2Engine(ZeRO1Engine):
    """As ZeRO-1, but every micro-batch reduces its gradients, and a rank keeps those of its own part only."""

    stage = 2
    shards = frozenset({"optimizer", "master_weights", "gradients"})


class ZeRO3Engine(ZeROEngine):
    """Parameters are cut too: every module gathers its own before it computes and frees them after."""

    stage = 3
    shards = frozenset({"optimizer", "master_weights", "gradients", "parameters"})

    def forward_loss(self, batch):
        with _linear_that_saves_parameters():
            return super().forward_loss(batch)

    def _backward(self, loss):
        with _linear_that_saves_parameters():  # activation checkpointing computes forward again
            super()._backward(loss)

    def _gradient_slices(self):
        return states.cut_gradient_slices(self.zero)

    def held(self):
        return states.cut_held(self.zero, self.module)

    def live_parameters(self):
        return states.cut_live_parameters(self.module)

    def _gathered_parameters(self):
        return self.live_parameters()

    def full_parameters(self):
        return states.cut_full_parameters(self.zero, self.names, self.ds.device)


@contextmanager
def _linear_that_saves_parameters() -> Iterator[None]:
    """Let `F.linear` remember the parameter itself for backward; torch's own remembers a view of the gathered copy.

    Such a view keeps the copy alive until backward, so that nothing would be freed. DeepSpeed ships the replacement,
    and installs it for the whole process and for good (`memory_efficient_linear`); here it is there while it is needed.
    """
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    original = nn.functional.linear
    nn.functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        nn.functional.linear = original


def deepspeed_config(config: ModelTrainingConfig, stage: int, bucket: int) -> dict:
    """Translate a run into DeepSpeed's own words; `bucket` [elements] is where it gathers gradients before reducing."""
    zero: dict = {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": False}
    if stage == 3:
        # The defaults (keep what is reused within 1e9 elements, fetch 5e7 ahead, never cut below 1e5) would leave a
        # model of this size whole on every rank: ZeRO-3 in name only.
        for name in ("max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold"):
            zero[f"stage3_{name}"] = 0
        zero["memory_efficient_linear"] = False  # see _linear_that_saves_parameters
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload and stage == 3:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.max_grad_norm or 0.0,
        "bf16": {"enabled": config.use_mixed_precision},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
