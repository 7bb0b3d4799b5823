"""A scenario that no engine can carry out is refused in words; a run of this course is one of them."""

import json

import pytest

from labs.config import ConfigError, ModelTrainingConfig
from labs.footprint import footprint
from labs.scenario import Scenario
from labs.spec import ModelSpec

REFUSED = [
    (dict(strategy="single", world_size=2), r"one rank, not 2; try world_size=1"),
    (dict(strategy="hsdp", world_size=1), r"world_size 1 is too small; try world_size=2"),
    (
        dict(strategy="hsdp", world_size=12, shard_size=5),
        r"shard_size 5 ranks, of which world_size 12.*try shard_size=4",
    ),
    (dict(strategy="hsdp", world_size=8, shard_size=8), r"must hold two or more; try shard_size=4"),
    (dict(strategy="hsdp", world_size=7), r"world_size 7 must hold two or more; try shard_size=1"),
    (dict(strategy="fsdp", shard_size=4), r"shard_size 4 is for hsdp, strategy 'fsdp' would ignore it"),
    (dict(strategy="ddp", offload="optimizer"), r"ddp has no sharded state.*try strategy='fsdp'"),
    (dict(strategy="fsdp", offload="optimizer"), r"fsdp moves shards together.*try offload='optimizer\+parameters'"),
    (dict(strategy="zero2", offload="optimizer+parameters"), r"only zero3 can offload them; try offload='optimizer'"),
    (dict(strategy="zero3", offload="optimizer", optimizer="adamw-8bit"), r"'adamw-8bit' updates on the device"),
    (dict(model="gpt2", context=2048), r"context 2048 is longer than the 1024 positions.*try context=1024"),
    (dict(model=ModelSpec(kind="mlp"), attention="eager"), r"'mlp' has no attention"),
    (dict(model="llama-4"), r"'llama-4' is not known; the known names are llama-"),
    (dict(world_size=100_001), r"world_size=100001 is refused"),
    (dict(precision="int8"), r"precision='int8' is refused.*'bf16-mixed'"),
    (dict(worldsize=3), r"no field 'worldsize'; did you mean world_size"),
]


@pytest.mark.parametrize("fields, sentence", REFUSED)
def test_a_refusal_says_what_was_given_why_not_and_what_to_try(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Scenario(**{"model": "llama-3-8b", **fields})


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="rank 8 is not among the 8 ranks"):
        footprint(Scenario(model="gpt2", world_size=8), rank=8)


@pytest.mark.parametrize("model", ["llama-3-8b", ModelSpec.from_name("llama-3-8b"), {"num_layers": 2}])
def test_a_scenario_survives_json(model):
    scenario = Scenario(model=model, strategy="hsdp", world_size=16, shard_size=8)
    assert Scenario(**json.loads(scenario.model_dump_json())) == scenario


@pytest.mark.parametrize("name, context", [("gpt2", 1024), ("llama-2-7b", 4096), ("llama-3.1-8b", 4096), ("tiny", 64)])
def test_the_context_not_given_is_the_models_own_but_at_most_4096(name, context):
    assert Scenario(model=name).context == context


def test_hsdp_keeps_two_copies_when_not_told_otherwise_as_the_live_engine_does():
    assert Scenario(model="tiny", strategy="hsdp", world_size=16).shards == 8
    config = ModelTrainingConfig(strategy="hsdp", world_size=4)
    assert Scenario.of_run(config).shards == 2


def test_a_longer_context_does_not_grow_the_position_table():
    short, full = (Scenario(model="gpt2", context=context) for context in (128, 1024))
    assert footprint(short).states["optimizer"] == footprint(full).states["optimizer"]
    assert footprint(short).states["activations"] < footprint(full).states["activations"]
