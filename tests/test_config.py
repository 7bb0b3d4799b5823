"""A run that cannot be carried out is refused in a sentence; one that can survives JSON."""

import json
import re
from dataclasses import replace
from math import isnan

import pytest
from fake_runs import fake_result
from hypothesis import given
from hypothesis import strategies as st

from labs.config import STRATEGIES, TABLES, ConfigError, ModelTrainingConfig
from labs.records import STATES, RunResult
from labs.spec import ModelSpec

SEED_FIELDS = ["architecture_name", "batch_size", "learning_rate", "use_mixed_precision"]
# Fields given, what the sentence must name, and what it must propose.
REFUSED = [
    (dict(strategy="single", world_size=2), "one rank, not 2", "world_size=1"),
    (dict(strategy="hsdp", world_size=3, batch_size=3), "world_size 3 must be even", "strategy='fsdp'"),
    (dict(batch_size=10, world_size=4), "batch_size 10 does not divide by world_size 4 x .* 1 = 4", "batch_size=8"),
    (dict(batch_size=8, gradient_accumulation_steps=3), "gradient_accumulation_steps 3 = 6", "batch_size=6"),
    (dict(batch_size=1, world_size=4), "batch_size 1 does not divide", "batch_size=4"),
    (dict(strategy="ddp", offload=True), "ddp has no sharded state to offload", "offload=False"),
    (dict(strategy="single", offload=True), "single has no sharded state", "strategy='fsdp'"),
    (dict(data="iris", model=ModelSpec()), "'iris' needs a model of kind 'mlp', not 'gpt'", "kind='mlp'"),
    (dict(model=ModelSpec(kind="mlp")), "'text' needs a model of kind 'gpt', not 'mlp'", "kind='gpt'"),
    (dict(data="iris", model=ModelSpec(kind="mlp")), "4 features and 3 classes.*64 and 10", "num_features=4"),
    (dict(model=ModelSpec(vocab_size=100)), "vocab_size 100 is too small", "vocab_size=256"),
    (dict(steps=5, warmup_steps=6), "warmup_steps 6 is longer than the run of 5", "warmup_steps=0"),
    (dict(model="llama-3-8b"), "kind 'llama' with 8.03 B parameters is for planning", "model='small'"),
    (dict(model=ModelSpec(num_layers=97)), "num_layers 97 is for planning", "num_layers=96"),
    (dict(model=ModelSpec(hidden_size=8192)), "hidden_size 8192 is for planning", "hidden_size=4096"),
    (dict(model=ModelSpec(context=8192)), "context 8192 is for planning", "context=4096"),
    (dict(model="tinny"), "'tinny' is not known", "tiny"),
    (dict(batchsize=8), "has no field 'batchsize'", "did you mean batch_size"),
    (dict(colour="red"), "has no field 'colour'", "the known fields are architecture_name"),
    (dict(residual=True), "has no field 'residual'; its model has", "model=config.model.replace(residual=...)"),
    (dict(batch_size=0), "batch_size=0 is refused", "greater than or equal to 1"),
    (dict(batch_size="many"), "batch_size='many' is refused", "valid integer"),
    (dict(learning_rate=float("nan")), "learning_rate=nan is refused", "finite"),
    (dict(strategy="zero4"), "strategy='zero4' is refused", "'zero3'"),
    (dict(data=[]), r"data=\[\] is refused", "'digits'"),
    (dict(architecture_name=["x" * 999]), "x{70}...", "valid string"),
    (dict(batch_size=10**400 + 1), "does not divide by world_size 2", "try batch_size=1000"),
    (dict(world_size=65, batch_size=65), "world_size=65 is refused", "less than or equal to 64"),
]


