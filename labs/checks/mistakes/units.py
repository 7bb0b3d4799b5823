"""Mistakes in cutting a model into units: what each rank holds, gathers and averages, and the hint for each."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row
from labs.units import format_bytes

FP32_TOLERANCE, BF16_TOLERANCE = 1e-4, 0.2
FP32_BYTES = 4


def error_hint(traceback: str) -> str | None:
    """The hint for an error that FSDP raises about units; None for one that is not known."""
    last = traceback.strip()[-1500:]
    if "does not support containers" in last:
        return "A ModuleList is never called, so it has no moment at which to gather. Call fully_shard for each block."
    if "Invariant encountered: value was None" in last:
        return (
            "From the inside out: a unit takes all parameters that are in no unit yet. The model comes last, or "
            "nothing is left for its parts."
        )
    if "already been applied" in last:
        return "A module is a unit once: it comes twice in your loop."
    if "is shared with a parameter" in last:
        return (
            "Head and embedding are one tensor here, and a tensor belongs to one unit. Leave both to the root, or make "
            "one unit of the two."
        )
    if "the same dtype" in last or "mixed dtype" in last:
        return (
            "A unit with the policy hands bf16 to one without it. Nothing is inherited: each call of fully_shard takes "
            "the policy, the one for the model as well."
        )
    return None


def of_nothing_sharded(found: Sequence) -> Verdict | None:
    for rank, facts in enumerate(found):
        if facts.step.count("all_gather"):
            continue
        rows = row("all_gathers in one step", "at least 1", 0)
        if facts.num_units == 0 and _wrong(facts, BF16_TOLERANCE):
            hint = "fully_shard(module) changes a module in place: it makes a unit of it. Call it at least once."
            return failed("No module is sharded, and no gradient is averaged.", hint, rows)
        if facts.num_units == 0:
            found_words = "The numbers are right, and nothing is sharded: each rank keeps the whole model."
            hint = "Averaging gradients of whole replicas is data parallel. fully_shard cuts the weights themselves."
            return failed(found_words, hint, row("bytes that rest", facts.whole_bytes // 2, facts.resting_bytes), rows)
        hint = "Each rank is alone in its mesh. Leave mesh out: then all ranks share the work."
        return failed(f"Rank {rank} has units and never gathers.", hint, rows)
    return None


def of_gradients(found: Sequence, tolerance: float) -> Verdict | None:
    """Whole gradients on every rank against the twin's; None when all are right."""
    for rank, facts in enumerate(found):
        wrong = _wrong(facts, tolerance)
        if not wrong:
            continue
        names = f"{wrong[0]} and {len(wrong) - 1} more" if len(wrong) > 1 else wrong[0]
        worst = max((facts.errors[name] for name in wrong if facts.errors[name] is not None), default=None)
        rows = row("largest distance to the twin, relative", f"at most {tolerance:g}", worst)
        return failed(f"On rank {rank} other gradients than the twin's: {names}.", _gradient_hint(facts, wrong), rows)
    return None


def _wrong(facts, tolerance: float) -> list[str]:
    return [name for name, error in facts.errors.items() if error is None or not error <= tolerance]


def _gradient_hint(facts, wrong: list[str]) -> str:
    if any(facts.errors[name] is None for name in wrong):
        return "That parameter has no gradient. Every parameter of the model is trained, under its own name."
    if all(facts.errors_alone[name] is not None and facts.errors_alone[name] < BF16_TOLERANCE for name in wrong):
        return (
            "These parameters are in no unit: they stay whole, and nobody averages their gradients over ranks. "
            "fully_shard(model) at the end takes all that is left."
        )
    if all(facts.errors[name] < BF16_TOLERANCE for name in wrong):
        return "They are right but for rounding to bf16. Save by cutting, and leave the precision as it is."
    return "Cut the model, and change nothing else in it."


def of_peak(found: Sequence, budget_bytes: int) -> Verdict | None:
    for rank, facts in enumerate(found):
        if facts.step.peak_bytes > budget_bytes:
            rows = (
                row("bytes live at most", f"{budget_bytes:,} or fewer", facts.step.peak_bytes),
                row("bytes of the largest gather", f"about {facts.block_bytes:,}, a block", _largest(facts)),
            )
            peak, whole = format_bytes(facts.step.peak_bytes), format_bytes(facts.whole_bytes)
            words = f"The gradients are right. {peak} are live at once on rank {rank}; the whole model has {whole}."
            return failed(words, _peak_hint(facts), *rows)
    return None


