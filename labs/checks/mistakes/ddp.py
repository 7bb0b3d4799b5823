"""Mistakes in averaging gradients by hand: what each rank holds, which calls were made, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row

ELEMENT_BYTES = 4


def of_start(replicas: Sequence) -> Verdict | None:
    """Weights of rank 0 on every rank, by broadcasts; None when all is right."""
    kinds = {call.kind for replica in replicas for call in replica.timeline.transfers}
    for replica in replicas:
        wrong = [name for name, value in replica.weights.items() if not near(value, replica.twin_weights[name])]
        if wrong:
            found = f"Rank {replica.rank} does not hold the values of rank 0 in {', '.join(wrong)}."
            name = wrong[0]
            built, expected = replica.weights[name].flatten()[:3], replica.twin_weights[name].flatten()[:3]
            return failed(found, _start_hint(replicas, wrong, kinds), row(f"{name}, first three", expected, built))
        if replica.replaced:
            found = f"On rank {replica.rank} the values are right, and other tensors hold them: {replica.replaced[0]}."
            hint = (
                "Fill the tensors that are there (broadcast does): new ones are not tied, and no optimizer knows them."
            )
            return failed(found, hint)
        if replica.switched:
            found = (
                f"On rank {replica.rank} the values are right, and requires_grad has changed in {replica.switched[0]}."
            )
            hint = "What was trained stays trained, and what was frozen is frozen: torch.no_grad() changes neither."
            return failed(found, hint)
    if kinds - {"broadcast"} or not kinds:
        found = f"The values are right, and they came by {', '.join(sorted(kinds)) or 'no collective at all'}."
        return failed(found, "One rank has it and all need it: that is a broadcast, and it sends the fewest bytes.")
    most = len(list(replicas[0].weights))
    calls = len(replicas[0].timeline.transfers)
    if calls > most:
        found = f"The values are right, in {calls} broadcasts."
        return failed(found, "Each tensor once is enough.", row("broadcasts", f"at most {most}", calls))
    return _start_bytes(replicas)


def _start_bytes(replicas) -> Verdict | None:
    """Whether the broadcasts can have brought the values: a tied weight counts once."""
    weights = {name: value for name, value in replicas[0].weights.items() if name != "head.weight"}
    least = sum(value.nbytes for value in weights.values())
    for replica in replicas:
        built = sum(call.size_bytes for call in replica.timeline.transfers)
        if built < least:
            found = f"The values are right, and rank {replica.rank} cannot have them from these broadcasts."
            hint = "What rank 0 drew is known to rank 0 alone. Broadcast all of it, and let the others keep what comes."
            return failed(found, hint, row("bytes of all broadcasts", f"at least {least}", built))
    return None


def _start_hint(replicas, wrong: list[str], kinds: set[str]) -> str:
    first = replicas[0].weights
    if all(near(replica.weights[name], first[name]) for replica in replicas for name in wrong):
        if "all_reduce" in kinds:
            return (
                "All ranks are equal, and they hold a mean of differently drawn weights: smaller than what the "
                "initialisation is made for. Take those of rank 0."
            )
        return "All ranks are equal, and they hold other values than rank 0 had. Which rank is src?"
    if wrong == ["position.weight"]:
        return "Frozen weights are used in forward, too, and no optimizer will make them equal. Go over all parameters."
    if wrong == ["mean"]:
        return "Parameters are equal, buffers are not. They take part in forward as well: model.buffers()."
    if set(wrong) == {"position.weight", "mean"}:
        return "What is not trained is missing: frozen parameters and buffers take part in forward as well."
    if not kinds:
        return "No collective was called: seeds differ on the ranks, so the values have to travel."
    return "dist.broadcast(tensor, src=0) fills the tensor that it is given. Is it the model's own, or a copy?"


def none_hint(traceback: str) -> str | None:
    """The hint for an error about a gradient that is not there; None for another error."""
    if "NoneType" not in traceback.strip().rpartition("TypeError")[2].rpartition("AttributeError")[2]:
        return None
    return "A frozen parameter has no gradient, its grad is None. Leave out those parameters."


def of_gradients(replicas: Sequence) -> Verdict | None:
    """Gradients of every step on every rank against the twin's; None when all are right."""
    for step in range(min(len(replica.built) for replica in replicas)):
        for replica in replicas:
            for name, expected in replica.expected[step].items():
                built = replica.built[step][name]
                if not near(built, expected):
                    found = f"In step {step}, rank {replica.rank} has another gradient than the twin in {name}."
                    rows = [] if expected is None or built is None else [_first_three(name, expected, built)]
                    return failed(found, _gradient_hint(replicas, replica, step, name), *rows)
    return None


def _first_three(name, expected, built):
    return row(f"{name}, first three", expected.flatten()[:3], built.flatten()[:3])


