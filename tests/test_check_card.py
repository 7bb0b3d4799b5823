"""Whatever an answer does, its learner reads a card: what was found, the line at fault, what to do next."""

import math
import os
import sys

import pytest
import torch
import torch.distributed as dist
from known_answers import limit_of_ranks, stub

from labs.checks import Answer, Verdict, blocked, check, compare, failed, passed, row, solved
from labs.checks import answer as answers
from labs.checks import session as verbs
from labs.checks.card import as_html
from labs.failures import LaunchError

ONE_PROCESS = "collectives.all_reduce_seconds"  # compared on drawn cases
RANKS = "start_here.global_sum"


class ShardError(Exception):
    def __init__(self, shard, why):
        super().__init__(f"shard {shard}: {why}")


def right(num_bytes, world_size, alpha, beta):
    return 2 * (world_size - 1) * (alpha + num_bytes / world_size * beta)


def raising(*_):
    raise ShardError(3, "no <b>such</b> & rank")


def leaving(*_):
    sys.exit(3)


def ending_its_process(*_):
    os._exit(3)


def calling_itself(*arguments):
    return calling_itself(*arguments)


def never_ending(*_):
    while True:
        pass


def waiting_for_a_message(number):
    other = torch.tensor(number)
    dist.recv(other, 1 - dist.get_rank())
    return other.item()


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize("exercise", [ONE_PROCESS, RANKS])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raising, ["shard 3: no <b>such</b> & rank", "in raising", 'raise ShardError(3, "no <b>such</b> & rank")']),
        (leaving, ["sys.exit(3)", "ended before its result"]),
        (ending_its_process, ["exit status 3"]),
        (calling_itself, ["in calling_itself", "RecursionError", "more calls"]),
        (lambda too, many, arguments, of, mine: 1, ["take the same arguments, in the same order"]),
        (lambda *_: None, ["returned None. Does every way through it end in a return?"]),
        (lambda *_: "x", ["a number", "'x'"]),
        (lambda *_: [1, 2], ["a number"]),
        (lambda *_: {}, ["a number"]),
        (lambda *_: Unprintable(), ["no repr"]),
        (lambda *_: math.nan, ["nan"]),
        (lambda *_: (part for part in (1, 2)), ["generator"]),
        (7, ["7 is no function", "without brackets"]),
    ],
)
def test_an_answer_gone_wrong_gets_a_card_with_its_own_line(exercise, answer, words):
    verdict = check(exercise, answer)
    text = str(verdict)
    assert verdict.state == "failed" and verdict.hint
    assert all(part in text for part in words), text
    assert "Traceback (most recent call last)" not in text and "labs/" not in text, text
    assert "<b>such" not in verdict._repr_html_()


def test_an_endless_loop_is_stopped_and_its_line_shown(monkeypatch):
    monkeypatch.setattr(answers.outcomes, "__defaults__", (1.0,))
    verdict = check(ONE_PROCESS, never_ending)
    assert verdict.state == "failed"
    assert "stopped after 1 s" in verdict.found and "in never_ending" in verdict.found, str(verdict)


def test_ranks_that_wait_for_messages_are_told_of_messages():
    with limit_of_ranks(RANKS, 1.5):
        verdict = check(RANKS, waiting_for_a_message)
    assert verdict.state == "failed" and "receive needs a send" in verdict.hint, str(verdict)
    assert verdict.found.count("dist.recv(other") == 2 and "collectives" not in verdict.hint


@pytest.mark.parametrize("answer", [None, ..., stub])
def test_no_answer_yet_is_neither_right_nor_wrong(answer):
    assert check(ONE_PROCESS, answer).state == "not attempted"


def test_an_answer_that_calls_one_not_written_yet_names_it():
    def mine(*arguments):
        return stub(*arguments)

    verdict = check(RANKS, mine)
    assert verdict.state == "not attempted" and "It calls stub" in verdict.found


