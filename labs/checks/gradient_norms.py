"""Judges of lesson 04: norms, shards and gradients of every rank against a count in one process; never seconds."""

from __future__ import annotations

from labs.checks.answer import is_machine_at_fault, learners_lines
from labs.checks.exercise import Exercise
from labs.checks.mistakes import clipping, global_norm, token_loss
from labs.checks.mistakes import deep_stack as stack
from labs.checks.verdict import Verdict, failed, passed
from labs.config import ModelTrainingConfig
from labs.failures import RankFailed, RankTimeout
from labs.spec import ModelSpec

LIMIT_SECONDS = 20.0
# The stack that does not train: 48 layers with neither residuals nor normalisation.
SICK = ModelTrainingConfig(
    strategy="ddp", world_size=2, batch_size=64, steps=40, learning_rate=1e-3, warmup_steps=0, max_grad_norm=None,
    use_mixed_precision=False, data="digits", eval_every=0,
    model=ModelSpec(kind="mlp", num_layers=48, hidden_size=64, residual=False, norm=False),
)  # fmt: skip


def judge_deep_stack(answer) -> Verdict:
    from labs.launcher import launch

    choice = answer(SICK)
    if problem := stack.of_choice(choice, SICK):
        return problem
    run = launch(choice.twin(), timeout_seconds=60)  # its losses are those of two ranks, in half the time
    return stack.of_run(run) or passed(stack.praise(run))


def _on_ranks(harness: str, answer) -> list:
    """Run a harness of labs.checks.shards; returns its facts by rank, by case."""
    from labs.checks import shards
    from labs.launcher import launch

    return launch(getattr(shards, harness), answer, world_size=shards.WORLD_SIZE, timeout_seconds=LIMIT_SECONDS)


def _facts_of(harness: str, answer) -> list | Verdict:
    """As `_on_ranks`; an error whose cause is known becomes a verdict with its own hint."""
    try:
        return _on_ranks(harness, answer)
    except RankFailed as error:
        if hint := global_norm.shard_error_hint(f"{error}\n{error.traceback}"):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    except RankTimeout as error:
        if is_machine_at_fault(error):
            raise
        where = "\n".join(f"rank {rank}: {state}" for rank, state in error.collectives.items())
        return failed(f"The ranks wait for one another.\n{where}", global_norm.HANG_HINT)


def judge_global_grad_norm(answer) -> Verdict:
    facts = _facts_of("normed", answer)
    if isinstance(facts, Verdict):
        return facts
    verdict = global_norm.of_norm_values(facts) or global_norm.of_untouched(facts) or global_norm.of_traffic(facts)
    return verdict or passed(
        f"{len(facts[0])} cases on {len(facts)} ranks: one norm on all of them, and one number travels."
    )


def judge_clip_(answer) -> Verdict:
    facts = _facts_of("clipped", answer)
    if isinstance(facts, Verdict):
        return facts
    verdict = clipping.of_clipping(facts) or clipping.of_returned(facts) or global_norm.of_traffic(facts)
    return verdict or passed(
        f"{len(facts[0])} cases on {len(facts)} ranks: one factor for all shards, after unscaling, and only above the "
        "limit."
    )


def judge_token_loss(answer) -> Verdict:
    try:
        facts = _on_ranks("lost", answer)
    except RankFailed as error:
        if hint := token_loss.error_hint(f"{error}\n{error.traceback}"):
            return failed(f"Your function raised an error.\n{learners_lines(error.traceback)}", hint)
        raise
    verdict = token_loss.of_losses(facts) or global_norm.of_traffic(facts, most_calls=2)
    return verdict or passed(
        f"{len(facts[0])} cases on {len(facts)} ranks, one without a real token: the average is the twin's gradient."
    )


EXERCISES = {
    "deep_stack": Exercise(
        asked="Return a config that trains the stack of 48 layers in 40 steps.",
        judge=judge_deep_stack,
        hints=(
            "In which of the pictures above do all layers get gradients of about one size?",
            "Change config.model: model.replace(...) takes residual, norm and init_scale. Two of them together are "
            "enough, and there is more than one such pair.",
            "return config.replace(model=config.model.replace(residual=True, norm=True))",
        ),
    ),
    "global_grad_norm": Exercise(
        asked="Return the norm of a gradient of which each rank holds shards.",
        judge=judge_global_grad_norm,
        hints=(
            "Which quantity of the parts adds up to that of the whole: lengths, or squares of lengths?",
            "Begin with torch.zeros(()), add each shard's squares in fp32, all_reduce once, take the root.",
            "square = torch.zeros(()); for shard in shards: square += shard.float().square().sum(); "
            "dist.all_reduce(square); return square.sqrt()",
        ),
    ),
    "clip_": Exercise(
        asked="Undo the loss scale and clip a sharded gradient by its global norm, in place; return that norm.",
        judge=judge_clip_,
        hints=(
            "What does the loss scale do to the norm that you measure?",
            "First divide each shard in place, then measure with norm_of(shards), then multiply in place if the norm "
            "is above max_norm.",
            "for shard in shards: shard /= loss_scale; norm = norm_of(shards); if norm > max_norm: for shard in "
            "shards: shard *= max_norm / norm; return norm",
        ),
    ),
    "token_loss": Exercise(
        asked="Return a rank's loss so that the averaged gradient is that of the mean over all real tokens.",
        judge=judge_token_loss,
        hints=(
            "By what must a sum of losses be divided so that each token weighs the same on every rank?",
            "Count the real tokens of all ranks with one all_reduce. DDP will divide by the number of ranks: multiply "
            "by it.",
            "count = is_real.sum(); dist.all_reduce(count); return (token_losses * is_real).sum() * "
            "dist.get_world_size() / count",
        ),
    ),
}
