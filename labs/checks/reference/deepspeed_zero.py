"""Solutions of lesson 07."""

from pathlib import Path


def train_step(engine, micro_batches):
    """Make one optimizer step; DeepSpeed counts the calls of step(), and updates at the last of them."""
    for batch in micro_batches:
        engine.backward(engine(*batch))
        engine.step()


def write_config(world_size):
    """16 samples a step, 2 at a time; gradients and optimizer cut; clipping at 0.5; buckets of 20,000 elements."""
    return {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 20_000},
    }


def mend(broken):
    """Mend the five configs, each in as few places as it needs."""
    broken["batch"]["gradient_accumulation_steps"] = 4
    broken["loss scale"]["bf16"] = {"enabled": True}
    broken["offload"]["zero_optimization"]["stage"] = 3
    threshold = broken["threshold"].pop("stage3_param_persistence_threshold")
    broken["threshold"]["zero_optimization"]["stage3_param_persistence_threshold"] = threshold
    broken["template"] |= {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0}
    broken["template"]["zero_optimization"]["reduce_bucket_size"] = 20_000
    return broken


def look(engine, name):
    """Return a copy of the whole parameter, on every rank."""
    import deepspeed

    parameter = dict(engine.module.named_parameters())[name]
    with deepspeed.zero.GatheredParameters(parameter):
        return parameter.detach().clone()


def shards(folder):
    """Return, for each optimizer group, the shapes {name: shape} and the flat fp32 part of every rank."""
    import torch

    def read(kind):
        files = sorted(Path(folder).glob(f"*/*_{kind}_states.pt"))  # zero_pp_rank_0_..., zero_pp_rank_1_...
        return [torch.load(file, weights_only=False) for file in files]

    flats = [state["optimizer_state_dict"]["fp32_flat_groups"] for state in read("optim")]
    return list(zip(read("model")[0]["param_shapes"], zip(*flats, strict=True), strict=True))


def consolidate(folder):
    """Return {name: full fp32 tensor}: each parameter was padded, and cut, by itself."""
    import torch

    full = {}
    for shapes, flats in shards(folder):
        offset = 0
        for name, shape in shapes.items():
            part = -(-shape.numel() // len(flats))
            pieces = [flat[offset : offset + part] for flat in flats]
            full[name] = torch.cat(pieces)[: shape.numel()].view(shape)
            offset += part
    return full
