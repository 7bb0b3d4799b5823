"""Standardizers and accuracies as learners write them; tests/wrong_answers/ says what each must hear."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from labs.checks.reference.honest_evaluation import Standardizer, sum_over_ranks


class Fitted:
    """A class of standardizers with one thing done otherwise: `Fitted(...)()` makes one."""

    def __init__(self, statistics=None, mean="right", std="right", transform="right"):
        self.parts = statistics, mean, std, transform
        self.__name__ = f"Fitted({getattr(statistics, '__name__', '')} {mean} {std} {transform})"

    def __call__(self):
        return Scaler(*self.parts)


class Scaler(Standardizer):
    def __init__(self, statistics, mean, std, transform):
        self.statistics, self.kind_of_mean, self.kind_of_std, self.kind_of_transform = statistics, mean, std, transform

    def fit(self, rows):
        super().fit(rows)
        if self.statistics:
            self.mean, self.std = self.statistics(rows)
            return
        rows = rows.double()
        self.mean = MEANS[self.kind_of_mean](rows, self.mean)
        self.std = STDS[self.kind_of_std](rows, self.mean, self.std)

    def transform(self, rows):
        return TRANSFORMS[self.kind_of_transform](self, rows)


def guarded(std, mean):
    return std.where(std > 1e-12 * mean.abs(), 1)


def mean_of_means(rows):
    means = rows.mean(0) if len(rows) else torch.zeros(rows.shape[1], dtype=torch.float64)
    return sum_over_ranks(means) / sum_over_ranks(float(len(rows) > 0))


def from_rank_0(values):
    dist.broadcast(values, 0)
    return values


MEANS = {
    "right": lambda rows, mean: mean,
    "means": lambda rows, mean: mean_of_means(rows),
    "nan": lambda rows, mean: sum_over_ranks(rows.mean(0)) / dist.get_world_size(),
    "rank 0": lambda rows, mean: from_rank_0(rows.mean(0)),
}


def deviations(rows, mean):
    return sum_over_ranks((rows - mean).square().sum(0)), sum_over_ranks(len(rows))


def bare_std(rows, mean):
    squares, count = deviations(rows, mean)
    return (squares / count).sqrt()


def pooled(rows):
    own = rows.var(0, correction=0) if len(rows) else torch.zeros(rows.shape[1], dtype=torch.float64)
    return (sum_over_ranks(own * len(rows)) / sum_over_ranks(len(rows))).sqrt()


def averaged(rows):
    own = rows.std(0, correction=0) if len(rows) else torch.zeros(rows.shape[1], dtype=torch.float64)
    return sum_over_ranks(own) / sum_over_ranks(float(len(rows) > 0))


def sample_std(rows, mean):
    squares, count = deviations(rows, mean)
    return guarded((squares / (count - 1)).sqrt(), mean)


def bare_with_exact_zero(rows, mean):
    """As many write it, on a table whose constant column comes out as exactly 0."""
    std = bare_std(rows, mean)
    return std.where(std > 1e-12 * mean.abs(), 0)


def one_for_zero(rows, mean):
    std = bare_std(rows, mean)
    return std.where(std != 0, 1)


STDS = {
    "right": lambda rows, mean, std: std,
    "pooled": lambda rows, mean, std: guarded(pooled(rows), mean),
    "averaged": lambda rows, mean, std: guarded(averaged(rows), mean),
    "sample": lambda rows, mean, std: sample_std(rows, mean),
    "variance": lambda rows, mean, std: std.square(),
    "bare": lambda rows, mean, std: bare_with_exact_zero(rows, mean),
    "zero": lambda rows, mean, std: one_for_zero(rows, mean),
    "added": lambda rows, mean, std: bare_std(rows, mean) + 1e-8,
    "clamped": lambda rows, mean, std: bare_std(rows, mean).clamp(min=1e-5),
    "absolute": lambda rows, mean, std: std.where(std > 1e-9, 1),
}


def refit(scaler, rows):
    return (rows - rows.mean(0)) / guarded(rows.std(0, correction=0), rows.mean(0))


def running(scaler, rows):
    scaler.mean = 0.9 * scaler.mean + 0.1 * rows.mean(0)
    return (rows - scaler.mean) / scaler.std


def collective(scaler, rows):
    return (rows - sum_over_ranks(scaler.mean) / dist.get_world_size()) / scaler.std


TRANSFORMS = {
    "right": Standardizer.transform,
    "refit": refit,
    "running": running,
    "collective": collective,
    "nothing": lambda scaler, rows: None,
    "centred": lambda scaler, rows: rows - scaler.mean,
}


def own_statistics(rows):
    mean = rows.double().mean(0)
    return mean, guarded(rows.double().std(0, correction=0), mean)


def shifted_by_the_first_row(rows):
    shift = rows[0].double().clone()
    dist.broadcast(shift, 0)
    return shift, shift


def by_squares(rows):
    rows = rows.double()
    count = sum_over_ranks(len(rows))
    mean = sum_over_ranks(rows.sum(0)) / count
    return mean, guarded((sum_over_ranks(rows.square().sum(0)) / count - mean.square()).clamp(min=0).sqrt(), mean)


def as_float32(rows):
    """The dtype that the rows have."""

    def summed(values):
        dist.all_reduce(values)
        return values

    count = summed(torch.tensor(float(len(rows))))
    mean = summed(rows.sum(0)) / count
    return mean, guarded((summed((rows - mean).square().sum(0)) / count).sqrt(), mean)


def statistics_of(parts):
    rows = torch.cat(parts).double()
    mean = rows.mean(0)
    return mean, guarded(rows.std(0, correction=0), mean)


def gathered(rows):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, rows)
    return statistics_of(parts)


def gathered_by_messages(rows):
    """Every rank sends its rows to every other one."""
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(rows))
    parts = [
        rows if rank == dist.get_rank() else rows.new_zeros(count, rows.shape[1]) for rank, count in enumerate(counts)
    ]
    sends = [dist.isend(rows, to) for to in range(len(parts)) if to != dist.get_rank() and len(rows)]
    for source, part in enumerate(parts):
        if source != dist.get_rank() and len(part):
            dist.recv(part, source)
    for send in sends:
        send.wait()
    return statistics_of(parts)


def rounded(rows):
    """Sums in float64 of rows in float32."""
    mean = sum_over_ranks(rows.float().sum(0)) / sum_over_ranks(len(rows))
    return mean, guarded(bare_std(rows, mean), mean)


def skips_an_empty_share(rows):
    if len(rows) == 0:
        return torch.zeros(rows.shape[1]).double(), torch.ones(rows.shape[1]).double()
    return mean_of_means(rows.double()), torch.ones(rows.shape[1]).double()


class ByChan:
    """Right: count, mean and squared deviations of each rank in one collective, merged pair by pair."""

    def fit(self, rows):
        rows = rows.double()
        mean = rows.mean(0) if len(rows) else torch.zeros(rows.shape[1]).double()
        mine = torch.stack([torch.full_like(mean, len(rows)), mean, (rows - mean).square().sum(0)])
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        count, self.mean, squares = parts[0]
        for other_count, other_mean, other_squares in parts[1:]:
            both, gap = count + other_count, other_mean - self.mean
            squares = squares + other_squares + gap.square() * count * other_count / both
            count, self.mean = both, self.mean + gap * other_count / both
        std = (squares / count).sqrt()
        std[std <= 1e-12 * self.mean.abs()] = 1
        self.std = std
        return self

    def transform(self, rows):
        return rows.sub(self.mean).div(self.std)


by_chan = ByChan


def sum_by_messages(values):
    """Pass what came in last on round the ring."""
    total = torch.as_tensor(values, dtype=torch.float64).clone()
    going, rank, world = total.clone(), dist.get_rank(), dist.get_world_size()
    for _ in range(world - 1):
        coming = torch.empty_like(going)
        sending = dist.isend(going, (rank + 1) % world)
        dist.recv(coming, (rank - 1) % world)
        sending.wait()
        total, going = total + coming, coming
    return total


class ByMessages:
    """Right: sums go round a ring; a column is constant when its smallest value is its largest."""

    def fit(self, rows):
        rows = rows.double()
        count = sum_by_messages(len(rows))
        self.mean = sum_by_messages(rows.sum(0)) / count
        beyond = rows.new_full((1, rows.shape[1]), torch.inf)
        low, high = torch.cat([rows, beyond]).amin(0), torch.cat([rows, -beyond]).amax(0)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        self.std = (sum_by_messages((rows - self.mean).square().sum(0)) / count).sqrt()
        self.std[low == high] = 1

    def transform(self, rows):
        return torch.stack([(row - self.mean) / self.std for row in rows])


by_messages = ByMessages


class FromTheCheck:
    """The rows of all ranks, made once more: nothing travels."""

    def fit(self, rows):
        from labs.checks import shares

        self.mean, self.std = shares.statistics(shares.table_of if rows.shape[1] == 5 else shares.long_table_of)

    transform = by_chan.transform


from_the_check = FromTheCheck


def strided(rows):
    return list(range(dist.get_rank(), len(rows), dist.get_world_size()))


def chunked(rows):
    return torch.arange(len(rows)).chunk(dist.get_world_size())[dist.get_rank()]


def padded(rows):
    return list(DistributedSampler(rows, shuffle=False))


def dropped(rows):
    each = len(rows) // dist.get_world_size()
    return list(range(dist.get_rank() * each, (dist.get_rank() + 1) * each))


def rest_at_the_end(rows):
    rank, world = dist.get_rank(), dist.get_world_size()
    each = len(rows) // world
    return list(range(rank * each, len(rows) if rank == world - 1 else (rank + 1) * each))


def accuracy_by(share, how="seen"):
    """An accuracy of a share of the rows, the sums divided in one of several ways."""

    def accuracy(predict, rows, labels):
        mine, world = share(rows), dist.get_world_size()
        right = (predict(rows[mine]) == labels[mine]).sum()
        total, seen = sum_over_ranks(right), sum_over_ranks(len(mine))
        if callable(how):
            return how(right, len(mine))
        if how == "nan":
            return (sum_over_ranks(right / torch.tensor(float(len(mine))) * len(mine)) / len(labels)).item()
        exact = total / len(labels)
        ways = {
            "seen": total / max(1, seen),
            "count": total,
            "twice divided": exact / world,
            "whole": total // len(labels),
        }
        ways |= {"rounded": exact.round(decimals=2), "rank 0": exact * (dist.get_rank() == 0)}
        return {**ways, "percent": 100 * exact, "wrong ones": 1 - exact}[how].item()

    return accuracy


def mean_of_accuracies(right, count):
    return (sum_over_ranks(right / max(1, count)) / sum_over_ranks(float(count > 0))).item()


def each_own(right, count):
    return (right / count).item() if count else 0.0


def not_returned(right, count):
    mean_of_accuracies(right, count)


def accuracy_of_all_rows(predict, rows, labels):
    return (predict(rows) == labels).float().mean().item()


def accuracy_of_rank_0(predict, rows, labels):
    right = (predict(rows) == labels).float().mean() if dist.get_rank() == 0 else torch.tensor(0.0)
    dist.broadcast(right, 0)
    return right.item()


def accuracy_from_the_check(predict, rows, labels):
    """Each rank predicts its share, and looks up what would come out."""
    from labs.checks.shares import SETS

    predict(rows[strided(rows)])
    return next(1 - len(wrong) / count for count, wrong in SETS if count == len(rows))


def accuracy_by_messages(predict, rows, labels):
    """Right: without any collective."""
    mine = strided(rows)
    return sum_by_messages((predict(rows[mine]) == labels[mine]).sum()) / len(labels)


def accuracy_right_and_shared_by_blocks(predict, rows, labels):
    """Right: tensor_split gives blocks that differ by one at most."""
    mine = torch.arange(len(rows)).tensor_split(dist.get_world_size())[dist.get_rank()]
    pair = torch.tensor([float((predict(rows[mine]) == labels[mine]).sum()), float(len(mine))])
    dist.all_reduce(pair)
    return pair[0] / pair[1]
