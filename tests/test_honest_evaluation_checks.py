"""What the checks of lesson 09 show beside their hints; tests/test_checks.py holds every answer to its hint."""

import random

import numpy
import pytest
import torch
from learners_shares import Fitted, accuracy_of_all_rows, gathered
from torch.utils.data import DistributedSampler
from wrong_answers.honest_evaluation import neighbours_of_all, select_with_the_test_set

from labs.checks import check, tampering
from labs.checks import shares as harness


def test_no_two_ways_to_count_the_first_set_look_alike():
    (count, wrong), world = harness.SETS[0], harness.EVALUATORS
    right = torch.tensor([number not in wrong for number in range(count)]).double()
    padded, dropped = (
        [row for rank in range(world) for row in DistributedSampler(right, world, rank, shuffle=False, drop_last=drop)]
        for drop in (False, True)
    )
    own = [right[rank::world].mean() for rank in range(world)]
    ways = [right.mean(), right[padded].mean(), right[dropped].mean(), sum(own) / world, own[0], 1 - right.mean()]
    assert len({round(float(way), 6) for way in ways}) == len(ways)
    assert any(number % world for number, _ in harness.SETS) and any(number < world for number, _ in harness.SETS)


def test_the_statistics_that_a_standardizer_is_held_to_are_those_of_one_process():
    mean, std = harness.statistics(harness.table_of)
    rows = torch.cat([harness.table_of(rank) for rank in range(3)])
    assert mean.tolist() == pytest.approx([sum(column) / len(column) for column in rows.T.tolist()], rel=1e-12)
    assert std[2] == 1 and std[4] < 1e-5 < 1 < std[1]


@pytest.mark.parametrize(
    "exercise, answer, words",
    [
        ("accuracy", accuracy_of_all_rows, "The number is right; the work is not shared"),
        ("standardizer", Fitted(gathered), "The numbers are right, and the rows themselves travel"),
        ("decontaminate", neighbours_of_all, "predictions changed"),
    ],
)
def test_an_answer_right_in_numbers_that_does_not_do_the_thing_is_told_so(exercise, answer, words):
    verdict = check(f"honest_evaluation.{exercise}", answer)
    assert verdict.state == "failed" and words in verdict.found


def test_a_pipeline_that_draws_without_a_seed_draws_the_same_under_every_tampering():
    def draws(rows, labels, is_test):
        numbers = torch.rand(()), numpy.random.rand(), random.random()
        return lambda new: torch.full((len(new),), float(sum(numbers)))

    def predicted(**options):
        return tampering._predictions(draws, table, table.rows, **options)[0]

    table, _ = tampering._doubled_table(0)
    assert predicted() == predicted() == predicted(at_once=False) != predicted(seed=1)


def test_a_leak_that_hides_when_all_labels_are_exchanged_shows_when_half_of_them_are():
    """The distance of two class means does not know which class is which."""
    verdict = check("honest_evaluation.select", select_with_the_test_set)
    assert verdict.state == "failed" and "Test labels were exchanged" in verdict.found
