"""Answers to lesson 01 as learners write them: right ones, and wrong ones with the hint that each must get."""

from labs.units import GB, GiB

WIDTH = {"fp32": 4, "bf16-mixed": 2, "bf16": 2}
SHARES = {"ddp": (16, 0), "zero1": (4, 12), "zero2": (2, 14), "zero3": (0, 16)}  # bytes kept whole, bytes cut


def count_by_listing(spec):
    h, total = spec.hidden_size, 0
    for rows, columns in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h)):
        total += rows * columns + rows
    total = spec.num_layers * (total + 2 * (h + h))
    tables = [spec.vocab_size, spec.context] + ([] if spec.tied_embedding else [spec.vocab_size])
    return total + h + h + sum(rows * h for rows in tables)


def count_with_a_head_of_its_own(spec):
    return count_by_listing(spec) + spec.tied_embedding * spec.vocab_size * spec.hidden_size


def count_without_positions(spec):
    return count_by_listing(spec) - spec.context * spec.hidden_size


def count_without_biases(spec):
    return count_by_listing(spec) - spec.num_layers * 9 * spec.hidden_size


def count_without_a_second_table(spec):
    return count_by_listing(spec) - (not spec.tied_embedding) * spec.vocab_size * spec.hidden_size


def count_by_asking(spec):
    return spec.num_parameters


def states(num_params, precision, optimizer):
    wide = 2 if precision == "bf16" else 4
    averages = {"adamw": 2 * wide, "momentum": wide, "sgd": 0}[optimizer]
    return dict(
        parameters=WIDTH[precision] * num_params,
        gradients=WIDTH[precision] * num_params,
        optimizer=averages * num_params,
        master_weights=4 * num_params if precision == "bf16-mixed" else 0,
    )


def states_with_adam_as_8_bytes(num_params, precision, optimizer):
    return {**states(num_params, precision, optimizer), "master_weights": 0}


def states_without_gradients(num_params, precision, optimizer):
    return {**states(num_params, precision, optimizer), "gradients": 0}


def states_with_averages_in_bf16(num_params, precision, optimizer):
    averages = {"adamw": 2, "momentum": 1, "sgd": 0}[optimizer]
    return {**states(num_params, precision, optimizer), "optimizer": averages * WIDTH[precision] * num_params}


def states_with_8_bytes_for_any_optimizer(num_params, precision, optimizer):
    found = states(num_params, precision, optimizer)
    return {**found, "optimizer": 8 * num_params, "master_weights": 0}


def states_in_one_number(num_params, precision, optimizer):
    return sum(states(num_params, precision, optimizer).values())


def kept(spec, batch, seq):
    tensor = batch * seq * spec.hidden_size * 4
    return tensor * (16 * spec.num_layers + 2) + batch * seq * spec.vocab_size * 4


def kept_with_the_small_terms(spec, batch, seq):
    rows = batch * seq
    small = spec.num_layers * (4 * rows * 4 + rows * spec.num_heads * 4) + 2 * rows * 4 + 8 * (2 * rows + batch + seq)
    return kept(spec, batch, seq) + small + 4


def kept_for_one_sample(spec, batch, seq):
    return kept(spec, 1, seq)


def kept_with_scores(spec, batch, seq):
    return kept(spec, batch, seq) + 4 * spec.num_layers * batch * spec.num_heads * seq * seq


def kept_in_bf16(spec, batch, seq):
    return kept(spec, batch, seq) // 2


def kept_without_logits(spec, batch, seq):
    return kept(spec, batch, seq) - batch * seq * spec.vocab_size * 4


