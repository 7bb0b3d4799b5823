"""Lesson 07: its probe, its broken configs, and what its checks show beside their hints."""

from live_ds_config import refusal  # first: it imports DeepSpeed quietly

# isort: split
import pytest
from learners_deepspeed import look_on_rank_0, step_once_at_the_end

from labs.checks import check, zero_engines
from labs.checks import deepspeed_zero as judges
from labs.checks.broken_configs import BROKEN, NUM_RANKS
from labs.config import ModelTrainingConfig
from labs.ds_config import explain
from labs.ds_layout import bucket_elements, state_bytes
from labs.launcher import launch
from labs.plots.ds_stages import plot_stages, table_stages


@pytest.fixture(scope="module")
def runs():
    """The checks' small model under stages 0 to 3 on two ranks: {name: (config, what each rank saw)}."""
    found = {}
    for stage in range(4):
        config = zero_engines.config_of(stage)
        config["zero_optimization"]["reduce_bucket_size"] = bucket_elements(sizes())
        found[f"stage {stage}"] = config, launch(zero_engines.ran, config, 0.0, world_size=2)
    return found


def sizes():
    return [parameter.num_elements for parameter in zero_engines.SPEC.parameters()]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_probe_counts_the_bytes_that_the_layout_predicts(stage, runs):
    config = ModelTrainingConfig(
        strategy=f"zero{stage}", world_size=2, use_mixed_precision=False, model=zero_engines.SPEC
    )
    for rank, run in enumerate(runs[f"stage {stage}"][1]):
        held = run.facts.moments["micro-batch 2"].held
        expected = state_bytes(config, rank, zero_engines.SPEC.parameters())
        assert {s: held[s] for s in ("parameters", "gradients", "master_weights")} == {
            s: expected[s] for s in ("parameters", "gradients", "master_weights")
        }


def test_stage_2_holds_its_part_of_the_gradients_between_micro_batches_and_stage_1_all_of_them(runs):
    whole = 4 * sum(sizes())
    between = {name: ranks[0].facts.moments["micro-batch 1"].held["gradients"] for name, (_, ranks) in runs.items()}
    assert between["stage 0"] == between["stage 1"] == whole
    largest = 4 * max(sizes())  # a parameter that lies in both parts is whole on both ranks
    assert whole / 2 <= between["stage 2"] <= whole / 2 + largest < whole


def test_every_stage_trains_as_the_twin_does(runs):
    for _, ranks in runs.values():
        assert all(run.wrong_weights == [] and run.facts.num_updates == 2 for run in ranks)


def test_picture_and_table_show_every_config(runs):
    seen = {name: [run.facts for run in ranks] for name, (_, ranks) in runs.items()}
    explained = {name: explain(config, 2, params=sum(sizes())) for name, (config, _) in runs.items()}
    table = table_stages(seen)
    assert [row[0] for row in table.rows] == list(runs) and all(len(row) == len(table.columns) for row in table.rows)
    assert plot_stages(seen, explained).png().startswith(b"\x89PNG")


def test_three_of_the_broken_configs_are_refused_and_two_are_taken():
    refused = [name for name, case in BROKEN.items() if refusal(case.config, NUM_RANKS)]
    assert refused == ["batch", "loss scale", "template"]
    for name in ("batch", "loss scale"):  # the complaint is DeepSpeed's own
        words = refusal(BROKEN[name].config, NUM_RANKS)
        assert BROKEN[name].complaint.split(": ")[-1].split()[0] in words


def test_a_step_too_few_shows_calls_and_updates():
    verdict = check("deepspeed_zero.train_step", step_once_at_the_end)
    assert [(row.what, row.expected, row.built) for row in verdict.rows] == [
        ("calls of engine.step()", "2", "1"),
        ("updates", "1", "0"),
    ]


def test_looking_on_one_rank_alone_is_shown_as_a_hang(monkeypatch):
    monkeypatch.setattr(judges, "LIMIT_SECONDS", 4.0)
    verdict = check("deepspeed_zero.look", look_on_rank_0)
    assert verdict.state == "failed" and "Every rank must issue the same collectives" in verdict.hint, str(verdict)
