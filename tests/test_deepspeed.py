"""What is particular to DeepSpeed. What all strategies share is in test_laws.py."""

import os
import subprocess
import sys
from pathlib import Path

import awkward
import cloudpickle
import deepspeed_runs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labs
from labs import ds_layout, memory, schedule
from labs.config import ModelTrainingConfig
from labs.spec import ModelSpec, ParameterSpec

for module in (awkward, deepspeed_runs):  # ranks do not import from tests/
    cloudpickle.register_pickle_by_value(module)

STAGES = ("zero1", "zero2", "zero3")
ROOT = Path(__file__).parent.parent


def config_of(strategy: str, **changes) -> ModelTrainingConfig:
    given = dict(strategy=strategy, world_size=2, batch_size=8, steps=3, gradient_accumulation_steps=2)
    return ModelTrainingConfig(**{**given, "use_mixed_precision": False, **changes})


def test_a_checkpoint_resumes_bit_for_bit_and_ranks_say_nothing(tmp_path):
    variants = ({}, {"use_mixed_precision": True}, {"offload": True})
    configs = [config_of(strategy, **changes) for strategy in STAGES for changes in variants]
    run = labs.start(deepspeed_runs.save_and_resume, configs, str(tmp_path), world_size=2, timeout_seconds=120)
    for resumed in (one for rank in run.wait() for one in rank):
        assert resumed.numbers_loaded == resumed.numbers_went_on
        assert resumed.unequal == []
    assert run.output == []


def test_loading_from_an_empty_directory_is_an_error_with_the_path(tmp_path):
    config = config_of("zero2", world_size=1)
    (text,) = labs.launch(deepspeed_runs.load_nothing, config, str(tmp_path), world_size=1)
    assert str(tmp_path) in text


def test_the_norm_is_the_twins_also_when_nothing_is_clipped():
    configs = [config_of(strategy, max_grad_norm=None) for strategy in STAGES]
    ranks = labs.launch(deepspeed_runs.norms_of, configs, world_size=2)
    (twin,) = labs.launch(deepspeed_runs.norms_of, [configs[0].twin()], world_size=1)[0]
    for norms in (one for rank in ranks for one in rank):
        assert norms == pytest.approx(twin, rel=2e-6)


def test_no_living_tensor_is_left_out_of_the_states():
    variants = ({}, {"use_mixed_precision": True}, {"offload": True}, {"gradient_accumulation_steps": 1})
    configs = [config_of(strategy, **changes) for strategy in STAGES for changes in variants]
    for left in labs.launch(deepspeed_runs.unexplained_tensors, configs, world_size=2, timeout_seconds=120):
        assert left == [[]] * len(configs)


def test_zero3_frees_what_it_gathered_and_gives_torch_its_linear_back():
    config = config_of("zero3", gradient_accumulation_steps=1)
    for num_copies, num_alive, is_restored in labs.launch(
        deepspeed_runs.copies_alive_after_forward, config, world_size=2
    ):
        assert num_copies == len(config.model.parameters()) + 1  # the tied weight twice
        assert num_alive == 0
        assert is_restored


def test_an_evaluation_changes_no_number_and_is_known_to_the_predicted_calls():
    config = config_of("zero3", gradient_accumulation_steps=1, eval_every=1)
    watched, plain = (
        labs.launch(deepspeed_runs.evaluate_between, config, evaluates, world_size=2) for evaluates in (True, False)
    )
    for rank, ((numbers, calls), (plain_numbers, _)) in enumerate(zip(watched, plain, strict=True)):
        assert numbers == plain_numbers
        for step, found in enumerate(calls):
            predicted = schedule.step_collectives(config, rank, step)
            assert found == [(c.kind, c.size_bytes, c.group_size, c.element_bytes) for c in predicted]


ALONE = """
import os, tempfile, torch, torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
from labs.config import ModelTrainingConfig
from labs.strategies.base import build_engine
from labs.workload import build_model
store = os.path.join(tempfile.mkdtemp(dir=os.environ["TORCH_EXTENSIONS_DIR"] + "/.."), "store")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
before = dict(os.environ)
for strategy in ("zero1", "zero2", "zero3"):
    config = ModelTrainingConfig(strategy=strategy, world_size=1, batch_size=2, offload=True)
    engine = build_engine(config, build_model(config.model))
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    engine.backward(engine.forward_loss((tokens, tokens)))
    assert engine.step() > 0
    engine.save(store + strategy)
left = {name for name in os.environ if os.environ[name] != before.get(name)}
assert left <= {"PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"}, left  # their imports set these
os.write(1, b"trained")
os._exit(0)
"""


