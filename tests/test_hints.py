"""Hints come in steps: a nudge, the approach, almost the answer."""

import pytest

from labs.checks import all_exercises, find_exercise, hint, hints

NAME = "start_here.global_mean"


@pytest.fixture(autouse=True)
def new_session(monkeypatch):
    monkeypatch.setattr(hints, "_shown", {})


@pytest.mark.parametrize("exercise", all_exercises())
def test_every_exercise_has_three_different_steps(exercise):
    hints = find_exercise(exercise).hints
    assert len(set(hints)) == 3, f"{exercise} has hints={hints}; give a nudge, the approach, and almost the answer"
    assert find_exercise(exercise).asked.endswith(".")


def test_each_call_shows_one_step_more_and_the_last_stays():
    steps = find_exercise(NAME).hints
    for num_open in (1, 2, 3, 3):
        text = str(hint(NAME))
        assert [step in text for step in steps] == [n < num_open for n in range(3)]
        assert (f'hint("{NAME}") again' in text) == (num_open < 3)


def test_the_page_holds_all_steps_and_unfolds_those_asked_for():
    hint(NAME)
    page = hint(NAME)._repr_html_()
    assert page.count("<details open") == 2 and page.count("<details") == 3
    for step in ("nudge", "approach", "almost the answer"):
        assert step in page


def test_exercises_are_hinted_at_one_by_one():
    hint(NAME)
    assert str(hint("start_here.global_sum")).startswith("hint 1 of 3 (nudge)")


def test_a_hint_for_no_exercise_names_those_of_the_lesson():
    with pytest.raises(ValueError, match="start_here.global_sum, start_here.global_mean"):
        hint("start_here.globalsum")
