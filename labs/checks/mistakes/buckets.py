"""Mistakes in overlapping communication with backward: plans, moments and micro-batches, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.mistakes.ddp import near, of_gradients
from labs.checks.verdict import Verdict, failed, row


def of_launched_gradients(replicas: Sequence) -> Verdict | None:
    """As `of_gradients`, with a hint of its own for hooks that work once."""
    verdict = of_gradients(replicas)
    calls = [call.micro_batch for call in replicas[0].timeline.transfers]
    if verdict and 0 in calls and 1 not in calls:
        hint = "The first backward works, and the next one makes no call: begin to count anew in each backward."
        return failed(verdict.found, hint, *verdict.rows)
    last_step = len(replicas[0].built) - 1  # the one with two micro-batches
    if verdict and verdict.found.startswith(f"In step {last_step},") and verdict.hint.startswith("All ranks agree"):
        hint = (
            "Two backward passes add up in this step, and one of them travelled. parameter.grad holds both: pack that."
        )
        return failed(verdict.found, hint, *verdict.rows)
    return verdict


def hook_hint(traceback: str) -> str | None:
    """The hint for an error inside a hook; None for one that is not known."""
    last = traceback.strip().rpartition("\n")[2]
    if "'NoneType' object has no attribute 'flatten'" in last:
        return (
            "Some gradient of the bucket is not there yet when you pack it. Hook every parameter of the bucket with "
            "register_post_accumulate_grad_hook, and wait until the last one has been ready."
        )
    if "unpack" in last or "has no attribute 'wait'" in last or "has no attribute 'split'" in last:
        return "finish() takes triples from sync.in_flight: append((bucket, total, handle)), in this order."
    if "positional argument" in last:
        return "Autograd calls the hook with the parameter, and with nothing else: def hook(parameter)."
    return None


def of_launching(replicas: Sequence, buckets: list[list[str]]) -> Verdict | None:
    """Whether each bucket left when it was complete, in active backwards alone, and backward never waited."""
    silent, active = 2, (0, 1, 3)  # micro-batches: the third one only adds up
    for replica in replicas:
        by_micro_batch = [[c for c in replica.timeline.transfers if c.micro_batch == m] for m in range(4)]
        if by_micro_batch[silent]:
            found = (
                f"In a backward with sync.active off, rank {replica.rank} makes {len(by_micro_batch[silent])} calls."
            )
            return failed(found, "Look at sync.active when the bucket is complete: off means that more will be added.")
        for micro_batch in active:
            calls = by_micro_batch[micro_batch]
            ready = [g.parameter for g in replica.timeline.gradients if g.micro_batch == micro_batch]
            if verdict := _moments_verdict(calls, ready, buckets, micro_batch):
                return verdict
    return None


def _moments_verdict(calls, ready: list[str], buckets, micro_batch: int) -> Verdict | None:
    complete = sorted(max(ready.index(name) for name in bucket) + 1 for bucket in buckets)
    built = [call.num_ready for call in calls]
    where = f"gradients ready at each call, of {len(ready)}"
    if len(built) != len(complete):
        found = f"Backward {micro_batch} makes {len(built)} calls for {len(complete)} buckets."
        if len(built) == len(ready):
            hint = "There is a call for each gradient. Wait until the last one of the bucket is ready."
        else:
            hint = "One call a bucket in each backward, when its last gradient is ready."
        return failed(found, hint, row(where, complete, built))
    if built != complete and min(built) >= len(ready):
        found = "The numbers are right, and nothing overlaps: no call is made before the last gradient is ready."
        hint = (
            "Communication begins when there is nothing left to compute. Start each bucket's all-reduce from the hook, "
            "at the moment that its own last gradient is ready."
        )
        return failed(found, hint, row(where, complete, built))
    if built != complete:
        found = "Buckets do not leave at the moment that they are complete."
        return failed(found, "Count the gradients of this bucket alone.", row(where, complete, built))
    return None


def of_waiting(replicas: Sequence) -> Verdict | None:
    if not any(replica.waited for replica in replicas):
        return None
    found = "The numbers are right, and nothing overlaps: rank 0 stands still in backward until the others arrive."
    hint = (
        "The hook waits for the sum. Start the call with async_op=True, put (bucket, total, work) into sync.in_flight, "
        "and let finish() wait."
    )
    return failed(found, hint, row("rank 0 ends its backward alone", "yes", "no"))


def of_accumulation(replicas: Sequence, num_steps: int, num_micro_batches: int, num_buckets: int) -> Verdict | None:
    """Optimizer steps, calls by micro-batch, gradients: in this order."""
    for replica in replicas:
        if len(replica.built) != num_steps:
            found = f"In {num_steps} calls of your function, the optimizer steps {len(replica.built)} times."
            hint = "One optimizer step for all micro-batches together, after the last one."
            return failed(found, hint, row("optimizer steps", num_steps, len(replica.built)))
    for replica in replicas:
        backwards = len({gradient.micro_batch for gradient in replica.timeline.gradients})
        if backwards != num_steps * num_micro_batches:
            found = f"Rank {replica.rank} makes {backwards} backward passes in {num_steps} steps."
            hint = (
                "Make a backward pass for each micro-batch, right after its forward. It frees the activations: that "
                "is why a batch is cut into micro-batches at all."
            )
            return failed(found, hint, row("backward passes", num_steps * num_micro_batches, backwards))
    return (
        _accumulated_gradients(replicas, num_micro_batches)
        or _quiet_micro_batches(replicas, num_micro_batches)
        or _one_synchronisation(replicas, num_micro_batches, num_buckets)
    )


def _accumulated_gradients(replicas, num_micro_batches: int) -> Verdict | None:
    verdict = of_gradients(replicas)
    if verdict is None:
        return None
    hint = _accumulation_hint(replicas, num_micro_batches) or verdict.hint
    if hint.startswith("All ranks agree"):  # on something else: what came before was cleared
        hint = "Only the last micro-batch is in the gradient. Clear gradients once a step, not in each micro-batch."
    return failed(verdict.found, hint, *verdict.rows)


def _accumulation_hint(replicas, k: int) -> str | None:
    name = "up.weight"
    built = [[replica.built[step][name] for replica in replicas] for step in range(2)]
    expected = [replicas[0].expected[step][name] for step in range(2)]
    calls = replicas[0].timeline.transfers
    if built[0][0] is None:
        return "At the optimizer's step there are no gradients. Clear them before the first backward, not after it."
    if near(built[0][0], expected[0] * k):
        return "Each micro-batch's loss is a mean already: divide it by their number, or the step is that much longer."
    if near(built[0][0], expected[0]) and not near(built[1][0], expected[1]):
        return "The first step is right, the second has its gradients and the old ones: clear them between steps."
    if not calls:
        return "No call was made: the last micro-batch needs sync.active."
    if any(replica.num_left or near(replica.built[0][name], _own(replica, name)) for replica in replicas):
        return "Buckets are still in flight when the optimizer steps: call sync.finish() before it."
    first = {call.micro_batch for call in calls if call.micro_batch < k}
    if first and max(first) < k - 1:
        return (
            f"Calls are made in micro-batch {min(first)} of {k}, and what comes later is added on each rank by itself. "
            "Let the last one communicate: then the sum of all of them travels."
        )
    return None


def _own(replica, name: str):
    """The gradient of this rank's own micro-batches, as it is before buckets come back."""
    return replica.alone[0][replica.rank][name]