def test_what_an_answer_prints_is_shown_for_the_first_case_alone(capfd):
    def printing(*arguments):
        print("the bytes are", arguments[0])
        return right(*arguments)

    assert check(ONE_PROCESS, printing).state == "passed"
    assert capfd.readouterr().out.count("the bytes are") == 1


def test_an_answer_that_changes_its_arguments_changes_them_for_itself_alone():
    def consuming(sizes):
        total = 0
        while sizes:
            total += sizes.pop()
        return total

    cases = [([1, 2, 3],), ([4, 5],)]
    assert compare(Answer(consuming), sum, cases).state == "passed"
    assert cases == [([1, 2, 3],), ([4, 5],)]


def test_a_tensor_of_one_number_a_numpy_number_and_a_float_are_the_same_answer():
    import numpy

    for kind in (torch.tensor, numpy.float64, float):
        assert compare(Answer(lambda x, kind=kind: kind(x / 2)), lambda x: x / 2, [(1.0,), (3.0,)]).state == "passed"


def test_a_float_that_lost_digits_of_a_large_whole_number_is_told_of_the_division():
    verdict = compare(Answer(lambda n: n / 3), lambda n: n // 3, [(3 * 10**18 + 3,), (9,)])
    assert verdict.state == "failed" and "//" in verdict.hint
    assert verdict.rows[0].expected != verdict.rows[0].built


@pytest.mark.parametrize("error", [LaunchError("no ranks here"), OSError(28, "No space left"), ImportError("no torch")])
def test_a_machine_that_cannot_run_the_check_blocks_it_and_is_no_pass(error):
    def judge(_):
        raise error

    verdict = verbs.judged(judge, right)
    assert verdict.state == "blocked" and str(error) in verdict.found and "doctor" in verdict.hint


def test_a_judge_that_trips_over_an_answer_never_shows_a_bare_traceback():
    verdict = verbs.judged(lambda _: {}["missing"], right)
    assert verdict.state == "failed" and "could not read what your function returned" in verdict.found


@pytest.mark.parametrize(
    "verdict",
    [
        passed("All <3 cases."),
        failed("Two & two.\n  line 1\n  line 2", "Add <them>.", row("f(2 < 3)", 4, 5)),
        blocked("No <sockets>.", "mend & try"),
        Verdict("failed", "x", asked="<asked>", exercise="<name>", note="<note>"),
    ],
)
def test_the_card_says_the_words_of_its_text_twin_and_escapes_them(verdict):
    page = as_html(verdict)
    for part in (verdict.state, verdict.hint, verdict.note, verdict.exercise, *verdict.found.split("\n")):
        assert part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in page
        assert part in str(verdict)
    for line in verdict.rows:
        assert line.expected in page and line.built in page and f"built:    {line.built}" in str(verdict)


def test_what_mends_a_machine_is_not_called_a_hint():
    verdict = blocked("No sockets.", "run the doctor")
    assert "to mend: run the doctor" in str(verdict) and "<b>To mend</b>" in as_html(verdict)
    assert "hint" not in str(verdict) + as_html(verdict)


def test_of_two_dicts_the_parts_that_differ_are_set_side_by_side():
    line = row("f()", {"parameters": 1000, "optimizer": 8000}, {"parameters": 1000, "optimizer": 4000})
    assert (line.expected, line.built) == ("optimizer: 8,000", "optimizer: 4,000")
    other = row("f()", {"parameters": 1}, {"params": 1})
    assert (other.expected, other.built) == ("parameters: 1", "params: 1")


def test_solved_goes_on_with_a_passed_answer_and_else_with_the_course_own(capsys):
    from labs.checks.reference.collectives import all_reduce_seconds

    verbs._passed.pop(ONE_PROCESS, None)
    assert solved(ONE_PROCESS, right) is all_reduce_seconds
    check(ONE_PROCESS, right)
    assert solved(ONE_PROCESS, right) is right
    assert solved(ONE_PROCESS, lambda *_: 0) is all_reduce_seconds
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("going on with ")[2] for line in lines] == [
        "the course's own; yours has not passed its check yet.",
        "yours.",
        "the course's own; yours has changed since its check.",
    ]
