"""Answers to lesson 07 as learners write them: right ones, and wrong ones with the hint that each must get."""

from labs.strategies.deepspeed import deepspeed  # isort: skip  (quietly, before anything imports it aloud)

from known_answers import written_out
from learners_deepspeed import (
    consolidate,
    consolidate_a_list,
    consolidate_arrays,
    consolidate_flat_by_flat,
    consolidate_in_bf16,
    consolidate_the_module,
    consolidate_with_deepspeed,
    consolidate_with_prefix,
    look_and_change,
    look_and_list,
    look_and_never_leave,
    look_and_return_the_parameter,
    look_and_send_back,
    look_at_the_master,
    look_at_the_model,
    look_at_the_part,
    look_at_the_placeholder,
    look_by_hand,
    look_with_data,
    look_with_padding,
    step_and_shrink,
    step_at_the_boundary,
    step_by_loss_backward,
    step_of_all_at_once,
    step_of_divided_losses,
    step_of_doubled_losses,
    step_of_the_last,
    step_on_rank_0_alone,
    step_once_at_the_end,
    step_thrice,
    step_twice_at_the_end,
    step_with_torch,
)

from labs.checks.reference import deepspeed_zero as courses
from labs.checks.reference.deepspeed_zero import write_config

assert deepspeed
mend = written_out(courses.mend)  # for right answers with one thing done otherwise


def write(top=None, zero=None, drop=()):
    """The right config, with some keys changed or left out."""

    def changed(world_size):
        config = {**write_config(world_size), **(top(world_size) if callable(top) else top or {})}
        config["zero_optimization"] = {**config["zero_optimization"], **(zero or {})}
        for key in drop:
            config.pop(key, None)
            config["zero_optimization"].pop(key, None)
        return config

    return changed


def write_by_ranks(world_size):
    """Right: everything that follows is written, too."""
    accumulation = 8 // world_size
    batch = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation}
    zero = {"stage": 2, "reduce_bucket_size": 2e4, "overlap_comm": False}
    return {**batch, "gradient_clipping": 0.5, "zero_optimization": zero, "fp16": {"enabled": False}}


def misspelt(world_size):
    config = write_config(world_size)
    config["zero_optimisation"] = config.pop("zero_optimization")
    return config


def bucket_at_the_top(world_size):
    config = write_config(world_size)
    return {**config, "reduce_bucket_size": config["zero_optimization"].pop("reduce_bucket_size")}


def mended(name, change):
    """The right mending, with one config mended otherwise."""

    def mend_otherwise(broken):
        before = broken[name]
        found = mend({**broken, name: {**before, "zero_optimization": dict(before["zero_optimization"])}})
        found[name] = change(before)
        return found

    return mend_otherwise


def mend_to_the_least(broken):
    """Every config is taken, on any number of ranks, and does nothing that was wanted."""
    return dict.fromkeys(broken, {"train_micro_batch_size_per_gpu": 2})


def smaller_batch(config):
    return {**config, "train_batch_size": 32}


def without_accumulation(config):
    """Right: it follows."""
    return {key: value for key, value in config.items() if key != "gradient_accumulation_steps"}


def without_bf16(config):
    return {key: value for key, value in config.items() if key != "bf16"}


def in_fp16(config):
    return {**config, "bf16": {"enabled": False}, "fp16": {"enabled": True, "loss_scale": 0}}


def without_offload(config):
    zero = {"stage": 2, "reduce_bucket_size": 20000}
    return {**config, "zero_optimization": zero}


def without_threshold(config):
    return {key: value for key, value in config.items() if not key.startswith("stage3")}


def without_autos(config):
    return {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}


def threshold_misspelt(config):
    zero = {**config["zero_optimization"], "stage3_param_persistance_threshold": 0}
    return {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}


RIGHT = [
    ("deepspeed_zero.train_step", step_by_loss_backward),
    ("deepspeed_zero.write_config", write_by_ranks),
    ("deepspeed_zero.mend", mended("batch", without_accumulation)),
    ("deepspeed_zero.look", look_by_hand),
    ("deepspeed_zero.look", look_and_send_back),
    ("deepspeed_zero.look", look_with_data),
    ("deepspeed_zero.look", look_at_the_master),
    ("deepspeed_zero.consolidate", consolidate_with_deepspeed),
]

