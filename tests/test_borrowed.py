"""A check tells an answer that was written from one that calls the course's own solution, by whatever name."""

import functools

import pytest
from known_answers import written_out

import labs
import labs.checks.reference.ddp as right
import labs.collectives
from labs.checks import all_exercises, check, solved
from labs.checks.borrowed import is_borrowed
from labs.checks.exercise import reference
from labs.checks.reference.ddp import naive as theirs
from labs.checks.reference.honest_evaluation import Standardizer


def by_a_global(model):
    theirs(model)


def by_a_module(model):
    right.naive(model)


def by_a_helper(model):
    by_a_global(model)


def by_an_import(model):
    from labs.checks.reference import ddp

    ddp.naive(model)


def by_a_whole_name(model):
    import labs.checks.reference.ddp

    labs.checks.reference.ddp.naive(model)


def by_solved(model):
    solved("ddp.naive", None)(model)


def by_a_default(model, average=theirs):
    average(model)


def by_a_closure(average=None):
    average = theirs
    return lambda model: [average(m) for m in (model,)]


class ByACall:
    def __call__(self, model):
        by_an_import(model)


class ByItsParent(Standardizer):
    pass


def ring_all_reduce(tensor):
    return labs.collectives.ring_all_reduce(tensor)


BORROWED = [
    *((("ddp.naive", answer)) for answer in (theirs, by_a_global, by_a_module, by_a_helper, by_an_import)),
    *((("ddp.naive", answer)) for answer in (by_a_whole_name, by_solved, by_a_default, by_a_closure(), ByACall())),
    ("ddp.naive", functools.partial(by_a_global)),
    ("ddp.naive", ByACall().__call__),
    ("honest_evaluation.standardizer", ByItsParent),
    ("collectives.ring_all_reduce", ring_all_reduce),
]


@pytest.mark.parametrize(("exercise", "answer"), BORROWED, ids=lambda value: getattr(value, "__name__", None))
def test_the_courses_own_solution_is_found_by_whatever_name_it_is_called(exercise, answer):
    assert is_borrowed(exercise, answer)


def of_other_exercises(tensor):
    whole = labs.collectives.ring_all_gather(labs.collectives.ring_reduce_scatter(tensor), tensor.numel())
    return whole if len(whole) else of_other_exercises(tensor)


@pytest.mark.parametrize("exercise", all_exercises())
def test_the_same_words_written_by_somebody_else_are_an_answer(exercise):
    assert not is_borrowed(exercise, written_out(reference(exercise)))


def by_a_method_of_that_name(model):
    model.theirs(model)


def test_a_method_is_not_taken_for_a_variable_of_its_name():
    assert not is_borrowed("ddp.naive", by_a_method_of_that_name)


def test_solutions_of_other_exercises_may_be_used():
    assert not is_borrowed("collectives.ring_all_reduce", of_other_exercises)
    assert not is_borrowed("ddp.flat", by_solved)


def test_a_borrowed_answer_is_right_and_does_not_pass():
    verdict = check("memory_math.state_bytes", reference("memory_math.state_bytes"))
    assert (verdict.state, verdict.found) == ("failed", "It is right, and the course's own solution does the work.")
    assert "what you wrote yourself" in verdict.hint
