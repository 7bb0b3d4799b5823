"""The blocks of a DeepSpeed config that decide bytes, with DeepSpeed's names, types and defaults. No torch.

They are pydantic models as DeepSpeed's own are, so both judge a value alike. tests/test_ds_blocks.py holds every field
to DeepSpeed 0.19.8; side_blocks.py has the blocks that decide no bytes of training.
"""

from __future__ import annotations

import math
import sys
from enum import IntEnum, StrEnum

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Block(BaseModel):
    """One block: unknown keys are refused, and a key with the value "auto" counts as not given.

    The second is why "auto" outside of a trainer that fills it means "the default", without a word.
    """

    model_config = ConfigDict(
        validate_default=True, use_enum_values=True, populate_by_name=True, extra="forbid", protected_namespaces=()
    )

    def __init__(self, strict=False, **given):
        super().__init__(**(given if strict else {key: value for key, value in given.items() if not is_auto(value)}))


def is_auto(value) -> bool:
    return isinstance(value, str) and value == "auto"


class OffloadDevice(StrEnum):
    """Where offloaded states go."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadParam(Block):
    """zero_optimization.offload_param: works at stage 3 alone."""

    device: OffloadDevice = "none"
    nvme_path: str | None = None
    buffer_count: int = Field(5, ge=0)
    buffer_size: int = Field(100_000_000, ge=0)
    max_in_cpu: int = Field(1_000_000_000, ge=0)
    pin_memory: bool = True


class OffloadOptimizer(Block):
    """zero_optimization.offload_optimizer: works at stages 1, 2 and 3."""

    device: OffloadDevice = "none"
    nvme_path: str | None = None
    buffer_count: int = Field(4, ge=0)
    pin_memory: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: float = Field(1.0, ge=0.0, le=1.0)
    super_offload: bool = False
    cpuadam_cores_perc: float = Field(0.8, ge=0.0, le=1.0)


class ZenFlow(Block):
    """zero_optimization.zenflow."""

    topk_ratio: float = Field(0.1, gt=0.0, lt=1.0)
    select_strategy: str = "auto"
    select_interval: str | int = "auto"
    update_interval: str | int = "auto"
    overlap_step: bool = False
    offload: bool = False
    auto_ratio: float = Field(0.99, ge=0.0, le=1.0)
    full_warm_up_rounds: int = 0
    pt_reserved_cores_perc: float = Field(0.5, ge=0.0, le=1.0)
    steps_per_epoch: int | None = None

    @model_validator(mode="after")
    def _check(self):
        if self.select_strategy not in ("auto", "step", "epoch"):
            raise ValueError('should be "auto", "step" or "epoch" in select_strategy')
        for name in ("select_interval", "update_interval"):
            if isinstance(getattr(self, name), str) and getattr(self, name) != "auto":
                raise ValueError(f'should be "auto" or a whole number in {name}')
        if isinstance(self.update_interval, int) and self.update_interval < 1:
            raise ValueError("should be 1 or more in update_interval")
        return self


LEAF_CLASSES = [
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
]


class LeafModule(Block):
    """zero_optimization.leaf_module: modules that stage 3 gathers whole."""

    classes: list[str] = Field(default_factory=lambda: list(LEAF_CLASSES))
    names: list[str] = Field(default_factory=list)
    name_suffixes: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, given):
        if given is None:
            return {}
        if not isinstance(given, dict):
            raise ValueError("should be an object with classes, names or name_suffixes")
        return {key: [value] if isinstance(value, str) else value for key, value in given.items()}


class Stage(IntEnum):
    """What ZeRO cuts: 0 nothing, 1 the optimizer, 2 gradients too, 3 parameters too."""

    nothing = 0
    optimizer = 1
    gradients = 2
    parameters = 3


# old key -> the key that replaces it; None: the old one is read and has no effect
DEPRECATED = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_use_pin_memory": None,
    "stage3_gather_fp16_weights_on_model_save": "gather_16bit_weights_on_model_save",
}


class Zero(Block):
    """zero_optimization."""

    stage: Stage = 0
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = Field(500_000_000, gt=0)
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: int = Field(500_000_000, ge=0)
    overlap_comm: bool | None = None
    compute_grad_norm: bool = True
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    offload_param: OffloadParam | None = None
    offload_optimizer: OffloadOptimizer | None = None
    zenflow: ZenFlow | None = None
    sub_group_size: int = Field(1_000_000_000, ge=0)
    cpu_offload_param: bool | None = None
    cpu_offload_use_pin_memory: bool | None = None
    cpu_offload: bool | None = None
    prefetch_bucket_size: int = Field(50_000_000, ge=0, alias="stage3_prefetch_bucket_size")
    param_persistence_threshold: int = Field(100_000, ge=0, alias="stage3_param_persistence_threshold")
    model_persistence_threshold: int = Field(sys.maxsize, ge=0, alias="stage3_model_persistence_threshold")
    max_live_parameters: int = Field(1_000_000_000, ge=0, alias="stage3_max_live_parameters")
    max_reuse_distance: int = Field(1_000_000_000, ge=0, alias="stage3_max_reuse_distance")
    gather_16bit_weights_on_model_save: bool = Field(False, alias="stage3_gather_16bit_weights_on_model_save")
    module_granularity_threshold: int = Field(0, alias="stage3_module_granularity_threshold")
    use_all_reduce_for_fetch_params: bool = Field(False, alias="stage3_use_all_reduce_for_fetch_params")
    allgather_sequential: bool = Field(False, alias="stage3_allgather_sequential")
    stage3_gather_fp16_weights_on_model_save: bool = False
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    zero_hpz_partition_size: int = Field(1, ge=0)
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    memory_efficient_linear: bool = True
    pipeline_loading_checkpoint: bool = False
    override_module_apply: bool = True
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False
    save_muon_momentum_buffer_in_memory: bool = False
    leaf_module: LeafModule = Field(default_factory=LeafModule)

    def __init__(self, strict=False, **given):
        super().__init__(strict, **given)
        for old, new in DEPRECATED.items():
            if new and old in self.model_fields_set:
                self._move(old, new)

    def _move(self, old: str, new: str) -> None:
        if new in self.model_fields_set:
            raise ValueError(f"{old} is the old name of {new}, and both are given")
        value = getattr(self, old)
        if new.startswith("offload"):
            block = OffloadParam if new == "offload_param" else OffloadOptimizer
            value = block(device="cpu") if value else None
        setattr(self, new, value)

    @model_validator(mode="after")
    def _check(self):
        if self.overlap_comm is None:
            self.overlap_comm = self.stage == Stage.parameters
        if not self.compute_grad_norm and self.stage not in (Stage.optimizer, Stage.gradients):
            raise ValueError("compute_grad_norm=false works at stages 1 and 2 alone")
        if self.offload_optimizer and self.offload_optimizer.ratio < 1 and self.stage != Stage.parameters:
            raise ValueError("offload_optimizer.ratio below 1 offloads a part, which works at stage 3 alone")
        return self


class BF16(Block):
    """bf16: needs no loss scale, so it has no keys for one."""

    enabled: bool = False
    immediate_grad_update: bool = False
    check_grad_overflow: bool = True
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


class FP16(Block):
    """fp16: loss_scale 0 means that DeepSpeed chooses and changes it."""

    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: int = 1
    fp16_master_weights_and_grads: bool = False

    @field_validator("loss_scale", mode="before")
    @classmethod
    def _scale(cls, value):
        scale = _number(value, float)
        if not math.isfinite(scale) or scale < 0:
            raise ValueError("should be 0 (dynamic) or a finite number above it")
        return scale

    @field_validator("loss_scale_window", "min_loss_scale", mode="before")
    @classmethod
    def _whole(cls, value, info: ValidationInfo):
        _number(value, int)
        return value

    @model_validator(mode="after")
    def _check(self):
        if self.enabled and self.loss_scale == 0:
            for name in ("loss_scale_window", "min_loss_scale"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"should be above 0 in {name} while the loss scale is dynamic (loss_scale 0)")
        return self


def _number(value, kind):
    """Convert as `kind` does; a bool is no number, and what cannot be converted is refused."""
    try:
        if not isinstance(value, bool):
            return kind(value)
    except (TypeError, ValueError):
        pass
    raise ValueError("should be a number")