WRONG = [
    ("deepspeed_zero.train_step", step_once_at_the_end, "updates come too late"),
    ("deepspeed_zero.train_step", step_at_the_boundary, "the boundary never comes"),
    ("deepspeed_zero.train_step", step_of_divided_losses, "divides by gradient_accumulation_steps itself"),
    ("deepspeed_zero.train_step", step_of_the_last, "a forward and a backward pass of its own"),
    ("deepspeed_zero.train_step", step_twice_at_the_end, "none after the loop"),
    ("deepspeed_zero.train_step", step_with_torch, "Leave engine.optimizer alone"),
    ("deepspeed_zero.train_step", step_of_all_at_once, "one of them in each call"),
    ("deepspeed_zero.train_step", step_on_rank_0_alone, "The ranks met in different collectives"),
    ("deepspeed_zero.train_step", step_thrice, "none after the loop"),
    ("deepspeed_zero.train_step", step_of_doubled_losses, "2 times as much"),
    ("deepspeed_zero.train_step", step_and_shrink, "nothing else has to touch them"),
    ("deepspeed_zero.write_config", write(top={"gradient_accumulation_steps": 4}), "leave train_batch_size out"),
    ("deepspeed_zero.write_config", write(zero={"stage": 1}), "Stage 1 cuts the optimizer alone"),
    ("deepspeed_zero.write_config", write(zero={"stage": 0}), "plain data parallelism"),
    ("deepspeed_zero.write_config", write(zero={"stage": 3}), "they were to stay whole"),
    ("deepspeed_zero.write_config", misspelt, "did you mean zero_optimization"),
    ("deepspeed_zero.write_config", bucket_at_the_top, "move it into"),
    ("deepspeed_zero.write_config", write(drop=["reduce_bucket_size"]), "in elements"),
    ("deepspeed_zero.write_config", write(drop=["gradient_clipping"]), "without it DeepSpeed clips at 1.0"),
    ("deepspeed_zero.write_config", write(top={"gradient_clipping": "auto"}), "write a number"),
    ("deepspeed_zero.write_config", write(drop=["train_micro_batch_size_per_gpu"]), "computes at a time"),
    ("deepspeed_zero.write_config", write(drop=["train_batch_size"]), "all ranks and micro-batches together"),
    ("deepspeed_zero.write_config", write(top={"bf16": {"enabled": True}}), "leave fp16 and bf16 out"),
    ("deepspeed_zero.write_config", write(top={"optimizer": {"type": "AdamW"}}), "the block is ignored without a word"),
    ("deepspeed_zero.write_config", lambda n: str(write_config(n)), "as a dictionary"),
    ("deepspeed_zero.mend", lambda broken: broken, "leave train_batch_size out"),
    ("deepspeed_zero.mend", mend_to_the_least, "The number of samples was right"),
    ("deepspeed_zero.mend", mended("batch", smaller_batch), "The number of samples was right"),
    ("deepspeed_zero.mend", mended("loss scale", without_bf16), "Only its loss scale has to go"),
    ("deepspeed_zero.mend", mended("loss scale", in_fp16), "Only its loss scale has to go"),
    ("deepspeed_zero.mend", mended("offload", lambda c: c), "set stage 3"),
    ("deepspeed_zero.mend", mended("offload", without_offload), "At which stage does it work"),
    ("deepspeed_zero.mend", mended("threshold", lambda c: c), "move it into zero_optimization"),
    ("deepspeed_zero.mend", mended("threshold", without_threshold), "its default keeps small parameters whole"),
    ("deepspeed_zero.mend", mended("threshold", threshold_misspelt), "did you mean stage3_param_persistence_threshold"),
    ("deepspeed_zero.mend", mended("template", without_autos), "Write the numbers that were wanted"),
    ("deepspeed_zero.mend", lambda broken: None, "with all five configs in it"),
    ("deepspeed_zero.mend", lambda broken: list(broken.values()), "with all five configs in it"),
    ("deepspeed_zero.mend", lambda broken: {"batch": mend(broken)["batch"]}, "with all five configs in it"),
    ("deepspeed_zero.look", look_at_the_placeholder, "the empty placeholder"),
    ("deepspeed_zero.look", look_and_return_the_parameter, "the empty placeholder"),
    ("deepspeed_zero.look", look_at_the_part, "this rank's own part"),
    ("deepspeed_zero.look", look_at_the_model, "Gather the one parameter alone"),
    ("deepspeed_zero.look", look_with_padding, "the padding at its end"),
    ("deepspeed_zero.look", look_and_never_leave, "Which block was never left"),
    ("deepspeed_zero.look", look_and_change, "A look changes nothing"),
    ("deepspeed_zero.look", look_and_list, "on every rank"),
    ("deepspeed_zero.consolidate", consolidate_the_module, "it holds placeholders"),
    ("deepspeed_zero.consolidate", consolidate(join=lambda pieces: pieces[0]), "join those of all"),
    ("deepspeed_zero.consolidate", consolidate(cut=False), "view it as its shape says"),
    ("deepspeed_zero.consolidate", consolidate(part=lambda n, ranks: n // ranks), "join those of all"),
    ("deepspeed_zero.consolidate", consolidate(step=lambda n, ranks: n // ranks), "later ones slip"),
    ("deepspeed_zero.consolidate", consolidate(group=lambda groups: groups[:1]), "one entry for each optimizer group"),
    ("deepspeed_zero.consolidate", consolidate(order=lambda flats: flats[::-1]), "in the order of the ranks"),
    ("deepspeed_zero.consolidate", consolidate_flat_by_flat, "Each parameter is cut by itself"),
    ("deepspeed_zero.consolidate", consolidate(part=lambda n, ranks: -(-n // 2)), "join those of all"),
    ("deepspeed_zero.consolidate", consolidate_in_bf16, "They were rounded"),
    ("deepspeed_zero.consolidate", consolidate_a_list, "Return a dictionary"),
    ("deepspeed_zero.consolidate", consolidate_with_prefix, "without a prefix"),
    ("deepspeed_zero.consolidate", consolidate_arrays, "Every value is a torch tensor"),
]