@pytest.mark.parametrize("fields, named, proposed", REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_says_what_was_given_and_what_to_try(fields, named, proposed):
    with pytest.raises(ConfigError) as refusal:
        ModelTrainingConfig(**fields)
    sentence = str(refusal.value)
    assert re.search(named, sentence) and proposed in sentence
    assert "\n" not in sentence and "pydantic" not in sentence


@pytest.mark.parametrize(
    "fields", [f for f, _, proposed in REFUSED if proposed in ("batch_size=8", "batch_size=6", "batch_size=4")], ids=str
)
def test_the_batch_size_that_a_refusal_proposes_is_accepted(fields):
    with pytest.raises(ConfigError) as refusal:
        ModelTrainingConfig(**fields)
    proposed = int(re.search(r"try batch_size=(\d+)", str(refusal.value))[1])
    assert ModelTrainingConfig(**{**fields, "batch_size": proposed}).batch_size == proposed


def test_two_problems_are_told_at_once():
    with pytest.raises(ConfigError, match="batch_size=0 is refused.*; learning_rate=-1"):
        ModelTrainingConfig(batch_size=0, learning_rate=-1)


def test_a_refused_model_inside_a_config_is_told_in_the_words_of_the_model():
    with pytest.raises(ConfigError, match="^hidden_size 66 does not split into 4 heads"):
        ModelTrainingConfig(model=dict(hidden_size=66))


def test_the_seed_fields_come_first_with_their_defaults():
    config = ModelTrainingConfig()
    assert list(type(config).model_fields)[:4] == SEED_FIELDS
    values = [getattr(config, name) for name in SEED_FIELDS]
    assert values == ["distributed-training-ddp-fsdp-deepspeed", 32, 1e-4, True]


def test_a_config_cannot_be_changed_only_replaced():
    config = ModelTrainingConfig()
    for frozen, name in ((config, "batch_size"), (config.model, "num_layers")):
        with pytest.raises(ConfigError, match=rf"{name} cannot be set: a \w+ is frozen; .* replace\({name}=...\)"):
            setattr(frozen, name, 64)
    assert config.replace(batch_size=64).batch_size == 64
    with pytest.raises(ConfigError, match="does not divide"):
        config.replace(batch_size=33)


@pytest.mark.parametrize("data", TABLES)
def test_a_table_brings_its_own_model(data):
    model = ModelTrainingConfig(data=data).model
    assert (model.kind, model.num_features, model.num_classes) == ("mlp", *TABLES[data][1:])


configs = st.builds(
    lambda strategy, half, parts, accumulation, steps, **fields: ModelTrainingConfig(
        strategy=strategy,
        world_size=1 if strategy == "single" else 2 * half,
        batch_size=(1 if strategy == "single" else 2 * half) * accumulation * parts,
        gradient_accumulation_steps=accumulation,
        steps=steps,
        **fields,
    ),
    st.sampled_from(STRATEGIES),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 200),
    use_mixed_precision=st.booleans(),
    max_grad_norm=st.none() | st.floats(0.1, 10),
    learning_rate=st.floats(1e-6, 1),
    model=st.sampled_from(["tiny", "small", ModelSpec(residual=False, norm=False)]),
)


@given(configs)
def test_a_config_survives_json(config):
    assert ModelTrainingConfig(**json.loads(config.model_dump_json())) == config


@given(configs)
def test_all_micro_batches_of_all_ranks_make_the_batch(config):
    micro = config.micro_batch_size * config.world_size * config.gradient_accumulation_steps
    assert micro == config.batch_size
    assert config.tokens_per_step == config.batch_size * config.model.context


@given(configs)
def test_the_learning_rate_warms_up_to_its_peak_and_ends_above_a_tenth(config):
    rates = [config.learning_rate_at(step) for step in range(config.steps)]
    assert max(rates) <= config.learning_rate * (1 + 1e-12)
    assert min(rates[config.warmup_steps :], default=config.learning_rate) >= 0.1 * config.learning_rate * (1 - 1e-12)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True)


@given(configs)
def test_the_last_step_is_always_evaluated(config):
    assert config.evaluates_after(config.steps - 1)


@given(configs)
def test_the_twin_sees_the_same_batches_in_one_process(config):
    twin = config.twin()
    assert (twin.strategy, twin.world_size, twin.gradient_accumulation_steps) == ("single", 1, 1)
    assert (twin.batch_size, twin.seed, twin.model) == (config.batch_size, config.seed, config.model)


def test_a_run_result_survives_json(tmp_path):
    result = fake_result(steps=4, eval_every=2)
    assert RunResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert RunResult.load(result.save(tmp_path / "run.json")) == result


def test_a_run_that_diverged_is_strict_json_and_reads_back_as_nan(tmp_path):
    run = fake_result(steps=1)
    first = replace(run.ranks[0].steps[0], loss=float("nan"), grad_norm=float("inf"))
    first = replace(first, layer_grad_norms={"head": float("nan")})
    run = replace(run, ranks=(replace(run.ranks[0], steps=(first,)), *run.ranks[1:]))
    path = run.save(tmp_path / "run.json")

    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    data = json.loads(path.read_text(), parse_constant=refuse)
    assert data["losses"] == data["grad_norms"] == [None]
    step = RunResult.load(path).steps[0]
    assert isnan(step.loss) and isnan(step.grad_norm) and isnan(step.layer_grad_norms["head"])
    assert RunResult.load(path).ranks[1] == run.ranks[1]


def test_a_run_result_names_every_state_of_every_rank():
    shown = fake_result(steps=3).to_dict()["memory"]
    assert [set(rank) for rank in shown] == [set(STATES)] * 4


def test_a_saved_run_that_lacks_its_ranks_is_an_error(tmp_path):
    data = {key: value for key, value in fake_result(steps=2).to_dict().items() if key != "ranks"}
    with pytest.raises(KeyError, match="ranks"):
        RunResult.from_dict(data)


@pytest.mark.parametrize("steps", ["20", 20.0, 20])
def test_steps_shorten_the_warm_up_however_they_are_written(steps):
    assert ModelTrainingConfig(steps=steps).warmup_steps == 2


@pytest.mark.parametrize("steps", [None, "many", 2.5, [3], float("inf"), {}])
def test_what_is_no_number_of_steps_is_refused_by_its_own_name_alone(steps):
    with pytest.raises(ConfigError, match=r"^steps=") as problem:
        ModelTrainingConfig(steps=steps)
    assert "warmup" not in str(problem.value)
