"""Answers to lesson 00 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
import torch.distributed as dist


def sum_on_every_rank(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def sum_as_a_tensor(number):
    return torch.tensor(sum_on_every_rank(number))


def sum_of_what_all_gather_brings(number):
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return sum(numbers)


def own_number(number):
    return number


def sum_to_rank_0_only(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.reduce(total, dst=0)
    return total.item() if dist.get_rank() == 0 else number


def own_number_times_ranks(number):
    return number * dist.get_world_size()


def mean_in_place_of_the_sum(number):
    return sum_on_every_rank(number) / dist.get_world_size()


def sum_without_fractions(number):
    total = torch.tensor(int(number))
    dist.all_reduce(total)
    return total.item()


def sum_that_raises(number):
    return number / 0


def sum_that_is_not_returned(number):
    sum_on_every_rank(number)


def sum_where_rank_0_calls_once_more(number):
    total = sum_on_every_rank(number)
    return sum_on_every_rank(number) if dist.get_rank() == 0 else total


def mean_of_all_that_all_gather_brings(share):
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, share.tolist())
    elements = [element for share in shares for element in share]
    return sum(elements) / len(elements)


def mean_of_own_share(share):
    return share.mean()


def mean_of_means(share):
    mean = share.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def mean_of_the_ranks_that_hold_something(share):
    pair = torch.tensor([share.mean() if len(share) else 0.0, float(len(share) > 0)])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


def sum_over_ranks(share):
    return sum_on_every_rank(share.sum().item()) / dist.get_world_size()


def sum_of_all_elements(share):
    return sum_on_every_rank(share.sum().item())


def own_sum_over_all_elements(share):
    return share.sum().item() / sum_on_every_rank(float(len(share)))


def sum_that_is_known_beforehand(number):
    from labs.checks.start_here import NUMBERS

    return sum(next(numbers for numbers in NUMBERS if len(numbers) == dist.get_world_size()))


def mean_by_messages(share):
    """Right: without any collective. An array of one is a number, too."""
    total, rank, world = torch.tensor([share.sum(), len(share)]), dist.get_rank(), dist.get_world_size()
    going = total.clone()
    for _ in range(world - 1):
        coming = torch.empty_like(going)
        sending = dist.isend(going, (rank + 1) % world)
        dist.recv(coming, (rank - 1) % world)
        sending.wait()
        total, going = total + coming, coming
    return (total[:1] / total[1:]).numpy()


RIGHT = [
    ("start_here.global_sum", sum_as_a_tensor),
    ("start_here.global_sum", sum_of_what_all_gather_brings),
    ("start_here.global_mean", mean_of_all_that_all_gather_brings),
    ("start_here.global_mean", mean_by_messages),
]

WRONG = [
    ("start_here.global_sum", own_number, "its own number"),
    ("start_here.global_sum", sum_to_rank_0_only, "dist.reduce gives the result to one rank"),
    ("start_here.global_sum", own_number_times_ranks, "times world_size"),
    ("start_here.global_sum", mean_in_place_of_the_sum, "That is the mean"),
    ("start_here.global_sum", sum_without_fractions, "fractions are lost"),
    ("start_here.global_sum", sum_that_raises, "Mend the line"),
    ("start_here.global_sum", sum_that_is_not_returned, "returned None"),
    ("start_here.global_sum", sum_where_rank_0_calls_once_more, "the same collectives"),
    ("start_here.global_sum", sum_that_is_known_beforehand, "let a collective carry it"),
    ("start_here.global_mean", mean_of_own_share, "mean of its own share"),
    ("start_here.global_mean", mean_of_means, "mean of the means"),
    ("start_here.global_mean", mean_of_the_ranks_that_hold_something, "mean of the means"),
    ("start_here.global_mean", sum_over_ranks, "divided by the number of ranks"),
    ("start_here.global_mean", sum_of_all_elements, "sum of all elements"),
    ("start_here.global_mean", own_sum_over_all_elements, "do not agree"),
]
