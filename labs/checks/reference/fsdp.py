"""Solutions of lesson 06."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def schedule():
    """Moves of one step of four layers: each gather one computation early, layer 4 kept from forward to backward."""
    moves = ["gather 1"]
    for layer in (1, 2, 3):
        moves += [f"gather {layer + 1}", f"forward {layer}", f"free {layer}"]
    moves += ["forward 4"]
    for layer in (4, 3, 2):
        moves += [f"gather {layer - 1}", f"backward {layer}", f"free {layer}", f"reduce {layer}"]
    return [*moves, "backward 1", "free 1", "reduce 1"]


def shard_rows(num_rows, world_size, rank):
    """Rows of a weight that a rank owns, and rows that it has memory for."""
    chunk = -(-num_rows // world_size)
    return max(0, min(chunk, num_rows - rank * chunk)), chunk


def wrap(model):
    """One unit for each block and for both large tables; the root keeps what is small."""
    for unit in (model.token_embedding, *model.blocks, model.head):
        fully_shard(unit)
    fully_shard(model)


def mend(model):
    """A unit for each block, with the same policy in every call."""
    for block in model.blocks:
        fully_shard(block, mp_policy=POLICY)
    fully_shard(model, mp_policy=POLICY)


def mesh_of(nodes):
    """A mesh of one row a node: its last axis, along which weights are cut, stays inside a node."""
    return DeviceMesh("cpu", nodes, mesh_dim_names=("replicate", "shard"))