def test_what_is_written_into_a_gathered_parameter_stays_if_a_rank_is_named_and_is_lost_without_a_word_if_not():
    for rank in (0, 1):
        assert labs.launch(deepspeed_runs.filled_with_sevens, rank, world_size=2) == [[7.0] * 4] * 2
    lost = labs.launch(deepspeed_runs.filled_with_sevens, None, world_size=2)
    assert lost[0] == lost[1] and 7.0 not in lost[0]


def test_a_first_run_calls_no_compiler_builds_nothing_and_prints_nothing(tmp_path):
    tools, extensions, called = tmp_path / "bin", tmp_path / "extensions", tmp_path / "called"
    tools.mkdir()
    extensions.mkdir()
    for name in ("g++", "gcc", "c++", "cc", "clang", "clang++", "ninja", "nvcc", "hipcc", "which"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\nexit 1\n')
        (tools / name).chmod(0o755)
    changed = {"PATH": str(tools), "TORCH_EXTENSIONS_DIR": str(extensions), "PYTHONPATH": str(ROOT)}
    environment = {name: value for name, value in os.environ.items() if name not in ("DS_ACCELERATOR", "CXX", "CC")}
    command = [sys.executable, "-W", "ignore::FutureWarning", "-W", "ignore::DeprecationWarning", "-c", ALONE]
    done = subprocess.run(command, env={**environment, **changed}, capture_output=True, text=True, timeout=150)
    assert (done.stdout, done.stderr, done.returncode) == ("trained", "", 0)
    assert not called.exists(), called.read_text()
    assert list(extensions.iterdir()) == []


def test_state_bytes_equal_a_hand_count():
    parameters = [ParameterSpec("head.weight", (3, 5), "root"), ParameterSpec("head.bias", (3,), "root")]
    base = config_of("zero2", model=ModelSpec(), gradient_accumulation_steps=1)
    # Groups of 15 and 3 elements, padded to multiples of 2 ranks x 2: 16 and 4; parts of 8 and 2 elements.
    # Rank 0 touches both parameters: 15 + 3 elements of gradients. Rank 1 the same, and 1 + 1 of padding.
    flat = {"parameters": 4 * 20, "optimizer": 8 * 10, "master_weights": 4 * 10}
    assert ds_layout.state_bytes(base, 0, parameters) == {**flat, "gradients": 4 * 18}
    assert ds_layout.state_bytes(base, 1, parameters) == {**flat, "gradients": 4 * 20}
    # ZeRO-3: parts of ceil(15/2) + ceil(3/2) = 10 elements, and a bucket of 15.
    assert ds_layout.state_bytes(base.replace(strategy="zero3"), 0, parameters) == {
        "parameters": 4 * 10,
        "gradients": 4 * (10 + 15),
        "optimizer": 8 * 10,
        "master_weights": 4 * 10,
    }


def test_zero1_reduces_once_a_step_and_zero2_every_micro_batch():
    sent = {}
    for strategy in ("zero1", "zero2"):
        config = config_of(strategy, gradient_accumulation_steps=4)
        calls = schedule.step_collectives(config, 0, 5)
        sent[strategy] = sum(call.size_bytes for call in calls if call.kind == "all_reduce")
    gradient_bytes, norms_bytes = 4 * ModelSpec().num_parameters, 2 * 4
    assert sent == {"zero1": gradient_bytes + norms_bytes, "zero2": 4 * gradient_bytes + norms_bytes}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 9))
def test_the_parts_of_a_flat_group_cover_it_once(sizes, world_size):
    group = [ParameterSpec(f"layer{i}.weight", (size, 1), "root") for i, size in enumerate(sizes)]
    touched = [ds_layout.flat_touched(group, world_size, rank) for rank in range(world_size)]
    part = ds_layout.flat_part_elements(group, world_size)
    assert world_size * part - sum(padding for _, padding in touched) == sum(sizes)
    assert {p.name for found, _ in touched for p in found} == {p.name for p in group}
    assert part % ds_layout.ALIGNMENT == 0


def test_more_ranks_hold_less_of_what_a_stage_shards_and_the_same_of_what_it_does_not():
    def held(strategy: str, world_size: int) -> dict[str, int]:
        return memory.state_bytes(config_of(strategy, world_size=world_size, batch_size=64), 0)

    for strategy in STAGES:
        few, many = held(strategy, 2), held(strategy, 8)
        for state in ("optimizer", "master_weights"):
            assert many[state] == pytest.approx(few[state] / 4, rel=0.01)
        shrinks = 4 if strategy == "zero3" else 1
        assert many["parameters"] == pytest.approx(few["parameters"] / shrinks, rel=0.01)
