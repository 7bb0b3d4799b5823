"""`explain` beside a live engine: a warning exactly where deepspeed.initialize, or the first steps, stop."""

import inspect

import pytest
import torch
from live_ds_config import READER, refusal

from labs.ds_config import explain
from labs.ds_config import start_findings as starts
from labs.ds_config.side_reads import AUTOCAST
from labs.launcher import launch
from labs.strategies.deepspeed import deepspeed

MICRO = {"train_micro_batch_size_per_gpu": 1}


def adam(name="AdamW", **params):
    return {**MICRO, "optimizer": {"type": name, "params": {"lr": 1e-3, **params}}}


def schedule(name, **params):
    return {**adam(), "scheduler": {"type": name, "params": params}}


def zero(stage, **more):
    return {**adam(), "zero_optimization": {"stage": stage}, **more}


GO = {
    "adam": adam(), "lower case": adam("adamw", betas=[0.8, 0.9], eps=1e-7),
    "torch's own": adam("RMSprop", momentum=0.1),
    "torch's adam": adam(torch_adam=True, amsgrad=True), "no parameters": {**MICRO, "optimizer": {"type": "Adam"}},
    "muon": adam("Muon"), "a schedule": schedule("WarmupLR", warmup_num_steps=2, warmup_type="linear"),
    "a decay": schedule("WarmupDecayLR", total_num_steps=9), "torch's schedule": schedule("StepLR", step_size=2),
    "prints nothing": {**adam(), "steps_per_print": None}, "prints each": {**adam(), "steps_per_print": 1},
    "clips nothing": {**adam(), "gradient_clipping": 0}, "stage 1": zero(1), "stage 3": zero(3),
    "sums in bf16": zero(1, bf16={"enabled": True}, data_types={"grad_accum_dtype": "bf16"}),
    "a part for hpZ": {**adam(), "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 1}},
}  # fmt: skip
STOP = {
    "a rate as text": adam(lr="1e-3"), "a rate as text at stage 1": {**zero(1), **adam(lr="1e-3")},
    "betas as text": adam(betas=["0.9", "0.99"]), "a misspelt parameter": adam(wieght_decay=0.1),
    "a misspelt optimizer": adam("AdamWW"), "torch's name in lower case": adam("sgd"),
    "an old optimizer": adam("OneBitAdam"),
    "an old optimizer at stage 2": {**zero(2), **adam("OneBitAdam")}, "no type": {**MICRO, "optimizer": {"params": {}}},
    "a misspelt schedule": schedule("WarmupLRr"), "a schedule in lower case": schedule("warmuplr"),
    "a misspelt part of a schedule": schedule("WarmupLR", warmup_steps=2), "half a decay": schedule("WarmupDecayLR"),
    "half a cycle": schedule("OneCycle", cycle_min_lr=0.1),
    "a schedule in text": schedule("WarmupLR", warmup_max_lr="0.1"),
    "torch's schedule, misspelt": schedule("StepLRR", step_size=2),
    "prints after words": {**adam(), "steps_per_print": "often"}, "prints after none": {**adam(), "steps_per_print": 0},
    "clips to a text": {**adam(), "gradient_clipping": "1.0"}, "clips in the optimizer": adam(max_grad_norm=1.0),
    "sums in fp99": {**adam(), "data_types": {"grad_accum_dtype": "fp99"}},
    "sums in auto": zero(2, data_types={"grad_accum_dtype": "auto"}),
    "the old stage 1": {**adam(), "zero_optimization": {"stage": 1, "legacy_stage1": True}},
    "an odd bucket": {**adam(), "zero_optimization": {"stage": 1, "allgather_bucket_size": 12345}},
    "no norm to clip": {**adam(), "zero_optimization": {"stage": 1, "compute_grad_norm": False}},
    "scaled before": zero(2, prescale_gradients=True), "divided before": zero(2, gradient_predivide_factor=2.0),
    "an untested optimizer": {**zero(2), **adam("SGD")},
    "NVMe nowhere": {**adam(), "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
}  # fmt: skip


def train_with_each(configs):
    """Train two steps with each config; return what stopped it, None where nothing did."""
    torch.compiler.set_stance("force_eager")  # Muon compiles itself: that wants a C++ compiler, and ten seconds or more
    return {name: _stopped(config) for name, config in configs.items()}


def _stopped(config):
    try:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
        for _ in range(2):
            row = torch.ones(1, 8, dtype=torch.bfloat16 if "bf16" in config else torch.float32)
            engine.backward(engine(row).float().square().mean())
            engine.step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def stopped():
    return launch(train_with_each, {**GO, **STOP}, world_size=1, timeout_seconds=240)[0]


@pytest.mark.parametrize("name", [*GO, *STOP])
def test_a_config_is_warned_of_exactly_where_the_engine_stops(name, stopped):
    config = {**GO, **STOP}[name]
    assert refusal(config) is None
    warnings = explain(config, accelerator="cpu").of_level("warning")
    assert len(warnings) == bool(stopped[name]) == (name in STOP), (stopped[name], warnings)


def test_a_limit_below_zero_clips_nothing_and_is_said():
    assert explain({**adam(), "gradient_clipping": -1}).of_level("warning")[0].key == "gradient_clipping"
    assert explain({**adam(), "gradient_clipping": float("nan")}).of_level("warning")[0].key == "gradient_clipping"


@pytest.mark.parametrize(("config", "meant"), [
    (adam("AdamWW"), "AdamW"), (adam("sgd"), "SGD"), (adam(wieght_decay=0.1), "weight_decay"),
    (schedule("warmuplr"), "WarmupLR"), (schedule("WarmupLR", warmup_num_step=1), "warmup_num_steps"),
])  # fmt: skip
def test_a_misspelt_name_is_answered_with_the_nearest_right_one(config, meant):
    assert f"did you mean {meant}?" == explain(config).of_level("warning")[0].fix


def test_what_a_trainer_fills_in_is_not_missed():
    config = schedule("WarmupDecayLR", total_num_steps="auto")
    assert explain(config, trainer=True).of_level("warning") == ()
    del config["scheduler"]["params"]["total_num_steps"]
    assert explain(config, trainer=True).of_level("warning")[0].key == "scheduler.params.total_num_steps"


def test_the_names_are_those_of_deepspeed_and_torch():
    assert sorted(starts.DEEPSPEED_OPTIMIZERS) == sorted(READER.DEEPSPEED_OPTIMIZERS)
    assert set(starts.TORCH_OPTIMIZERS) == {*_classes(torch.optim, torch.optim.Optimizer)} - {"Optimizer"}
    kinds = torch.optim.lr_scheduler
    assert set(starts.TORCH_SCHEDULERS) == {*_classes(kinds, kinds.LRScheduler)} - {"_LRScheduler"}
    assert {name for name in READER.DtypeEnum._value2member_map_ if isinstance(name, str)} == AUTOCAST


def _classes(room, base):
    return [name for name, kind in vars(room).items() if isinstance(kind, type) and issubclass(kind, base)]


def test_the_parameters_are_those_of_the_live_schedules_and_optimizers():
    live = deepspeed.runtime.lr_schedules
    assert list(starts.SCHEDULES) == live.VALID_LR_SCHEDULES
    for name, (needed, optional) in starts.SCHEDULES.items():
        parts = list(inspect.signature(getattr(live, name)).parameters.values())[1:]
        assert needed == [part.name for part in parts if part.default is part.empty]
        assert set(optional) == {part.name for part in parts if part.default is not part.empty}
    kinds = [deepspeed.ops.adam.FusedAdam, deepspeed.ops.adam.DeepSpeedCPUAdam, torch.optim.Adam, torch.optim.AdamW]
    taken = {name for kind in kinds for name in inspect.signature(kind).parameters}
    assert set(starts.ADAM_PARAMS) == taken - {"params", "model_params", "adamw_mode"} | {"torch_adam", "max_grad_norm"}
