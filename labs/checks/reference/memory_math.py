"""Solutions of lesson 01."""

from labs.units import GiB

# Bytes an element: parameters, gradients, one tensor of the optimizer, master weights.
WIDTHS = {"fp32": (4, 4, 4, 0), "bf16-mixed": (2, 2, 4, 4), "bf16": (2, 2, 2, 0)}
OPTIMIZER_TENSORS = {"adamw": 2, "momentum": 1, "sgd": 0}
MIXED_ADAMW = {"parameters": 2, "gradients": 2, "optimizer": 8, "master_weights": 4}
CUT = {
    "ddp": (),
    "zero1": ("optimizer", "master_weights"),
    "zero2": ("optimizer", "master_weights", "gradients"),
    "zero3": ("optimizer", "master_weights", "gradients", "parameters"),
}


def count_parameters(spec):
    """Count the parameters of a GPT, a tied head once."""
    hidden = spec.hidden_size
    block = 12 * hidden * hidden + 13 * hidden
    embeddings = (spec.vocab_size + spec.context) * hidden
    head = 0 if spec.tied_embedding else spec.vocab_size * hidden
    return spec.num_layers * block + embeddings + 2 * hidden + head


def state_bytes(num_params, precision, optimizer):
    """Return the bytes of the four states, by name."""
    parameter, gradient, average, master = WIDTHS[precision]
    return {
        "parameters": parameter * num_params,
        "gradients": gradient * num_params,
        "optimizer": OPTIMIZER_TENSORS[optimizer] * average * num_params,
        "master_weights": master * num_params,
    }


def activation_bytes(spec, batch, seq):
    """Return the bytes that autograd keeps of one forward pass in fp32, to within 2 %."""
    tensor = 4 * batch * seq * spec.hidden_size
    logits = 4 * batch * seq * spec.vocab_size
    return spec.num_layers * 16 * tensor + 2 * tensor + logits


def per_rank_bytes(strategy, world_size, sizes, batch_size):
    """Return the bytes of the four states on the fullest rank, by name, in mixed precision under AdamW."""
    whole = sum(sizes)
    part = sum(-(-size // world_size) for size in sizes)
    return {state: width * (part if state in CUT[strategy] else whole) for state, width in MIXED_ADAMW.items()}


def fewest_ranks(strategy, num_params, capacity_gib):
    """Return the fewest ranks, of 1 to 1024, whose states fit into a device; None when no number is enough."""
    for world_size in range(1, 1025):
        if sum(per_rank_bytes(strategy, world_size, [num_params], 1).values()) <= capacity_gib * GiB:
            return world_size
    return None
