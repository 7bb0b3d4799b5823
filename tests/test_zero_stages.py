"""The stages of lesson 05, built of the course's own solutions: bytes and traffic by the formulas of the lesson."""

import warnings

import pytest
import torch

import labs
from labs.checks.reference.zero_by_hand import (
    Row,
    at_last_gradient,
    gather_compute_free,
    reduce_part,
    sharded_adamw,
)
from labs.traced import by_engine, by_hand, train_traced

SPEC = labs.ModelSpec(num_layers=2, hidden_size=12, num_heads=2, context=8)
CONFIG = labs.ModelTrainingConfig(
    model=SPEC, world_size=2, batch_size=2, use_mixed_precision=False, learning_rate=1e-3, weight_decay=0,
    max_grad_norm=None,
)  # fmt: skip
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0}


def rows_of(model):
    inside = {parameter for block in model.blocks for parameter in block.parameters()}
    return [Row(p for p in model.parameters() if p not in inside), *(Row(block.parameters()) for block in model.blocks)]


def stage_1(model):
    rows = rows_of(model)
    step = sharded_adamw(rows, **OPTIONS)
    return by_hand(model, lambda: [*map(reduce_part, rows), step()], [row.mine for row in rows])


def stage_2(model):
    rows = rows_of(model)
    for row in rows:
        at_last_gradient(row, reduce_part)
    return by_hand(model, sharded_adamw(rows, **OPTIONS), [row.mine for row in rows])


def stage_3(model):
    warnings.filterwarnings("ignore", "Full backward hook")
    rows = rows_of(model)
    for unit, row in zip((model, *model.blocks), rows, strict=True):
        row.mine.data = row.mine.data.clone()
        at_last_gradient(row, reduce_part)
        gather_compute_free(unit, row)
    adamw = torch.optim.AdamW([row.mine for row in rows], **OPTIONS)
    return by_hand(model, lambda: [adamw.step(), adamw.zero_grad()], [row.mine for row in rows])


@pytest.fixture(scope="module")
def runs():
    """Run data parallel training and the three stages on two ranks: {stage: (runs of both ranks)}."""
    versions = [by_engine(CONFIG.replace(strategy="ddp")), stage_1, stage_2, stage_3]
    return {n: labs.launch(train_traced, version, CONFIG, 2, world_size=2) for n, version in enumerate(versions)}


P = SPEC.num_parameters  # even, as are those of a block: no padding on two ranks
BLOCK = sum(p.num_elements for p in SPEC.parameters() if p.unit == "blocks.0")
OUTSIDE = P - 2 * BLOCK


def test_all_stages_train_the_same_model(runs):
    losses = [torch.tensor([rank.losses for rank in ranks]).mean(0) for ranks in runs.values()]
    for other in losses[1:]:
        assert torch.allclose(other, losses[0], rtol=1e-6)


def test_each_rank_holds_the_states_that_its_stage_promises(runs):
    held = {1: (4 * P, 8 * P // 2), 2: (4 * P, 8 * P // 2), 3: (4 * P // 2, 8 * P // 2)}
    for stage, expected in held.items():
        for rank in runs[stage]:
            assert (rank.memory.at_end("parameters"), rank.memory.at_end("optimizer")) == expected
            assert rank.memory.at_end("gradients") == 0


def test_at_the_peak_stage_3_has_its_parts_and_one_block_beside_what_is_outside_of_blocks(runs):
    assert [rank.memory.peak_of("parameters") for rank in runs[3]] == 2 * [4 * (P // 2 + OUTSIDE + BLOCK)]


def test_stage_1_collects_all_gradients_and_stage_2_its_parts_and_one_row(runs):
    for rank in runs[1]:
        assert rank.memory.peak_of("gradients") >= 4 * P
    # the row outside of blocks is the largest here, and it is complete last, when all parts are there
    assert OUTSIDE > BLOCK
    assert [rank.memory.peak_of("gradients") for rank in runs[2]] == 2 * [4 * (P // 2 + OUTSIDE)]


def test_stages_send_two_two_and_three_times_the_parameters(runs):
    for stage, times in {1: 2, 2: 2, 3: 3}.items():
        assert [rank.ring_bytes for rank in runs[stage]] == 2 * [times * 4 * P // 2]
