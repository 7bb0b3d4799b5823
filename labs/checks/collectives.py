"""Judges of lesson 02: values on every rank, then messages and bytes; never seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labs.checks.answer import is_machine_at_fault, is_stub, learners_lines
from labs.checks.compare import compare, draw
from labs.checks.exercise import Exercise
from labs.checks.mistakes import collectives as mistakes
from labs.checks.ranks import RankFacts, on_ranks
from labs.checks.verdict import Verdict, failed, passed
from labs.failures import RankFailed, RankTimeout

LIMIT_SECONDS = 8.0
CASES = ((4, 12), (2, 8), (3, 7), (4, 3))  # (ranks, elements): first where pieces are equal, then where they are not


@dataclass(frozen=True)
class Task:
    """What one collective gets and gives: functions of the tensors of all ranks and a rank; `phases` trips round."""

    arguments: Callable
    result: Callable
    phases: int


@dataclass(frozen=True)
class Case:
    """One run: the tensors of all ranks [num_elements each], and the facts that came back."""

    task: Task
    tensors: tuple
    facts: tuple[RankFacts, ...] = ()

    @property
    def world_size(self) -> int:
        return len(self.tensors)

    @property
    def name(self) -> str:
        return f"{self.world_size} ranks, {self.tensors[0].numel()} elements"

    @property
    def is_even(self) -> bool:
        return self.tensors[0].numel() % self.world_size == 0


def pieces_of(tensors, rank: int) -> tuple:
    return tensors[rank].tensor_split(len(tensors))


def total_of(tensors):
    return sum(tensors[1:], tensors[0])


REDUCE_SCATTER = Task(
    arguments=lambda tensors, rank: (tensors[rank],),
    result=lambda tensors, rank: total_of(tensors).tensor_split(len(tensors))[rank],
    phases=1,
)
ALL_GATHER = Task(
    arguments=lambda tensors, rank: (pieces_of(tensors, rank)[rank].clone(), tensors[rank].numel()),
    result=lambda tensors, rank: _gathered(tensors),
    phases=1,
)
ALL_REDUCE = Task(
    arguments=lambda tensors, rank: (tensors[rank],),
    result=lambda tensors, rank: total_of(tensors),
    phases=2,
)


def _gathered(tensors):
    import torch

    return torch.cat([pieces_of(tensors, rank)[rank] for rank in range(len(tensors))])


def _tensors(world_size: int, num_elements: int) -> tuple:
    """Whole numbers, exact in any order of summing, and large enough that no two sums of some ranks are alike."""
    import torch

    source = torch.Generator().manual_seed(20 * world_size + num_elements)
    return tuple(torch.randint(1, 10**6, (num_elements,), generator=source).float() for _ in range(world_size))


def _judge(answer, task: Task) -> Verdict:
    for world_size, num_elements in CASES:
        case = Case(task, _tensors(world_size, num_elements))
        arguments = [task.arguments(case.tensors, rank) for rank in range(world_size)]
        try:
            facts = on_ranks(answer, arguments, LIMIT_SECONDS)
        except RankTimeout as error:
            if is_machine_at_fault(error):
                raise
            return _hung(error, case)
        except RankFailed as error:
            return _raised(error, case)
        case = Case(task, case.tensors, tuple(facts))
        if verdict := mistakes.of_values(case) or mistakes.of_traffic(case):
            return verdict
    sizes = "one message a step" if task.phases == 1 else "two trips round the ring"
    return passed(f"Right on 2, 3 and 4 ranks, also where pieces are unequal or empty; {sizes}, every link the same.")


def _hung(error: RankTimeout, case: Case) -> Verdict:
    lines = [f"rank {rank}: {_where(error, rank)}" for rank in error.stacks]
    found = f"On {case.name}, your function did not come back: {str(error).splitlines()[0]}\n" + "\n".join(lines)
    waiting = " ".join(error.stacks.values())
    hint = (
        "Each rank waits for another. send may return only when its receiver is there: if all ranks send first, nobody "
        "receives. Begin the send with isend, receive, then wait for the send: that is what exchange does."
        if "send(" in waiting
        else "Some rank waits for a message that nobody sends. Count: as many sends to a rank as receives on it."
    )
    return failed(found, hint)


def _where(error: RankTimeout, rank: int) -> str:
    if error.collectives[rank].startswith("returned") or "labs/checks" in error.stacks[rank].rpartition("\n")[0]:
        return "came back from your function"
    return "waits here\n" + error.stacks[rank]


def _raised(error: RankFailed, case: Case) -> Verdict:
    """An error where pieces are unequal is a mistake of its own; any other one is shown as it is."""
    mismatch = "Received data size doesn't match" in str(error)
    if is_stub(error.traceback) or (case.is_even and not mismatch):
        raise error
    words = "a message did not have the size of the tensor that waited for it" if mismatch else "it raised an error"
    lines = "" if mismatch else learners_lines(error.traceback)
    return failed(f"On {case.name}: {words}.\n{lines}".rstrip(), mistakes.sizes_hint(case))


def judge_ring_reduce_scatter(answer):
    return _judge(answer, REDUCE_SCATTER)


def judge_ring_all_gather(answer):
    return _judge(answer, ALL_GATHER)


def judge_ring_all_reduce(answer):
    return _judge(answer, ALL_REDUCE)


def judge_all_reduce_seconds(answer):
    from labs.checks.reference import collectives as right  # here, because it imports torch: the board needs none

    cases = [(4_000, 4, 1e-3, 1e-9), (2**20, 1, 1e-4, 1e-9)]
    cases += draw(
        10, num_bytes=range(1, 10**9), world_size=range(2, 65), alpha=(1e-6, 3e-5, 1e-3), beta=(1e-11, 8e-10, 4e-9)
    )
    return compare(
        answer,
        right.all_reduce_seconds,
        cases,
        misconceptions=mistakes.ALL_REDUCE_SECONDS,
        tolerance=1e-9,
        otherwise="Count for one rank: how many messages does it send one after another, and how many bytes in all?",
    )


EXERCISES = {
    "ring_reduce_scatter": Exercise(
        asked="Return piece r of the sum over all ranks on rank r, passing pieces round the ring.",
        judge=judge_ring_reduce_scatter,
        hints=(
            "Piece r must end on rank r with all parts in it. Where was it one step before, and where at the start?",
            "In step s (from 0) rank r sends piece r - s - 1 and receives piece r - s - 2, which it adds to its own. "
            "All modulo world_size; world_size - 1 steps.",
            "pieces = list(tensor.clone().tensor_split(world_size)). Each step: incoming = torch.empty_like(COMING), "
            "exchange(GOING, incoming), COMING += incoming, where both are items of pieces. Return pieces[rank].",
        ),
    ),
    "ring_all_gather": Exercise(
        asked="Return the whole tensor on every rank, from one piece a rank, passing pieces round the ring.",
        judge=judge_ring_all_gather,
        hints=(
            "A rank sends on what it received last. What does it send first?",
            "In step s rank r sends piece r - s and receives piece r - s - 1. The sizes of all pieces follow from "
            "num_elements: cut an empty tensor and receive into its pieces.",
            "whole = piece.new_empty(num_elements); pieces = whole.tensor_split(world_size), which are views; "
            "pieces[rank].copy_(piece); then exchange(pieces[r - s], pieces[r - s - 1]), modulo world_size.",
        ),
    ),
    "ring_all_reduce": Exercise(
        asked="Return the sum over all ranks on every rank, with 2(N-1)/N of the tensor's bytes sent by each.",
        judge=judge_ring_all_reduce,
        hints=(
            "You have both halves already.",
            "Reduce-scatter leaves piece r of the sum on rank r. All-gather makes a whole of pieces.",
            "return ring_all_gather(ring_reduce_scatter(tensor), tensor.numel())",
        ),
    ),
    "all_reduce_seconds": Exercise(
        asked="Seconds of a ring all-reduce by the alpha-beta model.",
        judge=judge_all_reduce_seconds,
        hints=(
            "Two trips round the ring. How many steps has a trip, and how many bytes travel in a step?",
            "2(N-1) steps, and each sends one piece of num_bytes / N.",
            "2 * (N - 1) * (alpha + num_bytes / N * beta)",
        ),
    ),
}
