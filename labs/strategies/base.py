"""The contract of an engine. The laws in tests/test_laws.py hold for every strategy in the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module

import torch
from torch import nn

from labs.config import ModelTrainingConfig

_REGISTRY = {
    "single": ("labs.strategies.single", "SingleEngine"),
    "ddp": ("labs.strategies.ddp", "DDPEngine"),
    "fsdp": ("labs.strategies.fsdp", "FSDPEngine"),
    "hsdp": ("labs.strategies.fsdp", "HSDPEngine"),
    "zero1": ("labs.strategies.deepspeed", "ZeRO1Engine"),
    "zero2": ("labs.strategies.deepspeed", "ZeRO2Engine"),
    "zero3": ("labs.strategies.deepspeed", "ZeRO3Engine"),
}


class Engine(ABC):
    """Trains one model on the ranks of the default process group.

    The loop calls, for every micro-batch, `loss = forward_loss(batch)` and `backward(loss)`; after
    `config.gradient_accumulation_steps` of them `step()`. The engine counts the micro-batches itself, synchronises
    gradients so that they are the mean over ranks and micro-batches, clips by the global norm, and steps AdamW.
    """

    shards: frozenset[str] = frozenset()  # states of which a rank keeps only its part

    def __init__(self, model: nn.Module, config: ModelTrainingConfig):
        self.module, self.config = model, config
        self._num_backwards = 0

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the current micro-batch closes an optimizer step, so that its backward must synchronise."""
        accumulation = self.config.gradient_accumulation_steps
        return self._num_backwards % accumulation == accumulation - 1

    @abstractmethod
    def forward_loss(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return this rank's mean loss [] in fp32. Under `torch.no_grad()` it evaluates."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add this micro-batch's share to the gradients; the last one of a step also makes them global means."""
        self._backward(loss)
        self._num_backwards += 1

    @abstractmethod
    def _backward(self, loss: torch.Tensor) -> None: ...

    @abstractmethod
    def layer_grad_norms(self, group=None) -> dict[str, float]:
        """Return the global gradient norm of each layer (before clipping), between the last backward and `step()`.

        Its own communication goes over `group`, so that the meters can leave it out.
        """

    @abstractmethod
    def set_learning_rate(self, learning_rate: float) -> None: ...

    @abstractmethod
    def step(self) -> float:
        """Clip, update, zero the gradients; return the global gradient norm before clipping."""

    @abstractmethod
    def held(self) -> dict[str, list[torch.Tensor]]:
        """Return the tensors that this rank holds now, by state (records.STATES without activations).

        `parameters` are the copy that computes, `master_weights` an fp32 copy beside it. Tensors of transient gathers
        are not listed; flat buffers are listed once, padding included.
        """

    @abstractmethod
    def live_parameters(self) -> list[torch.Tensor]:
        """Return every tensor that holds parameters for compute at this moment, gathered copies included."""

    def states_now(self) -> dict[str, list[torch.Tensor]]:
        """Like `held()`, at any moment of a step: with gathered parameters, whole gradients and buckets in use."""
        held, passing = self.held(), self._passing_gradients()
        parameters = [*held["parameters"], *self._gathered_parameters()]
        return {**held, "parameters": parameters, "gradients": [*held["gradients"], *passing]}

    def _gathered_parameters(self) -> list[torch.Tensor]:
        """Return the copies of parameters that are there now and that `held()` does not list."""
        return []

    def _passing_gradients(self) -> list[torch.Tensor]:
        """Return whole gradients, and the buffers that they pass through, where `held()` does not list them."""
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    @abstractmethod
    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return {name: full fp32 tensor} on every rank, under the names of the plain model. Collective."""

    @abstractmethod
    def save(self, path) -> None:
        """Write this run's state to a directory that all ranks share. Collective."""

    @abstractmethod
    def load(self, path) -> None:
        """Read a state written by `save` under the same strategy and world_size. Collective."""


def build_engine(config: ModelTrainingConfig, model: nn.Module) -> Engine:
    """Build the engine of `config.strategy` around a model whose parameters are equal on all ranks."""
    module, name = _REGISTRY[config.strategy]
    return getattr(import_module(module), name)(model, config)


def parameter_groups(named: Mapping[str, torch.Tensor], weight_decay: float) -> list[dict]:
    """Split trainable parameters into matrices, which decay, and norms and biases, which do not; empty groups go.

    Works on plain tensors and DTensors alike: the full shape decides.
    """
    trainable = [parameter for parameter in named.values() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8}
