"""Two published estimates of model states: the ZeRO paper's formulas, and the estimator that DeepSpeed ships. No torch.

They do not agree, and neither counts activations. The paper counts 16 bytes a parameter in mixed precision:
2 (parameters) + 2 (gradients) + K = 12 (fp32 parameters, momentum, variance), of which stage 1 cuts K, stage 2 also the
gradients, stage 3 all. DeepSpeed's estimator differs:

- it counts 18: the fp32 copy of the gradients that the update reads is one more state of 4 bytes;
- at stage 3 it adds the largest layer, gathered: 4 bytes a parameter of it (2 bytes of weight, 2 of gradient);
- host bytes are those of a whole node, all its ranks together, times 1.5 for what it does not know;
- without zero.Init every rank of a node first builds the whole model in fp32 on the host, and the larger need counts;
- it prints GiB and calls them GB; and it leaves out buckets, prefetched parameters, activations and the CUDA context.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs.errors import ConfigError


@dataclass(frozen=True)
class Estimate:
    """Bytes of model states: on the host for one node, and on each GPU."""

    host_bytes: int
    gpu_bytes: int


def paper_states_bytes(num_parameters: float, stage: int, world_size: int, k: float = 12) -> float:
    """Bytes of model states on one rank in mixed precision: stage 0 is data parallelism, 1 P_os, 2 P_os+g, 3 P_os+g+p.

    `k` bytes a parameter belong to the optimizer: 12 for Adam.
    Raises ConfigError for a stage that does not exist or a world_size below 1.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 5 and figure 1.
    """
    if stage not in (0, 1, 2, 3):
        raise ConfigError(f"stage {stage} does not exist; try 0 (nothing is cut), 1, 2 or 3 (everything is)")
    if world_size < 1:
        raise ConfigError(f"world_size {world_size} is too small; try 1 or more")
    cut = (k if stage >= 1 else 0) + (2 if stage >= 2 else 0) + (2 if stage >= 3 else 0)
    return num_parameters * (4 + k - cut + cut / world_size)


def deepspeed_estimate(
    num_parameters: int,
    stage: int,
    *,
    largest_layer_parameters: int = 0,
    gpus_per_node: int = 1,
    num_nodes: int = 1,
    offload_optimizer: bool = True,
    offload_parameters: bool = True,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> Estimate:
    """Repeat what DeepSpeed prints for stage 2 or 3, with its defaults; the module says how it differs from the paper.

    `offload_parameters`, `zero_init` and `largest_layer_parameters` play a part at stage 3 alone.
    Raises ConfigError for a stage that DeepSpeed has no estimator for.
    Source: DeepSpeed 0.19.8, estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs.
    """
    if stage == 2:
        return _stage2(num_parameters, gpus_per_node, num_nodes, offload_optimizer, buffer_factor)
    if stage != 3:
        raise ConfigError(f"DeepSpeed has no estimator for stage {stage}; try 2 or 3, or paper_states_bytes")
    per_node, gpus, layer = num_parameters / num_nodes, gpus_per_node * num_nodes, 4 * largest_layer_parameters
    built = 0 if zero_init else 4 * num_parameters * gpus_per_node
    if not offload_optimizer:
        built = built or 4 * largest_layer_parameters * gpus_per_node
        return Estimate(int(built * buffer_factor), layer + int(18 * num_parameters / gpus))
    kept = (18 if offload_parameters else 16) * per_node
    on_gpu = 0 if offload_parameters else int(2 * num_parameters / gpus)
    return Estimate(int(max(built, kept) * buffer_factor), layer + on_gpu)


def _stage2(num_parameters: int, gpus_per_node: int, num_nodes: int, offload: bool, buffer_factor: float) -> Estimate:
    """Stage 2 has no zero.Init: every rank builds the whole model in fp32."""
    gpus = gpus_per_node * num_nodes
    if offload:
        return Estimate(int(num_parameters * max(4 * gpus, 16) * buffer_factor), 2 * num_parameters)
    on_gpu = 2 * num_parameters + int(18 * num_parameters / gpus)
    return Estimate(int(num_parameters * 4 * gpus_per_node * buffer_factor), on_gpu)
