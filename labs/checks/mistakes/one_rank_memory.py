"""What people get wrong about the memory of one rank: each mistake as a function, and the hint made for it."""

from __future__ import annotations

from labs.checks.reference import memory_math as right

COUNT_OTHERWISE = "Count the first model by hand: it is small enough to list every tensor with its shape."
STATE_OTHERWISE = "Compare state by state: which of the four differs, and in which precision?"
ACTIVATION_OTHERWISE = (
    "Set your terms beside the list of what one block keeps, then add what is kept after the blocks: the last block's "
    "output, the last norm's, and the log-probabilities."
)


def _count(block=12, vectors=13, position=True, norm=True, token=True, head=None):
    """A count of parameters with something left out or too much."""

    def count_parameters(spec):
        h = spec.hidden_size
        has_head = not spec.tied_embedding if head is None else head
        tables = (token + has_head) * spec.vocab_size + position * spec.context
        return spec.num_layers * (block * h * h + vectors * h) + tables * h + norm * 2 * h

    return count_parameters


COUNT_PARAMETERS = (
    (_count(head=True), "A tied head is the embedding's own tensor: it exists once, so it counts once."),
    (_count(head=False), "Where the head is not tied it is a tensor of its own, as large as the token embedding."),
    (_count(position=False), "One tensor is missing: TinyGPT also has an embedding for each of its positions."),
    (_count(token=False), "The token embedding is missing: it has one row of hidden_size for each token."),
    (_count(vectors=4), "Linear layers have biases here: 3h, h, 4h and h of them in a block."),
    (_count(vectors=9), "A norm has a gain and a bias, 2h in all, and there are two norms in each block."),
    (_count(norm=False), "After the last block stands one more norm."),
    (_count(vectors=9, norm=False), "Norms have parameters: a gain and a bias each, two norms a block and a last one."),
    (_count(vectors=0, norm=False), "That counts the matrices alone. Biases and norms are parameters, too."),
    (_count(block=10), "Queries, keys and values need a matrix each: the attention's input side is 3h x h."),
    (
        lambda spec: 12 * spec.num_layers * spec.hidden_size**2,
        "12 L h² is a rule of thumb: it leaves out embeddings, biases and norms. Here every tensor counts.",
    ),
)


def _states(**changes):
    """state_bytes with some states replaced: each change is a function of (num_params, precision, optimizer)."""

    def state_bytes(num_params, precision, optimizer):
        found = right.state_bytes(num_params, precision, optimizer)
        return {**found, **{name: change(num_params, precision, optimizer) for name, change in changes.items()}}

    return state_bytes


def _nothing(*_):
    return 0


def _narrow_averages(num_params, precision, optimizer):
    return (4 if precision == "fp32" else 2) * right.OPTIMIZER_TENSORS[optimizer] * num_params


def _masters_always(num_params, precision, optimizer):
    return 4 * num_params


def _masters_unless_fp32(num_params, precision, optimizer):
    return 0 if precision == "fp32" else 4 * num_params


def _masters_for_adam(num_params, precision, optimizer):
    return 4 * num_params if precision == "bf16-mixed" and optimizer == "adamw" else 0


def _always_adam(num_params, precision, optimizer):
    return right.state_bytes(num_params, precision, "adamw")["optimizer"]


def _one_average(num_params, precision, optimizer):
    return right.state_bytes(num_params, precision, "sgd" if optimizer == "sgd" else "momentum")["optimizer"]


def _wide(width):
    return lambda num_params, precision, optimizer: width * num_params


def _masters_inside(num_params, precision, optimizer):
    found = right.state_bytes(num_params, precision, optimizer)
    return found["optimizer"] + found["master_weights"]


