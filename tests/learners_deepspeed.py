"""Steps, looks and consolidations as learners write them; wrong_answers/deepspeed_zero.py names what each hears."""

from pathlib import Path

import deepspeed  # loaded where this runs: ranks have it, and the tests import it quietly first
import torch
import torch.distributed as dist

from labs.checks.reference.deepspeed_zero import shards


def step_of_all_at_once(engine, micro_batches):
    """Right in numbers: every forward pass has the samples, and the activations, of all micro-batches."""
    everything = [torch.cat(parts) for parts in zip(*micro_batches, strict=True)]
    for _ in micro_batches:
        engine.backward(engine(*everything))
        engine.step()


def step_on_rank_0_alone(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
        if torch.distributed.get_rank() == 0:
            engine.step()


def step_once_at_the_end(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
    engine.step()


def step_at_the_boundary(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
        if engine.is_gradient_accumulation_boundary():
            engine.step()


def step_of_divided_losses(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch) / len(micro_batches))
        engine.step()


def step_of_the_last(engine, micro_batches):
    engine.backward(engine(*micro_batches[-1]))
    engine.step()


def step_twice_at_the_end(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
        engine.step()
    engine.step()


def step_with_torch(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
    engine.optimizer.step()


def step_thrice(engine, micro_batches):
    for batch in micro_batches:
        loss = engine(*batch)
        engine.backward(loss)
        engine.step()
        if batch is micro_batches[0]:
            engine.step()


def step_of_doubled_losses(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch) * len(micro_batches))
        engine.step()


def step_and_shrink(engine, micro_batches):
    for batch in micro_batches:
        engine.backward(engine(*batch))
        engine.step()
    with torch.no_grad():
        for group in engine.optimizer.single_partition_of_fp32_groups:
            group.mul_(0.9)


def step_by_loss_backward(engine, micro_batches):
    """Right: DeepSpeed 0.19.8 sees backward passes that it did not start."""
    for tokens, targets in micro_batches:
        loss = engine(tokens, targets)
        loss.backward()
        engine.step()


def parameter_of(engine, name):
    return next(parameter for other, parameter in engine.module.named_parameters() if other == name)


def look_and_change(engine, name):
    parameter = engine.module.get_parameter(name)
    with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0):
        copy = parameter.detach().clone()
        parameter.data.mul_(2)
    return copy


def look_at_the_placeholder(engine, name):
    return parameter_of(engine, name).detach().clone()


def look_and_return_the_parameter(engine, name):
    parameter = parameter_of(engine, name)
    with deepspeed.zero.GatheredParameters(parameter):
        return parameter


def look_at_the_part(engine, name):
    return parameter_of(engine, name).ds_tensor.clone()


def look_at_the_model(engine, name):
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return parameter_of(engine, name).detach().clone()


def look_with_padding(engine, name):
    part = parameter_of(engine, name).ds_tensor
    whole = torch.empty(part.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(whole, part.contiguous())
    return whole


def look_and_never_leave(engine, name):
    parameter = parameter_of(engine, name)
    deepspeed.zero.GatheredParameters(parameter).__enter__()
    return parameter.detach().clone()


def look_and_list(engine, name):
    with deepspeed.zero.GatheredParameters(parameter_of(engine, name)):
        return parameter_of(engine, name).tolist()


def look_on_rank_0(engine, name):
    if dist.get_rank() == 0:
        with deepspeed.zero.GatheredParameters(parameter_of(engine, name)):
            return parameter_of(engine, name).detach().clone()


def look_and_send_back(engine, name):
    """Right, and more than is needed: rank 0's values go out once more when the block ends."""
    with deepspeed.zero.GatheredParameters(parameter_of(engine, name), modifier_rank=0):
        return parameter_of(engine, name).detach().clone()


def look_by_hand(engine, name):
    """Right: gather the parts, cut the padding, view."""
    parameter = parameter_of(engine, name)
    whole = look_with_padding(engine, name)
    return whole[: parameter.ds_numel].view(parameter.ds_shape)


def look_with_data(engine, name):
    """Right: the gathered memory lives as long as somebody holds it."""
    parameter = parameter_of(engine, name)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
        return parameter.data


def consolidate_the_module(folder):
    file = sorted(Path(folder).glob("*/*_model_states.pt"))[0]
    return torch.load(file, weights_only=False)["module"]


def consolidate(group=lambda groups: groups, join=None, part=None, cut=True, step=None, order=lambda flats: flats):
    """A consolidation with one thing done otherwise."""

    def consolidate(folder):
        full = {}
        for shapes, flats in group(shards(folder)):
            offset, flats = 0, order(list(flats))
            for name, shape in shapes.items():
                size = part(shape.numel(), len(flats)) if part else -(-shape.numel() // len(flats))
                pieces = [flat[offset : offset + size] for flat in flats]
                whole = join(pieces) if join else torch.cat(pieces)
                full[name] = whole[: shape.numel()].view(shape) if cut else whole
                offset += step(shape.numel(), len(flats)) if step else size
        return full

    return consolidate


def consolidate_flat_by_flat(folder):
    full = {}
    for shapes, flats in shards(folder):
        whole = torch.cat(flats)
        offset = 0
        for name, shape in shapes.items():
            full[name] = whole[offset : offset + shape.numel()].view(shape)
            offset += shape.numel()
    return full


def consolidate_with_prefix(folder):
    return {f"module.{name}": value for name, value in consolidate()(folder).items()}


def consolidate_arrays(folder):
    return {name: value.detach().numpy() for name, value in consolidate()(folder).items()}


def consolidate_a_list(folder):
    return list(consolidate()(folder).values())


def consolidate_with_deepspeed(folder):
    """Right: the function that DeepSpeed ships for it."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(folder, tag="step1")


def look_at_the_master(engine, name):
    """Right: DeepSpeed's own reader of the fp32 masters, which in an fp32 run are the parameters."""
    from deepspeed.utils import safe_get_full_fp32_param

    return safe_get_full_fp32_param(parameter_of(engine, name))


def consolidate_in_bf16(folder):
    return {name: value.bfloat16() for name, value in consolidate()(folder).items()}
