"""Early stopping: every rank ends with the same step, the records say why, and the best weights can be read back."""

import os
from contextlib import nullcontext
from math import inf, nan
from pathlib import Path

import pytest
import torch.distributed as dist

from labs.config import ConfigError, ModelTrainingConfig
from labs.data import fit_buffers, load_data
from labs.failures import RankFailed
from labs.launcher import launch
from labs.observe import Observer
from labs.plots import describe_run
from labs.records import EvalRecord
from labs.stopping import BestSoFar
from labs.strategies.base import build_engine
from labs.train import evaluate, train_rank
from labs.workload import build_model

# Patience, losses in order, and the number of the evaluation that ends the run, counted by hand.
COURSES = [
    (1, [3, 2, 1, 1], 4),
    (2, [3, 4, 2, 5, 6, 1], 5),
    (2, [3, 4, 5, 1], 3),
    (3, [nan, nan, nan], 3),
    (2, [nan, 5, nan, 6], 4),
    (2, [inf, inf], 2),
    (None, [1, 2, 3, 4, 5], None),
]


@pytest.mark.parametrize("patience, losses, last", COURSES)
def test_a_run_ends_after_so_many_evaluations_without_a_better_one(patience, losses, last):
    config = ModelTrainingConfig(steps=100, eval_every=1, early_stopping_patience=patience)
    best = BestSoFar(config, engine=None, observer=None)
    ended = [best.ends_run(EvalRecord(step, loss, 1.0)) for step, loss in enumerate(losses)]
    assert ended.index(True) + 1 == last if last else not any(ended)


def trained_and_read_back(config):
    """Train on this rank; then let a fresh engine read the best weights, and evaluate it."""
    record = train_rank(config)
    dataset = load_data(config)
    model = build_model(config.model, seed=config.seed + 1)
    fit_buffers(model, dataset)
    engine = build_engine(config, model)
    observer = Observer(config, engine)
    engine.load(config.best_checkpoint)
    return record, evaluate(engine, dataset, observer)


# A rate at which the loss falls and rises again: the best evaluation is neither the first nor the last.
RISING = dict(
    data="wine", learning_rate=0.1, warmup_steps=0, steps=60, eval_every=2, early_stopping_patience=3, batch_size=8,
    use_mixed_precision=False, max_grad_norm=None,
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero3"])
def test_all_ranks_stop_alike_and_the_best_weights_are_kept(strategy, tmp_path):
    config = ModelTrainingConfig(strategy=strategy, best_checkpoint=str(tmp_path / "best"), **RISING)
    (first, loss), (second, other_loss) = launch(trained_and_read_back, config, world_size=2)
    assert (first.evals, loss) == (second.evals, other_loss)
    assert [step.step for step in first.steps] == [step.step for step in second.steps]
    losses = [record.validation_loss for record in first.evals]
    assert len(first.steps) == 2 * len(losses) < config.steps
    assert losses.index(min(losses)) == len(losses) - 1 - 3
    assert loss == pytest.approx(min(losses), rel=1e-6)
    for record in (first, second):
        assert all(state.predicted_bytes == state.measured_bytes for name, state in record.memory.states.items()
                   if name != "activations")  # fmt: skip
        if record.traffic.sent_bytes is not None:
            assert record.traffic.sent_bytes == pytest.approx(record.traffic.predicted_bytes, rel=0.02)


def test_a_run_says_why_it_ended():
    standing_still = dict(RISING, learning_rate=1e-30, early_stopping_patience=2)
    result = launch(ModelTrainingConfig(strategy="single", **standing_still))
    assert len(result.steps) == 6
    assert result.ended_because == "after step 6 of 60: no better validation loss in 2 evaluations since step 2"
    assert "since step 2\n" in describe_run(result)
    assert launch(ModelTrainingConfig(strategy="single", data="wine", steps=2)).ended_because == "all 2 steps are done"


@pytest.mark.parametrize(
    "fields, proposed",
    [
        (dict(steps=100, eval_every=50, early_stopping_patience=2), "eval_every=33"),
        (dict(steps=100, eval_every=0, early_stopping_patience=1), "eval_every=49"),
        (dict(steps=3, eval_every=1, early_stopping_patience=3), "more steps"),
    ],
)
def test_a_patience_that_could_never_end_the_run_is_refused(fields, proposed):
    with pytest.raises(ConfigError, match=f"cannot end a run.*try {proposed}"):
        ModelTrainingConfig(**fields)
    if proposed != "more steps":
        ModelTrainingConfig(**{**fields, "eval_every": int(proposed.partition("=")[2])})


class HalfSaved:
    """An engine whose second checkpoint is never finished; both have two files."""

    def __init__(self):
        self.num_saved = 0

    def save(self, path):
        self.num_saved += 1
        os.makedirs(path, exist_ok=True)
        Path(path, "first").write_text(str(self.num_saved))
        if self.num_saved == 2:
            raise OSError("No space left on device")
        Path(path, "second").write_text(str(self.num_saved))


class Meeting:
    """Stands for the observer: lets ranks wait for each other."""

    paused = staticmethod(nullcontext)

    def sum_over_ranks(self, values):
        dist.barrier()


def saved_one_and_a_half_times(config):
    best = BestSoFar(config, HalfSaved(), Meeting())
    best.ends_run(EvalRecord(0, 3.0, 4.0))
    try:
        best.ends_run(EvalRecord(1, 2.0, 4.0))
    except OSError as problem:
        return str(problem)


def test_weights_that_cannot_be_written_whole_leave_the_best_ones_before_them(tmp_path):
    folder = tmp_path / "best"
    config = ModelTrainingConfig(strategy="single", best_checkpoint=str(folder))
    assert launch(saved_one_and_a_half_times, config, world_size=1) == ["No space left on device"]
    assert (folder / "first").read_text() == (folder / "second").read_text() == "1"


def test_a_link_to_a_folder_of_another_disk_stays_a_link(tmp_path):
    disk, link = tmp_path / "disk" / "best", tmp_path / "best"
    disk.mkdir(parents=True)
    link.symlink_to(disk)
    config = ModelTrainingConfig(strategy="single", best_checkpoint=str(link))
    for _ in range(2):
        launch(saved_one_and_a_half_times, config, world_size=1)
        assert link.is_symlink() and (disk / "second").read_text() == "1"


def test_a_second_run_replaces_the_weights_of_the_first_and_no_folder_of_somebody_else(tmp_path):
    folder = tmp_path / "best"
    config = ModelTrainingConfig(strategy="single", data="wine", steps=4, best_checkpoint=str(folder))
    launch(config)
    launch(config.replace(strategy="fsdp", world_size=2, batch_size=8))
    assert not (folder / "state.pt").exists() and (folder / ".metadata").exists()
    (tmp_path / "thesis").write_text("words")
    elsewhere = config.replace(best_checkpoint=str(tmp_path))
    with pytest.raises(ConfigError, match="holds best, thesis; name a new folder"):
        launch(elsewhere)  # before a rank is started
    with pytest.raises(RankFailed, match="holds best, thesis; name a new folder"):
        launch(train_rank, elsewhere, world_size=1)  # as under torchrun
    assert (tmp_path / "thesis").read_text() == "words"
