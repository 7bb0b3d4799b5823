"""Mistakes in the sharded optimizer: weights, averages that are kept, calls; and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.mistakes.ddp import near
from labs.checks.verdict import Verdict, failed, row

AVERAGES = 2


def step_hint(traceback: str) -> str | None:
    """The hint for an error in the optimizer or its collective; None for one that is not known."""
    last = traceback.strip().rpartition("\n")[2]
    if "NoneType' object is not callable" in last:
        return "Return the function step itself, without brackets."
    if "requires grad" in last or "no_grad" in last:
        return "The collective is no part of the model: pass row.mine.detach()."
    return None


def of_stepped(ranks: Sequence) -> Verdict | None:
    """The twin's weights on every rank after each step, averages of the own part alone, one all-gather a row."""
    for step in range(len(ranks[0].built)):
        for facts in ranks:
            for name, built in facts.built[step].items():
                if not near(built, facts.expected[step][name]):
                    return _weights_verdict(ranks, facts, step, name)
    for facts in ranks:
        if verdict := _averages(facts) or _part_gradients_left(facts):
            return verdict
    return _gather_calls(ranks)


def _weights_verdict(ranks, facts, step: int, name: str) -> Verdict:
    built, expected = facts.built[step][name], facts.expected[step][name]
    found = f"After step {step + 1}, rank {facts.rank} has other weights than the twin in row {name}."
    place = int((built - expected).abs().argmax())
    rows = row(f"element {place} of the row", expected[place], built[place])
    return failed(found, _weights_hint(ranks, facts, step, name), rows)


def _weights_hint(ranks, facts, step: int, name: str) -> str:
    before = facts.expected[step - 1] if step else facts.alone[0]
    built, expected = facts.built[step][name], facts.expected[step][name]
    own, others = _split(facts, built), _split(facts, expected)
    if near(built, before[name]) and not facts.kept_bytes:
        return (
            "AdamW keeps no averages, so it has updated nothing. The gradients of row.parameters are gone, and that of "
            "row.mine is there: give it row.mine of each row, and call its step()."
        )
    if near(built, before[name]):
        return "The weights are those from before the step. Do adamw.step() and the all-gather reach row.whole?"
    if near(own[0], others[0]) and near(own[1], _split(facts, before[name])[1]):
        return (
            "This rank's part is right, those of the others are old: the ranks drift apart. All-gather the parts into "
            "row.whole after the update."
        )
    known = _as_another_optimizer(facts, step, name)
    if known:
        return known
    if step == 0 and not near(own[0], others[0]):
        return "The rank's own part is wrong after one step. Does it update row.mine, with row.mine.grad and **options?"
    return "Follow the own part of one rank, and then the part of another: which one is not the twin's?"


def _split(facts, whole):
    import torch

    parts = list(whole.chunk(facts.world_size))
    return parts.pop(facts.rank), torch.cat(parts)


_OTHER_OPTIMIZERS = {
    "defaults": "That is AdamW with its own defaults. Pass **options on to it.",
    "adam": "That is Adam, where weight decay goes into the averages. AdamW keeps them apart.",
    "forgets": (
        "The first step is right, the second is not: the averages begin anew. Make the optimizer once, not in step()."
    ),
}


def _as_another_optimizer(facts, step: int, name: str) -> str | None:
    """Name the optimizer that gives these weights, where it is a known one."""
    for other, hint in _OTHER_OPTIMIZERS.items():
        if near(facts.built[step][name], facts.others[other][step][name]):
            return hint
    return None


def _averages(facts) -> Verdict | None:
    """What is kept is two averages of each part, and a few numbers."""
    part = sum(facts.row_bytes.values()) // facts.world_size
    expected, allowance = AVERAGES * part, 64 * len(facts.row_bytes)
    rows = row(f"bytes kept for the optimizer on rank {facts.rank}", expected, facts.kept_bytes)
    if facts.kept_bytes > expected + allowance:
        found = "The weights are right on every rank, and more is kept than two averages of the own part."
        hint = (
            "Nothing is sharded: the optimizer knows more than this rank's part. Give it row.mine of each row, and "
            "nothing else."
        )
        return failed(found, hint, rows)
    return None


def _part_gradients_left(facts) -> Verdict | None:
    if not any(facts.left):
        return None
    found = f"The weights are right. After the step, row.mine.grad of {len(facts.left[0])} rows is still there."
    return failed(found, "Clear the gradients of the parts when they have been used: adamw.zero_grad().")


def _gather_calls(ranks: Sequence) -> Verdict | None:
    for facts in ranks:
        for calls in facts.calls:
            expected = [("all_gather", size) for size in facts.row_bytes.values()]
            if calls == expected:
                continue
            rows = row("calls of one step (kind, bytes)", expected, calls)
            kinds = {kind for kind, _ in calls}
            if kinds == {"all_gather"}:
                found, hint = "The weights are right, with other all-gathers.", "One all-gather for each row, in order."
            elif "all_reduce" in kinds:
                found = "The weights are right, and they came by an all-reduce."
                hint = "Nothing is to be added up: an all-reduce sends twice the bytes of an all-gather."
            else:
                found = f"The weights are right, and they came by {', '.join(sorted(kinds)) or 'no call at all'}."
                hint = "Each rank has a part, and all need all parts: that is one all-gather for each row."
            return failed(found, hint, rows)
    return None
