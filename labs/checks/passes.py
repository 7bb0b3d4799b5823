"""What an answer of lesson 05 does inside a backward pass: when rows are reduced, and when their memory is there."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from labs.checks.reference import zero_by_hand as right
from labs.checks.rows import (
    NUM_STEPS,
    OPTIONS,
    Facts,
    SmallModel,
    Twin,
    Watch,
    batch_of,
    gradients_in_rows,
    parameters_of,
    rows_of,
    units_of,
)
from labs.checks.seal import sealed
from labs.peaks import REST


@dataclass
class Moments(Facts):
    """Also: which gradients were ready, in order, and (row, number ready, gradients missing) of each call of act."""

    ready: list[list[str]] = field(default_factory=list)  # name of the row, by gradient
    acts: list[list[tuple[str, int, int]]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # parameters of each row
    peak_bytes: int = 0
    best_bytes: int = 0
    rest_bytes: int = 0  # the most that was there beside parameters and gradients when act was called
    best_rest_bytes: int = 0
    watch: Watch | None = field(default=None, repr=False)
    both: tuple[list[str], list[str]] = ((), ())  # the rows for which each of two acts on the same rows was called


def completed(at_last_gradient) -> Moments:
    """Let the answer reduce rows in some backward passes; then the course's own, for the peak of gradients."""
    model, facts = SmallModel(), Moments()
    rows = rows_of(model)
    facts.sizes = {name: len(row.parameters) for name, row in rows.items()}
    names = {id(row): name for name, row in rows.items()}
    _note_readiness(rows, facts)

    def act(row):
        name = names.get(id(row), f"a {type(row).__name__}")
        facts.rest_bytes = max(facts.rest_bytes, facts.watch.trace.sample()[REST])
        missing = sum(p.grad is None for p in rows[name].parameters) if name in rows else 0
        facts.acts[-1].append((name, len(facts.ready[-1]), missing))
        if not missing and name in rows:
            _reduce(row, facts.watch)

    with sealed():
        for row in rows.values():
            at_last_gradient(row, act)
    facts.peak_bytes = _backwards(model, rows, facts)
    best = _best()
    facts.best_bytes, facts.best_rest_bytes = best.peak_bytes, best.rest_bytes
    facts.both = _two_acts(at_last_gradient)
    return facts


def _two_acts(at_last_gradient) -> tuple[list[str], list[str]]:
    """Let the answer set two acts on each row, as stage 3 does, of which the first lets go of the gradients."""
    model, called = SmallModel(), ([], [])
    rows = rows_of(model)
    names = {id(row): name for name, row in rows.items()}

    def act(number, row):
        called[number].append(names.get(id(row), f"a {type(row).__name__}"))
        for parameter in getattr(row, "parameters", ()):  # what is no row is found before
            parameter.grad = None

    for row in rows.values():
        at_last_gradient(row, partial(act, 0))
        at_last_gradient(row, partial(act, 1))
    model(*batch_of(0, dist.get_rank())).backward()
    return called


def _note_readiness(rows: dict[str, right.Row], facts: Moments) -> None:
    for name, row in rows.items():
        for parameter in row.parameters:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: facts.ready[-1].append(name))


def _backwards(model: SmallModel, rows: dict[str, right.Row], facts: Moments) -> int:
    """Go through some backward passes; returns the most bytes of gradients that were there in the last one."""
    for step in range(NUM_STEPS):
        batches = [batch_of(step, rank) for rank in range(facts.world_size)]
        facts.expected.append(gradients_in_rows(model, *batches))
        facts.ready.append([])
        facts.acts.append([])
        loss = model(*batches[facts.rank])
        facts.watch = watch = Watch(model, rows)
        with watch.trace:
            loss.backward()
        facts.left.append([name for name, p in model.named_parameters() if p.grad is not None])
        facts.built.append({name: watch.note(row.mine.grad) for name, row in rows.items()})
        for row in rows.values():
            row.mine.grad = None
        model.zero_grad()
    facts.watch = None
    return watch.trace.record.peak_of("gradients")


def _reduce(row: right.Row, watch: Watch) -> None:
    """Reduce a row, and wait until gloo's thread has let go of its copies."""
    before = watch.trace.sample()[REST]
    right.reduce_part(row)
    watch.settle(before)


def _best() -> Moments:
    model, facts = SmallModel(), Moments()
    rows = rows_of(model)

    def act(row):
        facts.rest_bytes = max(facts.rest_bytes, facts.watch.trace.sample()[REST])
        _reduce(row, facts.watch)

    for row in rows.values():
        right.at_last_gradient(row, act)
    facts.peak_bytes = _backwards(model, rows, facts)
    return facts


@dataclass
class Held(Facts):
    """Also: bytes of the rows' memory that are there, by moment, and the peak of a step beside the course's own."""

    there: dict[str, dict[str, int]] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_parameters: int = 0
    best: Held | None = None


def computed(gather_compute_free) -> Held:
    """Train with the answer's hooks, beside the course's own."""
    warnings.filterwarnings("ignore", "Full backward hook")
    best = _trained(right.gather_compute_free)
    facts, twin = _trained(gather_compute_free), Twin()
    for step in range(NUM_STEPS):
        loss, weights = twin.step(step)
        facts.expected.append(weights)
        best.losses[step] = loss
    facts.best = best
    return facts


def _trained(gather_compute_free) -> Held:
    model, facts, watches = SmallModel(), Held(), []
    rows = rows_of(model)

    def reduce(row):
        _reduce(row, watches[-1])

    for name, unit in units_of(model).items():
        row = rows[name]
        row.mine.data = row.mine.data.clone()
        right.at_last_gradient(row, reduce)
        with sealed():
            gather_compute_free(unit, row)
    adamw = torch.optim.AdamW([row.mine for row in rows.values()], **OPTIONS)
    facts.there["before the first step"] = _there(rows)
    for step in range(NUM_STEPS):
        watch, batch = Watch(model, rows), batch_of(step, facts.rank)
        watches.append(watch)
        watch.recorder.start()
        with watch.trace:
            loss = model(*batch)
            facts.there["after forward"] = _there(rows)
            loss.backward()
            facts.there["after backward"] = _there(rows)
            gc.collect()
        facts.calls.append(watch.calls())
        adamw.step()
        adamw.zero_grad()
        facts.losses.append(_mean(loss))
        facts.built.append({name: watch.note(row.mine) for name, row in rows.items()})
    record = watch.trace.record
    facts.peak_bytes, facts.peak_parameters = record.peak_bytes, record.peak_of("parameters")
    return facts


def _there(rows: dict[str, right.Row]) -> dict[str, int]:
    """Bytes behind a row's parameters, wherever they are now, beside the rank's own part."""
    return {
        name: sum({p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in row.parameters}.values())
        for name, row in rows.items()
    }


def _mean(loss: torch.Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def row_sizes() -> dict[str, int]:
    """Elements of each row, without padding."""
    return {name: sum(p.numel() for p in parameters) for name, parameters in parameters_of(SmallModel()).items()}
