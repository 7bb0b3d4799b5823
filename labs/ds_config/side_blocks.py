"""The other blocks of a DeepSpeed config: logging, profiling, compiling, tensor parallelism. No torch.

Kept so that a mistake in them is found as DeepSpeed 0.19.8 finds it; tests/test_ds_blocks.py holds every field to it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from labs.ds_config.blocks import Block


class CommsLogger(Block):
    """comms_logger."""

    enabled: bool = False
    prof_all: bool = True
    prof_ops: list = []
    verbose: bool = False
    debug: bool = False


class TensorBoard(Block):
    """tensorboard, and csv_monitor, which has the same keys."""

    enabled: bool = False
    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


class Wandb(Block):
    """wandb."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str = "deepspeed"


class Comet(Block):
    """comet."""

    enabled: bool = False
    samples_log_interval: int = 100
    project: str | None = None
    workspace: str | None = None
    api_key: str | None = None
    experiment_name: str | None = None
    experiment_key: str | None = None
    online: bool | None = None
    mode: str | None = None


class Monitors(Block):
    """The four monitors, which DeepSpeed reads together."""

    tensorboard: TensorBoard = {}
    comet: Comet = {}
    wandb: Wandb = {}
    csv_monitor: TensorBoard = {}


class HybridEngine(Block):
    """hybrid_engine."""

    enabled: bool = False
    max_out_tokens: int = Field(512, gt=0)
    inference_tp_size: int = 1
    release_inference_cache: bool = False
    pin_parameters: bool = True
    tp_gather_partition_size: int = 8
    enable_cuda_graph: bool = False


class QuantType(StrEnum):
    """How weights are quantised."""

    asym = "asymmetric"
    sym = "symmetric"


class WeightQuantization(Block):
    """weight_quantization."""

    enabled: bool = True
    num_bits: int = 8
    q_type: QuantType = QuantType.sym
    q_groups: int = 1
    quantized_initialization: dict = {}
    post_init_quant: dict = {}


class Compile(Block):
    """compile."""

    deepcompile: bool = False
    autoep_non_moe: bool = False
    free_activation: bool = False
    free_activation_threshold: int = 10 * 1024 * 1024
    offload_activation: bool = False
    offload_activation_pin_memory: bool = True
    offload_opt_states: bool = False
    double_buffer: bool = True
    symmetric_memory: bool = False
    debug_log: bool = False
    offload_parameters: bool = False
    sync_before_reduce: bool = False
    sync_after_reduce: bool = False
    sync_before_allgather: bool = False
    sync_after_allgather: bool = False
    keep_int_input_tensors: bool = True
    keep_all_input_tensors: bool = False
    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = None


class ThroughputTimer(Block):
    """timers.throughput."""

    enabled: bool = True
    synchronized: bool = True


class TPSize(Block):
    """tensor_parallel.tp."""

    tp_size: int = 1
    tp_grain_size: int = 1
    mpu: Any = None
    tp_group: Any = None


_TORCH_DTYPE = object()  # stands for torch.float16, which no JSON value is


class TensorParallel(Block):
    """tensor_parallel."""

    dtype: Any = _TORCH_DTYPE
    autotp_size: int = 0
    tp_overlap_comm: bool = False
    vocab_parallel_lm_head: bool | None = None
    vocab_parallel_ce_backend: Literal["torch", "liger"] = "torch"
    tensor_parallel: TPSize = Field({}, alias="tp")
    injection_policy_tuple: tuple | None = None
    partition_config: dict[str, Any] | None = None
    preset_model: str | None = None
    keep_module_on_host: bool = False
    replace_with_kernel_inject: bool = Field(False, alias="kernel_inject")

    @field_validator("dtype", mode="plain")
    @classmethod
    def _no_json_value(cls, value):
        if value is not _TORCH_DTYPE:
            raise ValueError("should be a torch.dtype, which a JSON file cannot hold; leave it out")
        return value
