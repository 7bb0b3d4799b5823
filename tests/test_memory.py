"""The arithmetic of bytes and of collectives, against hand counts, live tensors and the papers. One process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs.activations import activation_bytes
from labs.config import ConfigError, ModelTrainingConfig
from labs.data import load_data
from labs.measure import KeptActivations
from labs.memory import local_elements, padded_elements, peak_parameters_bytes, state_bytes, waiting_gradients_bytes
from labs.schedule import ddp_buckets, run_collectives, step_collectives
from labs.spec import ModelSpec, backward_order
from labs.traffic import predict
from labs.workload import build_model, checkpoint_activations

TINY = 220_544  # by hand: 256*64 + 64*64 + 4*(12*64**2 + 13*64) + 2*64
MIB = 2**20
GPT = dict(num_layers=2, hidden_size=12, num_heads=2, context=7)
SPECS = [
    ModelSpec(**GPT),
    ModelSpec(**GPT, norm=False),
    ModelSpec(**GPT, residual=False, tied_embedding=False),
    ModelSpec(num_layers=1, hidden_size=18, num_heads=3, context=600),
    ModelSpec(kind="mlp", num_layers=2, num_features=13, num_classes=3),
    ModelSpec(kind="mlp", num_layers=1, num_features=13, num_classes=3, norm=False, residual=False),
]


def tiny(**changes) -> ModelTrainingConfig:
    return ModelTrainingConfig(**{"world_size": 4, "batch_size": 16, "use_mixed_precision": False, **changes})


def test_fp32_ddp_holds_sixteen_bytes_a_parameter():
    held = state_bytes(tiny(strategy="ddp"), rank=0)
    assert (held["parameters"], held["gradients"], held["optimizer"]) == (4 * TINY, 4 * TINY, 8 * TINY)
    assert held["master_weights"] == held["buffers"] == 0


def test_bf16_ddp_holds_sixteen_bytes_a_parameter_too():
    """ZeRO (arXiv 1910.02054), section 3: 2 + 2 + 12 bytes; mixed precision alone saves no model state."""
    held = state_bytes(tiny(strategy="ddp", use_mixed_precision=True), rank=0)
    states = [held[name] for name in ("parameters", "gradients", "optimizer", "master_weights")]
    assert states == [2 * TINY, 2 * TINY, 8 * TINY, 4 * TINY]


@pytest.mark.parametrize("mixed", [False, True])
def test_fsdp_divides_every_state_by_four_where_four_divides_the_rows(mixed):
    held = state_bytes(tiny(strategy="fsdp", use_mixed_precision=mixed), rank=3)
    assert held["parameters"] + held["master_weights"] == TINY
    assert (held["gradients"], held["optimizer"]) == (TINY, 2 * TINY)


def test_hsdp_on_two_ranks_shards_nothing():
    config = dict(world_size=2, batch_size=16)
    hsdp, ddp = (state_bytes(tiny(strategy=name, **config), rank=1) for name in ("hsdp", "ddp"))
    assert hsdp == ddp


def test_a_frozen_parameter_has_neither_gradient_nor_optimizer_state():
    specs = ModelSpec(**GPT).parameters()
    frozen = [type(p)(p.name, p.shape, p.unit, trainable=False) for p in specs]
    held = state_bytes(tiny(strategy="fsdp"), 0, frozen)
    assert held["parameters"] > 0 and held["gradients"] == held["optimizer"] == 0


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_shards_are_what_torch_chunk_cuts(rows, columns, shards):
    chunks = torch.empty(rows, columns).chunk(shards)
    assert padded_elements((rows, columns), shards) == chunks[0].numel()
    owned = [local_elements((rows, columns), shards, index) for index in range(shards)]
    assert owned == [chunk.numel() for chunk in chunks] + [0] * (shards - len(chunks))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("samples", [1, 6])
def test_autograd_keeps_the_predicted_activations(spec, mixed, checkpointing, samples):
    data = "text" if spec.kind == "gpt" else "wine"
    options = dict(use_mixed_precision=mixed, activation_checkpointing=checkpointing, strategy="single")
    config = ModelTrainingConfig(model=spec, data=data, batch_size=samples, **options)
    model = build_model(spec)
    if checkpointing:
        checkpoint_activations(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16 if mixed else torch.float32)
    batch = load_data(config).train_batch(config, 0, 0, 0)
    with KeptActivations(lambda: [*model.parameters(), *model.buffers()]) as kept:
        loss = model(*batch)
    assert loss.requires_grad
    assert kept.kept_bytes == activation_bytes(config)


def test_activations_follow_the_micro_batch_and_not_the_batch():
    whole = activation_bytes(tiny(batch_size=64))
    assert activation_bytes(tiny(batch_size=64, gradient_accumulation_steps=4)) == pytest.approx(whole / 4, rel=0.01)


def test_fsdp_peaks_at_its_shards_the_root_and_a_block_with_its_receive_buffer():
    block, root = 4 * (12 * 64**2 + 13 * 64), 4 * (256 * 64 + 64 * 64 + 2 * 64)
    assert peak_parameters_bytes(tiny(strategy="fsdp"), 0) == TINY + root + 2 * block
    assert peak_parameters_bytes(tiny(strategy="ddp"), 0) == 4 * TINY


def test_gradients_wait_whole_only_under_accumulation_and_are_not_claimed_for_zero():
    assert waiting_gradients_bytes(tiny(strategy="fsdp")) == 0
    assert waiting_gradients_bytes(tiny(strategy="fsdp", gradient_accumulation_steps=2)) == 4 * TINY
    with pytest.raises(ConfigError, match="try strategy='fsdp'"):
        waiting_gradients_bytes(tiny(strategy="zero2"))


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_become_ready_in_the_predicted_order(spec):
    model, ready = build_model(spec), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
    config = ModelTrainingConfig(model=spec, data="text" if spec.kind == "gpt" else "wine", strategy="single")
    model(*load_data(config).train_batch(config, 0, 0, 0)).backward()
    assert [parameter.name for parameter in backward_order(spec.parameters())] == ready


def test_the_first_bucket_closes_at_one_mib_and_the_others_at_25():
    assert ddp_buckets([MIB - 4, 4, 30 * MIB, 24 * MIB, MIB, 8]) == [MIB, 30 * MIB, 25 * MIB, 8]
    assert ddp_buckets([8, 8]) == [16]


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_a_run_sends_the_sum_of_its_steps(strategy, steps):
    config = tiny(strategy=strategy, steps=steps, world_size=1 if strategy == "single" else 4)
    by_step = [call for step in range(steps) for call in step_collectives(config, 0, step)]
    assert predict(run_collectives(config, 0)) == predict(by_step)


def test_a_ring_carries_twice_the_gradients_under_ddp_and_half_as_much_again_under_fsdp():
    """ZeRO (arXiv 1910.02054), section 7.2: stage 3 needs 1.5 x the traffic of data parallelism."""
    spec = ModelSpec(num_layers=24, hidden_size=64, context=8)  # many blocks: FSDP gathers its root once, not twice
    options = dict(steps=5, world_size=4, batch_size=16, model=spec)
    _, ddp = predict(run_collectives(tiny(strategy="ddp", **options), 0))
    _, fsdp = predict(run_collectives(tiny(strategy="fsdp", **options), 0))
    assert ddp == pytest.approx(5 * 2 * 3 / 4 * 4 * spec.num_parameters, rel=0.001)
    assert fsdp / ddp == pytest.approx(1.5, rel=0.01)


def test_mixed_precision_halves_the_traffic():
    for strategy in ("ddp", "fsdp", "hsdp"):
        _, full = predict(run_collectives(tiny(strategy=strategy), 0))
        _, half = predict(run_collectives(tiny(strategy=strategy, use_mixed_precision=True), 0))
        assert half == pytest.approx(full / 2, rel=0.001), strategy