STATE_BYTES = (
    (
        _states(optimizer=_wide(8), master_weights=_nothing),
        "Two mistakes. Not every optimizer keeps Adam's 8 bytes: look at momentum's one average, at the width in bf16. "
        "And mixed precision has an fp32 master copy beside the averages.",
    ),
    (
        _states(master_weights=_nothing),
        "In mixed precision the optimizer's side is 12 bytes a parameter, not 8: beside "
        "Adam's two averages there is an fp32 master copy, since small updates vanish in bf16.",
    ),
    (_states(gradients=_nothing), "The gradients are missing: backward leaves one number for each parameter."),
    (
        _states(optimizer=_narrow_averages),
        "In mixed precision Adam's averages stay in fp32, 4 bytes each: it is the "
        "compute that is done in bf16. They are 2 bytes wide where everything is bf16.",
    ),
    (
        _states(optimizer=_nothing),
        "The optimizer remembers something, too: two numbers a parameter for AdamW, one for momentum.",
    ),
    (_states(optimizer=_one_average), "AdamW keeps two averages a parameter: of the gradient, and of its square."),
    (
        _states(optimizer=_always_adam),
        "Not every optimizer is Adam: momentum keeps one number a parameter, plain SGD none.",
    ),
    (
        _states(master_weights=_masters_for_adam),
        "The master copy belongs to mixed precision, not to Adam: SGD's small updates vanish in bf16 as well.",
    ),
    (
        _states(master_weights=_masters_always),
        "A master copy is there where the parameters themselves are too coarse to "
        "take an update: in bf16-mixed alone. In fp32 the parameters are their own master.",
    ),
    (
        _states(master_weights=_masters_unless_fp32),
        "Pure bf16 is without master weights: that is its saving and its risk.",
    ),
    (_states(gradients=_wide(4)), "Gradients have the width of the parameters that they belong to: 2 bytes in bf16."),
    (
        _states(parameters=_wide(4)),
        "In bf16 the parameters that compute are 2 bytes wide; the 4-byte copy is the master.",
    ),
    (
        _states(optimizer=_masters_inside, master_weights=_nothing),
        "The sum is right: here the fp32 master copy has a line of its own, master_weights.",
    ),
)


def _kept(block=16, head=2, vocab=1, width=4, scores=False, batch=True):
    def activation_bytes(spec, batch_size, seq):
        rows = (batch_size if batch else 1) * seq
        kept = spec.num_layers * block * spec.hidden_size + head * spec.hidden_size + vocab * spec.vocab_size
        squares = spec.num_layers * spec.num_heads * seq if scores else 0
        return width * rows * (kept + squares)

    return activation_bytes


ACTIVATION_BYTES = (
    (
        _kept(batch=False),
        "Every sample keeps activations of its own: they grow with the batch. It is the states that do not.",
    ),
    (_kept(width=1), "That is a number of elements. In fp32 an element has 4 bytes."),
    (_kept(width=2), "In fp32 an element has 4 bytes; 2 would be bf16."),
    (
        _kept(scores=True),
        "No seq x seq matrix is kept: the attention kernel used here computes scores again in backward, "
        "and your list shows none.",
    ),
    (_kept(vocab=0), "The log-probabilities of the loss are missing: vocab_size numbers for every token."),
    (
        _kept(block=1),
        "That is one tensor a block: what activation checkpointing keeps. Here nothing is computed again, "
        "so all tensors of the list count.",
    ),
    (_kept(block=8), "The feed-forward layer is 4 times as wide, before and after GELU: 8 of a block's 16 tensors."),
    (_kept(block=12), "GELU keeps its input and the next linear its output: 4 + 4 tensors, not 4."),
    (_kept(block=14), "Queries, keys and values are three tensors."),
    (
        _kept(block=34 / 4),
        "34 is the published figure in bytes, for 16 bits and with dropout. Count what this model keeps.",
    ),
    (
        lambda spec, batch, seq: 4 * right.count_parameters(_Sized(spec, seq)),
        "These are the parameters. Activations are "
        "what the forward pass leaves for backward: they depend on batch and seq.",
    ),
)


class _Sized:
    """A shape with another context."""

    def __init__(self, spec, context):
        self.num_layers, self.hidden_size, self.vocab_size = spec.num_layers, spec.hidden_size, spec.vocab_size
        self.tied_embedding, self.context = spec.tied_embedding, context
