"""Answers to lesson 08 as learners write them: right ones, and wrong ones with the hint that each must get."""

from labs import ModelSpec, memory
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


RIGHT = [
    ("strategy_lab.fewest_bytes_sent_under_cap", least_sharding_that_fits),
    ("strategy_lab.what_parts_curves", parting_as_a_tuple),
]

WRONG = [
    ("strategy_lab.fewest_bytes_held", hold_by_ddp, "cuts every state"),
    ("strategy_lab.fewest_bytes_held", hold_by_hsdp, "keeps two copies"),
    ("strategy_lab.fewest_bytes_held", hold_by_zero3, "Another engine"),
    ("strategy_lab.fewest_bytes_held", hold_with_offload, "offload=False"),
    ("strategy_lab.fewest_bytes_held", hold_by_name, "ModelTrainingConfig"),
    ("strategy_lab.fewest_bytes_sent", send_by_fsdp, "has to fetch"),
    ("strategy_lab.fewest_bytes_sent", send_in_fp32, "4 bytes"),
    ("strategy_lab.fewest_bytes_sent", send_among_two, "world_size=4"),
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
    ("strategy_lab.fewest_bytes_sent_under_cap", fewest_in_fp32, "use_mixed_precision=True"),
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
]
