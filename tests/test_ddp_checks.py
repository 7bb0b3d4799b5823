"""The checks of lesson 03 pass what is right and refuse what is not, each mistake with the hint made for it."""

import pytest
from learners_buckets import launch_later
from wrong_answers.ddp import RIGHT, WRONG, naive_on_rank_0_alone

from labs.checks import STUB_TEXT, check, exercises_of
from labs.checks import ddp as judges
from labs.checks.exercise import reference

NAMES = [f"ddp.{name}" for name in exercises_of("ddp")]


def stub(*_):
    raise NotImplementedError(STUB_TEXT)


@pytest.mark.parametrize("exercise", NAMES)
def test_a_stub_is_not_attempted_and_three_mistakes_are_known(exercise):
    assert check(exercise, stub).state == "not attempted"
    assert sum(name == exercise for name, *_ in WRONG) >= 3


@pytest.mark.parametrize(("exercise", "answer"), [*RIGHT, *((name, reference(name)) for name in NAMES)])
def test_a_right_answer_passes(exercise, answer):
    verdict = check(exercise, answer)
    assert (verdict.state, verdict.hint) == ("passed", ""), str(verdict)


@pytest.mark.parametrize(("exercise", "answer", "hint"), WRONG)
def test_a_wrong_answer_gets_the_hint_made_for_it(exercise, answer, hint):
    verdict = check(exercise, answer)
    assert verdict.state == "failed" and hint in verdict.hint, str(verdict)


def test_an_answer_right_in_numbers_that_overlaps_nothing_is_told_so():
    verdict = check("ddp.launch_when_ready", launch_later)
    assert "The numbers are right, and nothing overlaps" in verdict.found
    assert verdict.rows[0].built == "[7, 7, 7, 7]" != verdict.rows[0].expected


def test_a_collective_on_one_rank_alone_is_shown_as_a_hang(monkeypatch):
    monkeypatch.setattr(judges, "LIMIT_SECONDS", 3.0)
    verdict = check("ddp.naive", naive_on_rank_0_alone)
    assert verdict.state == "failed" and "Every rank must issue the same collectives" in verdict.hint, str(verdict)
