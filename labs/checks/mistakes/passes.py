"""Mistakes inside a backward pass: rows reduced too early or too late, memory that stays; and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.mistakes.ddp import near
from labs.checks.verdict import Verdict, failed, row

SMALL_BYTES = 256  # a counter in a tensor is no gradient


def of_completed(ranks: Sequence) -> Verdict | None:
    """act(row) at the last gradient of each row, in every backward, on every rank; None when all is right."""
    for facts in ranks:
        for step, acts in enumerate(facts.acts):
            if verdict := _acts_verdict(facts, step, acts):
                return verdict
    for facts in ranks:
        if verdict := _hoard(facts) or _both_acts(facts):
            return verdict
    return None


def _hoard(facts) -> Verdict | None:
    """Whether more memory is there in backward than need be, wherever the hooks keep it."""
    beside = facts.rest_bytes - facts.best_rest_bytes
    if beside <= SMALL_BYTES:
        return None
    found = f"act is called at the right moments, and rank {facts.rank} frees nothing: your hooks keep what they saw."
    hint = "A gradient lives as long as anybody has it in a list. Count parameters, and keep no gradient."
    return failed(found, hint, row("bytes kept beside the gradients", 0, beside))


def _both_acts(facts) -> Verdict | None:
    """Whether two acts set on the same rows, the first of which clears the gradients, are called once a row each."""
    names = list(facts.sizes)
    for number, called in enumerate(facts.both, 1):
        if sorted(called) != sorted(names):
            found = (
                "With one act a row all is right. Exercise 5 sets a second one on the same row, and then act "
                f"{number} of the two is called {len(called)} times, for {len(names)} rows."
            )
            hint = (
                "Each call of at_last_gradient counts for itself: keep the count in the function, and not on the row, "
                "and do not look whether parameter.grad is there, for the first act has cleared it."
            )
            return failed(found, hint, row("rows, in order of the calls", sorted(names), called))
    return None


def _acts_verdict(facts, step: int, acts) -> Verdict | None:
    ready, where = facts.ready[step], f"backward {step + 1} on rank {facts.rank}"
    complete = {name: len(ready) - ready[::-1].index(name) for name in facts.sizes}
    expected = sorted(complete.values())
    built = [number for _, number, _ in acts]
    rows = row(f"gradients ready at each call, of {len(ready)}", expected, built)
    if strange := [name for name, _, _ in acts if name not in facts.sizes]:
        return failed(f"act was called with {strange[0]} ({where}).", "Call it with the row: act(row).", rows)
    if not acts and step:
        found = f"The first backward is right; in {where} act is not called."
        return failed(found, "Hooks stay, counts too: begin to count anew in each backward.", rows)
    if not acts:
        return failed(
            f"In {where} act is never called.", "When len(row.parameters) gradients are ready: act(row).", rows
        )
    if early := [(name, missing) for name, _, missing in acts if missing]:
        name, missing = early[0]
        found = f"In {where} act is called when {missing} of {facts.sizes[name]} gradients of {name} are not there."
        if built == [number - 1 for number in expected]:
            hint = (
                "parameter.register_hook is called before the gradient stands in parameter.grad. Use "
                "register_post_accumulate_grad_hook."
            )
        elif len(acts) > len(expected):
            hint = "act is called for each gradient. Count them, and call it once, when the last one is ready."
        else:
            hint = (
                "The gradient that you wait for is not the last one to be ready: backward has an order of its own. "
                "Count all of the row."
            )
        return failed(found, hint, rows)
    if len(acts) != len(expected):
        return failed(f"In {where} act is called {len(acts)} times, for {len(expected)} rows.", "Once a row.", rows)
    if built != expected:
        return _late(facts, where, rows)
    return None


def _late(facts, where: str, rows) -> Verdict:
    found = (
        f"In {where} the numbers are right, and whole gradients stay longer than they must: at the peak there are "
        f"{facts.peak_bytes:,} bytes of gradients, and {facts.best_bytes:,} are enough."
    )
    hint = (
        "Gradients that are freed after backward have all been there together: that is stage 1. Call act inside the "
        "hook of the row's last gradient, while backward runs."
    )
    return failed(found, hint, rows)


def hook_hint(traceback: str) -> str | None:
    """The hint for an error inside a hook; None for one that is not known."""
    last = traceback.strip().rpartition("\n")[2]
    if "positional argument" in last and "<locals>" in last:  # a hook is made inside the answer
        return "Autograd calls the hook with the parameter, and with nothing else: def note(parameter)."
    return None


def unit_hint(text: str) -> str | None:
    """The hint for a rank that fell over a hook, or over memory which is not there; None for another error."""
    last = text.strip().rpartition("\n")[2]
    if "no attribute 'untyped_storage'" in last:
        return "gather fills row.whole: keep the tensor, and take the memory from under it."
    if "invalid tensor size" in last:
        return (
            "gather found a row.whole of another size. Tensor.resize_ changes the shape and keeps the memory; what has "
            "to be resized is row.whole.untyped_storage()."
        )
    if "must be 2-D" in last or "size mismatch" in last:
        return (
            "A unit has computed with a parameter that was emptied by .data = ..., so that it is no view of row.whole "
            "any more and what gather fills does not reach it. Leave the parameters alone, and take the memory from "
            "under them: row.whole.untyped_storage().resize_(0)."
        )
    if "UntypedStorage" in last:
        return "What a hook after forward returns takes the place of the output. Let it return nothing: def free(*_)."
    if "signal" in text or "out of bounds for storage" in text:
        return (
            "A unit has computed with a row that is not there. It must be gathered before forward and before backward, "
            "and freed only after its last gradient."
        )
    return None


def of_held(ranks: Sequence) -> Verdict | None:
    """The twin's losses and parts, no row whole between its uses, as few gathers as uses; None when all is right."""
    return (
        _there(ranks, "before the first step")
        or _numbers(ranks)
        or _there(ranks, "after forward")
        or _there(ranks, "after backward")
        or _peak(ranks)
        or _gathers(ranks)
    )


