"""One process, no communication: the twin that every other strategy is held against."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from labs.config import ModelTrainingConfig
from labs.spec import layer_of
from labs.strategies.base import ADAMW, Engine, parameter_groups
from labs.workload import checkpoint_activations


class SingleEngine(Engine):
    """AdamW on the whole model. Mixed precision: bf16 parameters and gradients beside fp32 master weights."""

    def __init__(self, model: nn.Module, config: ModelTrainingConfig):
        super().__init__(model, config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        self.model = model
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = self._make_masters() if config.use_mixed_precision else self.trained
        groups = parameter_groups(self.masters, config.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True, **ADAMW)

    def _make_masters(self) -> dict[str, torch.Tensor]:
        """Copy the fp32 parameters aside, then turn the model's own (frozen ones too) into bf16."""
        masters = {name: nn.Parameter(p.detach().clone()) for name, p in self.trained.items()}
        for parameter in self.module.parameters():
            parameter.data = parameter.data.bfloat16()
        return masters

    def forward_loss(self, batch):
        return self.model(*batch)

    def _backward(self, loss):
        (loss / self.config.gradient_accumulation_steps).backward()

    def layer_grad_norms(self, group=None):
        layers: dict[str, list[torch.Tensor]] = {}
        for name, parameter in self.trained.items():
            if parameter.grad is not None:
                layers.setdefault(layer_of(name), []).append(parameter.grad.float())
        return {layer: float(get_total_norm(grads)) for layer, grads in layers.items()}

    def set_learning_rate(self, learning_rate):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(self):
        mixed = self.masters is not self.trained
        if mixed:
            for name, parameter in self.trained.items():
                if parameter.grad is not None:
                    self.masters[name].grad = parameter.grad.float()
                    self._clear_gradient(parameter)
        norm = self._clip()
        self.optimizer.step()
        if mixed:
            self.optimizer.zero_grad()
            self._publish_masters()
        else:
            for parameter in self.trained.values():
                self._clear_gradient(parameter)
        return norm

    def _clear_gradient(self, parameter: nn.Parameter) -> None:
        parameter.grad = None

    def _clip(self) -> float:
        with_grad = [p for p in self.masters.values() if p.grad is not None]
        norm = get_total_norm([p.grad for p in with_grad])
        if self.config.max_grad_norm is not None:
            clip_grads_with_norm_(with_grad, self.config.max_grad_norm, norm)
        return float(norm)

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for name, parameter in self.trained.items():
            parameter.copy_(self.masters[name])

    def held(self):
        mixed = self.masters is not self.trained
        return {
            "parameters": list(self.module.parameters()),
            "gradients": [p.grad for p in self.module.parameters() if p.grad is not None],
            "optimizer": [value for state in self.optimizer.state.values() for value in state.values() if value.ndim],
            "master_weights": list(self.masters.values()) if mixed else [],
            "buffers": list(self.module.buffers()),
        }

    def live_parameters(self):
        return list(self.module.parameters())

    def full_parameters(self):
        named = {name: p.detach().float().clone() for name, p in self.module.named_parameters()}
        return {**named, **{name: p.detach().clone() for name, p in self.masters.items()}}

    def save(self, path):
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save({"masters": self.masters, "optimizer": self.optimizer.state_dict()}, Path(path) / "state.pt")

    @torch.no_grad()
    def load(self, path):
        state = torch.load(Path(path) / "state.pt", weights_only=True)
        for name, parameter in self.masters.items():
            parameter.copy_(state["masters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.masters is not self.trained:
            self._publish_masters()
