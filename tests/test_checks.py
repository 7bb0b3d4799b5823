"""Behind every check stand wrong answers that it must refuse, each with the hint made for it."""

import math

import pytest
import torch
import torch.distributed as dist

from labs.checks import STUB_TEXT, check
from labs.checks.strategy_lab import TASK


def stub(*_):
    raise NotImplementedError(STUB_TEXT)


def sum_right(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def sum_to_rank_0_only(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.reduce(total, dst=0)
    return total.item() if dist.get_rank() == 0 else number


def sum_without_fractions(number):
    total = torch.tensor(int(number))
    dist.all_reduce(total)
    return total.item()


def mean_right(share):
    sum_and_count = torch.tensor([share.sum(), len(share)], dtype=torch.float64)
    dist.all_reduce(sum_and_count)
    return (sum_and_count[0] / sum_and_count[1]).item()


def mean_of_means(share):
    mean = share.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def mean_of_the_ranks_that_hold_something(share):
    pair = torch.tensor([share.mean() if len(share) else 0.0, float(len(share) > 0)])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


def sum_over_ranks(share):
    total = share.sum()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


RIGHT = [
    ("start_here.global_sum", sum_right),
    ("start_here.global_sum", lambda number: torch.tensor(sum_right(number))),
    ("start_here.global_mean", mean_right),
    ("strategy_lab.fewest_bytes_held", lambda: TASK.replace(strategy="fsdp")),
    ("strategy_lab.fewest_bytes_sent", lambda: TASK.replace(strategy="ddp")),
    ("strategy_lab.same_loss", lambda given: given.replace(strategy="fsdp", world_size=2)),
]

WRONG = [
    ("start_here.global_sum", lambda number: number, "its own number"),
    ("start_here.global_sum", sum_to_rank_0_only, "dist.reduce gives the result to one rank"),
    ("start_here.global_sum", lambda number: number * dist.get_world_size(), "times world_size"),
    ("start_here.global_sum", lambda number: sum_right(number) / dist.get_world_size(), "That is the mean"),
    ("start_here.global_sum", sum_without_fractions, "fractions are lost"),
    ("start_here.global_sum", lambda number: 1 / 0, "Mend the line"),
    ("start_here.global_mean", lambda share: share.mean(), "mean of its own share"),
    ("start_here.global_mean", mean_of_means, "mean of the means"),
    ("start_here.global_mean", mean_of_the_ranks_that_hold_something, "mean of the means"),
    ("start_here.global_mean", sum_over_ranks, "divided by the number of ranks"),
    ("start_here.global_mean", lambda share: sum_right(share.sum().item()), "sum of all elements"),
    ("strategy_lab.fewest_bytes_held", lambda: TASK, "cuts every state"),
    ("strategy_lab.fewest_bytes_held", lambda: TASK.replace(strategy="hsdp"), "keeps two copies"),
    ("strategy_lab.fewest_bytes_held", lambda: TASK.replace(strategy="fsdp", offload=True), "offload=False"),
    ("strategy_lab.fewest_bytes_held", lambda: "fsdp", "ModelTrainingConfig"),
    ("strategy_lab.fewest_bytes_sent", lambda: TASK.replace(strategy="fsdp"), "has to fetch"),
    ("strategy_lab.fewest_bytes_sent", lambda: TASK.replace(use_mixed_precision=False), "4 bytes"),
    ("strategy_lab.fewest_bytes_sent", lambda: TASK.replace(world_size=2), "world_size=4"),
    ("strategy_lab.largest_model", lambda cap: TASK, "look at the fullest one"),
    ("strategy_lab.same_loss", lambda given: given.replace(strategy="fsdp"), "number of ranks"),
    (
        "strategy_lab.same_loss",
        lambda given: given.replace(strategy="fsdp", world_size=2, batch_size=8),
        "samples of all ranks together",
    ),
    (
        "strategy_lab.same_loss",
        lambda given: given.replace(strategy="fsdp", world_size=2, learning_rate=1e-2),
        "learning_rate",
    ),
]
EXERCISES = sorted({exercise for exercise, *_ in RIGHT + WRONG})


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_stub_is_not_attempted(exercise):
    assert check(exercise, stub).state == "not attempted"


@pytest.mark.parametrize(("exercise", "answer"), RIGHT)
def test_a_right_answer_passes_without_a_hint(exercise, answer):
    verdict = check(exercise, answer)
    assert (verdict.state, verdict.hint) == ("passed", ""), str(verdict)


@pytest.mark.parametrize(("exercise", "answer", "hint"), WRONG)
def test_a_wrong_answer_fails_with_the_hint_made_for_it(exercise, answer, hint):
    verdict = check(exercise, answer)
    assert verdict.state == "failed" and hint in verdict.hint, str(verdict)


def test_no_judge_can_be_fooled_by_two_totals_that_look_alike():
    from labs.checks.start_here import NUMBERS, SHARES

    for numbers in NUMBERS:
        looks = {sum(numbers), sum(numbers) / len(numbers), sum(map(int, numbers)), *numbers}
        assert len(looks) == len(numbers) + 3
    for shares in SHARES:
        means = [sum(share) / len(share) for share in shares if share]
        mean = sum(map(sum, shares)) / sum(map(len, shares))
        assert not any(math.isclose(mean, other) for other in (sum(means) / len(means), *means))


def test_an_answer_that_waits_for_ever_fails_within_its_limit(monkeypatch):
    def only_rank_0_calls(number):
        return sum_right(number) if dist.get_rank() == 0 else sum_right(number) + sum_right(number)

    from labs.checks import start_here

    launch = start_here.launch
    monkeypatch.setattr(
        start_here, "launch", lambda *args, **options: launch(*args, **{**options, "timeout_seconds": 3})
    )
    verdict = check("start_here.global_sum", only_rank_0_calls)
    assert verdict.state == "failed" and "same collectives" in verdict.hint


def test_an_unknown_exercise_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="start_here.global_sum"):
        check("start_here.global_median", stub)
    with pytest.raises(ValueError, match="none in a lesson of that name"):
        check("nowhere.at_all", stub)
