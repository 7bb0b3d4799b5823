"""The rank panel shows what ranks returned, in a picture and in words."""

import re

import pytest

from labs.panel import rank_panel


def test_the_cards_and_their_text_twin_hold_the_same_values_in_order_of_rank():
    panel = rank_panel([dict(rank=0, before=1, after=11), dict(rank=1, before=10, after=11)])
    assert [line.split() for line in str(panel).splitlines()] == [
        ["rank", "before", "after"], ["0", "1", "11"], ["1", "10", "11"],
    ]  # fmt: skip
    words = re.sub(r"<[^>]*>", " ", panel._repr_html_()).split()
    assert words == "rank 0 before 1 after 11 rank 1 before 10 after 11".split()


def test_what_a_rank_returns_cannot_become_markup():
    assert "<script>" not in rank_panel([dict(rank=0, value="<script>")])._repr_html_()


@pytest.mark.parametrize("rows", [[], [dict(value=1)], [dict(rank=0, a=1), dict(rank=1, b=1)]])
def test_rows_that_are_no_panel_are_refused_with_an_example(rows):
    with pytest.raises(ValueError, match="try launch"):
        rank_panel(rows)
