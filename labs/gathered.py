"""What FSDP2 holds beside its shards at this moment: gathered weights, received buffers, whole gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def live_parameters(model: nn.Module, shards: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return every tensor that holds parameters now: whole ones, received buffers, and the given resting shards."""
    whole = [parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)]
    return [*whole, *received_buffers(model), *shards]


def received_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers of all-gathers: a prefetched unit waits in one, and the forward pass frees the last late."""
    found = []
    for group in _param_groups(model):
        late = getattr(group.comm_ctx, "all_gather_state", None)
        results = (group._all_gather_result, late and late.all_gather_result)
        found += [result.all_gather_output for result in results if result is not None]
    return found


def unreduced_gradients(model: nn.Module) -> list[torch.Tensor]:
    """Return whole gradients that wait for the last micro-batch, when they will be reduced to shards."""
    gathered = [getattr(p, "_unsharded_param", None) for group in _param_groups(model) for p in group.fsdp_params]
    return [p.grad for p in gathered if p is not None and p.grad is not None]


def _param_groups(model: nn.Module) -> list:
    """Return FSDP's groups of parameters, one a unit. Private, torch 2.13: no public name leads to what they hold."""
    states = [unit._get_fsdp_state() for unit in model.modules() if isinstance(unit, FSDPModule)]
    return [group for state in states for group in state._fsdp_param_groups]
