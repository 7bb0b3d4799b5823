"""What DeepSpeed makes of a config: the blocks that decide bytes, and what it refuses. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from labs.ds_config.blocks import BF16, FP16, Zero
from labs.ds_config.refusals import Finding
from labs.ds_config.side_blocks import Compile


@dataclass
class Reading:
    """What DeepSpeed makes of a config. A block that it refuses is None; so are batch numbers that do not work out."""

    config: dict
    world_size: float
    accelerator: str
    refusals: list[Finding] = field(default_factory=list)
    batch: tuple | None = None  # train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps
    zero: Zero | None = None
    fp16: FP16 | None = None
    bf16: BF16 | None = None
    compile: Compile | None = None
