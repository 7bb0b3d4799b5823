"""Answers to lesson 08 as learners write them: right ones, and wrong ones with the hint that each must get."""

import sys

from fake_runs import fake_result

from labs import ModelSpec, ModelTrainingConfig, memory
from labs.checks.reference.strategy_lab import STATES
from labs.checks.strategy_lab import TASK


def hold_by_ddp():
    return TASK


def hold_by_hsdp():
    return TASK.replace(strategy="hsdp")


def hold_by_zero3():
    return TASK.replace(strategy="zero3")


def hold_with_offload():
    return TASK.replace(strategy="fsdp", offload=True)


def hold_by_name():
    return "fsdp"


class Obliging(ModelTrainingConfig):
    """A config that runs as another one."""

    def replace(self, **changes):
        return TASK.replace(strategy="fsdp", **changes)


def hold_by_a_config_that_runs_as_another():
    return Obliging(strategy="ddp", world_size=4, steps=2)


def hold_by_one_rank():
    return TASK.replace(strategy="single", world_size=1)


def hold_by_one_rank_that_says_four():
    return ModelTrainingConfig.model_construct(strategy="single", world_size=4, batch_size=32, steps=2)


def send_by_fsdp():
    return TASK.replace(strategy="fsdp")


def send_in_fp32():
    return TASK.replace(use_mixed_precision=False)


def send_among_two():
    return TASK.replace(world_size=2)


def most_layers(cap_bytes, strategy="fsdp", held=max):
    """Find the most layers whose states fit, where `held` makes one number of the bytes of all ranks."""
    fits = None
    for layers in range(1, 97):
        deeper = TASK.replace(strategy=strategy, model=ModelSpec.from_name("tiny", num_layers=layers))
        by_rank = [sum(memory.state_bytes(deeper, rank)[state] for state in STATES) for rank in range(4)]
        if held(by_rank) > cap_bytes:
            break
        fits = deeper
    return fits


def deepest_of_zero1(cap_bytes):
    return most_layers(cap_bytes, strategy="zero1")


def deepest_with_one_cap_for_all(cap_bytes):
    return most_layers(cap_bytes, held=sum)


def deepest_with_the_cap_in_mib(cap_bytes):
    return most_layers(cap_bytes * 2**20 / 10**6)


def deepest_and_wider(cap_bytes):
    return most_layers(cap_bytes).replace(model=ModelSpec.from_name("tiny", hidden_size=128))


def nine_layers(cap_bytes):
    return TASK.replace(strategy="fsdp", model=ModelSpec.from_name("tiny", num_layers=9))


def deepest_under_two_million(cap_bytes):
    return most_layers(2_000_000)


def tiny_by_ddp(cap_bytes):
    return TASK


def held(config, of=max):
    by_rank = [memory.state_bytes(config, rank) for rank in range(config.world_size)]
    return of(sum(rank[state] for state in STATES) for rank in by_rank)


def always_fsdp(cap_bytes):
    return TASK.replace(strategy="fsdp")


def always_ddp(cap_bytes):
    return TASK


def always_zero1(cap_bytes):
    return TASK.replace(strategy="zero1")


def fullest_that_fits(cap_bytes):
    options = [TASK.replace(strategy=name) for name in ("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3")]
    return max((option for option in options if held(option) <= cap_bytes), key=held)


def one_cap_for_all_ranks(cap_bytes):
    options = [TASK.replace(strategy=name) for name in ("ddp", "zero1", "hsdp", "fsdp")]
    return next((option for option in options if held(option, of=sum) <= cap_bytes), options[-1])


def by_limits_that_were_guessed(cap_bytes):
    return TASK.replace(strategy="ddp" if cap_bytes >= 4e6 else "zero1" if cap_bytes >= 2e6 else "fsdp")


def a_byte_too_strict(cap_bytes):
    options = [TASK.replace(strategy=name) for name in ("ddp", "zero1", "fsdp")]
    return next((option for option in options if held(option) < cap_bytes), options[-1])


def a_run_in_place_of_its_config(cap_bytes):
    return fake_result(strategy="ddp", world_size=4, steps=2)


def fewest_in_fp32(cap_bytes):
    return TASK.replace(use_mixed_precision=False)


def least_sharding_that_fits(cap_bytes):
    options = [TASK.replace(strategy=name) for name in ("ddp", "zero2", "zero1", "hsdp", "fsdp")]
    return [option for option in options if held(option) <= cap_bytes][0]


def nothing_parts(fields):
    return set()


def everything_parts(fields):
    return set(fields)


def all_but_precision(fields):
    return ["batch_size", "learning_rate", "weight_decay"]


def ranks_too(fields):
    return {"batch_size", "learning_rate", "weight_decay", "use_mixed_precision", "world_size"}


def accumulation_too(fields):
    return {"batch_size", "learning_rate", "weight_decay", "use_mixed_precision", "gradient_accumulation_steps"}


def checkpointing_too(fields):
    return {"batch_size", "learning_rate", "weight_decay", "use_mixed_precision", "activation_checkpointing"}


def decay_forgotten(fields):
    return {"batch_size", "learning_rate", "use_mixed_precision"}


def one_name(fields):
    return "batch_size"


def a_name_that_is_not_there(fields):
    return {"batch_size", "seed"}


class YesMan(set):
    """A set that answers what the one who asks has found out already."""

    def __contains__(self, field):
        return sys._getframe(1).f_locals.get("parts", False)