def _quiet_micro_batches(replicas, k: int) -> Verdict | None:
    for replica in replicas:
        early = [call for call in replica.timeline.transfers if call.micro_batch % k != k - 1]
        if early:
            calls = [sum(c.micro_batch == m for c in replica.timeline.transfers) for m in range(k)]
            expected = [0] * (k - 1) + [calls[-1]]
            found = "The numbers are right, and gradients travel after each micro-batch."
            hint = "Only the sum is needed. Set sync.active off in all micro-batches but the last one."
            return failed(found, hint, row("calls by micro-batch", expected, calls))
    return None


def _one_synchronisation(replicas, k: int, num_buckets: int) -> Verdict | None:
    """Whether nothing travels beside what sync sends."""
    for replica in replicas:
        first = sum(call.micro_batch < k for call in replica.timeline.transfers)
        if first > num_buckets:
            found = (
                f"The numbers are right, and a step takes {first} collectives, where sync has {num_buckets} buckets."
            )
            hint = "sync averages by itself in the backward for which it is active. Nothing else has to travel."
            return failed(found, hint, row("collectives in one step", f"at most {num_buckets}", first))
    return None


def _planned(order=reversed, keep=None, size_of=None, closes_before=False, resets=True, drops_last=False):
    """plan_buckets with one thing done otherwise."""

    def plan_buckets(parameters, bucket_bytes):
        buckets, size = [[]], 0
        for p in order([p for p in parameters if keep is None and p.requires_grad or keep is not None and keep(p)]):
            own = size_of(p) if size_of else p.nbytes
            full = size + own > bucket_bytes if closes_before else size >= bucket_bytes
            if full and buckets[-1]:
                buckets, size = [*buckets, []], 0 if resets else size
            buckets[-1].append(p)
            size += own
        return buckets[:-1] if drops_last and size < bucket_bytes else buckets

    return plan_buckets


def _forward_cut_backward(parameters, bucket_bytes):
    return _planned(order=list)(parameters, bucket_bytes)[::-1]


def _backward_cut_forward(parameters, bucket_bytes):
    from labs.checks.reference import ddp as right  # it imports torch, the board must not

    return right.plan_buckets(parameters, bucket_bytes)[::-1]


PLAN_BUCKETS = (
    (
        _planned(order=list),
        "Backward reaches the last layer first. In this order the first bucket is complete at the very end: turn the "
        "parameters round.",
    ),
    (_backward_cut_forward, "Turn the parameters round, not the list of buckets: the first bucket has the last ones."),
    (_forward_cut_backward, "Cut after turning round: the first bucket is filled from the last parameter on."),
    (_planned(keep=lambda p: True), "A frozen parameter gets no gradient, so a bucket with it is never complete."),
    (
        _planned(closes_before=True),
        "A bucket is closed once it has reached bucket_bytes, as DDP does it; the parameter that reaches it is inside.",
    ),
    (_planned(size_of=lambda p: p.numel()), "bucket_bytes counts bytes, you count elements: parameter.nbytes."),
    (_planned(size_of=lambda p: 4 * p.numel()), "Not every element has 4 bytes: parameter.nbytes knows."),
    (_planned(resets=False), "Begin at 0 bytes with each new bucket."),
    (_planned(drops_last=True), "The last bucket is rarely full. It must travel all the same."),
    (
        lambda parameters, bucket_bytes: [[p for p in reversed(parameters) if p.requires_grad]],
        "One bucket for everything is the flat version again: close it when it has reached bucket_bytes.",
    ),
    (
        lambda parameters, bucket_bytes: [[p] for p in reversed(parameters) if p.requires_grad],
        "One parameter a bucket is the naive version again: fill a bucket up to bucket_bytes.",
    ),
)
