"""Where DeepSpeed 0.19.8 keeps the states of a rank. Its attributes have no public names; they stand here only.

"flat" is ZeRO-1 and 2: all parameters of one optimizer group lie in one flat tensor, which is cut into equal parts.
"cut" is ZeRO-3: every parameter is cut into equal parts by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn

Slices = Iterator[tuple[nn.Parameter, torch.Tensor]]


def flat_gradient_slices(zero) -> Slices:
    """Yield (parameter, this rank's piece of its averaged gradient) between the last backward and the step."""
    for index, parameters in enumerate(zero.params_in_partition):
        if not zero.cpu_offload:
            # With no parameter in this part the list holds its padding alone; else padding comes last.
            yield from zip(parameters, zero.averaged_gradients[index], strict=False)
            continue
        flat = zero.single_partition_of_fp32_groups[index].grad
        for parameter in parameters:
            _, _, offset, length = zero.grad_position[zero.get_param_id(parameter)]
            yield parameter, flat.narrow(0, int(offset), int(length))


def cut_gradient_slices(zero) -> Slices:
    """Yield (parameter, this rank's part of its averaged gradient), between the last backward and the step."""
    for index, parameters in enumerate(zero.fp16_groups):
        if not zero.offload_optimizer:
            yield from zip(parameters, zero.averaged_gradients[index], strict=True)
            continue
        flat = zero.fp32_partitioned_groups_flat[index].grad
        for parameter in parameters:
            _, offset, length = zero.grad_position[zero.get_param_id(parameter)]
            yield parameter, flat.narrow(0, offset, length)


def flat_held(zero, module: nn.Module) -> dict[str, list[torch.Tensor]]:
    """List what ZeRO-1 or 2 holds on this rank, by state; views of one buffer are measured as the buffer."""
    masters = zero.single_partition_of_fp32_groups
    parameters = [*zero.bit16_groups_flat, *_frozen(module)]
    gradients = [tensor for tensors in zero.averaged_gradients.values() for tensor in tensors or ()]
    if zero.cpu_offload:
        parameters += zero.param_buffer_of_bit16_for_cpu_offload_groups  # the way back from fp32 to the device
        gradients += [master.grad for master in masters]
        gradients += [zero.temp_grad_buffer_for_cpu_offload, zero.temp_grad_buffer_for_gpu_offload]
        gradients += zero.accumulated_grads_in_cpu.values()
    return _by_state(zero, module, parameters, gradients, masters)


def flat_buckets(zero) -> list[torch.Tensor]:
    """List the buffers in which ZeRO-1 or 2 packs gradients: made when backward begins, dropped when it ends."""
    return [buffer for bucket in zero.ipg_buckets.values() for buffer in bucket.buffer or ()]


def flat_waiting(zero, module: nn.Module) -> list[torch.Tensor]:
    """List the gradients that ZeRO-1 or 2 keeps from one micro-batch to the next, which `flat_held` leaves out."""
    kept = [tensor for tensors in zero.all_grad_tensors.values() for tensor in tensors or ()]
    kept += [getattr(parameter, "grad_accum", None) for parameter in module.parameters()]
    return [tensor for tensor in kept if tensor is not None]


def cut_held(zero, module: nn.Module) -> dict[str, list[torch.Tensor]]:
    """List what ZeRO-3 holds on this rank, by state. The bucket is always there: it belongs to the gradients."""
    masters = zero.fp32_partitioned_groups_flat
    gradients = [zero.grad_partitions_flat_buffer, *(bucket.buffer for bucket in zero.ipg_buckets.values())]
    gradients += [master.grad for master in masters if master.grad is not None]
    return _by_state(zero, module, [p.ds_tensor for p in module.parameters()], gradients, masters)


def cut_live_parameters(module: nn.Module) -> list[torch.Tensor]:
    """List the parts at rest and every parameter that is gathered now."""
    parameters = list(module.parameters())
    return [p.ds_tensor for p in parameters] + [p for p in parameters if p.numel() == p.ds_numel]


@torch.no_grad()
def flat_full_parameters(zero, names: Mapping[nn.Parameter, str], device: torch.device) -> dict[str, torch.Tensor]:
    """Gather the master weights of all ranks and give them their names and shapes back."""
    full = {name: parameter.detach().float().clone() for parameter, name in names.items()}
    for parameters, master in zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True):
        offset, flat = 0, _gather(master.detach(), device)
        for parameter in parameters:
            full[names[parameter]] = flat[offset : offset + parameter.numel()].view(parameter.shape).clone()
            offset += parameter.numel()
    return full


@torch.no_grad()
def cut_full_parameters(zero, names: Mapping[nn.Parameter, str], device: torch.device) -> dict[str, torch.Tensor]:
    """Gather the parts of all ranks, of master weights where there are any, and cut the padding off."""
    parts = {parameter: parameter.ds_tensor.float() for parameter in names}
    for parameters, master in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        lengths = [parameter.partition_numel() for parameter in parameters]
        parts.update(zip(parameters, master.detach().split(lengths), strict=True))
    return {names[p]: _gather(part, device)[: p.ds_numel].view(p.ds_shape).clone() for p, part in parts.items()}


def _gather(part: torch.Tensor, device: torch.device) -> torch.Tensor:
    """All-gather equal parts; an offloaded part is brought to the device first."""
    whole = torch.empty(part.numel() * dist.get_world_size(), dtype=part.dtype, device=device)
    dist.all_gather_into_tensor(whole, part.to(device).contiguous())
    return whole


def _frozen(module: nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in module.parameters() if not parameter.requires_grad]


def _by_state(zero, module: nn.Module, parameters: Iterable, gradients: Iterable, masters: Iterable):
    states = [zero.optimizer.state[master] for master in masters if master in zero.optimizer.state]
    return {
        "parameters": list(parameters),
        "gradients": list(gradients),
        "optimizer": [value for state in states for value in state.values() if value.ndim],
        "master_weights": list(masters),
        "buffers": list(module.buffers()),
    }
