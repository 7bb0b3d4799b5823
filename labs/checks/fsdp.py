"""Judges of lesson 06: bytes live, collectives, who meets in them, gradients of the twin; never seconds of a clock."""

from __future__ import annotations

from labs.checks.answer import learners_lines
from labs.checks.compare import compare, draw
from labs.checks.exercise import Exercise
from labs.checks.mistakes import meshes
from labs.checks.mistakes import schedules as slow
from labs.checks.mistakes import shard_rows as rows
from labs.checks.mistakes import units as mistakes
from labs.checks.verdict import Verdict, failed, passed
from labs.failures import RankFailed
from labs.puzzle import PUZZLE, IllegalMove, play
from labs.units import format_bytes

WORLD_SIZE = 2
RANKS_LIMIT_SECONDS = 20.0
BUDGET_BYTES = 1_450_000  # of live parameters; the whole model of `wrap` has 1,728,512
BUDGET_GATHERS = 20
# Ranks numbered node by node, then dealt out in turn, then there and back.
NODES = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


def judge_schedule(answer) -> Verdict:
    moves = answer()
    try:
        playback = play(moves, PUZZLE)
    except IllegalMove as problem:
        return failed(f"{problem.why[0].upper()}{problem.why[1:]}.", f"{problem.advice}.")
    if playback.seconds > PUZZLE.limit_seconds + 1e-9:
        return slow.of_time(playback)
    return passed(
        f"Every move is legal, {format_bytes(playback.peak_bytes)} are live at most, and the step takes "
        f"{1e3 * playback.seconds:.1f} ms of {1e3 * PUZZLE.limit_seconds:.0f}."
    )


def judge_shard_rows(answer) -> Verdict:
    from labs.checks.reference import fsdp as right  # it imports torch, the board must not

    return compare(
        answer,
        right.shard_rows,
        cases=[(3, 2, 0), (3, 2, 1), (1, 4, 0), (1, 4, 2), (5, 4, 3), (10, 4, 3), (8, 4, 1), *draw(
            12, num_rows=range(1, 60), world_size=(8,), rank=range(8)
        )],
        misconceptions=rows.SHARD_ROWS,
    )  # fmt: skip


def _on_ranks(harness: str, answer, *arguments, world_size: int = WORLD_SIZE) -> list:
    from labs.checks import sharded
    from labs.launcher import launch

    limit = RANKS_LIMIT_SECONDS
    return launch(getattr(sharded, harness), answer, *arguments, world_size=world_size, timeout_seconds=limit)


def _wrapped(answer, spec_name: str) -> list | Verdict:
    """Run the answer on its model; a verdict where FSDP itself refuses it."""
    from labs.checks import sharded

    try:
        return _on_ranks("sharded", answer, getattr(sharded, spec_name))
    except RankFailed as error:
        if hint := mistakes.error_hint(error.traceback):
            return failed(f"FSDP refuses it.\n{learners_lines(error.traceback)}", hint)
        raise


def judge_wrap(answer) -> Verdict:
    found = _wrapped(answer, "LARGE_TABLES")
    if isinstance(found, Verdict):
        return found
    verdict = (
        mistakes.of_nothing_sharded(found)
        or mistakes.of_gradients(found, mistakes.FP32_TOLERANCE)
        or mistakes.of_peak(found, BUDGET_BYTES)
        or mistakes.of_calls(found, BUDGET_GATHERS)
    )
    step = found[0].step
    return verdict or passed(
        f"The twin's gradients on both ranks, {format_bytes(step.peak_bytes)} live at most where the whole model has "
        f"{format_bytes(found[0].whole_bytes)}, in {step.count('all_gather')} all_gathers."
    )


def judge_mend(answer) -> Verdict:
    found = _wrapped(answer, "SMALL")
    if isinstance(found, Verdict):
        return found
    verdict = (
        mistakes.of_nothing_sharded(found)
        or mistakes.of_shards_in_bf16(found)
        or mistakes.of_gradients(found, mistakes.BF16_TOLERANCE)
        or mistakes.of_units(found)
        or mistakes.of_policy(found)
    )
    step = found[0].step
    return verdict or passed(
        f"{found[0].num_units} units: {step.count('all_gather')} all_gathers in bf16, reduce_scatters in fp32, shards "
        f"in fp32, and {format_bytes(step.peak_bytes)} live at most."
    )


def judge_mesh_of(answer) -> Verdict:
    try:
        found = _on_ranks("meshed", answer, NODES, world_size=4)
    except RankFailed as error:
        if hint := meshes.error_hint(error.traceback):
            return failed(f"FSDP refuses it.\n{learners_lines(error.traceback)}", hint)
        raise
    verdict = meshes.of_meshes(found, NODES)
    return verdict or passed(
        "For three placements of four ranks on two nodes, weights are gathered and gradients scattered inside a node, "
        "and only all_reduces of shards go between nodes."
    )


EXERCISES = {
    "schedule": Exercise(
        asked=f"Order the moves of one step of four layers: at most {format_bytes(PUZZLE.limit_bytes)} live, at most "
        f"{1e3 * PUZZLE.limit_seconds:.0f} ms.",
        judge=judge_schedule,
        hints=(
            "Compute waits for a gather only if the gather was handed over too late. When could it leave?",
            "Put each gather above the computation before its own. And one layer is needed twice in a row: which?",
            "gather 1; for layers 1, 2, 3: gather the next, forward, free; forward 4; for layers 4, 3, 2: gather the "
            "one before, backward, free, reduce; then backward 1, free 1, reduce 1",
        ),
    ),
    "shard_rows": Exercise(
        asked="Count the rows of a weight that a rank owns, and those that it has memory for.",
        judge=judge_shard_rows,
        hints=(
            "All ranks send pieces of one size. How large is it, so that every row has a place?",
            "Rows are dealt out in chunks of ceil(num_rows / world_size), to the first ranks first.",
            "chunk = -(-num_rows // world_size); own = max(0, min(chunk, num_rows - rank * chunk)); return own, chunk",
        ),
    ),
    "wrap": Exercise(
        asked=f"Cut the model into units: at most {BUDGET_BYTES:,} bytes of live parameters, at most {BUDGET_GATHERS} "
        "all_gathers a step.",
        judge=judge_wrap,
        hints=(
            "Peak = shards + root + twice the largest unit. What is the root, when each block is a unit?",
            "token_embedding and head are larger than a block. Make them units, too, before the model itself.",
            "for unit in (model.token_embedding, *model.blocks, model.head): fully_shard(unit); fully_shard(model)",
        ),
    ),
    "mend": Exercise(
        asked="Mend the colleague's code: a unit for each block, bf16 gathers, fp32 reduction and shards.",
        judge=judge_mend,
        hints=(
            "How many units does a list of modules make?",
            "Call fully_shard once for each block. Nothing is inherited from the root: each call takes its policy.",
            "for block in model.blocks: fully_shard(block, mp_policy=policy); fully_shard(model, mp_policy=policy)",
        ),
    ),
    "mesh_of": Exercise(
        asked="Make the mesh that keeps gathers inside a node, for any placement of ranks on nodes.",
        judge=judge_mesh_of,
        hints=(
            "Along which axis of a 2-D mesh does fully_shard cut, the first or the last?",
            "A DeviceMesh takes the ranks as a table. Each row should be what gathers together.",
            'DeviceMesh("cpu", nodes, mesh_dim_names=("replicate", "shard"))',
        ),
    ),
}
