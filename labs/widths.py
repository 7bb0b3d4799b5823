"""How wide numbers are, and how many of them the optimizer keeps. No torch."""

from labs.config import ModelTrainingConfig

FP32_BYTES = 4
ADAMW_TENSORS = 2  # exp_avg and exp_avg_sq; the step counter is a scalar and is not counted


def compute_bytes(config: ModelTrainingConfig) -> int:
    """Bytes of one element of a parameter in compute, and of a gradient on the wire."""
    return 2 if config.use_mixed_precision else FP32_BYTES