def _peak_hint(facts) -> str:
    largest, block = _largest(facts), facts.block_bytes
    if facts.resting_bytes > 0.75 * facts.whole_bytes:
        return (
            "Most of the model is in no unit, and rests whole on each rank, whatever averages its gradients. "
            "fully_shard(model) at the end takes all that is left."
        )
    if largest > 0.9 * facts.whole_bytes:
        return (
            "One unit for all saves nothing: it gathers the whole model at once, next to the shards, into a buffer and "
            "out of it again. Make units that are gathered one after another."
        )
    if facts.step.count("all_gather") == facts.step.count("reduce_scatter"):
        return (
            "No unit is gathered a second time, so all stay whole from forward to backward. Leave "
            "reshard_after_forward as it is."
        )
    if largest % block == 0 and largest > block:
        return f"A list of modules is one unit: one gather brings {largest // block} blocks. Call fully_shard for each."
    if facts.num_units >= 3 and largest > 2 * block and not _has_root_of(facts, largest):
        return "The two tables are one unit, and are needed at opposite ends of the model. Make a unit of each."
    return (
        "The root takes what is in no other unit, and stays whole for the whole step. Which large modules are left to "
        "it? Make them units of their own."
    )


def _has_root_of(facts, size_bytes: int) -> bool:
    """Whether the first gather of the step, which is the root's, is of this size."""
    return next(call.size_bytes for call in facts.step.calls if call.kind == "all_gather") == size_bytes


def of_calls(found: Sequence, budget_gathers: int) -> Verdict | None:
    count = found[0].step.count("all_gather")
    if count <= budget_gathers:
        return None
    hint = (
        "Small units keep little alive and call often, and each call pays latency. A block is small enough; its parts "
        "need no units of their own."
    )
    words = "The gradients are right and the memory suffices. The step takes too many calls."
    return failed(words, hint, row("all_gathers in one step", f"{budget_gathers} or fewer", count))


def of_shards_in_bf16(found: Sequence) -> Verdict | None:
    for rank, facts in enumerate(found):
        if facts.resting_bytes < 0.4 * facts.whole_bytes:
            hint = (
                "The model was turned into bf16 before it was cut: then the optimizer updates bf16 weights, and small "
                "updates are lost. The policy casts copies, and the shards stay fp32."
            )
            expected = row("bytes that rest on this rank", facts.whole_bytes // 2, facts.resting_bytes)
            return failed(f"On rank {rank} the shards are not fp32.", hint, expected)
    return None


def of_units(found: Sequence) -> Verdict | None:
    """A unit for each block and the root, gathered for forward and again for backward."""
    for facts in found:
        step, num_blocks = facts.step, sum(".norm1.weight" in name for name in facts.errors)
        largest = _largest(facts) * FP32_BYTES // _element_bytes(facts)
        rows = row("bytes of the largest gather, in fp32", facts.block_bytes, largest)
        if largest > facts.block_bytes and largest % facts.block_bytes:
            return failed("The model is one unit.", "The root alone gathers everything at once; blocks first.", rows)
        if largest > facts.block_bytes:
            hint = (
                f"fully_shard of a list makes one unit, whose one gather brings {largest // facts.block_bytes} blocks. "
                "Call it for each block by itself."
            )
            return failed("Blocks are gathered together.", hint, rows)
        if step.count("reduce_scatter") != num_blocks + 1:
            rows = row("units", num_blocks + 1, step.count("reduce_scatter"))
            return failed("There are other units than blocks and root.", "Cut at the blocks, and nowhere else.", rows)
        if step.count("all_gather") == step.count("reduce_scatter"):
            rows = row("all_gathers", 2 * num_blocks + 1, step.count("all_gather"))
            hint = "reshard_after_forward was off in the old code for no block: free them after forward."
            return failed("The blocks stay whole from forward to backward.", hint, rows)
    return None


def of_policy(found: Sequence) -> Verdict | None:
    for facts in found:
        gathers = [call for call in facts.step.calls if call.kind == "all_gather"]
        reduces = [call for call in facts.step.calls if call.kind == "reduce_scatter"]
        wide = [call for call in gathers if call.element_bytes != 2]
        rows = row("bytes of an element, gather by gather", [2] * len(gathers), [c.element_bytes for c in gathers])
        if len(wide) == len(gathers):
            return failed("Every gather is fp32.", "The old code had a policy: mp_policy=policy, in each call.", rows)
        if wide:
            hint = "A policy holds for its own unit, and no other inherits it. Give it to each call."
            return failed("Some units are gathered in fp32.", hint, rows)
        if facts.compute_types != ("torch.bfloat16",):
            rows = row("types of whole weights", "torch.bfloat16", ", ".join(facts.compute_types))
            hint = "bf16 is asked for: it has the range of fp32, and fp16 has not."
            return failed("Layers compute in another type.", hint, rows)
        if any(call.element_bytes != FP32_BYTES for call in reduces):
            rows = row("bytes of an element, reduce by reduce", [4] * len(reduces), [c.element_bytes for c in reduces])
            hint = "Sums of many ranks lose digits in bf16. Keep reduce_dtype=torch.float32, as the old code has it."
            return failed("Gradients are reduced in bf16.", hint, rows)
    return None


def _largest(facts) -> int:
    return max(call.size_bytes for call in facts.step.calls if call.kind == "all_gather")


def _element_bytes(facts) -> int:
    calls = [call for call in facts.step.calls if call.kind == "all_gather"]
    return max(calls, key=lambda call: call.size_bytes).element_bytes
