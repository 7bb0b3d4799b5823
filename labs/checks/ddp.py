"""Judges of lesson 03: gradients on every rank against the twin, then calls, bytes and moments; never seconds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

from labs.checks.answer import learners_lines
from labs.checks.exercise import Exercise
from labs.checks.mistakes import buckets as overlap
from labs.checks.mistakes import ddp as mistakes
from labs.checks.seal import sealed
from labs.checks.verdict import Verdict, failed, passed, row
from labs.failures import RankFailed

WORLD_SIZE = 3  # a mean over two ranks is right by accident too often
RANKS_LIMIT_SECONDS = 20.0


def _on_replicas(harness: str, answer, *arguments) -> list:
    """Run a harness of labs.checks.replicas on the ranks; returns what each saw."""
    from labs.checks import replicas
    from labs.launcher import launch

    return launch(
        getattr(replicas, harness), answer, *arguments, world_size=WORLD_SIZE, timeout_seconds=RANKS_LIMIT_SECONDS
    )


def judge_start_equal(answer) -> Verdict:
    verdict = mistakes.of_start(_on_replicas("equalled", answer))
    return verdict or passed(
        "Three ranks with different seeds end with what rank 0 held, frozen weights and buffers too."
    )


def _judge_average(answer, calls_of: Callable, evidence: str) -> Verdict:
    try:
        replicas = _on_replicas("averaged", answer)
    except RankFailed as error:
        if hint := mistakes.none_hint(error.traceback):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    verdict = mistakes.of_gradients(replicas) or mistakes.of_weights(replicas) or calls_of(replicas)
    return verdict or passed(f"Three steps on three ranks: the twin's gradients on every rank, {evidence}.")


def judge_naive(answer) -> Verdict:
    return _judge_average(answer, mistakes.of_naive_calls, "one call a trained parameter")


def judge_flat(answer) -> Verdict:
    return _judge_average(answer, mistakes.of_flat_calls, "one call a step, of the trained parameters' bytes")


# (shapes from first to last, names of their types, indices that are frozen, bucket_bytes)
PLANS = (
    ((30, 50, 5, 8, 4, 3), ("float32",) * 6, (), 40),
    ((10, 10, 10, 10), ("float32",) * 4, (), 80),
    ((30, 5, 20, 8, 40, 3), ("float32",) * 6, (1, 4), 100),
    ((30, 5, 20, 8, 40, 3), ("bfloat16",) * 6, (), 60),
    ((7, 900, 2, 2), ("float32",) * 4, (), 400),
    ((4, 4, 4), ("float32",) * 3, (), 10**6),
)


def judge_plan_buckets(answer) -> Verdict:
    from labs.checks.reference import ddp as right  # it imports torch, the board must not
    from labs.launcher import launch

    expected = [_plan(right.plan_buckets, plan) for plan in PLANS]
    built = launch(_plans, answer, PLANS, world_size=1, timeout_seconds=RANKS_LIMIT_SECONDS)[0]
    for plan, wanted, found in zip(PLANS, expected, built, strict=False):
        if found != wanted:
            return _plan_verdict(plan, wanted, found)
    return passed(f"The buckets are right for {len(PLANS)} lists of parameters, with frozen ones and 2-byte ones.")


def _plans(plan_buckets, plans) -> list:
    """Call it once a plan, up to the first that it makes otherwise; what is expected is made after each call."""
    from labs.checks.reference import ddp as right

    built = []
    for plan in plans:
        with sealed():
            built.append(_plan(plan_buckets, plan))
        if built[-1] != _plan(right.plan_buckets, plan):
            break
    return built


def _plan(plan_buckets, plan) -> list[list[int]] | None:
    """Call it on parameters of these sizes; returns their numbers instead of them, None for nonsense."""
    import torch

    sizes, types, frozen, bucket_bytes = plan
    parameters = [
        torch.nn.Parameter(torch.zeros(size, dtype=getattr(torch, name)), requires_grad=index not in frozen)
        for index, (size, name) in enumerate(zip(sizes, types, strict=True))
    ]
    number = {id(parameter): index for index, parameter in enumerate(parameters)}
    buckets = plan_buckets(parameters, bucket_bytes)
    buckets = list(buckets) if isinstance(buckets, Iterator) else buckets  # an error in there is the answer's own
    try:
        return [[number[id(parameter)] for parameter in bucket] for bucket in buckets]
    except (TypeError, KeyError):
        return None


def _plan_verdict(plan, expected, built) -> Verdict:
    sizes, types, frozen, bucket_bytes = plan
    words = f"{len(sizes)} parameters of {sizes} elements in {types[0]}, bucket_bytes={bucket_bytes}"
    found = f"For {words}{f', frozen: {frozen}' if frozen else ''}: other buckets."
    if built is None:
        return failed(found, "Return a list of lists of the parameters that you were given.")
    hint = next((hint for wrong, hint in overlap.PLAN_BUCKETS if _explains(wrong, plan, built)), None)
    placed = [index for bucket in built for index in bucket]
    missing = {index for bucket in expected for index in bucket} - set(placed)
    if hint is None and missing:
        hint = f"Parameters {sorted(missing)} are in no bucket: they would never be averaged."
    if hint is None and len(set(placed)) < len(placed):
        hint = "Some parameter is in two buckets, so its gradient would travel twice. Is the open bucket a new list?"
    rows = row("numbers of the parameters, by bucket", str(expected), str(built))
    return failed(found, hint or "Follow the bytes of each bucket on paper, from the last parameter on.", rows)


def _explains(wrong, plan, built) -> bool:
    return _plan(wrong, plan) == built


def judge_launch_when_ready(answer) -> Verdict:
    try:
        with tempfile.TemporaryDirectory() as folder:
            replicas = _on_replicas("launched", answer, folder)
    except RankFailed as error:
        if hint := overlap.hook_hint(error.traceback):
            return failed(f"A hook raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    verdict = (
        overlap.of_launched_gradients(replicas)
        or overlap.of_launching(replicas, _bucket_names())
        or overlap.of_waiting(replicas)
        or mistakes.of_weights(replicas)
    )
    if verdict:
        return verdict
    first, count = replicas[0].timeline.transfers[0], len(replicas[0].timeline.gradients) // 4
    return passed(
        f"The twin's gradients on every rank. The first call is made when {first.num_ready} of {count} gradients are "
        "ready, backward never waits, and no call is made while sync.active is off."
    )


def _bucket_names() -> list[list[str]]:
    from labs.checks.reference import ddp as right  # it imports torch, the board must not
    from labs.checks.replicas import BUCKET_BYTES, SmallModel

    model = SmallModel(seed=0)
    name = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[name[id(p)] for p in bucket] for bucket in right.plan_buckets(model.parameters(), BUCKET_BYTES)]


def judge_train_step(answer) -> Verdict:
    from labs.checks.replicas import NUM_MICRO_BATCHES, NUM_STEPS

    replicas = _on_replicas("accumulated", answer)
    verdict = overlap.of_accumulation(
        replicas, NUM_STEPS, NUM_MICRO_BATCHES, len(_bucket_names())
    ) or mistakes.of_weights(replicas)
    return verdict or passed(
        f"{NUM_STEPS} steps of {NUM_MICRO_BATCHES} micro-batches: the twin's gradients, calls in the last alone."
    )


EXERCISES = {
    "start_equal": Exercise(
        asked="Give every rank the parameters and buffers of rank 0.",
        judge=judge_start_equal,
        hints=(
            "Which tensors of a model take part in forward? Not only those that are trained.",
            "dist.broadcast(tensor, src=0) sends on rank 0 and fills the tensor on all others, in place.",
            "for tensor in (*model.parameters(), *model.buffers()): dist.broadcast(tensor, src=0); under no_grad.",
        ),
    ),
    "naive": Exercise(
        asked="Average the gradients over all ranks with one all-reduce for each.",
        judge=judge_naive,
        hints=(
            "all_reduce adds up. What makes a mean of a sum?",
            "Go over model.parameters(); skip those whose grad is None.",
            "dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()",
        ),
    ),
    "flat": Exercise(
        asked="Average the gradients over all ranks with one all-reduce in all.",
        judge=judge_flat,
        hints=(
            "pack makes one tensor of many gradients, and unpack puts them back.",
            "List the parameters that have a gradient; pack them, all-reduce, unpack.",
            "trained = [p for p in model.parameters() if p.grad is not None]; total = pack(trained); "
            "dist.all_reduce(total); unpack(total, trained)",
        ),
    ),
    "plan_buckets": Exercise(
        asked="Cut the trained parameters, from the last to the first, into buckets of bucket_bytes or more.",
        judge=judge_plan_buckets,
        hints=(
            "In which order does backward reach the layers?",
            "Keep the bytes of the open bucket. Before a parameter goes in: has the bucket reached bucket_bytes?",
            "for p in reversed([p for p in parameters if p.requires_grad]): if size >= bucket_bytes: open a new bucket "
            "and set size to 0; append p; size += p.nbytes",
        ),
    ),
    "launch_when_ready": Exercise(
        asked="Start a bucket's all-reduce in backward, when its last gradient is ready, without waiting for it.",
        judge=judge_launch_when_ready,
        hints=(
            "The hook is called once for each parameter in each backward. How does it know that it is the last one?",
            "Count the calls: every len(bucket)-th completes the bucket. Then, if sync.active: pack, all_reduce with "
            "async_op=True, note it in sync.in_flight.",
            "count = itertools.count(1); in the hook: if next(count) % len(bucket) == 0 and sync.active: total = "
            "pack(bucket); sync.in_flight.append((bucket, total, dist.all_reduce(total, async_op=True)))",
        ),
    ),
    "train_step": Exercise(
        asked="Make one optimizer step of several micro-batches, with one synchronisation.",
        judge=judge_train_step,
        hints=(
            "Gradients add up by themselves. When must they travel?",
            "sync.active is True in the last micro-batch alone; each loss is divided by their number.",
            "zero_grad; for each: sync.active = whether it is the last, (model(*batch) / k).backward(); "
            "sync.finish(); optimizer.step()",
        ),
    ),
}
