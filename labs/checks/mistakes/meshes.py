"""Mistakes in laying ranks out on a mesh: which ranks really gather together, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.mistakes.units import FP32_TOLERANCE
from labs.checks.verdict import Verdict, failed, row


def of_meshes(found: Sequence[Sequence], placements: Sequence) -> Verdict | None:
    """`found[rank][placement]` is what a rank saw, or a text where the answer gave something else than a mesh."""
    for number, nodes in enumerate(placements):
        ranks = [facts[number] for facts in found]
        verdict = _of_type(ranks) or _of_gathers(ranks, nodes, number) or _of_copies(ranks, nodes)
        if verdict:
            return verdict
    return None


def error_hint(traceback: str) -> str | None:
    """The hint for an error that FSDP raises about a mesh; None for one that is not known."""
    if "expects a 1D or 2D DeviceMesh" in traceback:
        return "Two axes are enough: a row for each node. nodes is such a table already."
    return None


def _of_type(ranks) -> Verdict | None:
    words = next((facts for facts in ranks if isinstance(facts, str)), None)
    if words == "a mesh without names":
        hint = 'fully_shard takes a 2-D mesh only with names: mesh_dim_names=("replicate", "shard").'
        return failed("The mesh has two axes without names.", hint)
    return failed(f"Your function returned {words}.", "Return the DeviceMesh itself.") if words else None


def _of_gathers(ranks, nodes, number: int) -> Verdict | None:
    groups = sorted({group for facts in ranks for group in _groups(facts, "all_gather")})
    rows = row("ranks that gather together", [list(node) for node in nodes], [list(group) for group in groups])
    where = f"With nodes {[list(node) for node in nodes]}"
    if not groups:
        hint = "The last axis has one rank: each keeps a whole copy. It should be as long as a node has ranks."
        return failed(f"{where}: the numbers are right, and nothing is sharded. Nobody gathers.", hint, rows)
    if all(any(set(group) <= set(node) for node in nodes) for group in groups):
        return None
    found = f"{where}: the numbers are right, and weights are gathered between nodes."
    if any(len(group) == 4 for group in groups):
        hint = (
            "A mesh with one axis cuts the weights over all ranks. Two axes: copies on the first, shards on the last."
        )
    elif number == 0:
        hint = "fully_shard cuts along the last axis, whatever it is called. Turn the table: a row is a node."
    else:
        hint = (
            "The first placement is right, this one is not: ranks are not always numbered node by node. Build the "
            "table from nodes."
        )
    return failed(found, hint, rows)


def _of_copies(ranks, nodes) -> Verdict | None:
    for rank, facts in enumerate(ranks):
        wrong = [name for name, error in facts.errors.items() if error is None or not error <= FP32_TOLERANCE]
        if wrong:
            groups = [list(group) for group in sorted(_groups(facts, "all_reduce"))]
            found = f"Weights are gathered inside a node, and rank {rank} has other gradients than the twin."
            hint = "Each node trains a model of its own: nothing joins the copies. The mesh needs an axis across nodes."
            expected = [[nodes[0][place], nodes[1][place]] for place in range(2) if rank in _column(nodes, place)]
            return failed(found, hint, row("ranks that average their shards", expected, groups))
    return None


def _column(nodes, place: int) -> list[int]:
    return [node[place] for node in nodes]


def _groups(facts, kind: str) -> set[tuple[int, ...]]:
    pairs = zip(facts.step.calls, facts.step.members, strict=True)
    return {tuple(group) for call, group in pairs if call.kind == kind and len(group) > 1}
