"""What a pipeline of lesson 09 does when somebody tampers with its test set: facts for its judges.

A pipeline gets all rows and labels, and which rows are for the test; it returns a function that predicts new rows. An
honest one makes it of the training rows alone. So its predictions stay as they are when test labels are changed, when
test rows are, and when a training copy of a test row gets another label.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FunctionType

import cloudpickle
import numpy
import torch

from labs.checks.reference.honest_evaluation import nearest_mean
from labs.checks.seal import sealed
from labs.pickling import dump, load

NUM_SETS = 4
NUM_ROWS, NUM_TEST, NUM_FRESH, NUM_COLUMNS, NUM_TELLING = 200, 80, 80, 3000, 8
SHIFT = 1.3  # between the class means of a column that tells, in its deviations


@dataclass(frozen=True)
class Table:
    """Rows [num_rows, columns] with labels 0 and 1, and which of them are for the test."""

    rows: torch.Tensor
    labels: torch.Tensor
    is_test: torch.Tensor

    def changed(self, **parts: torch.Tensor) -> Table:
        return Table(**{**vars(self), **parts})


@dataclass(frozen=True)
class Tampered:
    """Predictions of the test rows and of fresh ones: `plain` twice, then after each kind of tampering.

    `alone` is `plain`, each row by itself. What is no list of one number a row stands here as text. `forgotten`:
    training rows that stand twice, but not in the test set, and are not known again.
    """

    plain: object
    again: object
    alone: object
    labels_flipped: object
    half_flipped: object
    rows_replaced: object
    copies_flipped: object
    expected: torch.Tensor
    fitted_on_test: int = 0
    forgotten: int = 0
    choices: dict[str, torch.Tensor] = field(default_factory=dict)


@sealed()
def selected(pipeline: Callable) -> list[Tampered]:
    """Let a pipeline that chooses columns work on tables in which 8 of 3,000 columns tell the classes apart."""
    anew = _anew(pipeline)
    return [_tampered(anew, *_wide_table(seed)) for seed in range(NUM_SETS)]


@sealed()
def decontaminated(pipeline: Callable) -> list[Tampered]:
    """Let a pipeline work on tables in which half of the test rows also stand among the training rows."""
    found, anew = [], _anew(pipeline)
    for seed in range(NUM_SETS):
        table, fresh = _doubled_table(seed)
        seen = _tampered(anew, table, fresh)
        found.append(replace(seen, forgotten=_num_forgotten(anew, table)))
    return found


@sealed()
def chosen(pipeline: Callable) -> list[Tampered]:
    """Let a pipeline choose among candidates: one learns, one learns by heart, the others guess."""
    found, anew = [], _anew(pipeline)
    for seed in range(NUM_SETS):
        table, fresh = _wide_table(seed, num_columns=12, telling=torch.arange(NUM_TELLING))
        spies = Spies(seed, table)
        seen = _tampered(lambda *data, spies=spies: anew(spies.fits(), *data), table, fresh)
        choices = {
            name: fit(table.rows[~table.is_test], table.labels[~table.is_test])(_probes(table, fresh))
            for name, fit in spies.named.items()
        }
        in_order = list(choices.values())
        choices |= {"first": in_order[0], "last": in_order[-1]}
        found.append(replace(seen, fitted_on_test=spies.num_fitted_on_test, choices=choices))
    return found


def _anew(pipeline: Callable) -> Callable:
    """Call a new copy of the pipeline each time: one that remembers its last answer would not notice tampering."""
    module = sys.modules.get(pipeline.__module__) if isinstance(pipeline, FunctionType) else None
    is_foreign = module is not None and not module.__name__.startswith(("labs.", "__main__"))
    if is_foreign:  # a file of the learner's: by name the copy would be the function itself
        cloudpickle.register_pickle_by_value(module)
    copy = dump(pipeline)
    if is_foreign:
        cloudpickle.unregister_pickle_by_value(module)
    return lambda *arguments: load(copy)(*arguments)


class Spies:
    """Candidates that note when they are fitted with rows of the test set."""

    def __init__(self, seed: int, table: Table):
        self.test_rows = {_key(row) for row in table.rows[table.is_test]}
        self.num_fitted_on_test = 0
        guesses = {f"guess {number}": _guess(100 * seed + number) for number in range(6)}
        named = list({**guesses, "by heart": _by_heart, "learns": _learns}.items())
        self.named = dict(named[seed:] + named[:seed])  # so that no place in the list is always the right one

    def fits(self) -> list[Callable]:
        return [self._watched(fit) for fit in self.named.values()]

    def _watched(self, fit: Callable) -> Callable:
        def watched(rows, labels):
            self.num_fitted_on_test += sum(_key(row) in self.test_rows for row in rows)
            return fit(rows, labels)

        return watched


def _learns(rows, labels):
    predict = nearest_mean(rows[:, :NUM_TELLING], labels)
    return lambda new: predict(new[:, :NUM_TELLING])


def _by_heart(rows, labels):
    """Know every row that was seen in training, and answer 0 for all others."""
    known = {_key(row): int(label) for row, label in zip(rows, labels, strict=True)}
    return lambda new: torch.tensor([known.get(_key(row), 0) for row in new])


def _guess(seed: int) -> Callable:
    """Depend on the row alone, in a way that has nothing to do with its label."""

    def fit(rows, labels):
        direction = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(seed))
        return lambda new: ((new * direction).sum(1).sin() > 0).long()

    return fit


def _key(row: torch.Tensor) -> tuple:
    return tuple(row.tolist())


def _wide_table(seed: int, num_columns: int = NUM_COLUMNS, telling: torch.Tensor | None = None) -> tuple[Table, Table]:
    """Make a table and fresh rows. Some columns tell the classes apart, by seed others; test rows stand anywhere."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (NUM_ROWS + NUM_FRESH,), generator=source)
    rows = torch.randn(NUM_ROWS + NUM_FRESH, num_columns, generator=source)
    if telling is None:
        telling = torch.randperm(num_columns, generator=source)[:NUM_TELLING]
    rows[:, telling] += SHIFT * labels[:, None]
    return _cut(rows, labels, source)


