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
        by_rank = [memory.state_bytes(larger, rank) for rank in range(larger.world_size)]
        if max(sum(held[state] for state in STATES) for held in by_rank) > cap_bytes:
            return fits
        fits = larger
    return fits


def same_loss(config):
    """Return a config with another strategy and another world size, and the same losses."""
    strategy = "fsdp" if config.strategy != "fsdp" else "ddp"
    return config.replace(strategy=strategy, world_size=2 if config.world_size != 2 else 4)
