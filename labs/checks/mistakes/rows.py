"""Mistakes in reducing gradients to parts: what each rank holds and sends, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.mistakes.ddp import near
from labs.checks.verdict import Verdict, failed, row

ELEMENT_BYTES = 4


def of_reduced(ranks: Sequence) -> Verdict | None:
    """The own part of the mean on every rank, nothing else held, one reduce-scatter a row; None when all is right."""
    for facts in ranks:
        if verdict := _weights(facts):
            return verdict
        for step, parts in enumerate(facts.built):
            for name, built in parts.items():
                if verdict := _reduced_verdict(facts, step, name, built):
                    return verdict
    for facts in ranks:
        if verdict := _gradients_left(facts) or _storage(facts) or _kept_after_reduce(facts):
            return verdict
    return _reduce_calls(ranks)


def _reduced_verdict(facts, step: int, name: str, built) -> Verdict | None:
    where = f"rank {facts.rank}, row {name}, call {step + 1}"
    whole = facts.expected[step][name]
    expected = facts.part_of(whole)
    if built is None:
        return failed(f"Afterwards row.mine.grad is None ({where}).", "Assign this rank's part to row.mine.grad.")
    if near(built, expected):
        return None
    found = f"row.mine.grad is not this rank's part of the mean gradient ({where})."
    rows = row("row.mine.grad, first three", expected[:3], built[:3])
    return failed(found, _reduced_hint(facts, step, name, built), rows)


def _reduced_hint(facts, step: int, name: str, built) -> str:
    whole, n = facts.expected[step][name], facts.world_size
    expected, alone = facts.part_of(whole), facts.part_of(facts.alone[step][name])
    if all(part.isnan().all() for part in facts.built[step].values()):
        return "Nothing has been written into it yet. Does the collective run, and has it ended when you go on?"
    if built.isnan().any():
        return (
            "There is something else than a number in it. The padding has to be zeros, and torch.empty holds whatever "
            "was there before: here nan."
        )
    if near(built, expected * n):
        return "That is the sum over ranks. reduce_scatter adds up; divide by the number of ranks."
    if near(built, expected / n):
        return "That is divided by the number of ranks twice. Once is enough."
    if near(built, alone):
        return "That is the part of this rank's own gradient: nothing has come from the other ranks."
    if near(built, alone / n):
        return "That is this rank's own gradient, divided. What came from the others is not in it."
    for rank in range(n):
        if rank != facts.rank and near(built, facts.part_of(whole, rank)):
            return f"That is the part of rank {rank}. Rank r owns the r-th part of the row."
    return "Follow one element: where does it lie in the row, what is added up, by what is it divided?"


def _weights(facts) -> Verdict | None:
    for step, (before, after) in enumerate(facts.weights):
        changed = [name for name, whole in before.items() if not near(after[name], whole)]
        if changed:
            found = f"In call {step + 1} the weights of {changed[0]} have changed on rank {facts.rank}."
            return failed(found, "row.whole holds the parameters: use another tensor for gradients.")
    return None


def _gradients_left(facts) -> Verdict | None:
    for left in facts.left:
        if left:
            found = f"The parts are right, and {len(left)} whole gradients are still there, {left[0]} for one."
            hint = (
                "Each rank keeps all gradients beside its part, so nothing is saved. Set parameter.grad = None for "
                "each parameter of the row; zeros take as much memory as gradients do."
            )
            return failed(found, hint, row("gradients left", 0, len(left)))
    return None


def _storage(facts) -> Verdict | None:
    for name, built in facts.storage_bytes.items():
        part = facts.row_bytes[name] // facts.world_size
        if built > part:
            found = f"The numbers are right, and the memory behind row.mine.grad is larger than a part (row {name})."
            hint = (
                "row.mine.grad is a view of a longer tensor, and a view keeps all of it. Let the collective write into "
                "a tensor that is as long as row.mine."
            )
            return failed(found, hint, row(f"bytes behind row.mine.grad, {name}", part, built))
    return None


def _kept_after_reduce(facts) -> Verdict | None:
    if facts.kept_bytes < ELEMENT_BYTES * 64:
        return None
    found = "The parts are right. Your function keeps other memory that it has made."
    return failed(
        found, "Keep nothing from one call to the next.", row("bytes kept beside the parts", 0, facts.kept_bytes)
    )


def _reduce_calls(ranks: Sequence) -> Verdict | None:
    for facts in ranks:
        for calls in facts.calls:
            others = [kind for kind, _ in calls if kind != "reduce_scatter"]
            expected = [("reduce_scatter", size) for size in facts.row_bytes.values()]
            n = facts.world_size  # gloo carries out dist.reduce_scatter, which takes a list, part by part
            if calls in (expected, [(kind, size // n) for kind, size in expected for _ in range(n)]):
                continue
            rows = row("calls (kind, bytes)", expected, calls)
            if "all_reduce" in others:
                found = "The numbers are right, and every rank received the whole gradient to use a part of it."
                hint = "all_reduce is a reduce-scatter and an all-gather. Only the first half is needed."
                return failed(found, hint, rows)
            if others:
                found = f"The numbers are right, and they came by {others[0]}."
                return failed(found, "One reduce_scatter_tensor for the row does all of it.", rows)
            found = "The numbers are right, with other calls than one reduce-scatter a row."
            return failed(found, "Reduce the whole row in one call: gradient(row).", rows)
    return None


def grad_hint(traceback: str) -> str | None:
    """The hint for an error about gradients; None for one that is not known."""
    last = traceback.strip().rpartition("\n")[2]
    if "grad_dtype" in last:
        return "row.mine.grad must have the type of row.mine: reduce the gradients as they are."
    if "assign a gradient of size" in last or "assigned grad" in last:
        return "row.mine.grad must be as long as row.mine: this rank's part, and not the whole row."
    if "NoneType" in last:
        return "A gradient is gone before it was reduced. Let go of gradients after the collective."
    return None
