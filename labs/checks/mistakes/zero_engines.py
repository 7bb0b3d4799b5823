"""Mistakes with a live DeepSpeed engine: what each rank counted, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row

BOUNDARY = "DeepSpeed counts micro-batches by the calls of engine.step(): it updates at the last one by itself."


def of_steps(ranks: Sequence, accumulation: int, micro_batch_size: int) -> Verdict | None:
    """Forward passes, calls of step, updates, norms and weights of every rank; None when all is right."""
    for seen in ranks:
        where = f"Stage {seen.stage}, rank {seen.rank}, after the first optimizer step"
        if seen.forwards[0] != accumulation:
            hint = "Each micro-batch needs a forward and a backward pass of its own."
            return failed(f"{where}: not every micro-batch was used once.", hint,
                          row("forward passes", accumulation, seen.forwards[0]))  # fmt: skip
        if seen.samples[0] != (expected := accumulation * micro_batch_size):
            hint = "Micro-batches are small so that their activations fit. Give the engine one of them in each call."
            return failed(f"{where}: forward passes have other sizes than the micro-batches.", hint,
                          row("samples computed", expected, seen.samples[0]))  # fmt: skip
        if seen.calls_of_step[0] != accumulation:
            return _wrong_calls(where, seen, accumulation)
        if seen.updates[0] != 1:
            return failed(f"{where}: the engine has made no update.", BOUNDARY, row("updates", 1, seen.updates[0]))
    return _wrong_norms(ranks) or _wrong_weights(ranks)


def _wrong_calls(where: str, seen, accumulation: int) -> Verdict:
    built, updates = seen.calls_of_step[0], seen.updates[0]
    if not built:
        hint = f"{BOUNDARY} Nobody called it here: without calls the boundary never comes."
    elif built < accumulation:
        hint = f"{BOUNDARY} With fewer calls than backward passes updates come too late, with too many gradients."
    else:
        hint = f"{BOUNDARY} One call for each backward pass, and none after the loop."
    rows = row("calls of engine.step()", accumulation, built), row("updates", 1, updates)
    return failed(f"{where}: another number of calls.", hint, *rows)


def step_hint(traceback: str) -> str | None:
    """The hint for an error that a call of step() out of turn sets off; None for another error."""
    if "optimizer.step()" in traceback:
        return f"Leave engine.optimizer alone. {BOUNDARY}"
    if "engine.step()" in traceback and ("NoneType" in traceback or "KeyError" in traceback):
        return f"{BOUNDARY} A call without a backward pass before it finds no gradients: none after the loop."
    return None


def _wrong_norms(ranks: Sequence) -> Verdict | None:
    for seen in ranks:
        for step, (built, expected, last) in enumerate(
            zip(seen.norms, seen.twin.norms, seen.twin.last_norms, strict=True)
        ):
            if not _near(built, expected):
                found = f"Stage {seen.stage}: in step {step} the global gradient norm is not the twin's."
                return failed(found, _norm_hint(built, expected, last), row("global gradient norm", expected, built))
    return None


def _norm_hint(built: float, expected: float, last: float) -> str:
    ratio = built / expected
    if _near(ratio, 0.5):
        return "Half of it: engine.backward divides by gradient_accumulation_steps itself. Give it the loss as it is."
    if _near(built, last):
        return "That is the last micro-batch alone: gradients were cleared in between. The engine clears them itself."
    if ratio > 1:
        return f"{ratio:.3g} times as much: each micro-batch's loss goes through backward once, as it is."
    return f"{ratio:.3g} of it: each micro-batch's loss goes through backward once, as it is."


def _wrong_weights(ranks: Sequence) -> Verdict | None:
    for seen in ranks:
        if seen.wrong_weights:
            found = f"Stage {seen.stage}, rank {seen.rank}: norms are right, and {seen.wrong_weights[0]} is not."
            return failed(found, "The engine updates the weights; nothing else has to touch them.")
    return None


def of_looks(ranks: Sequence) -> Verdict | None:
    """The whole parameter on every rank, no more gathered than needed, and left as it was; None when all is right."""
    import torch

    for seen in (look for looks in ranks for look in looks):
        if not isinstance(seen.value, torch.Tensor):
            found = f"For {seen.name} rank {seen.rank} got {type(seen.value).__name__}."
            return failed(found, "Return a tensor, on every rank.", row("type", "Tensor", type(seen.value).__name__))
        if seen.value.shape != seen.truth.shape or not torch.equal(seen.value, seen.truth):
            return _wrong_look(seen)
    for seen in (look for looks in ranks for look in looks):
        if not seen.is_released:
            hint = "After the `with` block the parameter must be a part again. Which block was never left?"
            return failed(f"{seen.name} stays whole on rank {seen.rank}.", hint)
        if seen.is_changed:
            hint = "A look changes nothing. With modifier_rank, what you write inside the block goes to all ranks."
            return failed(f"{seen.name} has other values after the look.", hint)
        if seen.gathered_bytes > 2.2 * seen.truth.nbytes + 1000:  # a modifier_rank sends it once more
            rows = row(f"bytes gathered for {seen.name}", f"about {seen.truth.nbytes:,}", seen.gathered_bytes)
            hint = "Gather the one parameter alone, not the model: GatheredParameters takes one, too."
            return failed("The values are right, and more was gathered than asked for.", hint, rows)
    return None


def _wrong_look(seen) -> Verdict:
    built, truth = tuple(seen.value.shape), tuple(seen.truth.shape)
    found = f"For {seen.name} rank {seen.rank} got other values than the parameter has."
    rows = row("shape", str(truth), str(built))
    if seen.value.numel() == 0:
        hint = (
            "That is the empty placeholder, which stage 3 leaves in place of a parameter. Inside `with "
            "deepspeed.zero.GatheredParameters(parameter)` it is whole: take a clone before the block ends."
        )
    elif seen.value.flatten().shape == seen.part.flatten().shape:
        hint = "That is this rank's own part, ds_tensor. The other parts are on the other ranks: gather them."
    elif seen.value.numel() >= seen.truth.numel() and built != truth:
        hint = "The parts are all there, in one row with the padding at its end: cut it off, and give it its shape."
    else:
        hint = "Other values: was the parameter of this name gathered, and cloned inside the block?"
        rows = row("first three", seen.truth.flatten()[:3], seen.value.flatten()[:3])
    return failed(found, hint, rows)


def of_state_dict(full: object, weights: dict) -> Verdict | None:
    """Names, shapes and values of a consolidated checkpoint; None when all is right."""
    import torch

    if not isinstance(full, dict):
        return failed(f"The function returned {type(full).__name__}.", "Return a dictionary {name: full tensor}.",
                      row("type", "dict", type(full).__name__))  # fmt: skip
    tensors = [value for value in full.values() if isinstance(value, torch.Tensor)]
    missing = [name for name in weights if name not in full]
    if tensors and len(missing) == len(weights):
        hint = "Call each tensor as the model does, without a prefix and without the names of files."
        return failed("None of the names is one of the model's.", hint,
                      row("first name", next(iter(weights)), next(iter(full))))  # fmt: skip
    others = [name for name in weights if name in full and not isinstance(full[name], torch.Tensor)]
    if others:
        hint = "Every value is a torch tensor: no array, no list, no shape."
        return failed(f"{others[0]} is no tensor.", hint, row(others[0], "Tensor", type(full[others[0]]).__name__))
    if tensors and not any(value.numel() for value in tensors):
        hint = (
            "That is the state dict of the module: at stage 3 it holds placeholders. The values are in the other "
            "files, *_optim_states.pt, as one flat fp32 part for each rank."
        )
        return failed("Every tensor is empty.", hint, row("elements in all", _count(weights), 0))
    if missing:
        hint = "param_shapes is a list, one entry for each optimizer group: go over all of them."
        return failed(f"{len(missing)} parameters are missing, {missing[0]} for one.", hint,
                      row("parameters", len(weights), len(weights) - len(missing)))  # fmt: skip
    for name, expected in weights.items():
        if full[name].shape != expected.shape:
            return _wrong_shape(name, full[name], expected)
    wrong = [name for name, expected in weights.items() if not torch.equal(full[name].float(), expected)]
    if wrong:
        return _wrong_values(wrong[0], full, weights)
    return None


def _count(weights: dict) -> int:
    return sum(value.numel() for value in weights.values())


def _wrong_shape(name: str, built, expected) -> Verdict:
    shape = tuple(getattr(built, "shape", ()))
    rows = row(name, str(tuple(expected.shape)), str(shape))
    if hasattr(built, "numel") and built.numel() < expected.numel():
        return failed(f"{name} is smaller than the parameter.", "One rank's part is not all: join those of all.", rows)
    return failed(f"{name} has another shape.", "Cut the padding off its end, then view it as its shape says.", rows)


def _wrong_values(name: str, full: dict, weights: dict) -> Verdict:
    import torch

    built, expected = full[name].flatten().float(), weights[name].flatten()
    rows = row(f"{name}, last three", expected[-3:], built[-3:])
    found = f"{name} has its shape, and other values."
    agree = int((built == expected).sum())
    first = next(iter(weights))
    if full[name].dtype.itemsize < weights[name].dtype.itemsize:
        return failed(found, "They were rounded. The optimizer's files hold fp32: keep it.", rows)
    if name == first and torch.isin(expected, built).float().mean() > 0.9:
        return failed(found, "The right numbers, in other places: join the parts in the order of the ranks.", rows)
    first_is_right = torch.equal(full[first].float(), weights[first]) or agree * 2 > built.numel()
    if name == first and not first_is_right:
        hint = "Each parameter is cut by itself: take its part out of every rank's flat, then join these parts."
    else:
        hint = (
            "The first ones are right and later ones slip: a part has ceil(n / ranks) elements on every rank, padding "
            "included, and the next parameter begins behind it."
        )
    return failed(found, hint, rows)


def _near(built: float, expected: float) -> bool:
    return abs(built - expected) <= 1e-3 * abs(expected)