_AT_REST = {
    "before the first step": "The row is whole from the start. When the hooks are set, free it for the first time.",
    "after forward": (
        "What forward has gathered stays until backward, so that at the end of forward all of the model is there. Free "
        "the row in a hook after forward."
    ),
    "after backward": "What backward has gathered stays. Free the row when its last gradient has been reduced.",
}


def _there(ranks, moment: str) -> Verdict | None:
    for facts in ranks:
        left = {name: size for name, size in facts.there[moment].items() if size}
        if left:
            total = sum(left.values())
            found = (
                f"{moment.capitalize()}, rank {facts.rank} has {len(left)} of {len(facts.there[moment])} rows whole."
            )
            return failed(found, _AT_REST[moment], row(f"bytes of whole rows {moment}", 0, total))
    return None


def _numbers(ranks) -> Verdict | None:
    for facts in ranks:
        for step, loss in enumerate(facts.losses):
            expected = facts.best.losses[step]
            if not abs(loss - expected) < 1e-4 * abs(expected):
                found = f"In step {step + 1} the loss is not the twin's."
                return failed(found, _loss_hint(step), row("loss", expected, loss))
            for name, whole in facts.expected[step].items():
                if not near(facts.built[step][name], facts.part_of(whole)):
                    found = f"After step {step + 1} rank {facts.rank} has other values in its part of {name}."
                    hint = "The losses are right so far, so forward is. What did backward compute with?"
                    return failed(found, hint)
    return None


def _loss_hint(step: int) -> str:
    if step:
        return "The first step is right: later ones compute with old values. Gather before each use, not only once."
    return "Forward computes with something else than the parameters. Is the row gathered before the unit computes?"


def _peak(ranks) -> Verdict | None:
    for facts in ranks:
        block = max(facts.row_bytes.values())
        if facts.peak_bytes > facts.best.peak_bytes + block // 2:
            found = "Numbers and rows look right, and at the peak of the step there is memory of more than one block."
            hint = (
                "Memory that is let go of is still there: autograd's views of it, or a second copy, keep it. Resize "
                "the storage of row.whole, and gather into row.whole again."
            )
            return failed(found, hint, row("bytes at the peak", facts.best.peak_bytes, facts.peak_bytes))
    return None


def _gathers(ranks) -> Verdict | None:
    for facts in ranks:
        built = sum(kind == "all_gather" for kind, _ in facts.calls[-1])
        most = sum(kind == "all_gather" for kind, _ in facts.best.calls[-1])
        if built > most:
            found = "The numbers are right, and rows are gathered more often than they are used."
            hint = "Twice a use is enough: once before forward, once before backward."
            return failed(found, hint, row("all-gathers in one step", f"at most {most}", built))
        others = sorted({kind for kind, _ in facts.calls[-1]} - {"all_gather", "reduce_scatter"})
        if others:
            found = f"The numbers are right, and a row becomes whole by {others[0]}."
            return failed(found, "Each rank has a part: gather(row) is one all-gather.")
    return None
