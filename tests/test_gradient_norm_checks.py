"""What the checks of lesson 04 rest on: cases that tell mistakes apart, and the config that the lesson shows."""

import re

import pytest
import torch
from wrong_answers.gradient_norms import clip_gathering, norm_by_gathering

from labs.checks import check
from labs.checks.gradient_norms import SICK
from labs.checks.mistakes.global_norm import WRONG_NORMS, all_shards, whole_norm
from labs.checks.shards import CLIP_CASES, NORM_CASES, TOKEN_CASES, WORLD_SIZE, WRONG_LOSSES, _gradient, _twin
from labs.lessons import find_lessons, read_source

PLAIN_CASES = [case for case in NORM_CASES if case.dtype == torch.float32 and case.infinite_rank is None]


def test_every_wrong_norm_is_far_from_the_right_one_on_every_rank_of_some_case():
    for way, hint in WRONG_NORMS:
        off = [
            min(abs(way(all_shards(case), rank) / whole_norm(case) - 1) for rank in range(WORLD_SIZE))
            for case in PLAIN_CASES
        ]
        assert max(off) > 0.01, hint


def test_the_norm_of_shards_is_that_of_torch_on_all_of_them():
    for case in (*PLAIN_CASES, *CLIP_CASES):
        everything = [shard.double() / case.loss_scale for own in all_shards(case) for shard in own]
        assert whole_norm(case) == pytest.approx(
            torch.nn.utils.get_total_norm(everything).item(), abs=1e-12, nan_ok=True
        )


def test_cases_of_clipping_lie_on_both_sides_of_the_limit_with_and_without_a_loss_scale():
    sides = {(whole_norm(case) > case.max_norm, case.loss_scale > 1) for case in CLIP_CASES}
    assert sides == {(True, True), (True, False), (False, True), (False, False)}
    assert any(whole_norm(case) * case.loss_scale > case.max_norm > whole_norm(case) for case in CLIP_CASES)


def test_every_wrong_loss_has_another_gradient_than_the_twin():
    for name, way in WRONG_LOSSES.items():
        off = [(_gradient(counts, way) - _gradient(counts, _twin)).abs().max() for counts in TOKEN_CASES.values()]
        assert max(off) > 1e-2, name


def test_the_twin_of_unequal_batches_is_one_mean_over_all_real_tokens():
    from labs.checks.shards import _tokens

    for counts in TOKEN_CASES.values():
        parts = [_tokens(rank, own) for rank, own in enumerate(counts)]
        real = torch.cat([losses[is_real] for _, losses, is_real in parts])
        assert len(real) == sum(map(sum, counts))
        assert _twin([part[1:] for part in parts]).item() == pytest.approx(real.mean().item(), rel=1e-6)


def test_the_stack_of_the_check_is_the_one_that_the_lesson_shows():
    (lesson,) = find_lessons(names=["04"])
    source = next(cell.source for cell in read_source(lesson.source).cells if "\nsick = " in cell.source)
    names = {}
    exec("import labs\n" + source.partition("\ndef ")[0], names)
    assert names["sick"].replace(eval_every=SICK.eval_every) == SICK


@pytest.mark.parametrize(("exercise", "answer"), [("global_grad_norm", norm_by_gathering), ("clip_", clip_gathering)])
def test_an_answer_right_in_numbers_that_gathers_the_shards_is_told_what_travelled(exercise, answer):
    verdict = check(f"gradient_norms.{exercise}", answer)
    assert "The numbers are right" in verdict.found and "shards travel (all_gather)" in verdict.found
    (row,) = verdict.rows
    assert row.expected == "at most 48" and int(re.sub(",", "", row.built)) > 1000
