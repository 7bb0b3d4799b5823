"""Judges of lesson 01: pure functions, each against a truth that was made elsewhere, on models drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

from labs.activations import kept_terms
from labs.checks.compare import compare, draw
from labs.checks.exercise import Exercise
from labs.checks.mistakes import one_rank_memory, sharded_memory
from labs.checks.reference import memory_math as right
from labs.spec import ModelSpec
from labs.units import GiB

ACTIVATION_TOLERANCE = 0.02


@dataclass(frozen=True)
class Shape:
    """A GPT as its numbers alone: nothing here can be asked for the answer."""

    num_layers: int
    hidden_size: int
    num_heads: int
    context: int
    vocab_size: int
    tied_embedding: bool = True

    def __str__(self) -> str:
        tied = "tied" if self.tied_embedding else "untied"
        sizes = f"L={self.num_layers} h={self.hidden_size} heads={self.num_heads} context={self.context}"
        return f"{sizes} vocab={self.vocab_size} {tied}"

    def spec(self, **changes) -> ModelSpec:
        return ModelSpec(**{**vars(self), **changes})


SMALL = (Shape(1, 2, 1, 3, 5), Shape(1, 2, 1, 3, 5, tied_embedding=False))  # to be counted by hand
PUBLISHED = (Shape(12, 768, 12, 1024, 50257), Shape(48, 1600, 25, 1024, 50257), Shape(48, 1600, 25, 1024, 50257, False))


def _random_shape(rng) -> Shape:
    heads = rng.choice((2, 4, 8))
    hidden = heads * rng.choice((16, 32, 64))
    tied = rng.random() < 0.5
    return Shape(rng.randint(1, 24), hidden, heads, rng.choice((64, 512, 2048)), rng.randint(256, 60_000), tied)


def judge_count_parameters(answer):
    """Count small models, published ones and random ones; the truth lists every tensor."""
    cases = [(shape,) for shape in (*SMALL, *PUBLISHED)] + draw(10, spec=_random_shape)
    return compare(
        answer, _num_parameters, cases, one_rank_memory.COUNT_PARAMETERS, otherwise=one_rank_memory.COUNT_OTHERWISE
    )


def _num_parameters(spec: Shape) -> int:
    return spec.spec().num_parameters


def judge_state_bytes(answer):
    """Ask for every precision with every optimizer."""
    cases = [(5, precision, optimizer) for precision in right.WIDTHS for optimizer in right.OPTIMIZER_TENSORS]
    sizes = range(10**6, 10**12)
    cases += draw(6, num_params=sizes, precision=tuple(right.WIDTHS), optimizer=tuple(right.OPTIMIZER_TENSORS))
    return compare(
        answer, right.state_bytes, cases, one_rank_memory.STATE_BYTES, otherwise=one_rank_memory.STATE_OTHERWISE
    )


def judge_activation_bytes(answer):
    """Ask for shapes, batches and lengths; the truth counts every tensor that autograd keeps."""
    shape = Shape(4, 64, 4, 64, 256)
    cases = [(shape, 1, 64), (shape, 8, 64), (shape, 8, 32), (PUBLISHED[1], 4, 1024)]
    cases += draw(10, spec=_random_shape, batch=range(1, 65), seq=(32, 128, 512, 2048))
    return compare(
        answer,
        _kept_bytes,
        cases,
        one_rank_memory.ACTIVATION_BYTES,
        ACTIVATION_TOLERANCE,
        one_rank_memory.ACTIVATION_OTHERWISE,
    )


def _kept_bytes(spec: Shape, batch: int, seq: int) -> int:
    return sum(kept_terms(spec.spec(context=seq), batch, width=4).values())


def judge_per_rank_bytes(answer):
    """Ask for every strategy on ranks that divide the sizes and on ranks that do not."""
    by_hand = [(strategy, 4, [10, 7, 3], 8) for strategy in right.CUT]
    sizes = [lambda rng: [rng.randint(1, 10**6) for _ in range(rng.randint(2, 4))]]
    cases = by_hand + [("zero3", 1, [10, 7, 3], 8), ("zero3", 64, [7_500_000_000], 64)]
    cases += draw(12, strategy=tuple(right.CUT), world_size=range(2, 65), sizes=sizes[0], batch_size=(1, 8, 32, 512))
    return compare(
        answer, right.per_rank_bytes, cases, sharded_memory.PER_RANK_BYTES, otherwise=sharded_memory.PER_RANK_OTHERWISE
    )


def judge_fewest_ranks(answer):
    """Ask for devices and models of many sizes, also for a model that no number of ranks makes fit."""
    cases = [("ddp", 10**9, 16), ("ddp", 10**10, 80), ("zero3", 10**10, 80), ("zero1", 25 * 10**9, 80)]
    cases += [("zero3", 16 * GiB, 16), ("zero2", 70 * 10**9, 80), ("zero2", 7_500_000_000, 24)]
    draws = dict(strategy=tuple(right.CUT), num_params=range(10**8, 4 * 10**10), capacity_gib=(16, 24, 40, 80, 141))
    cases += draw(10, **draws)
    return compare(
        answer, right.fewest_ranks, cases, sharded_memory.FEWEST_RANKS, otherwise=sharded_memory.FEWEST_OTHERWISE
    )


EXERCISES = {
    "count_parameters": Exercise(
        asked="Return the number of parameters of a GPT, from its layers, hidden size, context and vocabulary.",
        judge=judge_count_parameters,
        hints=(
            "Write down each tensor of one block with its shape. How many elements has each?",
            "Two embeddings, num_layers blocks, one last norm, and a head of its own only where it is not tied.",
            "h = spec.hidden_size; a block has 12 h² elements in its four matrices, 9 h in their biases and 4 h in its "
            "two norms. Add (vocab_size + context) h + 2 h, and vocab_size h more if the head is not tied.",
        ),
    ),
    "state_bytes": Exercise(
        asked="Return the bytes of parameters, gradients, optimizer and master_weights as a dict.",
        judge=judge_state_bytes,
        hints=(
            "For each of the four states: how many numbers a parameter, and how many bytes a number?",
            "A table of widths by precision and a table of tensors by optimizer are all you need.",
            'Widths: {"fp32": (4, 4, 4, 0), "bf16-mixed": (2, 2, 4, 4), "bf16": (2, 2, 2, 0)} for a parameter, a '
            'gradient, an optimizer tensor and a master weight; {"adamw": 2, "momentum": 1, "sgd": 0} of them.',
        ),
    ),
    "activation_bytes": Exercise(
        asked="Return the bytes that autograd keeps of one forward pass in fp32, to within 2 %.",
        judge=judge_activation_bytes,
        hints=(
            "Look at the list of what one block keeps. Which lines are large?",
            "Measure in tensors of batch x seq x hidden: add up what a block keeps, then what stands after the blocks.",
            "tensor = 4 * batch * seq * hidden_size. A block keeps 16 of them; after the blocks come 2 more, and the "
            "log-probabilities, 4 * batch * seq * vocab_size.",
        ),
    ),
    "per_rank_bytes": Exercise(
        asked="Return the bytes of the four states on the fullest rank as a dict: mixed precision, AdamW.",
        judge=judge_per_rank_bytes,
        hints=(
            "Which states does each strategy cut? And how many elements of a tensor of 10 does a rank hold of 4?",
            "Count elements first: all of them for a whole state, the sum of the rounded-up parts for a cut one.",
            "whole = sum(sizes); part = sum(-(-size // world_size) for size in sizes); then bytes an element times "
            "whole or part, state by state.",
        ),
    ),
    "fewest_ranks": Exercise(
        asked="Return the fewest ranks, of 1 to 1024, whose states fit; None when no number is enough.",
        judge=judge_fewest_ranks,
        hints=(
            "You have a function that says what a rank holds. How many world sizes can there be?",
            "Try them from 1 upwards, and compare the sum of the four states with the capacity in bytes.",
            "for world_size in range(1, 1025): if sum(per_rank(strategy, world_size, [num_params], 1).values()) <= "
            "capacity_gib * 2**30: return world_size. After the loop: return None.",
        ),
    ),
}
