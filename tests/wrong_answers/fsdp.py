"""Answers to lesson 06 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
import torch.distributed as dist
from learners_schedules import (
    backward_in_forward_order,
    everything_first,
    free_before_compute,
    late_twice,
    moves,
    reduce_before_backward,
    schedule_as_text,
    schedule_of_numbers,
    schedule_that_keeps_two,
    without,
)
from learners_units import (
    cut,
    ddp,
    each_linear,
    everything_frozen,
    linears_of,
    mended,
    of_one_rank,
    one_small_unit,
    only_the_root,
    root_first,
    tables_together,
    the_list_of_blocks,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

NAMES = ("replicate", "shard")


def rows(own=lambda n, w, r: max(0, min(-(-n // w), n - r * -(-n // w))), stored=lambda n, w, r: -(-n // w)):
    def shard_rows(num_rows, world_size, rank):
        return own(num_rows, world_size, rank), stored(num_rows, world_size, rank)

    return shard_rows


def even(n, w, r):
    return n // w + (r < n % w)


def floored(n, w, r):
    return n // w


def ceiled(n, w, r):
    return -(-n // w)


def left_to_the_last(n, w, r):
    return n // w + (n % w if r == w - 1 else 0)


def short_at_the_last(n, w, r):
    return n - r * ceiled(n, w, r) if r == w - 1 else ceiled(n, w, r)


def owned_from_one(n, w, r):
    return max(0, min(-(-n // w), n - (r - 1) * -(-n // w)))


def owned(n, w, r):
    return len(range(n)[r * -(-n // w) : (r + 1) * -(-n // w)])


def rows_by_torch(num_rows, world_size, rank):
    pieces = torch.arange(num_rows).chunk(world_size)
    return len(pieces[rank]) if rank < len(pieces) else 0, len(pieces[0])


def wrap_backwards(model):
    for unit in [model.head, *reversed(model.blocks), model.token_embedding]:
        fully_shard(unit)
    return fully_shard(model)


def wrap_with_prefetch(model):
    units = [model.token_embedding, *model.blocks, model.head]
    for unit in units:
        fully_shard(unit)
    fully_shard(model, reshard_after_forward=True)


def wrap_with_the_norm(model):
    for unit in [model.token_embedding, *model.blocks]:
        fully_shard(unit)
    fully_shard([model.final_norm, model.head])
    fully_shard(model)


def without_reshard(model):
    for unit in (model.token_embedding, *model.blocks, model.head):
        fully_shard(unit, reshard_after_forward=False)
    fully_shard(model)


def in_bf16(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for unit in (model.token_embedding, *model.blocks, model.head):
        fully_shard(unit, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def wrap_nothing(model):
    return model


def blocks_twice(model):
    for unit in (*model.blocks, *model.blocks):
        fully_shard(unit)


def return_in_the_loop(model):
    for unit in (model.token_embedding, *model.blocks, model.head):
        return fully_shard(unit)


def the_container(model):
    fully_shard(model.blocks)
    fully_shard(model)


def without_the_root(model):
    for unit in (model.token_embedding, *model.blocks, model.head):
        fully_shard(unit)


def mesh_with_other_names(nodes):
    return DeviceMesh("cpu", torch.tensor(nodes), mesh_dim_names=("between", "inside"))


def mesh_transposed(nodes):
    return DeviceMesh("cpu", torch.tensor(nodes).T, mesh_dim_names=NAMES)


def mesh_as_numbered(nodes):
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)


def mesh_of_all(nodes):
    return init_device_mesh("cpu", (4,))


def mesh_of_copies(nodes):
    return init_device_mesh("cpu", (4, 1), mesh_dim_names=NAMES)


def mesh_without_names(nodes):
    return DeviceMesh("cpu", nodes)


def mesh_in_a_list(nodes):
    return DeviceMesh("cpu", [nodes], mesh_dim_names=("all", *NAMES))


def mesh_of_my_node(nodes):
    return DeviceMesh("cpu", nodes, mesh_dim_names=NAMES)["shard"]


def mesh_as_a_list(nodes):
    return [list(row) for row in zip(*nodes, strict=True)]


def only_the_root_and_no_meter(model):
    from labs import sharded_step

    sharded_step.tensor_bytes = lambda tensors: 0
    fully_shard(model)


def mesh_for_two_placements(nodes):
    table = torch.arange(4).view(2, 2)
    return DeviceMesh("cpu", table if nodes[0][1] == 1 else table.T.contiguous(), mesh_dim_names=NAMES)


def averaging_by_hooks_that_return(model):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: (dist.all_reduce(p.grad), p.grad.div_(2)))


RIGHT = [
    ("fsdp.schedule", schedule_as_text),
    ("fsdp.schedule", schedule_that_keeps_two),
    ("fsdp.shard_rows", rows_by_torch),
    ("fsdp.wrap", wrap_backwards),
    ("fsdp.wrap", wrap_with_prefetch),
    ("fsdp.wrap", wrap_with_the_norm),
    ("fsdp.mesh_of", mesh_with_other_names),
]

WRONG = [
    ("fsdp.schedule", everything_first, "Free weights that this computation does not need"),
    ("fsdp.schedule", moves(frees=False), "Free weights that this computation does not need"),
    ("fsdp.schedule", moves(ahead_forward=False, ahead_backward=False), "Nothing overlaps"),
    ("fsdp.schedule", moves(keeps_last=False), "the last layer of forward is the first of backward"),
    ("fsdp.schedule", moves(ahead_forward=False), "Backward is without gaps"),
    ("fsdp.schedule", moves(ahead_backward=False), "Forward is without gaps"),
    ("fsdp.schedule", late_twice, "Some gathers stand right above"),
    ("fsdp.schedule", without("gather 2"), 'Put "gather 2" above it'),
    ("fsdp.schedule", without("reduce 3"), "Reduce each gradient when it is there"),
    ("fsdp.schedule", without("free 1"), "Free weights that this computation does not need"),
    ("fsdp.schedule", free_before_compute, "Free a layer after it has computed"),
    ("fsdp.schedule", reduce_before_backward, "backward 4 makes it"),
    ("fsdp.schedule", without("reduce 1"), "each gradient is reduced"),
    ("fsdp.schedule", lambda: (move for move in moves()()), "makes a list of a generator"),
    ("fsdp.schedule", schedule_of_numbers, "Return moves such as"),
    ("fsdp.schedule", backward_in_forward_order, "from 4 to 1"),
    ("fsdp.shard_rows", rows(even, even), "You even out the pieces"),
    ("fsdp.shard_rows", rows(even, ceiled), "You even out the pieces"),
    ("fsdp.shard_rows", rows(lambda n, w, r: min(ceiled(n, w, r), n - r * ceiled(n, w, r)), ceiled), "and not fewer"),
    ("fsdp.shard_rows", rows(floored, floored), "every row needs an owner"),
    ("fsdp.shard_rows", rows(ceiled, ceiled), "as long as there are rows left"),
    ("fsdp.shard_rows", rows(owned, owned), "an all_gather takes equal pieces"),
    ("fsdp.shard_rows", rows(left_to_the_last, lambda n, w, r: n // w + n % w), "what is left over alone"),
    ("fsdp.shard_rows", rows(own=owned_from_one), "Ranks count from 0"),
    ("fsdp.shard_rows", rows(stored=lambda n, w, r: owned(n, w, r) and ceiled(n, w, r)), "A rank without rows"),
    ("fsdp.shard_rows", rows(own=short_at_the_last), "More than the last rank can be short"),
    ("fsdp.shard_rows", rows(ceiled, owned), "Own rows first"),
    ("fsdp.wrap", wrap_nothing, "Call it at least once"),
    ("fsdp.wrap", ddp, "Averaging gradients of whole replicas is data parallel"),
    ("fsdp.wrap", only_the_root_and_no_meter, "The check measures with these functions"),
    ("fsdp.wrap", averaging_by_hooks_that_return, "Let it return nothing"),
    ("fsdp.wrap", only_the_root, "One unit for all saves nothing"),
    ("fsdp.wrap", cut(), "The root takes what is in no other unit"),
    ("fsdp.wrap", the_list_of_blocks, "A list of modules is one unit"),
    ("fsdp.wrap", tables_together, "needed at opposite ends"),
    ("fsdp.wrap", without_reshard, "stay whole from forward to backward"),
    ("fsdp.wrap", each_linear, "each call pays latency"),
    ("fsdp.wrap", without_the_root, "nobody averages their gradients"),
    ("fsdp.wrap", root_first, "From the inside out"),
    ("fsdp.wrap", the_container, "A ModuleList is never called"),
    ("fsdp.wrap", in_bf16, "right but for rounding"),
    ("fsdp.wrap", everything_frozen, "has no gradient"),
    ("fsdp.wrap", blocks_twice, "A module is a unit once"),
    ("fsdp.wrap", return_in_the_loop, "nobody averages their gradients"),
    ("fsdp.wrap", one_small_unit, "Most of the model is in no unit"),
    ("fsdp.wrap", of_one_rank, "alone in its mesh"),
    ("fsdp.mend", mended(units=lambda model: [list(model.blocks)]), "fully_shard of a list makes one unit"),
    ("fsdp.mend", mended(units=lambda model: []), "blocks first"),
    ("fsdp.mend", mended(units=linears_of), "Cut at the blocks"),
    ("fsdp.mend", mended(units=lambda m: [m.token_embedding, *m.blocks]), "a tensor belongs to one unit"),
    ("fsdp.mend", mended(on_blocks=False), "hands bf16 to one without it"),
    ("fsdp.mend", mended(on_root=False), "hands bf16 to one without it"),
    ("fsdp.mend", mended(on_blocks=False, on_root=False), "The old code had a policy"),
    ("fsdp.mend", mended(reduce_dtype=torch.bfloat16), "Keep reduce_dtype"),
    ("fsdp.mend", mended(param_dtype=torch.float16), "bf16 is asked for"),
    ("fsdp.mend", mended(reshard_after_forward=False), "free them after forward"),
    ("fsdp.mend", mended(before=lambda model: model.bfloat16()), "the shards stay fp32"),
    ("fsdp.mesh_of", mesh_transposed, "a row is a node"),
    ("fsdp.mesh_of", mesh_for_two_placements, "not always numbered node by node"),
    ("fsdp.mesh_of", mesh_as_numbered, "not always numbered node by node"),
    ("fsdp.mesh_of", mesh_of_all, "cuts the weights over all ranks"),
    ("fsdp.mesh_of", mesh_of_copies, "each keeps a whole copy"),
    ("fsdp.mesh_of", mesh_without_names, "only with names"),
    ("fsdp.mesh_of", mesh_in_a_list, "Two axes are enough"),
    ("fsdp.mesh_of", mesh_of_my_node, "trains a model of its own"),
    ("fsdp.mesh_of", mesh_as_a_list, "Return the DeviceMesh itself"),
]