def _gradient_hint(replicas, replica, step: int, name: str) -> str:
    built, expected, n = replica.built[step][name], replica.expected[step][name], replica.world_size
    if expected is None:
        return "That parameter is frozen: it has no gradient, and must not get one."
    if built is None:
        return "That gradient is gone. It is needed by the optimizer, which comes afterwards."
    alone = [gradients[name] for gradients in replica.alone[step]]
    if near(built, expected * n):
        return "That is the sum over ranks. all_reduce adds up; divide by the world size, once."
    if near(built, expected / n):
        return "That is the mean divided by the world size once more. Divide once."
    agree = all(near(other.built[step][name], built) for other in replicas)
    if agree and any(near(built, gradient) for gradient in alone):
        return "That is the gradient of one rank. Every sample counts: add up over all ranks, then divide."
    if near(built, alone[replica.rank]):
        calls = any(call.micro_batch >= step for call in replica.timeline.transfers)
        return (
            "Calls were made, and the rank still has the gradient of its own batch: the result was not put back into "
            "parameter.grad, or something else than the gradient was averaged."
            if calls
            else "The rank has the gradient of its own batch: nothing was averaged in this step."
        )
    if not built.isfinite().all():
        return "A gradient is inf or nan: what is it divided by?"
    if by := next((k for k in range(2, 9) if k != n and near(built * k, expected * n)), None):
        return f"That is the sum over ranks, divided by {by}. There are {n} ranks here: ask dist.get_world_size()."
    if built.isclose(expected, rtol=0.02, atol=1e-3).all():
        return "Nearly: digits are lost on the way. Let gradients travel in the type that they have."
    if near(built, alone[replica.rank] / n):
        return "That is the rank's own gradient, divided. What came back from all_reduce is not in it."
    if _is_permuted(replica, step):
        return "The right numbers, in other places: cut the long tensor in the order in which it was packed."
    if not agree:
        return "The ranks disagree with each other. Something was added to the gradient after the average was taken."
    return "All ranks agree, on something else. Follow one parameter: what is added up, by what is it divided?"


def _is_permuted(replica, step: int) -> bool:
    import torch

    def all_values(gradients):
        return torch.cat([g.flatten() for g in gradients.values() if g is not None]).sort().values

    built, expected = all_values(replica.built[step]), all_values(replica.expected[step])
    return built.shape == expected.shape and near(built, expected)


def of_weights(replicas: Sequence) -> Verdict | None:
    """After all steps the weights are the twin's, frozen ones untouched."""
    for replica in replicas:
        for name, expected in replica.twin_weights.items():
            if not near(replica.weights[name], expected):
                found = f"The gradients are right; after the last step rank {replica.rank} has other weights in {name}."
                return failed(found, "Change gradients alone. What happens to weights is up to the optimizer.")
    return None


def of_naive_calls(replicas: Sequence) -> Verdict | None:
    sizes = _trained_sizes(replicas)
    for replica in replicas:
        for step, calls in enumerate(_calls_by_step(replica)):
            built = [call.size_bytes for call in calls]
            if len(built) > len(sizes):
                hint = "Each gradient travels once. A tied weight is one parameter: model.parameters() lists it once."
                return _calls_verdict(step, len(sizes), len(built), hint)
            if len(built) < len(sizes):
                hint = "Here every gradient gets a call of its own; the next exercise puts them together."
                return _calls_verdict(step, len(sizes), len(built), hint)
            if verdict := _bytes_verdict(replica, step, calls, sum(sizes)):
                return verdict
    return None


def of_flat_calls(replicas: Sequence) -> Verdict | None:
    sizes = _trained_sizes(replicas)
    for replica in replicas:
        for step, calls in enumerate(_calls_by_step(replica)):
            if len(calls) != 1:
                hint = "One call is asked for: pack all gradients into one long tensor first."
                return _calls_verdict(step, 1, len(calls), hint)
            if verdict := _bytes_verdict(replica, step, calls, sum(sizes)):
                return verdict
    return None


def _calls_verdict(step: int, expected: int, built: int, hint: str) -> Verdict:
    found = f"The gradients are right. Step {step} takes another number of collectives."
    return failed(found, hint, row("collectives in one step", expected, built))


def _bytes_verdict(replica, step: int, calls, expected_bytes: int) -> Verdict | None:
    others = [call.kind for call in calls if call.kind != "all_reduce"]
    if others:
        found = f"The gradients are right, and rank {replica.rank} calls {others[0]}."
        return failed(found, "Every rank needs the sum of all: that is one all_reduce.")
    built = sum(call.size_bytes for call in calls)
    if built == expected_bytes:
        return None
    found = f"The gradients are right. In step {step} other bytes travel than those of the trained parameters."
    if built == 2 * expected_bytes:
        hint = "Each element travels with 8 bytes. Keep the type that the gradients have: 4 bytes are enough."
    elif built > expected_bytes:
        hint = "More than the gradients travels. Frozen parameters have none, a tied weight has one, padding is none."
    else:
        hint = "Fewer bytes travel than the gradients have, so some carry less than they should."
    return failed(found, hint, row("bytes of all calls in one step", expected_bytes, built))


def _trained_sizes(replicas) -> list[int]:
    gradients = replicas[0].expected[0]
    return [ELEMENT_BYTES * g.numel() for g in gradients.values() if g is not None]


def _calls_by_step(replica) -> list[list]:
    """In `averaged` a step is one micro-batch."""
    return [[c for c in replica.timeline.transfers if c.micro_batch == step] for step in range(len(replica.expected))]


def near(built, expected) -> bool:
    import torch

    if built is None or expected is None:
        return built is expected
    return built.shape == expected.shape and torch.allclose(built, expected, rtol=1e-4, atol=1e-6)
