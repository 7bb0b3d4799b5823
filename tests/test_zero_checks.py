"""What the checks of lesson 05 show beside their hints; tests/test_checks.py holds every answer to its hint."""

from learners_zero import act_after_backward, hold_by_fresh_tensors
from wrong_answers.zero_by_hand import whole_adamw

from labs.checks import check
from labs.checks.passes import row_sizes


def test_plain_adamw_behind_the_name_is_right_in_numbers_and_shown_by_its_bytes():
    verdict = check("zero_by_hand.sharded_adamw", whole_adamw)
    assert "The weights are right on every rank" in verdict.found
    part = sum(-(-size // 3) for size in row_sizes().values())
    assert verdict.rows[0].expected == f"{2 * 4 * part:,}"
    assert int(verdict.rows[0].built.replace(",", "")) >= 3 * 2 * 4 * part


def test_gradients_freed_after_backward_are_shown_by_their_peak():
    verdict = check("zero_by_hand.at_last_gradient", act_after_backward)
    assert "the numbers are right, and whole gradients stay longer than they must" in verdict.found
    assert verdict.rows[0].built == "[12, 12, 12, 12]"


def test_memory_that_only_autograd_holds_is_found():
    verdict = check("zero_by_hand.gather_compute_free", hold_by_fresh_tensors)
    expected, built = (int(text.replace(",", "")) for text in (verdict.rows[0].expected, verdict.rows[0].built))
    assert built > expected + 4 * max(row_sizes().values()) // 2
