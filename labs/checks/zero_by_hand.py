"""Judges of lesson 05: values on every rank against the twin, then bytes held, then calls; never seconds."""

from __future__ import annotations

from labs.checks.answer import learners_lines
from labs.checks.compare import compare, draw
from labs.checks.exercise import Exercise
from labs.checks.mistakes import averages, passes, rows
from labs.checks.mistakes.partitions import PARTITION
from labs.checks.verdict import Verdict, failed, passed
from labs.failures import RankFailed

RANKS_LIMIT_SECONDS = 20.0

PARTITIONS = (
    ([5, 2], 2),
    ([30, 7, 5, 20, 9], 4),
    ([8, 8, 8, 8], 4),
    ([1, 1], 4),
    ([3], 5),
    ([100, 1, 1, 1], 3),
    ([1, 1, 1, 100], 3),
    ([6, 1, 5], 1),
)


def judge_partition(answer) -> Verdict:
    from labs.checks.reference import zero_by_hand as right  # it imports torch, the board must not

    def sizes(rng):
        return [rng.randrange(1, 60) for _ in range(rng.randrange(1, 9))]

    cases = [*PARTITIONS, *draw(12, sizes=sizes, world_size=range(1, 9))]
    otherwise = "Lay the sizes end to end on paper, mark the cuts, and go through one rank after the other."
    return compare(answer, right.partition, cases, PARTITION, otherwise=otherwise)


def _on_rows(room: str, harness: str, answer) -> list:
    """Run a harness on the ranks; returns what each saw."""
    from importlib import import_module

    from labs.checks.rows import WORLD_SIZE
    from labs.launcher import launch

    function = getattr(import_module(f"labs.checks.{room}"), harness)
    return launch(function, answer, world_size=WORLD_SIZE, timeout_seconds=RANKS_LIMIT_SECONDS)


def judge_reduce_part(answer) -> Verdict:
    try:
        ranks = _on_rows("rows", "reduced", answer)
    except RankFailed as error:
        if hint := rows.grad_hint(error.traceback):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    return rows.of_reduced(ranks) or passed(
        "Each of three ranks holds its part of the twin's gradient and nothing else, by one reduce-scatter a row."
    )


def judge_sharded_adamw(answer) -> Verdict:
    try:
        ranks = _on_rows("rows", "stepped", answer)
    except RankFailed as error:
        if hint := averages.step_hint(error.traceback):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    return averages.of_stepped(ranks) or passed(
        f"Two steps on three ranks: the twin's weights on each, {ranks[0].kept_bytes:,} bytes kept for the optimizer "
        f"instead of {averages.AVERAGES * sum(ranks[0].row_bytes.values()):,}, one all-gather a row."
    )


def judge_at_last_gradient(answer) -> Verdict:
    try:
        ranks = _on_rows("passes", "completed", answer)
    except RankFailed as error:
        if hint := passes.hook_hint(error.traceback):
            return failed(f"A hook raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    return passes.of_completed(ranks) or passed(
        "In two backward passes each row is reduced at its last gradient; at the peak there are "
        f"{ranks[0].peak_bytes:,} bytes of gradients, of {sum(ranks[0].row_bytes.values()):,}."
    )


def judge_gather_compute_free(answer) -> Verdict:
    try:
        ranks = _on_rows("passes", "computed", answer)
    except RankFailed as error:
        if hint := passes.unit_hint(f"{error}\n{error.traceback}"):
            return failed(f"A rank ended in the middle of a step: {str(error).splitlines()[0]}", hint)
        raise
    return passes.of_held(ranks) or passed(
        f"The twin's losses and parts on three ranks; at most {ranks[0].peak_parameters:,} bytes of parameters at "
        "once, and no row whole between two uses."
    )


EXERCISES = {
    "partition": Exercise(
        asked="Cut a row of parameters into one part a rank.",
        judge=judge_partition,
        hints=(
            "Where in the row does a parameter begin, and where does the part of a rank?",
            "part = -(-sum(sizes) // world_size). A piece is where parameter and part overlap.",
            "For parameter and rank: start = max(0, rank * part - offset), stop = min(size, (rank + 1) * part - "
            "offset); it is a piece if start < stop. offset is the sum of the sizes before.",
        ),
    ),
    "reduce_part": Exercise(
        asked="Reduce a row's gradient to this rank's part of the mean, and free the rest.",
        judge=judge_reduce_part,
        hints=(
            "Which collective adds up and gives each rank one part?",
            "reduce_scatter_tensor writes into a tensor as long as row.mine; divide; then set each grad to None.",
            "row.mine.grad = torch.empty_like(row.mine); dist.reduce_scatter_tensor(row.mine.grad, gradient(row)); "
            "row.mine.grad /= dist.get_world_size(); for p in row.parameters: p.grad = None",
        ),
    ),
    "sharded_adamw": Exercise(
        asked="Return step(): AdamW on the own parts, then every rank gets the parts of all.",
        judge=judge_sharded_adamw,
        hints=(
            "Of which tensors does this rank's optimizer need averages?",
            "Make torch.optim.AdamW once, outside of step, on all row.mine; step() uses it, clears, gathers.",
            "adamw = torch.optim.AdamW([row.mine for row in rows], **options); in step(): adamw.step(); "
            "adamw.zero_grad(); for each row: dist.all_gather_into_tensor(row.whole, row.mine.detach())",
        ),
    ),
    "at_last_gradient": Exercise(
        asked="Call act(row) in every backward, when the last gradient of the row is ready.",
        judge=judge_at_last_gradient,
        hints=(
            "The hook is called once a parameter. How does it know that it is the last one of the row?",
            "Count the calls; at len(row.parameters) begin anew and call act(row).",
            "ready = []; in the hook: ready.append(parameter); if len(ready) == len(row.parameters): ready.clear(); "
            "act(row). Register it on each parameter.",
        ),
    ),
    "gather_compute_free": Exercise(
        asked="Let a unit hold its row whole only while it computes.",
        judge=judge_gather_compute_free,
        hints=(
            "At which four moments of a unit's life does something happen to its row?",
            "Before forward and before backward: gather. After forward and at the last gradient: free. And now: free.",
            "def free(*_): row.whole.untyped_storage().resize_(0). Then unit.register_forward_pre_hook(lambda *_: "
            "gather(row)); unit.register_forward_hook(free); unit.register_full_backward_pre_hook(lambda *_: "
            "gather(row)); when_complete(row, free); free()",
        ),
    ),
}
