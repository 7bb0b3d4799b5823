"""Mistakes in clipping a sharded gradient: what each rank holds afterwards, and the hint for each."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, isnan

from labs.checks.mistakes.global_norm import (
    WRONG_NORMS,
    Facts,
    all_shards,
    by_case,
    everything,
    is_equal,
    is_near,
    two_norm,
    whole_norm,
)
from labs.checks.verdict import Verdict, failed, row


def of_clipping(ranks: Facts) -> Verdict | None:
    """Whether every shard was unscaled, then multiplied by one factor for all ranks, and only when it had to be."""
    for facts in (facts for facts in by_case(ranks) if facts[0].case.infinite_rank is None):
        factor = _factor(facts[0].case, whole_norm(facts[0].case))
        for fact in facts:
            if not _is_scaled(fact, factor):
                found = f"In the case of {fact.case}, rank {fact.rank} ends with other gradients."
                return failed(found, _clip_hint(ranks, facts), *_clip_rows(fact, factor))
    return None


def of_returned(ranks: Facts) -> Verdict | None:
    """Whether each rank returned the norm before clipping, without the loss scale."""
    for fact in (fact for facts in ranks for fact in facts):
        expected = whole_norm(fact.case)
        if fact.value is None:
            hint = "Return the norm of the whole gradient before clipping: people watch it."
            return failed(f"The gradients are right. Rank {fact.rank} returns {fact.returned}.", hint)
        if not is_near(fact.value, expected) and not (isnan(expected) and not isfinite(fact.value)):
            found = f"The gradients are right. In the case of {fact.case}, rank {fact.rank} returns another norm."
            return failed(found, _returned_hint(fact), row("norm before clipping, unscaled", expected, fact.value))
    return None


def _returned_hint(fact) -> str:
    if fact.case.infinite_rank is not None:
        return (
            "One nan or inf anywhere must show in the norm, on every rank: that is how all know to skip a step. Leave "
            "it in the gradients; who replaces it hides it."
        )
    if is_near(fact.value, whole_norm(fact.case) * fact.case.loss_scale):
        return "That norm has the loss scale in it. Return the one of the unscaled gradient."
    if is_near(fact.value, min(fact.case.max_norm, whole_norm(fact.case))):
        return "That is the norm after clipping: it says nothing about a spike. Return the one before."
    return "Return the norm of the whole gradient, measured after unscaling and before clipping."


def _factor(case, norm: float) -> float:
    """What a scaled shard is multiplied with when the whole gradient has this norm."""
    return (case.max_norm / norm if norm > case.max_norm else 1.0) / case.loss_scale


def _clip_rows(fact, factor: float):
    from labs.checks.shards import shards_of

    before = shards_of(fact.case, fact.rank)
    expected = [number * factor for number in before[0].flatten()[:3].tolist()]
    built = fact.after[0].flatten()[:3].tolist()
    return [row(f"first gradients of rank {fact.rank}", expected, built)]


def _is_scaled(fact, factor: float) -> bool:
    from labs.checks.shards import shards_of

    before = shards_of(fact.case, fact.rank)
    return all(is_equal(after, own * factor) for after, own in zip(fact.after, before, strict=True))


def _clip_hint(ranks: Facts, facts) -> str:
    """Find the one mistake that explains every case on every rank."""
    every = [fact for own in ranks for fact in own if fact.case.std and fact.case.infinite_rank is None]
    if all(_is_scaled(fact, _factor(fact.case, whole_norm(fact.case))) for fact in every):
        return "Gradients that are 0 became nan: 0 / 0, or inf * 0. Multiply only when the norm is above the limit."
    for explains, hint in _WRONG_CLIPS:
        if all(explains(fact) for fact in every):
            return hint
    for way, hint in WRONG_NORMS:
        if all(_is_scaled(fact, _factor(fact.case, _wrong_norm(fact, way))) for fact in every):
            return f"Clipped by another norm than that of the whole gradient. {hint}"
    ratios = {round(ratio, 6) for fact in facts if (ratio := _ratio(fact)) is not None}
    if len(ratios) > 1:
        return "The ranks multiply by different factors, so the gradient turns. One norm for all, one factor for all."
    return "Unscale; norm of the whole; if it is above max_norm, multiply every shard by max_norm / norm, in place."


def _wrong_norm(fact, way: Callable) -> float:
    return way(all_shards(fact.case), fact.rank) / fact.case.loss_scale


def _ratio(fact) -> float | None:
    """What the first element was multiplied with."""
    from labs.checks.shards import shards_of

    before = next((shard for shard in shards_of(fact.case, fact.rank) if shard.numel()), None)
    if before is None or not float(before.flatten()[0]):
        return None
    after = next(shard for shard in fact.after if shard.numel())
    return float(after.flatten()[0] / before.flatten()[0])


def _with(factor_of: Callable) -> Callable:
    return lambda fact: _is_scaled(fact, factor_of(fact.case, fact.rank))


def _each_tensor(fact) -> bool:
    from labs.checks.shards import shards_of

    pairs = zip(fact.after, shards_of(fact.case, fact.rank), strict=True)
    return all(
        is_equal(after, own * _factor(fact.case, two_norm([own]) / fact.case.loss_scale)) for after, own in pairs
    )


def _clamped(fact) -> bool:
    from labs.checks.shards import shards_of

    pairs = zip(fact.after, shards_of(fact.case, fact.rank), strict=True)
    limit = fact.case.max_norm
    return all(is_equal(after, (own / fact.case.loss_scale).clamp(-limit, limit)) for after, own in pairs)


def _scaled_norm_factor(case, rank: int, keeps_scale: bool = False) -> float:
    norm = two_norm(everything(case))
    return min(1.0, case.max_norm / norm if norm else 1.0) / (1 if keeps_scale else case.loss_scale)


_WRONG_CLIPS: tuple[tuple[Callable, str], ...] = (
    (
        _with(lambda case, rank: 1.0),
        "The shards are as they were. Change them in place: shard *= factor, and neither shard = shard * factor nor "
        "shard.data = ..., which make other memory.",
    ),
    (
        _with(lambda case, rank: 1 / case.loss_scale),
        "The shards were unscaled, and never clipped. Change them in place: shard *= factor. "
        "torch.nn.utils.clip_grad_norm_ reads the .grad of parameters, and a shard has none.",
    ),
    (
        _with(lambda case, rank: _factor(case, two_norm(all_shards(case)[rank]) / case.loss_scale)),
        "Each rank clips by the norm of its own shards, so the parts shrink by different factors and the gradient "
        "turns. Use the norm of the whole.",
    ),
    (
        _each_tensor,
        "Each tensor is clipped by itself, so the gradient turns. One factor for all tensors of all ranks.",
    ),
    (_clamped, "Each element is cut to the limit, so the gradient turns. Multiply all of them by one factor."),
    (
        _with(_scaled_norm_factor),
        "Clipped before unscaling: the norm still had the loss scale in it, so a gradient that was short enough was "
        "clipped too. Unscale first.",
    ),
    (
        _with(lambda case, rank: _scaled_norm_factor(case, rank, keeps_scale=True)),
        "The loss scale is still in the gradients. Divide by it before anything is measured.",
    ),
    (
        _with(lambda case, rank: _factor(case, whole_norm(case)) * case.loss_scale),
        "The factor is right, and the loss scale is still in the gradients. Divide them by it as well.",
    ),
    (
        _with(lambda case, rank: case.max_norm / (whole_norm(case) or 1.0) / case.loss_scale),
        "A gradient below the limit was made longer. Clipping leaves it alone: the factor is at most 1.",
    ),
    (
        _with(lambda case, rank: max(1.0, case.max_norm / whole_norm(case)) / case.loss_scale),
        "Long gradients stay, and short ones were made longer: of 1 and max_norm / norm take the smaller one.",
    ),
    (
        _with(lambda case, rank: 1 / whole_norm(case) / case.loss_scale),
        "Every gradient now has length 1. It should have length max_norm, and only if it was longer.",
    ),
)
