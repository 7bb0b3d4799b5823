"""Fully sharded data parallel (FSDP2): a rank holds a slice of every tensor and gathers one unit at a time."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from labs.config import ModelTrainingConfig
from labs.gathered import live_parameters, unreduced_gradients
from labs.spec import layer_of
from labs.strategies.base import ADAMW, Engine, parameter_groups
from labs.workload import checkpoint_activations


class FSDPEngine(Engine):
    """One unit per block and one, the root, for the rest; each is gathered before it computes and freed after.

    The shards are fp32 always. In mixed precision they are the master weights: gathers and gradients are bf16.
    """

    shards = frozenset({"parameters", "gradients", "optimizer", "master_weights"})

    def __init__(self, model: nn.Module, config: ModelTrainingConfig):
        super().__init__(model, config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        self.mesh = self._make_mesh(next(model.parameters()).device.type)
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=self.mesh, mp_policy=_precision(config), offload_policy=_offload(config))
        self.model = self.module = model
        self.sharded = dict(model.named_parameters())  # the model itself shows plain tensors while a unit is gathered
        groups = parameter_groups(self.sharded, config.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True, **ADAMW)

    def _make_mesh(self, device_type: str) -> DeviceMesh:
        return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("shard",))

    def forward_loss(self, batch):
        self.model.set_requires_gradient_sync(self.is_last_micro_batch)
        loss = self.model(*batch)
        if not torch.is_grad_enabled():
            self.model.reshard()  # the root stays gathered for a backward pass that will not come
        return loss

    def _backward(self, loss):
        (loss / self.config.gradient_accumulation_steps).backward()

    def _local_grads(self) -> dict[str, torch.Tensor]:
        """Return {name: this rank's slice of the gradient}, fp32."""
        return {name: p.grad.to_local() for name, p in self.sharded.items() if p.grad is not None}

    def layer_grad_norms(self, group=None):
        squares: dict[str, torch.Tensor] = {}
        for name, grad in self._local_grads().items():
            layer = layer_of(name)
            squares[layer] = squares.get(layer, 0) + grad.square().sum()
        total = torch.stack(list(squares.values()))
        dist.all_reduce(total, group=group)
        num_copies = dist.get_world_size() // self.mesh["shard"].size()  # hsdp: every slice is in two groups
        return dict(zip(squares, (total / num_copies).sqrt().tolist(), strict=True))

    def set_learning_rate(self, learning_rate):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(self):
        norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _clip(self) -> float:
        """Scale the slices by the norm of the whole gradient: one all-reduce of one number over the shard group."""
        grads = list(self._local_grads().values())
        square = torch.stack([grad.square().sum() for grad in grads]).sum()
        dist.all_reduce(square, group=self.mesh["shard"].get_group())
        norm = square.sqrt()
        if self.config.max_grad_norm is not None:
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
            for grad in grads:
                grad.mul_(factor)
        return float(norm)

    def held(self):
        mixed = self.config.use_mixed_precision
        shards = list(self.sharded.values())
        states = [value for state in self.optimizer.state.values() for value in state.values() if value.ndim]
        return {
            "parameters": self.live_parameters(),
            "gradients": unreduced_gradients(self.model) + [p.grad for p in shards if p.grad is not None],
            "optimizer": states,
            "master_weights": shards if mixed else [],
            "buffers": list(self.model.buffers()),
        }

    def live_parameters(self):
        return live_parameters(self.model, [] if self.config.use_mixed_precision else self.sharded.values())

    @torch.no_grad()
    def full_parameters(self):
        return {name: p.full_tensor() for name, p in self.sharded.items()}

    def save(self, path):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)

    def load(self, path):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class HSDPEngine(FSDPEngine):
    """Two copies of the model, each sharded over half of the ranks; gradients are all-reduced between the copies."""

    def _make_mesh(self, device_type):
        return init_device_mesh(device_type, (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))


def _precision(config: ModelTrainingConfig) -> MixedPrecisionPolicy:
    if not config.use_mixed_precision:
        return MixedPrecisionPolicy()
    # The model casts its own inputs, after it has scaled them in fp32.
    return MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, cast_forward_inputs=False)


def _offload(config: ModelTrainingConfig) -> OffloadPolicy:
    """Rest shards, gradients and optimizer in host memory; on CPU ranks they are there already, so nothing moves."""
    return CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if config.offload else OffloadPolicy()
