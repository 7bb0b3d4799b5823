"""The leak table and its picture, against hand counts; and the curves of a run that learns a table."""

from dataclasses import replace

import pytest
from fake_runs import fake_result

from labs.plots import plot_loss
from labs.plots.leaks import Leak, by_gap, plot_leaks, table_leaks
from labs.records import RunResult

WIDE = Leak("wide", [(0.9, 0.5), (0.8, 0.6)])
NARROW = Leak("narrow", [(0.9, 0.9), (0.7, 0.8), (0.8, 0.75)])


def words(picture):
    return " ".join(text.get_text() for axes in picture.axes for text in axes.texts)


def test_the_gap_is_the_mean_of_reported_minus_true_and_its_spread():
    assert WIDE.gap == pytest.approx((0.3, 0.1 * 2**0.5))
    assert WIDE.reported == pytest.approx((0.85, 0.05 * 2**0.5))


def test_the_widest_gap_stands_on_top_and_the_title_names_it():
    assert by_gap([NARROW, WIDE]) == [WIDE, NARROW]
    assert [line[0] for line in table_leaks([NARROW, WIDE]).rows] == ["wide", "narrow"]
    assert table_leaks([NARROW, WIDE]).rows[0] == ("wide", "85.0 ± 7.1", "55.0 ± 7.1", "+30.0 ± 14.1")
    assert "2 to 3 studies" in table_leaks([NARROW, WIDE]).caption
    assert "Wide: 30 points that are not there" in words(plot_leaks([NARROW, WIDE]))


def test_a_gap_that_is_no_larger_than_its_noise_is_not_printed_in_bold():
    weights = {text.get_text(): text.get_fontweight() for text in plot_leaks([NARROW, WIDE]).axes[0].texts}
    assert weights["+30 points"] == "bold" and weights["-2 points"] == "normal"


def with_losses(run: RunResult, factor: float, num_steps: int | None = None) -> RunResult:
    """The run with its last training losses made smaller, cut after some steps."""
    ranks = []
    for rank in run.ranks:
        steps = tuple(replace(step, loss=step.loss * factor ** (step.step > 5)) for step in rank.steps)
        evals = tuple(record for record in rank.evals if num_steps is None or record.step < num_steps)
        ranks.append(replace(rank, steps=steps[:num_steps], evals=evals))
    return replace(run, ranks=tuple(ranks))


def test_losses_that_lie_decades_apart_are_drawn_on_a_log_scale():
    run = fake_result(steps=20)
    assert plot_loss(run).axes[0].get_yscale() == "linear"
    assert plot_loss(with_losses(run, 0.001)).axes[0].get_yscale() == "log"


def test_a_run_that_stopped_early_shows_where_its_best_evaluation_was():
    run = fake_result(steps=40, eval_every=4, early_stopping_patience=2)
    stopped = with_losses(run, 1.0, num_steps=24)
    best = min(stopped.evals, key=lambda record: record.validation_loss)
    assert f"after step {best.step + 1}, 24 steps done" in words(plot_loss(stopped))
    rings = [line for line in plot_loss(stopped).axes[0].lines if line.get_markersize() == 14]
    assert [list(ring.get_xdata()) for ring in rings] == [[best.step + 1]]
    assert not [line for line in plot_loss(fake_result(steps=8)).axes[0].lines if line.get_markersize() == 14]