def by_rank(strategy, world_size, sizes, batch_size, part=None):
    stage, whole = "ddp zero1 zero2 zero3".split().index(strategy), sum(sizes)
    part = sum((size + world_size - 1) // world_size for size in sizes) if part is None else part
    return dict(
        parameters=2 * (part if stage >= 3 else whole),
        gradients=2 * (part if stage >= 2 else whole),
        optimizer=8 * (part if stage >= 1 else whole),
        master_weights=4 * (part if stage >= 1 else whole),
    )


def by_rank_divided_before_padding(strategy, world_size, sizes, batch_size):
    return by_rank(strategy, world_size, sizes, batch_size, part=sum(size // world_size for size in sizes))


def by_rank_padded_once(strategy, world_size, sizes, batch_size):
    return by_rank(strategy, world_size, [sum(sizes)], batch_size)


def by_rank_with_ddp_divided(strategy, world_size, sizes, batch_size):
    return by_rank("zero3", world_size, sizes, batch_size)


def by_rank_with_everything_cut(strategy, world_size, sizes, batch_size):
    part = sum(sizes) // (1 if strategy == "ddp" else world_size)
    return dict(parameters=2 * part, gradients=2 * part, optimizer=8 * part, master_weights=4 * part)


def by_rank_with_the_batch_in_adam(strategy, world_size, sizes, batch_size):
    found = by_rank(strategy, world_size, sizes, batch_size)
    return {**found, "optimizer": batch_size * found["optimizer"]}


def by_rank_without_gradients(strategy, world_size, sizes, batch_size):
    return {**by_rank(strategy, world_size, sizes, batch_size), "gradients": 0}


def fewest(strategy, num_params, capacity_gib, unit=GiB, otherwise=None):
    whole, cut = SHARES[strategy]
    for ranks in range(1, 1025):
        if whole * num_params + cut * -(-num_params // ranks) <= capacity_gib * unit:
            return ranks
    return otherwise


def fewest_in_gb(strategy, num_params, capacity_gib):
    return fewest(strategy, num_params, capacity_gib, unit=GB)


def fewest_at_any_price(strategy, num_params, capacity_gib):
    return fewest(strategy, num_params, capacity_gib, otherwise=1024)


def fewest_by_16_bytes(strategy, num_params, capacity_gib):
    return max(1, -(-16 * num_params // (capacity_gib * GiB)))


def fewest_in_bytes(strategy, num_params, capacity_gib):
    return fewest(strategy, num_params, capacity_gib, unit=1)


RIGHT = [
    ("memory_math.count_parameters", count_by_listing),
    ("memory_math.state_bytes", states),
    ("memory_math.activation_bytes", kept),
    ("memory_math.activation_bytes", kept_with_the_small_terms),
    ("memory_math.per_rank_bytes", by_rank),
    ("memory_math.fewest_ranks", fewest),
]

WRONG = [
    ("memory_math.count_parameters", count_with_a_head_of_its_own, "tied head is the embedding's own"),
    ("memory_math.count_parameters", count_without_a_second_table, "not tied it is a tensor of its own"),
    ("memory_math.count_parameters", count_without_positions, "an embedding for each of its positions"),
    ("memory_math.count_parameters", count_without_biases, "have biases here"),
    ("memory_math.count_parameters", count_by_asking, "count from the sizes"),
    ("memory_math.state_bytes", states_with_adam_as_8_bytes, "12 bytes a parameter, not 8"),
    ("memory_math.state_bytes", states_without_gradients, "gradients are missing"),
    ("memory_math.state_bytes", states_with_averages_in_bf16, "averages stay in fp32"),
    ("memory_math.state_bytes", states_with_8_bytes_for_any_optimizer, "Not every optimizer keeps Adam's 8 bytes"),
    ("memory_math.state_bytes", states_in_one_number, "what is asked for is a dict"),
    ("memory_math.activation_bytes", kept_for_one_sample, "Every sample keeps activations"),
    ("memory_math.activation_bytes", kept_with_scores, "No seq x seq matrix"),
    ("memory_math.activation_bytes", kept_in_bf16, "2 would be bf16"),
    ("memory_math.activation_bytes", kept_without_logits, "log-probabilities of the loss"),
    ("memory_math.per_rank_bytes", by_rank_divided_before_padding, "You divide before you pad"),
    ("memory_math.per_rank_bytes", by_rank_padded_once, "round up tensor by tensor"),
    ("memory_math.per_rank_bytes", by_rank_with_ddp_divided, "divides the batch, not the states"),
    ("memory_math.per_rank_bytes", by_rank_with_everything_cut, "Only zero3 cuts everything"),
    ("memory_math.per_rank_bytes", by_rank_with_the_batch_in_adam, "the batch is not in the optimizer state"),
    ("memory_math.per_rank_bytes", by_rank_without_gradients, "gradients are missing"),
    ("memory_math.fewest_ranks", fewest_in_gb, "GB and GiB"),
    ("memory_math.fewest_ranks", fewest_at_any_price, "the answer is None"),
    ("memory_math.fewest_ranks", fewest_by_16_bytes, "Only zero3 cuts everything"),
    ("memory_math.fewest_ranks", fewest_in_bytes, "2**30 of them"),
]
