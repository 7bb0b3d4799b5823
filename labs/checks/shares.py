"""What an answer of lesson 09 does with shares of rows on real ranks: facts for its judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from labs.checks.ranks import overheard
from labs.checks.seal import sealed
from labs.recorder import Recorder
from labs.wire import WireMeter, new_instrument_group

COLUMNS = ("ordinary", "a time in seconds", "0.1 in each row", "the number of the rank", "small")
COUNTS = (41, 0, 7)  # rows of each rank
LONG_COUNTS = (12_000, 0, 8_000)  # of a table in float32


@dataclass(frozen=True)
class Scaled:
    """What one rank got: expected and built means and deviations by column, and what was sent for them.

    `alone` and `beside` are the same rows, transformed one at a time and with others beside them; `twice` is the last
    of them, transformed two times before. `has_shape`: everything came back in the shape that it had.
    """

    mean: torch.Tensor
    std: torch.Tensor
    alone: torch.Tensor
    beside: torch.Tensor
    twice: torch.Tensor
    has_shape: bool
    num_late_calls: int
    call_bytes: int
    received_bytes: int | None

    @property
    def built(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the expected mean lands, and by how much a step of one expected deviation moves a value: 0 and 1."""
        return self.alone[0], self.alone[1] - self.alone[0]


def table_of(rank: int) -> torch.Tensor:
    """Make the rows [COUNTS[rank], columns] of a rank, in float64: each column breaks another kind of arithmetic."""
    source, count = torch.Generator().manual_seed(rank), COUNTS[rank]
    noise = torch.randn(count, 3, generator=source, dtype=torch.float64)
    return torch.stack(
        [
            3 * noise[:, 0] + 2 * rank + 5,
            1.7e9 + 20 * noise[:, 1],
            torch.full((count,), 0.1, dtype=torch.float64),
            torch.full((count,), float(rank), dtype=torch.float64),
            1e-12 * noise[:, 2],
        ],
        dim=1,
    )


def long_table_of(rank: int) -> torch.Tensor:
    """Make the rows of a rank in a long table, in float32, far from zero."""
    return 10_000 + torch.randn(LONG_COUNTS[rank], 3, generator=torch.Generator().manual_seed(rank))


@sealed()
def scaled(standardizer: Callable) -> list[Scaled]:
    """Fit on both tables and transform rows that were not in them."""
    meters = new_instrument_group()
    return [_scaled(standardizer, table, meters) for table in (table_of, long_table_of)]


def statistics(table: Callable) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of all ranks' rows, in one process; a column that never varies keeps deviation 1."""
    rows = torch.cat([table(rank) for rank in range(len(COUNTS))]).double()
    std = rows.std(dim=0, correction=0)
    std[(rows == rows[0]).all(0)] = 1
    return rows.mean(0), std


def _scaled(standardizer: Callable, table: Callable, meters) -> Scaled:
    recorder, wire, scaler = Recorder(meters), WireMeter(meters), standardizer()
    wire.start()
    recorder.start()
    scaler.fit(table(dist.get_rank()).clone())
    calls = recorder.stop().calls
    _, received = wire.stop()
    mean, std = statistics(table)
    probes = torch.stack([mean, mean + std, mean - 3 * std, mean + 7 * std])
    recorder.start()
    twice = [_transformed(scaler, probes[-1:]) for _ in range(2)]
    alone = [_transformed(scaler, probe[None]) for probe in probes]
    beside = _transformed(scaler, probes)
    late = len(recorder.stop().calls)
    has_shape = all(value is not None for value in (*twice, *alone, beside))
    values = [torch.cat(v) if has_shape else probes for v in (alone, [beside], twice)]
    return Scaled(mean, std, *values, has_shape, late, sum(call.size_bytes for call in calls), received)


def _transformed(scaler, rows: torch.Tensor) -> torch.Tensor | None:
    """Transform a copy; None for what is no tensor of the same shape."""
    value = scaler.transform(rows.clone())
    is_fine = isinstance(value, torch.Tensor) and value.shape == rows.shape
    return value.detach().double().clone() if is_fine else None


# Rows of each set, and the numbers of the rows that are predicted wrong: no two ways to count give the same share.
SETS = ((10, (0, 1, 5)), (12, (2, 3)), (3, (1,)), (17, (0, 4, 8, 16)))
EVALUATORS = 4


@dataclass(frozen=True)
class Counted:
    """What one rank returned for each set, the numbers of the rows that it predicted, whether it heard of others."""

    values: list[object]
    predicted: list[list[int]]
    has_heard: list[bool]


def counted(accuracy: Callable) -> Counted:
    """Let the answer evaluate every set; a row's first column is its number."""
    values, predicted, has_heard = [], [], []
    for count, wrong in SETS:
        numbers: list[int] = []

        def predict(rows, wrong=wrong, numbers=numbers):
            mine = [int(number) for number in rows[:, 0]]
            numbers.extend(mine)
            return torch.tensor([number % 3 if number not in wrong else 7 for number in mine], dtype=torch.long)

        rows = torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.long)], dim=1)
        value, heard = overheard(accuracy, predict, rows, torch.arange(count) % 3)
        values.append(_number(value))
        has_heard.append(heard)
        predicted.append(numbers)
    return Counted(values, predicted, has_heard)


def _number(value: object) -> object:
    """A number or a tensor of one as a float, anything else as text."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
