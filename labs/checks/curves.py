"""Judges of lesson 08 about loss curves: what parts two of them, and what does not, by running both."""

from __future__ import annotations

import functools

import numpy as np

from labs.checks.decisions import ask_all, config_of, no_config
from labs.checks.verdict import failed, passed, row, shortened
from labs.config import ModelTrainingConfig
from labs.launcher import launch

LARGEST_DIFFERENCE = 1e-4  # nats, in fp32: another order of sums stays far below it, another computation above
BASE = ModelTrainingConfig(
    world_size=2, batch_size=16, steps=3, learning_rate=1e-3, warmup_steps=0, use_mixed_precision=False, eval_every=0
)
_GIVEN = BASE.replace(world_size=4, steps=4)
GIVEN = (_GIVEN, _GIVEN.replace(learning_rate=2e-3, seed=1))  # two, so that no config that stands fast serves for both
CHANGES = {
    "strategy": "fsdp",
    "world_size": 4,
    "gradient_accumulation_steps": 2,
    "activation_checkpointing": True,
    "batch_size": 32,
    "learning_rate": 2e-3,
    "use_mixed_precision": True,
    "weight_decay": 0.0,
}


def judge_what_parts_curves(answer):
    """Run every change of one field beside the base: the answer must name those that part the curves."""
    named = answer(tuple(CHANGES))
    if isinstance(named, str) or not isinstance(named, (set, frozenset, list, tuple)):
        return failed(
            f"The function returned {shortened(repr(named), 120)}.", "Return a set of names: {'seed'} is one."
        )
    named = frozenset(map(str, named))  # a set of our own: one of the learner's might say yes to any question
    if unknown := sorted(named - CHANGES.keys()):
        return failed(f"{', '.join(unknown)}: not among the fields that are changed.", "Choose among the names given.")
    for field in CHANGES:
        difference = difference_of(field)
        parts = not difference < LARGEST_DIFFERENCE  # nan parts them, too
        if parts != (field in named):
            found = f"{field}: the curves {'part' if parts else 'stay together'}."
            line = row("largest difference of a loss [nats]", _limit_words(field in named), f"{difference:.2g}")
            return failed(found, _parting_hint(field), line)
    together = ", ".join(field for field in CHANGES if field not in named)
    return passed(f"{len(CHANGES)} changes were run, one at a time. Curves stay together under: {together}.")


def _limit_words(says_it_parts: bool) -> str:
    return f"at least {LARGEST_DIFFERENCE:g}" if says_it_parts else f"below {LARGEST_DIFFERENCE:g}"


def _parting_hint(field: str) -> str:
    return {
        "strategy": "A strategy decides where numbers live. Does it change the sum that is taken?",
        "world_size": "batch_size counts the samples of all ranks. What changes when more ranks share them?",
        "gradient_accumulation_steps": "The batch is cut into pieces, and gradients are averaged. Over which samples?",
        "activation_checkpointing": "What is thrown away is computed again. Is it another number then?",
        "use_mixed_precision": "The same sums, in numbers of 8 bits of precision. Is the loss the same?",
        "batch_size": "Other samples decide the step. Is the gradient the same?",
    }.get(field, f"{field} stands in the update itself. Does the second step begin from the same weights?")


def judge_same_loss(answer):
    """Run the choice beside each given config: another strategy, another number of ranks, the same losses."""
    choices, words = ask_all(answer, [(given,) for given in GIVEN]), []
    for given, choice in zip(GIVEN, choices, strict=True):
        config = config_of(choice)
        if problem := _problem_of_curve(given, config) if config else no_config(choice):
            return problem
        words.append(f"{config.strategy} on {config.world_size} follows {given.strategy} on {given.world_size}")
    words = " and ".join(dict.fromkeys(words))
    return passed(f"{words} for both configs, to within {LARGEST_DIFFERENCE} nats.")


def _problem_of_curve(given: ModelTrainingConfig, choice: ModelTrainingConfig):
    """Say why the losses of a choice are not those of the given config; None where they are."""
    if same := [name for name in ("strategy", "world_size") if getattr(choice, name) == getattr(given, name)]:
        found = (
            f"Both runs have the same {' and '.join(same)}: {', '.join(str(getattr(given, name)) for name in same)}."
        )
        return failed(found, "Change the strategy and the number of ranks.")
    if choice.steps != given.steps:
        return failed(f"{choice.steps} steps cannot be laid over {given.steps}.", "Keep the number of steps.")
    largest = largest_difference(_losses(given), _losses(choice))
    if largest < LARGEST_DIFFERENCE:
        return None
    line = row("largest difference of a loss [nats]", f"below {LARGEST_DIFFERENCE:g}", largest)
    return failed("The curves part.", _curve_hint(given, choice), line)


def _curve_hint(given: ModelTrainingConfig, choice: ModelTrainingConfig) -> str:
    if choice.batch_size != given.batch_size:
        return "batch_size counts the samples of all ranks together: it must not grow or shrink with the ranks."
    free = ("strategy", "world_size", "gradient_accumulation_steps", "offload", "activation_checkpointing")
    changed = [
        name
        for name in ModelTrainingConfig.model_fields
        if name not in free and getattr(given, name) != getattr(choice, name)
    ]
    what = f"These fields decide what is computed, not where, and were changed: {', '.join(changed) or 'none'}."
    return f"{what} config.replace(...) keeps all that it does not name."


def largest_difference(one: list[float], other: list[float]) -> float:
    """Return how far two loss curves lie apart at most [nats]; nan where one of them holds a nan."""
    return float(np.abs(np.subtract(one, other)).max())  # Python's max() would lose a nan that does not stand first


@functools.cache
def difference_of(field: str) -> float:
    """Run the base and the base with one field changed; return how far their losses lie apart at most [nats]."""
    changed = BASE.replace(**{field: CHANGES[field]})
    runs = _runs_on_the_ranks_of_base()
    return largest_difference(runs[BASE], runs[changed] if changed in runs else _losses(changed))


@functools.cache
def _runs_on_the_ranks_of_base() -> dict[ModelTrainingConfig, list[float]]:
    """Run the base and every change that needs no other ranks, one after the other on the same ranks; {run: losses}."""
    configs = [BASE, *(BASE.replace(**{field: value}) for field, value in CHANGES.items() if field != "world_size")]
    losses = launch(_train_all, configs, world_size=BASE.world_size, timeout_seconds=120)[0]
    return dict(zip(configs, losses, strict=True))


def _train_all(configs: list[ModelTrainingConfig]) -> list[list[float]]:
    from labs.train import train_rank

    return [[step.loss for step in train_rank(config).steps] for config in configs]


@functools.cache
def _losses(config: ModelTrainingConfig) -> tuple[float, ...]:
    return tuple(launch(config, timeout_seconds=60).losses)
