"""Models cut into units as learners do it; tests/wrong_answers/fsdp.py names what each must hear."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def cut(*parts, **options):
    """The usual recipe: blocks, then the model; `parts` are further modules by name."""

    def wrap(model):
        for unit in (*model.blocks, *(model.get_submodule(part) for part in parts)):
            fully_shard(unit, **options)
        fully_shard(model, **options)

    return wrap


def ddp(model):
    return DistributedDataParallel(model)


def one_small_unit(model):
    """Data parallel, with a unit for the sake of having one."""
    fully_shard(model.final_norm)
    for name, parameter in model.named_parameters():
        if not name.startswith("final_norm"):
            parameter.register_post_accumulate_grad_hook(average)


def average(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def only_the_root(model):
    fully_shard(model)


def the_list_of_blocks(model):
    fully_shard(model.token_embedding)
    fully_shard(list(model.blocks))
    fully_shard(model.head)
    fully_shard(model)


def tables_together(model):
    fully_shard([model.token_embedding, model.head])
    cut()(model)


def linears_of(model):
    return [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]


def each_linear(model):
    for unit in (model.token_embedding, *linears_of(model), model.head):
        fully_shard(unit)
    fully_shard(model)


def root_first(model):
    fully_shard(model)
    for block in model.blocks:
        fully_shard(block)


def everything_frozen(model):
    model.position_embedding.requires_grad_(False)
    cut("token_embedding", "head")(model)


def of_one_rank(model):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    cut("token_embedding", "head", mesh=mesh)(model)


def mended(
    units=lambda model: list(model.blocks),
    on_blocks=True,
    on_root=True,
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.float32,
    before=lambda model: None,
    **options,
):
    """The mended code with one thing done otherwise."""

    def mend(model):
        before(model)
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        for unit in units(model):
            fully_shard(unit, **({"mp_policy": policy} if on_blocks else {}), **options)
        fully_shard(model, **({"mp_policy": policy} if on_root else {}))

    return mend