def _doubled_table(seed: int) -> tuple[Table, Table]:
    """Half of the test rows are copies of training rows, labels too; some training rows stand twice as well.

    The classes lie in opposite corners, so that it takes many rows to tell them apart. The values of the last column
    stand in many rows: one column does not tell copies from others.
    """
    source = torch.Generator().manual_seed(seed)
    rows = torch.rand(NUM_ROWS + NUM_FRESH, 3, generator=source) - 0.5
    rows[:, 2] = 0.01 * (4 * rows[:, 2]).round()
    table, fresh = _cut(rows, ((rows[:, 0] > 0) != (rows[:, 1] > 0)).long(), source)
    test, train = table.is_test.nonzero().flatten(), (~table.is_test).nonzero().flatten()
    for to, copied in ((test[: NUM_TEST // 2], train[: NUM_TEST // 2]), (train[-10:], train[-20:-10])):
        table.rows[to], table.labels[to] = table.rows[copied], table.labels[copied]
    return table, fresh


def _cut(rows: torch.Tensor, labels: torch.Tensor, source: torch.Generator) -> tuple[Table, Table]:
    is_test = torch.zeros(NUM_ROWS, dtype=torch.bool)
    is_test[torch.randperm(NUM_ROWS, generator=source)[:NUM_TEST]] = True
    fresh = Table(rows[NUM_ROWS:], labels[NUM_ROWS:], torch.zeros(NUM_FRESH, dtype=torch.bool))
    return Table(rows[:NUM_ROWS].clone(), labels[:NUM_ROWS].clone(), is_test), fresh


def _probes(table: Table, fresh: Table) -> torch.Tensor:
    return torch.cat([table.rows[table.is_test], fresh.rows])


def _tampered(pipeline: Callable, table: Table, fresh: Table) -> Tampered:
    probes, half = _probes(table, fresh), table.is_test & (torch.arange(NUM_ROWS) % 2 == 0)
    replaced = torch.where(half[:, None], torch.full_like(table.rows, 40.0), table.rows)
    is_copy = ~table.is_test & (table.rows[:, None] == table.rows[table.is_test]).all(2).any(1)
    return Tampered(
        plain=_predictions(pipeline, table, probes),
        again=_predictions(pipeline, table, probes, seed=1),
        alone=_predictions(pipeline, table, probes, at_once=False),
        labels_flipped=_predictions(pipeline, _flipped(table, table.is_test), probes),
        half_flipped=_predictions(pipeline, _flipped(table, half), probes),
        rows_replaced=_predictions(pipeline, table.changed(rows=replaced), probes),
        copies_flipped=_predictions(pipeline, _flipped(table, is_copy), probes),
        expected=torch.cat([table.labels[table.is_test], fresh.labels]),
    )


def _num_forgotten(pipeline: Callable, table: Table) -> int:
    """Give doubled training rows labels that no neighbour has; count those that get another prediction."""
    equal = (table.rows[:, None] == table.rows).all(2)
    doubled = (equal.sum(1) > 1) & ~equal[:, table.is_test].any(1)
    other = _flipped(table, doubled)
    predictions = _predictions(pipeline, other, other.rows[doubled])
    return 0 if isinstance(predictions, str) else int((predictions != other.labels[doubled]).sum())


def _flipped(table: Table, where: torch.Tensor) -> Table:
    return table.changed(labels=torch.where(where, 1 - table.labels, table.labels))


def _predictions(pipeline: Callable, table: Table, probes: torch.Tensor, at_once: bool = True, seed: int = 0) -> object:
    """Call the pipeline on copies, so that it cannot change what the next call sees, and then what it returned.

    Who draws without a seed of their own draws the same under every tampering, and other numbers under another `seed`.
    """
    for sow in (torch.manual_seed, numpy.random.seed, random.seed):
        sow(seed)
    predict = pipeline(table.rows.clone(), table.labels.clone(), table.is_test.clone())
    if not callable(predict):
        return f"not a function but {_shape(predict)}"
    found = []
    for part in [probes.clone()] if at_once else [probe[None] for probe in probes[-4:]]:
        try:
            found.append(torch.as_tensor(predict(part)).detach().clone())
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            return f"a function that asks for more than new rows ({error})"
        if found[-1].shape != (len(part),):
            return f"a function that returns {_shape(found[-1])} for {len(part)} row{'s' * (len(part) > 1)}"
    return torch.cat(found)


def _shape(value: object) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"a value of type {type(value).__name__}"
    )
