"""Behind every check stand wrong answers that it must refuse, each with the hint made for it."""

import math

import pytest
from known_answers import mistakes, right_answers, stub, verdict_on

from labs.checks import all_exercises, check

EXERCISES = all_exercises()
MISTAKES = mistakes()


def _id(value):
    return getattr(value, "__name__", None) or (value if isinstance(value, str) else None)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_stub_is_not_attempted(exercise):
    assert check(exercise, stub).state == "not attempted"


@pytest.mark.parametrize(("exercise", "answer"), right_answers(), ids=_id)
def test_a_right_answer_passes_without_a_hint(exercise, answer):
    verdict = check(exercise, answer)
    assert (verdict.state, verdict.hint) == ("passed", ""), str(verdict)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.exercise}-{_id(m.answer)}")
def test_a_wrong_answer_fails_with_the_hint_made_for_it(mistake):
    verdict = verdict_on(mistake)
    assert verdict.state == "failed" and mistake.hint in verdict.hint, str(verdict)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_check_knows_three_mistakes_and_has_a_hint_of_its_own_for_each(exercise):
    mine = [mistake for mistake in MISTAKES if mistake.exercise == exercise]
    kinds = {mistake.hint for mistake in mine}
    assert len(kinds) >= 3, f"tests/wrong_answers/{exercise.partition('.')[0]}.py knows {sorted(kinds)} alone"
    whole = {}
    for mistake in mine:
        whole.setdefault(verdict_on(mistake).hint, set()).add(mistake.hint)
    shared = {hint: parts for hint, parts in whole.items() if len(parts) > 1}
    assert not shared, "different mistakes get the same hint"


def test_no_list_of_answers_names_an_exercise_that_is_not_there():
    named = {name for name, _ in right_answers()} | {mistake.exercise for mistake in MISTAKES}
    assert named == set(EXERCISES)


def test_no_judge_can_be_fooled_by_two_totals_that_look_alike():
    from labs.checks.start_here import NUMBERS, SHARES

    for numbers in NUMBERS:
        looks = {sum(numbers), sum(numbers) / len(numbers), sum(map(int, numbers)), *numbers}
        assert len(looks) == len(numbers) + 3
    for shares in SHARES:
        means = [sum(share) / len(share) for share in shares if share]
        mean = sum(map(sum, shares)) / sum(map(len, shares))
        assert not any(math.isclose(mean, other) for other in (sum(means) / len(means), *means))


def test_the_evidence_of_a_deadlock_is_the_line_of_each_rank():
    hanging = next(m for m in MISTAKES if m.answer.__name__ == "scatter_all_send_first")
    verdict = verdict_on(hanging)
    assert "did not come back: ranks 0, 1, 2, 3 wait for one another: no rank can go on." in verdict.found
    assert verdict.found.count("dist.send(") == 4, verdict.found


def test_an_unknown_exercise_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="start_here.global_sum"):
        check("start_here.global_median", stub)
    with pytest.raises(ValueError, match="none in a lesson of that name"):
        check("nowhere.at_all", stub)
