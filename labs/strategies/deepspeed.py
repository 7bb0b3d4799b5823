"""ZeRO-1, ZeRO-2 and ZeRO-3 by DeepSpeed 0.19.8."""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed as dist
from torch import nn

from labs.config import ModelTrainingConfig
from labs.ds_layout import bucket_elements
from labs.spec import layer_of
from labs.strategies.base import ADAMW, Engine, parameter_groups
from labs.workload import checkpoint_activations


def _import_deepspeed():
    """Import DeepSpeed without a word, and without looking for a compiler.

    On a machine without a GPU the accelerator must be named before the import, or DeepSpeed warns and guesses.
    The table of operators that a compiler could build is filled on first access by running compilers; an empty one
    says that nothing can be built, and DeepSpeed then calls torch alone.
    """
    named = "DS_ACCELERATOR" in os.environ
    if not named and not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.utils import logger

    if not named:
        os.environ.pop("DS_ACCELERATOR", None)
    logger.handlers = [logging.NullHandler()]  # ranks send records; they never print
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


deepspeed = _import_deepspeed()


class ZeROEngine(Engine):
    """What the three stages share: one AdamW, DeepSpeed's own loop of backward and step."""

    stage: int

    def __init__(self, model: nn.Module, config: ModelTrainingConfig):
        super().__init__(model, config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        groups = parameter_groups(dict(model.named_parameters()), config.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True, **ADAMW)
        sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        settings = deepspeed_config(config, self.stage, bucket_elements(sizes))
        self.ds, self.zero, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        self.module = model

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
        layers = sorted({layer_of(name) for name, p in self.module.named_parameters() if p.requires_grad})
        squares = torch.zeros(len(layers), dtype=torch.float64, device=self.ds.device)
        for parameter, gradient in self._gradient_slices():
            place = layers.index(layer_of(self.ds.param_names[parameter]))
            squares[place] += gradient.double().square().sum()
        dist.all_reduce(squares, group=group)
        return dict(zip(layers, squares.sqrt().tolist(), strict=True))

    def held(self):
        raise NotImplementedError

    def live_parameters(self):
        raise NotImplementedError

    def full_parameters(self):
        raise NotImplementedError

    def save(self, path):
        self.ds.save_checkpoint(str(path))

    def load(self, path):
        self.ds.load_checkpoint(str(path))


class ZeRO1Engine(ZeROEngine):
    stage = 1
    shards = frozenset({"optimizer", "master_weights"})

    def _gradient_slices(self):
        for params, gradients in zip(self.zero.params_in_partition, self.zero.averaged_gradients.values(), strict=True):
            yield from zip(params, gradients, strict=False)


class ZeRO2Engine(ZeRO1Engine):
    stage = 2
    shards = frozenset({"optimizer", "master_weights", "gradients"})


class ZeRO3Engine(ZeROEngine):
    stage = 3
    shards = frozenset({"optimizer", "master_weights", "gradients", "parameters"})

    def _gradient_slices(self):
        for params, gradients in zip(self.zero.fp16_groups, self.zero.averaged_gradients.values(), strict=True):
            yield from zip(params, gradients, strict=True)


def deepspeed_config(config: ModelTrainingConfig, stage: int, bucket: int) -> dict:
    """Translate a run into DeepSpeed's configuration."""
    zero = {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": False}
    if stage == 3:
        zero |= {
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        }
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
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
