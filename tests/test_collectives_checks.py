"""The checks of lesson 02 pass what is right and refuse what is not, each mistake with the hint made for it."""

import pytest
from wrong_answers.collectives import RIGHT, WRONG

from labs.checks import STUB_TEXT, check, exercises_of, reference
from labs.checks import collectives as judges

NAMES = [f"collectives.{name}" for name in exercises_of("collectives")]


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    """Answers that hang are part of the list; an honest one takes a tenth of this."""
    monkeypatch.setattr(judges, "LIMIT_SECONDS", 4.0)


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


def test_the_evidence_of_a_deadlock_is_the_line_of_each_rank():
    hanging = next(answer for _, answer, hint in WRONG if hint == "if all ranks send first")
    verdict = check("collectives.ring_reduce_scatter", hanging)
    assert "did not come back within 4 s" in verdict.found
    assert verdict.found.count("dist.send(") == 4, verdict.found
