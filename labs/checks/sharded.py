"""What an answer of lesson 06 does to a model on real ranks: facts for its judges.

The twin is the same model on the whole batch in one process; every rank has one and compares whole gradients.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from labs.checks.seal import sealed
from labs.measure import tensor_bytes
from labs.sharded_step import ShardedStep, measure_step
from labs.spec import ModelSpec
from labs.workload import build_model

BATCH = 2  # samples of one rank
# Large tables at both ends, so that the root is larger than a block.
LARGE_TABLES = ModelSpec(num_layers=6, hidden_size=64, vocab_size=1024, tied_embedding=False, context=16)
SMALL = ModelSpec(num_layers=4, hidden_size=32, vocab_size=64, context=8)
MESHED = ModelSpec(num_layers=1, hidden_size=16, vocab_size=32, context=4)


@dataclass(frozen=True)
class Sharded:
    """What one rank saw: its step, and how far each whole gradient is from the twin's and from its own batch's.

    A distance is relative; None where there is no gradient. `compute_types` are those of whole weights in use.
    """

    step: ShardedStep
    errors: dict[str, float | None]
    errors_alone: dict[str, float | None]
    num_units: int
    resting_bytes: int
    whole_bytes: int
    block_bytes: int
    compute_types: tuple[str, ...]


def batch_of(spec: ModelSpec, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, targets) [BATCH, context] of one rank."""
    source = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, spec.vocab_size, (BATCH, spec.context + 1), generator=source)
    return tokens[:, :-1], tokens[:, 1:]


def sharded(wrap, spec: ModelSpec) -> Sharded:
    """Let the answer shard a model, and make one step on this rank's batch."""
    model = build_model(spec)
    whole_bytes, block_bytes = (tensor_bytes(part.parameters()) for part in (model, model.blocks[0]))
    with sealed():
        made = wrap(model)
    if isinstance(made, nn.Module) and made not in set(model.modules()):  # a wrapper, such as DDP
        model = made
    types: set[str] = set()
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        layer.register_forward_pre_hook(lambda layer, _: types.add(str(layer.weight.dtype)))
    step = measure_step(model, batch_of(spec, dist.get_rank()))
    built = {name.removeprefix("module."): _whole(p.grad) for name, p in model.named_parameters()}
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    twin = _gradients(spec, range(dist.get_world_size()))
    alone = _gradients(spec, [dist.get_rank()])
    return Sharded(
        step, _distances(built, twin), _distances(built, alone), len(units), tensor_bytes(model.parameters()),
        whole_bytes, block_bytes, tuple(sorted(types)),
    )  # fmt: skip


def meshed(mesh_of, placements) -> list[Sharded | str]:
    """Shard a small model over the mesh that the answer makes for each placement of the ranks on nodes."""
    return [_on_mesh(mesh_of([list(node) for node in nodes])) for nodes in placements]


def _on_mesh(mesh) -> Sharded | str:
    if not isinstance(mesh, DeviceMesh):
        return "None" if mesh is None else f"a {type(mesh).__name__}"
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        return "a mesh without names"

    def wrap(model):
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    return sharded(wrap, MESHED)


def _whole(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient of the whole parameter. Collective where it is sharded."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _gradients(spec: ModelSpec, ranks) -> dict[str, torch.Tensor]:
    model = build_model(spec)
    model(*(torch.cat(parts) for parts in zip(*(batch_of(spec, rank) for rank in ranks), strict=True))).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _distances(built, expected) -> dict[str, float | None]:
    found = {}
    for name, gradient in expected.items():
        mine = built.get(name)
        found[name] = None
        with contextlib.suppress(RuntimeError):  # another shape
            if mine is not None:
                found[name] = ((mine.float() - gradient).norm() / gradient.norm()).item()
    return found
