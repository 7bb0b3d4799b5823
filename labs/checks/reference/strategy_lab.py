"""Solutions of lesson 08: decisions."""

from labs import memory
from labs.config import ModelTrainingConfig
from labs.spec import ModelSpec

TASK = ModelTrainingConfig(strategy="fsdp", world_size=4, batch_size=32, steps=2)
STATES = ("parameters", "gradients", "optimizer", "master_weights")


def fewest_bytes_held():
    """Return the config that holds the fewest bytes on its fullest rank."""
    return TASK


def fewest_bytes_sent():
    """Return the config whose busiest rank sends the fewest bytes in an optimizer step."""
    return TASK.replace(strategy="ddp")


def largest_model(cap_bytes):
    """Return the config with the most layers whose four states fit into cap_bytes on each rank."""
    fits = None
    for layers in range(1, 97):
        larger = TASK.replace(model=ModelSpec.from_name("tiny", num_layers=layers))
        if _held(larger) > cap_bytes:
            return fits
        fits = larger
    return fits


def _held(config):
    by_rank = [memory.state_bytes(config, rank) for rank in range(config.world_size)]
    return max(sum(held[state] for state in STATES) for held in by_rank)


def fewest_bytes_sent_under_cap(cap_bytes):
    """Return the config that sends the fewest bytes among those whose states fit into cap_bytes a rank."""
    options = [TASK.replace(strategy=name) for name in ("ddp", "zero1", "hsdp", "fsdp", "zero3")]  # fewest sent first
    return next(option for option in options if _held(option) <= cap_bytes)


def what_parts_curves(fields):
    """Return the set of the fields that part the loss curve when they alone are changed."""
    return {"batch_size", "learning_rate", "use_mixed_precision", "weight_decay"} & set(fields)


def same_loss(config):
    """Return a config with another strategy and another world size, and the same losses."""
    strategy = "fsdp" if config.strategy != "fsdp" else "ddp"
    return config.replace(strategy=strategy, world_size=2 if config.world_size != 2 else 4)
