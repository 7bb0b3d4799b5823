"""What the checks of lesson 03 show beside their hints; tests/test_checks.py holds every answer to its hint."""

from learners_buckets import launch_later
from wrong_answers.ddp import naive_on_rank_0_alone

from labs.checks import check
from labs.checks import ddp as judges


def test_an_answer_right_in_numbers_that_overlaps_nothing_is_told_so():
    verdict = check("ddp.launch_when_ready", launch_later)
    assert "The numbers are right, and nothing overlaps" in verdict.found
    assert verdict.rows[0].built == "[7, 7, 7, 7]" != verdict.rows[0].expected


def test_a_collective_on_one_rank_alone_is_shown_as_a_hang(monkeypatch):
    monkeypatch.setattr(judges, "RANKS_LIMIT_SECONDS", 3.0)
    verdict = check("ddp.naive", naive_on_rank_0_alone)
    assert verdict.state == "failed" and "Every rank must issue the same collectives" in verdict.hint, str(verdict)
