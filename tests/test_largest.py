"""The largest model under a cap is the deepest that fits, by counting up; two runs are told apart by what differs."""

import dataclasses

import pytest
from fake_runs import fake_result
from hypothesis import given, settings
from hypothesis import strategies as st

from labs import memory
from labs.config import STRATEGIES, ConfigError, ModelTrainingConfig
from labs.largest import MOST_LAYERS, Largest, held_bytes, largest_model, largest_models
from labs.plots import plot_largest, table_differences, table_largest
from labs.records import MODEL_STATES, STATES
from labs.spec import ModelSpec

MIB = 2**20


def deepened(config, num_layers):
    return config.replace(model=config.model.replace(num_layers=num_layers))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(STRATEGIES), st.booleans(), st.booleans(), st.floats(0.3, 4))
def test_one_layer_more_than_the_answer_does_not_fit_and_every_layer_less_does(strategy, mixed, kept, cap_mib):
    ranks = 1 if strategy == "single" else 2
    config = ModelTrainingConfig(strategy=strategy, world_size=ranks, batch_size=4, use_mixed_precision=mixed)
    states = STATES if kept else MODEL_STATES
    by_hand = 0
    while held_bytes(deepened(config, by_hand + 1), states) <= cap_mib * MIB:
        by_hand += 1
    answer = largest_model(config, cap_mib * MIB, states)
    assert (answer.num_layers if answer else 0) == by_hand
    if answer:
        assert answer.held_bytes <= cap_mib * MIB < answer.next_bytes


def test_the_fullest_rank_decides():
    config = ModelTrainingConfig(strategy="zero1", world_size=4, batch_size=4)
    ranks = [sum(memory.state_bytes(config, rank)[state] for state in MODEL_STATES) for rank in range(4)]
    assert held_bytes(config) == max(ranks) > min(ranks)


def test_ddp_of_two_ranks_holds_as_deep_a_model_as_one_rank_alone():
    found = largest_models(ModelTrainingConfig(world_size=2), 4 * MIB)
    # 16 bytes a parameter: 4 layers have 220,544, one layer more 49,984 (12 x 64 x 64 + 13 x 64).
    assert found["ddp"].held_bytes == found["single"].held_bytes == 16 * 220_544
    assert found["ddp"].next_bytes == 16 * (220_544 + 49_984)


def test_no_answer_has_its_reason_and_none_is_deeper_than_can_be_trained():
    found = largest_models(ModelTrainingConfig(world_size=3, batch_size=6, strategy="fsdp"), 1e12)
    assert "must be even" in found["hsdp"] and found["fsdp"].num_layers == MOST_LAYERS
    assert found["fsdp"].next_bytes is None and "over 96 layers" in str(table_largest(found, 1e12))
    assert set(largest_models(ModelTrainingConfig(), 1000).values()) == {"not even one layer fits"}
    with pytest.raises(ConfigError, match="try cap_bytes"):
        largest_model(ModelTrainingConfig(), 0)


def test_the_picture_marks_what_was_run_and_whether_it_held_what_was_predicted():
    found = largest_models(ModelTrainingConfig(), 4 * MIB)
    assert all(isinstance(one, Largest) for one in found.values())
    measured = {"ddp": found["ddp"].held_bytes, "fsdp": found["fsdp"].held_bytes + 1}
    words = [text.get_text() for text in plot_largest(found, 4 * MIB, measured).axes[0].texts]
    assert "✓ 4 layers" in words and "✗ 10 layers" in words and "8 layers" in words
    assert plot_largest(largest_models(ModelTrainingConfig(), 1000), 1000).png(50).startswith(b"\x89PNG")


def test_differences_list_what_differs_and_nothing_else():
    one, other = (
        fake_result(strategy="ddp", world_size=2),
        fake_result(strategy="ddp", world_size=4, max_grad_norm=None),
    )
    names = [row[0] for row in table_differences({"a": one, "b": other}).rows]
    assert names[:3] == ["ranks", "max grad norm", "last loss [nats]"]
    assert table_differences({"a": one, "b": other}).rows[1] == ("max grad norm", "1.0", "off")
    same = table_differences({"a": one, "b": one})
    assert same.rows[0][0] == "last loss [nats]" and "Nothing was chosen differently" in same.caption


def test_a_model_that_differs_is_named_with_the_fields_in_which_it_does():
    deep = ModelSpec.from_name("tiny", num_layers=8)
    rows = table_differences([fake_result(), fake_result(model=deep)]).rows
    assert [row[0] for row in rows[:3]] == ["model", "model: parameters", "model: num layers"]
    assert rows[2][1:] == ("4", "8")


def test_bytes_of_unequal_ranks_are_those_of_the_fullest():
    run = fake_result(strategy="ddp", world_size=2)
    first, second = run.ranks
    states = {name: dataclasses.replace(state, measured_bytes=0) for name, state in second.memory.states.items()}
    empty = dataclasses.replace(second, memory=dataclasses.replace(second.memory, states=states))
    changed = dataclasses.replace(run, ranks=(first, empty))
    held = {row[0]: row[1:] for row in table_differences({"a": run, "b": changed}).rows}["states held by a rank"]
    assert held[0] == held[1]