def a_set_that_says_yes(fields):
    return YesMan()


def parting_as_a_tuple(fields):
    return tuple(
        name for name in fields if name in ("use_mixed_precision", "weight_decay", "learning_rate", "batch_size")
    )


def same_on_four(given):
    return given.replace(strategy="fsdp")


def same_with_the_batch_halved(given):
    return given.replace(strategy="fsdp", world_size=2, batch_size=given.batch_size // 2)


def same_with_another_learning_rate(given):
    return given.replace(strategy="fsdp", world_size=2, learning_rate=1e-2)


def same_with_fewer_steps(given):
    return given.replace(strategy="fsdp", world_size=2, steps=3)


def same_by_numbers_that_are_lost(given):
    """All losses but the first are nan."""
    return given.replace(strategy="fsdp", world_size=2, learning_rate=1e30, max_grad_norm=None)


def same_as_the_first_that_was_given(given):
    return ModelTrainingConfig(
        strategy="fsdp", world_size=2, batch_size=16, steps=4, learning_rate=1e-3, warmup_steps=0, eval_every=0,
        use_mixed_precision=False,
    )  # fmt: skip


def same_on_two_without_asking(given):
    return given.replace(strategy="fsdp", world_size=2, eval_every=3, best_checkpoint="/nowhere/at/all")


RIGHT = [
    ("strategy_lab.same_loss", same_on_two_without_asking),
    ("strategy_lab.fewest_bytes_sent_under_cap", least_sharding_that_fits),
    ("strategy_lab.what_parts_curves", parting_as_a_tuple),
]

WRONG = [
    ("strategy_lab.fewest_bytes_held", hold_by_ddp, "cuts every state"),
    ("strategy_lab.fewest_bytes_held", hold_by_hsdp, "keeps two copies"),
    ("strategy_lab.fewest_bytes_held", hold_by_zero3, "Another engine"),
    ("strategy_lab.fewest_bytes_held", hold_with_offload, "offload=False"),
    ("strategy_lab.fewest_bytes_held", hold_by_name, "ModelTrainingConfig"),
    ("strategy_lab.fewest_bytes_held", hold_by_a_config_that_runs_as_another, "cuts every state"),
    ("strategy_lab.fewest_bytes_held", hold_by_one_rank, "world_size=4"),
    ("strategy_lab.fewest_bytes_held", hold_by_one_rank_that_says_four, "of that type"),
    ("strategy_lab.fewest_bytes_sent", send_by_fsdp, "has to fetch"),
    ("strategy_lab.fewest_bytes_sent", send_in_fp32, "4 bytes"),
    ("strategy_lab.fewest_bytes_sent", send_among_two, "world_size=4"),
    ("strategy_lab.largest_model", nine_layers, "look at the fullest one"),
    ("strategy_lab.largest_model", deepest_under_two_million, "look at the fullest one"),
    ("strategy_lab.largest_model", tiny_by_ddp, "look at the fullest one"),
    ("strategy_lab.largest_model", deepest_with_the_cap_in_mib, "look at the fullest one"),
    ("strategy_lab.largest_model", deepest_of_zero1, "leaves most room"),
    ("strategy_lab.largest_model", deepest_with_one_cap_for_all, "Search upwards"),
    ("strategy_lab.largest_model", deepest_and_wider, "its layers alone"),
    ("strategy_lab.fewest_bytes_sent_under_cap", always_fsdp, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", one_cap_for_all_ranks, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", fullest_that_fits, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", always_ddp, "does not fit on the fullest rank"),
    ("strategy_lab.fewest_bytes_sent_under_cap", always_zero1, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", by_limits_that_were_guessed, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", a_byte_too_strict, "least of it that fits"),
    ("strategy_lab.fewest_bytes_sent_under_cap", a_run_in_place_of_its_config, "run.config"),
    ("strategy_lab.fewest_bytes_sent_under_cap", fewest_in_fp32, "use_mixed_precision=True"),
    ("strategy_lab.what_parts_curves", a_set_that_says_yes, "Other samples"),
    ("strategy_lab.what_parts_curves", nothing_parts, "Other samples"),
    ("strategy_lab.what_parts_curves", everything_parts, "where numbers live"),
    ("strategy_lab.what_parts_curves", all_but_precision, "8 bits of precision"),
    ("strategy_lab.what_parts_curves", ranks_too, "more ranks share them"),
    ("strategy_lab.what_parts_curves", accumulation_too, "Over which samples"),
    ("strategy_lab.what_parts_curves", checkpointing_too, "computed again"),
    ("strategy_lab.what_parts_curves", decay_forgotten, "in the update itself"),
    ("strategy_lab.what_parts_curves", one_name, "a set of names"),
    ("strategy_lab.what_parts_curves", a_name_that_is_not_there, "among the names given"),
    ("strategy_lab.same_loss", same_on_four, "number of ranks"),
    ("strategy_lab.same_loss", same_with_the_batch_halved, "samples of all ranks together"),
    ("strategy_lab.same_loss", same_with_another_learning_rate, "learning_rate"),
    ("strategy_lab.same_loss", same_with_fewer_steps, "number of steps"),
    ("strategy_lab.same_loss", same_by_numbers_that_are_lost, "learning_rate"),
    ("strategy_lab.same_loss", same_as_the_first_that_was_given, "config.replace"),
]
