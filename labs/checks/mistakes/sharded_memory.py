"""What people get wrong about the memory of one rank of many: each mistake as a function, with its hint."""

from __future__ import annotations

from labs.checks.reference import memory_math as right
from labs.units import GB, GiB

STATES = tuple(right.MIXED_ADAMW)
PER_RANK_OTHERWISE = "Compare state by state: does this strategy cut it, and how many elements has your part?"
EVERYTHING_CUT = (
    "Only zero3 cuts everything. zero1 leaves gradients and parameters whole on every rank, zero2 the parameters. "
    "Then mind the padding: tensor by tensor, rounded up."
)
FEWEST_OTHERWISE = "Ask your per_rank_bytes for the expected number of ranks, and for one rank fewer."


def _ranks(part=None, cut=None, scale=None, without=()):
    """per_rank_bytes with another part, other cut states, or a factor on the bytes."""

    def per_rank_bytes(strategy, world_size, sizes, batch_size):
        whole, states = sum(sizes), (cut or right.CUT.get)(strategy)
        mine = (part or _rounded_up)(sizes, world_size)
        factor = scale(world_size, batch_size) if scale else {}
        return {
            state: 0 if state in without else width * factor.get(state, 1) * (mine if state in states else whole)
            for state, width in right.MIXED_ADAMW.items()
        }

    return per_rank_bytes


def _rounded_up(sizes, world_size):
    return sum(-(-size // world_size) for size in sizes)


def _rounded_down(sizes, world_size):
    return sum(size // world_size for size in sizes)


def _sum_rounded_up(sizes, world_size):
    return -(-sum(sizes) // world_size)


def _sum_rounded_down(sizes, world_size):
    return sum(sizes) // world_size


ANY_ROUNDING = (_rounded_up, _rounded_down, _sum_rounded_up, _sum_rounded_down)


def _bytes_rounded_up(strategy, world_size, sizes, batch_size):
    return {
        state: sum(-(-width * size // (world_size if state in right.CUT[strategy] else 1)) for size in sizes)
        for state, width in right.MIXED_ADAMW.items()
    }


def _one_less(strategy):
    stages = list(right.CUT)
    return right.CUT[stages[max(0, stages.index(strategy) - 1)]]


def _all_but_ddp(strategy):
    return () if strategy == "ddp" else STATES


def _without_masters(strategy):
    return tuple(state for state in right.CUT[strategy] if state != "master_weights")


PER_RANK_BYTES = (
    *((_ranks(part=part, cut=_all_but_ddp), EVERYTHING_CUT) for part in ANY_ROUNDING),
    (
        _ranks(part=_rounded_down),
        "You divide before you pad: // drops the rest. 7 elements on 4 ranks take parts of 2, "
        "one of them padded; round up.",
    ),
    (
        _ranks(part=_sum_rounded_down),
        "You divide before you pad, and all tensors at once: each is cut by itself, its part rounded up. Then add.",
    ),
    (
        _ranks(part=_sum_rounded_up),
        "Each tensor is cut by itself, so each has its own padding: round up tensor by tensor, then add.",
    ),
    (_bytes_rounded_up, "An element cannot be cut: round the number of elements up first, then multiply by its bytes."),
    (
        _ranks(part=lambda sizes, world_size: sum(sizes) / world_size),
        "A rank holds whole elements: where a tensor does not divide, its parts are padded to equal size.",
    ),
    (
        _ranks(cut=lambda strategy: STATES),
        "ddp divides the batch, not the states: every rank holds all of them. Which "
        "states does each stage of ZeRO cut?",
    ),
    (
        _ranks(cut=_one_less),
        "One stage off: zero1 cuts the optimizer's side, zero2 the gradients as well, zero3 the parameters as well.",
    ),
    (_ranks(cut=_without_masters), "The master weights belong to the optimizer's side: stage 1 cuts them already."),
    (
        _ranks(scale=lambda world, batch: dict.fromkeys(STATES, batch)),
        "No state grows with the batch: gradients of all samples are added into one number a parameter.",
    ),
    (
        _ranks(scale=lambda world, batch: {"optimizer": batch}),
        "Adam's averages are one pair of numbers a parameter: the batch is not in the optimizer state.",
    ),
    (
        _ranks(scale=lambda world, batch: {"gradients": batch}),
        "The gradients of all samples are added into one number a parameter: the batch is not in them.",
    ),
    (_ranks(without=("gradients",)), "The gradients are missing: 2 bytes a parameter, cut from stage 2 on."),
    (_ranks(without=("master_weights",)), "The master weights are missing: 4 bytes a parameter in mixed precision."),
)


def _fewest(unit=GiB, total=None, otherwise=None, step=1):
    def fewest_ranks(strategy, num_params, capacity_gib):
        world_size = 1
        while world_size <= 1024:
            held = right.per_rank_bytes(strategy, world_size, [num_params], 1)
            if sum((total or dict.values)(held)) <= capacity_gib * unit:
                return world_size
            world_size = world_size * 2 if step == 2 else world_size + 1
        return otherwise

    return fewest_ranks


FEWEST_RANKS = (
    (_fewest(unit=GB), "GB and GiB: the capacity is given in GiB, which is 2**30 bytes, 7 % more than 10**9."),
    (_fewest(unit=1), "The capacity is in GiB, your states are in bytes: 1 GiB is 2**30 of them."),
    (
        _fewest(otherwise=1024),
        "Where 1024 ranks are not enough, the answer is None: some state is whole on every rank.",
    ),
    (
        _fewest(otherwise=1025),
        "Where 1024 ranks are not enough, the answer is None: some state is whole on every rank.",
    ),
    (_fewest(step=2), "Any number of ranks is allowed, not only powers of two: fewer may be enough."),
    (
        lambda strategy, num_params, capacity_gib: max(1, -(-16 * num_params // (capacity_gib * GiB))),
        "That divides all 16 bytes, whatever the strategy. Only zero3 cuts everything: ask per_rank_bytes.",
    ),
    (
        _fewest(total=lambda held: [size for state, size in held.items() if state != "gradients"]),
        "The gradients are missing in the sum.",
    ),
)
