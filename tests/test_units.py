"""Text for bytes, counts and seconds: right to three figures, and never the wrong unit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.units import GB, GiB, KiB, MiB, format_bytes, format_count, format_figures, format_seconds

BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
COUNTS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60}


def value_of(text, units):
    number, _, unit = text.partition(" ")
    return float(number) * units[unit]


def test_a_gibibyte_is_seven_percent_more_than_a_gigabyte():
    assert GiB / GB == pytest.approx(1.0737, abs=1e-4)
    assert (KiB, MiB, GiB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (1023.6 * KiB, "1.00 MiB"),
        (80 * GiB, "80.0 GiB"),
        (7.38 * 2**40, "7.38 TiB"),
        (5000 * 2**40, "5000 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_bytes_are_written_with_a_binary_unit_and_three_figures(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    "value, figures, text",
    [
        (0, 3, "0"),
        (0.0131, 3, "0.0131"),
        (6.6e-15, 2, "6.6e-15"),
        (99.46, 2, "99"),
        (789.6, 2, "790"),
        (2128.4, 3, "2,130"),
        (-2128.4, 3, "-2,130"),
        (999_600, 3, "1e+06"),
        (1.8e7, 2, "1.8e+07"),
        (float("inf"), 3, "inf"),
    ],
)
def test_norms_are_written_without_an_exponent_up_to_a_million(value, figures, text):
    assert format_figures(value, figures) == text


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 K"),
        (999_999, "1.00 M"),
        (8_030_261_248, "8.03 B"),
        (405_853_388_800, "406 B"),
        (-2500, "-2.50 K"),
    ],
)
def test_counts_are_written_in_thousands_with_three_figures(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0.00 us"), (0.0123, "12.3 ms"), (1, "1.00 s"), (119, "119 s"), (120, "2.0 min"), (3e-6, "3.00 us")],
)
def test_seconds_are_written_in_the_unit_that_reads_best(seconds, text):
    assert format_seconds(seconds) == text


@given(st.integers(0, 2**53))
def test_written_bytes_are_within_half_a_percent(size):
    assert value_of(format_bytes(size), BYTES) == pytest.approx(size, rel=0.0051)


@given(st.integers(0, 10**16))
def test_written_counts_are_within_half_a_percent(count):
    assert value_of(format_count(count), COUNTS) == pytest.approx(count, rel=0.0051)


@given(st.floats(1e-6, 1e6))
def test_written_seconds_are_within_half_a_percent(seconds):
    assert value_of(format_seconds(seconds), SECONDS) == pytest.approx(seconds, rel=0.026 if seconds >= 120 else 0.0051)


@given(st.floats(1e3, 9e14))
def test_no_more_than_three_figures_stand_before_the_unit_of_a_count(count):
    assert re.fullmatch(r"\d{1,3}(\.\d+)? [KMBT]", format_count(count))
