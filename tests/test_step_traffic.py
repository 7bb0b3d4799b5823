"""The bytes of a step by the laws of the papers, and to the byte as the live engines issue their collectives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.config import STRATEGIES, ModelTrainingConfig
from labs.scenario import Scenario
from labs.schedule import step_collectives
from labs.spec import ModelSpec
from labs.step_traffic import Link, step_traffic
from labs.traffic import ring_bytes

ODD = ModelSpec(num_layers=3, hidden_size=12, num_heads=4, context=7, vocab_size=257)
SETTLED = 5  # from the third step on all steps issue the same collectives


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_live_step_sends_what_was_planned_to_the_byte(strategy, world):
    for mixed, accumulation in ((True, 1), (False, 1), (True, 3)):
        if (strategy, world) in (("hsdp", 3), ("hsdp", 2)):
            continue  # an odd world, and copies of one shard each, which gather nothing
        ranks = 1 if strategy == "single" else world
        config = ModelTrainingConfig(
            strategy=strategy,
            world_size=ranks,
            use_mixed_precision=mixed,
            gradient_accumulation_steps=accumulation,
            batch_size=ranks * accumulation,
            model=ODD,
        )
        live = sum(ring_bytes(call) for call in step_collectives(config, 0, SETTLED))
        assert step_traffic(Scenario.of_run(config)).sent_bytes == live


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5000), st.sampled_from(["gpt2", "llama-3-8b"]), st.integers(1, 4))
def test_every_strategy_keeps_its_law(world, model, accumulation):
    """2, 2, 2 and 3 times the gradients' bytes; with accumulation ZeRO-2 and 3 reduce every micro-batch."""
    laws = {"ddp": 2, "zero1": 2, "zero2": 1 + accumulation, "zero3": 3 * accumulation}
    for strategy, law in laws.items():
        scenario = Scenario(model=model, strategy=strategy, world_size=world, gradient_accumulation_steps=accumulation)
        whole = 2 * scenario.model.num_parameters * (world - 1) / world
        padding = 2 * law * world * len(scenario.model.parameters())
        assert law * whole <= step_traffic(scenario).sent_bytes + law * world * 2 <= law * whole + 2 * padding


@pytest.mark.parametrize(
    "name, root", [("gpt2", (50257 + 1024) * 768 + 2 * 768), ("llama-3-8b", 2 * 128256 * 4096 + 4096)]
)
def test_fsdp_sends_three_times_the_blocks_and_twice_the_root(name, root):
    scenario = Scenario(model=name, strategy="fsdp", world_size=8)
    elements = 3 * (scenario.model.num_parameters - root) + 2 * root
    assert step_traffic(scenario).sent_bytes == pytest.approx(
        2 * elements * 7 / 8, rel=2e-3
    )  # rows of 50257 are padded


def test_hsdp_keeps_gathers_within_the_host_and_sends_one_shard_between_hosts():
    """llama-3-8b on 16 hosts of 8: between hosts an all-reduce of an eighth of the model among 16 copies."""
    scenario = Scenario(model="llama-3-8b", strategy="hsdp", world_size=128, shard_size=8)
    found = step_traffic(scenario, ranks_per_host=8)
    assert found.between_hosts_bytes == pytest.approx(2 * 15 / 16 * 2 * 8_030_261_248 / 8, rel=1e-6)
    flat = step_traffic(scenario.replace(strategy="fsdp", shard_size=None), ranks_per_host=8)
    assert (flat.within_host_bytes, found.between_hosts_bytes * 8 < flat.between_hosts_bytes) == (0, True)


@pytest.mark.parametrize("shard_size, within", [(4, True), (8, True), (16, False), (3, False)])
def test_a_group_of_shards_that_straddles_hosts_counts_as_between_hosts(shard_size, within):
    scenario = Scenario(model="gpt2", strategy="hsdp", world_size=48, shard_size=shard_size)
    assert (step_traffic(scenario, ranks_per_host=8).within_host_bytes > 0) is within


def test_ranks_of_one_host_send_nothing_between_hosts():
    assert step_traffic(Scenario(model="gpt2", strategy="hsdp", world_size=8)).between_hosts == ()
    assert step_traffic(Scenario(model="gpt2", strategy="ddp", world_size=9)).within_host == ()


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if strategy != "single"])
def test_every_strategy_of_several_ranks_sends_something(strategy):
    sent = step_traffic(Scenario(model="gpt2", strategy=strategy, world_size=4)).sent_bytes
    assert sent > 0, f"labs/step_traffic.py does not know {strategy}"


def test_one_rank_sends_nothing():
    for strategy in ("single", "ddp", "fsdp", "zero1", "zero3"):
        assert step_traffic(Scenario(model="gpt2", strategy=strategy, world_size=1)).sent_bytes == 0


def test_bytes_by_kind_add_up():
    found = step_traffic(Scenario(model="llama-3-8b", strategy="zero3", world_size=64))
    assert set(found.bytes_by_kind) == {"all_gather", "reduce_scatter"}
    assert sum(found.bytes_by_kind.values()) == found.sent_bytes


def test_seconds_are_bytes_over_bandwidth_when_messages_arrive_at_once():
    found = step_traffic(Scenario(model="llama-3-8b", strategy="fsdp", world_size=64))
    seconds = found.seconds(Link(0, 1e30), Link(0, 50e9))
    assert seconds == pytest.approx(found.sent_bytes / 50e9, rel=1e-6)


def test_latency_is_paid_by_every_step_of_every_ring():
    """ZeRO-1 with one bucket and two groups: one reduce-scatter and two all-gathers of 63 steps each."""
    scenario = Scenario(model="gpt2", strategy="zero1", world_size=64)
    assert step_traffic(scenario).seconds(Link(9, 1), Link(1.0, 1e30)) == pytest.approx(3 * 63)


def test_a_host_without_ranks_is_refused():
    with pytest.raises(ValueError, match="ranks_per_host=0"):
        step_traffic(Scenario(model="gpt2"), ranks_per_host=0)
