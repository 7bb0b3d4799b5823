"""A prediction is written down, read in its unit, and set beside theory and measurement in words that are true."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import predict
from labs.predictions import how_far

HELD = "what will rank 0 hold, in bytes?"


def test_a_prediction_is_written_down_with_its_unit():
    assert str(predict(HELD, 3_600_000)) == f"✎ {HELD}\n  written down: 3.43 MiB (3,600,000 bytes)"


@pytest.mark.parametrize("value", [None, ..., "about a lot", float("nan"), float("inf"), [3], "3 apples"])
def test_no_prediction_never_stops_a_run_and_is_said(value):
    guess = predict(HELD, value)
    assert guess.value is None and "the run goes on without" in str(guess)
    table = guess.compare(measured=100, theory=100)
    assert table.rows[0][1] == guess.remark and table.rows[1] == ("theory", "100 bytes", "exact")


@pytest.mark.parametrize(
    ("question", "value", "read"),
    [
        (HELD, "3.4 MiB", 3_565_158.4),
        (HELD, "2 GB", 2 * 10**9),
        (HELD, "1_024", 1024),
        (HELD, "1,024 bytes", 1024),
        (HELD, "1e6", 10**6),
        ("how many MiB does it send?", 2, 2 * 2**20),
        ("how many MiB does it send?", "512 KiB", 2**19),
        ("how long does it take, in ms?", 3, 0.003),
        ("how long does it take, in ms?", "2 s", 2.0),
        ("how many ranks, at least?", 8, 8),
        ("which strategy sends least?", "ddp", "ddp"),
        ("which strategy sends least?", " ddp ", "ddp"),
    ],
)
def test_values_are_read_in_the_unit_of_their_question_or_their_own(question, value, read):
    assert predict(question, value).value == pytest.approx(read) if not isinstance(read, str) else read


def test_tensors_and_numpy_numbers_are_numbers():
    import numpy
    import torch

    assert predict(HELD, torch.tensor(7)).value == predict(HELD, numpy.int64(7)).value == 7


def test_prediction_theory_and_measurement_stand_side_by_side():
    table = predict(HELD, "2 MiB").compare(measured=2**20, theory=2**20, gloo="1.5 MiB")
    assert table.rows == (
        ("your prediction", "2.00 MiB (2,097,152 bytes)", "2 times too high"),
        ("theory", "1.00 MiB (1,048,576 bytes)", "exact"),
        ("gloo", "1.50 MiB (1,572,864 bytes)", "50 % too high"),
        ("measured", "1.00 MiB (1,048,576 bytes)", ""),
    )
    page = table._repr_html_()
    for words in (word for row in table.rows for word in row):
        assert words in page and words in str(table)


def test_what_the_system_cannot_measure_is_said_and_what_nobody_measured_is_not():
    guess = predict(HELD, 50)
    assert guess.compare(measured=None, theory=100).rows[-1] == ("measured", "not measured on this system", "")
    alone = guess.compare(theory=100).rows
    assert alone == (("your prediction", "50 bytes", "2 times too low"), ("theory", "100 bytes", ""))
    assert guess.compare().rows == (("your prediction", "50 bytes", ""),)


@pytest.mark.parametrize(
    ("value", "truth", "unit", "words"),
    [
        (5, 5, "", "exact"),
        (96, 100, "", "4 % too low"),
        (300, 100, "", "3 times too high"),
        (1, 1024, "", "1,024 times too low"),
        (0, 7, "bytes", "off by -7 bytes"),
        (-1, 7, "", "off by -8"),
        (2**30, 10**9, "bytes", "7.4 % too high (the difference between GiB and GB)"),
        (10**6, 2**20, "bytes", "4.6 % too low (the difference between MiB and MB)"),
        ("ddp", "fsdp", "", "not the same"),
        (1.0001, 1.0, "", "nearly exact"),
        (1, None, "", ""),
    ],
)
def test_the_distance_is_said_in_words(value, truth, unit, words):
    assert how_far(value, truth, unit) == words


@given(st.floats(1e-6, 1e15), st.floats(1e-6, 1e15))
def test_high_and_low_are_never_mixed_up(value, truth):
    words = how_far(value, truth)
    if "nearly" not in words and words != "exact":
        assert ("high" in words) == (value > truth) and ("low" in words) == (value < truth)


@given(st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.integers()), st.binary(), st.booleans()))
def test_no_value_whatsoever_stops_a_run(value):
    for question in (HELD, "which one?"):
        guess = predict(question, value)
        assert isinstance(guess.compare(measured=3, theory=2)._repr_html_(), str) and str(guess)
        assert not (isinstance(guess.value, float) and math.isinf(guess.value))


def test_a_question_and_a_text_are_escaped_on_the_page():
    page = predict("is a < b?", "<b>")._repr_html_() + predict("is a < b?", "<b>").compare(measured="<i>")._repr_html_()
    assert "a < b" not in page and "<b><b>" not in page and "<i>" not in page
