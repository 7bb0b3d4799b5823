"""Mistakes in a loss over unequal batches: which gradient the ranks agree on, and the hint for each."""

from __future__ import annotations

from math import isnan

from labs.checks.mistakes.global_norm import Facts, by_case, is_equal, is_near
from labs.checks.verdict import Verdict, failed, row


def error_hint(traceback: str) -> str | None:
    """The hint for ranks that call different collectives; None for another error."""
    if "Received data size doesn't match" not in traceback:
        return None
    return (
        "One rank has left your function while the others were in a collective. Also a rank without real tokens must "
        "make the same calls: count first, decide afterwards."
    )


def of_losses(ranks: Facts) -> Verdict | None:
    """Whether the gradient of each case, averaged over ranks, is the twin's, and then the mean of the losses."""
    for facts in by_case(ranks):
        for fact in facts:
            if fact.built is None or fact.value is None:
                return _no_gradient_verdict(facts)
            if not is_equal(fact.built, fact.expected):
                found = f"In the case of {fact.case}, the averaged gradient is not the twin's."
                rows = row("first gradients", fact.expected.flatten()[:3], fact.built.flatten()[:3])
                return failed(found, _loss_hint(ranks), rows)
    for fact in ranks[0]:
        if not is_near(fact.mean_value, fact.twin_value):
            found = f"The gradients are right. In the case of {fact.case}, the losses do not average to the twin's."
            hint = "Return the very number whose gradient you want: it is what the ranks will report."
            hint = _NAN_HINT if isnan(fact.mean_value) else hint
            return failed(found, hint, row("mean of the ranks' losses", fact.twin_value, fact.mean_value))
    return None


def _no_gradient_verdict(facts) -> Verdict:
    ranks = [fact.rank for fact in facts if fact.value is None]
    if ranks:
        return failed(f"Rank {ranks[0]} returns no single number.", "Return one loss [] a rank: add the tokens up.")
    found = f"In the case of {facts[0].case}, a rank's loss has no gradient."
    return failed(found, "Backward has to go through it: keep the tensor, without item(), float() or detach().")


def _loss_hint(ranks: Facts) -> str:
    every = [fact for facts in ranks for fact in facts]
    if any(isnan(float(fact.built.sum())) or isnan(fact.value) for fact in every):
        return _NAN_HINT
    for name, hint in _LOSS_HINTS.items():
        if all(is_equal(fact.built, fact.wrong[name]) for fact in every):
            return hint
    return "sum of this rank's real tokens * number of ranks / real tokens of all ranks."


_NAN_HINT = (
    "nan: a rank without real tokens divides 0 by 0, and the average carries it to all. Divide by the count of all "
    "ranks, which is not 0."
)
_LOSS_HINTS = {
    "mean of means": (
        "That is the mean of the ranks' means: a token on a rank with few of them weighs more. Divide by the real "
        "tokens of all ranks."
    ),
    "padding too": "Padding is in the mean. Only tokens where is_real is true count, above and below the line.",
    "padding counted": "Padding is in the count. Divide by the real tokens, is_real.sum(), of all ranks.",
    "sums": (
        "Those are sums, averaged over ranks: batches with more tokens make longer steps. Divide by all real tokens."
    ),
    "divided twice": (
        "Right, and divided by the number of ranks once too often: DDP averages afterwards. Multiply by the world size."
    ),
    "samples": "That is a loss a sample: long samples make longer steps. Divide by real tokens, is_real.sum().",
    "sample means": "That is a mean over samples: a token in a short sample weighs more. Count tokens.",
}
