"""Five DeepSpeed configs of the kinds that people report, with the complaint and what was wanted. No torch."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

NUM_RANKS = 2


@dataclass(frozen=True)
class BrokenConfig:
    """A config that does not do what its owner wants, on NUM_RANKS ranks."""

    config: dict
    complaint: str
    wanted: str

    def __str__(self) -> str:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self.config.items()]
        return "\n".join([f"{self.complaint}.", f"Wanted: {self.wanted}.", *(f"    {line}" for line in lines)])


MICRO = {"train_micro_batch_size_per_gpu": 2}
BROKEN = {
    "batch": BrokenConfig(
        {"train_batch_size": 16, **MICRO, "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 1}},
        "AssertionError: train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size",
        "16 samples an optimizer step, 2 at a time on each rank",
    ),
    "loss scale": BrokenConfig(
        {**MICRO, "bf16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500},
         "zero_optimization": {"stage": 1}},
        "ValidationError: 2 validation errors: Extra inputs are not permitted",
        "compute in bf16",
    ),
    "offload": BrokenConfig(
        {**MICRO, "zero_optimization": {
            "stage": 2, "reduce_bucket_size": 20000, "stage3_param_persistence_threshold": 0,
            "offload_param": {"device": "cpu"}}},
        "No error. The parameters stay on the device, all of them",
        "each rank keeps its part of the parameters, on the CPU",
    ),
    "threshold": BrokenConfig(
        {**MICRO, "zero_optimization": {"stage": 3, "reduce_bucket_size": 20000},
         "stage3_param_persistence_threshold": 0},
        "No error. Stage 3 runs, and every rank still holds every parameter",
        "stage 3 that cuts small parameters, too",
    ),
    "template": BrokenConfig(
        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
         "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}},
        "TypeError: '>' not supported between instances of 'str' and 'int'",
        "2 samples a rank, clipping at 1.0, buckets of 20,000 elements",
    ),
}  # fmt: skip


def broken_configs() -> dict[str, dict]:
    """Return {name: config} of the five, a copy each time."""
    return {name: copy.deepcopy(case.config) for name, case in BROKEN.items()}
