"""Mistakes in mending a deep stack: what the chosen config changes, and what its run measured."""

from __future__ import annotations

from math import isfinite

from labs.checks.verdict import Verdict, failed, row
from labs.config import ModelTrainingConfig

FREE = ("learning_rate", "warmup_steps", "max_grad_norm", "weight_decay", "eval_every", "model")
FREE_IN_MODEL = ("residual", "norm", "init_scale")
LARGEST_SPREAD = 100.0  # largest over smallest norm of a block in the last step
SHARE_OF_BASELINE = 0.5  # the validation loss must be below this share of the baseline

LARGEST_RATE = 0.05
_TOO_FAST = "The steps are too long for any stack: try a learning rate near 0.001."


def of_choice(choice, given: ModelTrainingConfig) -> Verdict | None:
    """Whether the choice is a config that changes only what is free."""
    if not isinstance(choice, ModelTrainingConfig):
        return failed(f"The function returned {choice!r}.", "Return config.replace(...), a labs.ModelTrainingConfig.")
    pairs = [
        (name, getattr(given, name), getattr(choice, name)) for name in type(given).model_fields if name not in FREE
    ]
    model = [
        (f"model.{name}", getattr(given.model, name), getattr(choice.model, name))
        for name in type(given.model).model_fields
        if name not in FREE_IN_MODEL
    ]
    for name, wanted, built in (*pairs, *model):
        if wanted != built:
            hint = f"Keep {name}={wanted!r}. {_what_is_free(name)}"
            return failed(f"{name} is not as the task says.", hint, row(name, wanted, built))
    return None


def _what_is_free(name: str) -> str:
    if name == "model.num_layers":
        return "A shallower stack trains, and mends nothing: all 48 layers must get a gradient."
    if name == "steps":
        return "More steps do not mend it: where no gradient arrives, nothing moves."
    return f"Free are {', '.join(FREE_IN_MODEL)} of the model, learning_rate, warmup_steps and max_grad_norm."


def of_run(run) -> Verdict | None:
    """Whether the run beat the baseline, and every block had a gradient of about one size."""
    bad = next((step for step in run.steps if not isfinite(step.loss) or not isfinite(step.grad_norm)), None)
    if bad is not None:
        found = f"In step {bad.step + 1} the loss is {bad.loss:.3g} and the gradient norm {bad.grad_norm:.3g}."
        return failed(found, _explosion_hint(run), row("finite loss and norm in every step", "yes", "no"))
    norms = block_norms(run.steps[-1])
    spread = max(norms) / min(norms) if min(norms) else float("inf")
    loss, limit = run.evals[-1].validation_loss, SHARE_OF_BASELINE * run.evals[-1].baseline_loss
    rows = (
        row("validation loss [nats]", f"below {limit:.3g}, half the baseline", f"{loss:.3g}"),
        row("largest / smallest norm of a block", f"at most {LARGEST_SPREAD:.0f}", f"{spread:.3g}"),
    )
    if spread > LARGEST_SPREAD:
        return failed(
            f"The first block gets {norms[0]:.2g}, the last {norms[-1]:.2g}.", _spread_hint(run, norms), *rows
        )
    if not loss < limit:
        return failed(f"The validation loss ends at {loss:.3g}.", _loss_hint(run), *rows)
    return None


def praise(run) -> str:
    norms, last = block_norms(run.steps[-1]), run.evals[-1]
    return (
        f"48 layers train: validation loss {last.validation_loss:.2f} against {last.baseline_loss:.2f}, and the "
        f"largest norm of a block is {max(norms) / min(norms):.2g} times the smallest."
    )


def block_norms(step) -> list[float]:
    return [norm for layer, norm in step.layer_grad_norms.items() if layer.startswith("blocks.")]


def _spread_hint(run, norms: list[float]) -> str:
    model = run.config.model
    if run.config.learning_rate > LARGEST_RATE:
        return _TOO_FAST
    if norms[0] < norms[-1]:
        clip = " Clipping makes gradients shorter; it cannot make them longer." if run.config.max_grad_norm else ""
        return f"The gradient vanishes on its way back: each layer passes on a part of it. Give it a way around.{clip}"
    if model.norm and not model.residual:
        return (
            "Normalisation alone makes the gradient grow on its way back, by about 15 % a layer. Which switch is left?"
        )
    return "The gradient grows on its way back. Look at the picture of all stacks: which one is level?"


def _loss_hint(run) -> str:
    model, first = run.config.model, run.losses[0]
    if run.config.learning_rate > LARGEST_RATE:
        return _TOO_FAST
    if not model.residual and first > 10 * run.evals[-1].baseline_loss:
        return (
            "The weights are so large that each layer makes its input longer: the loss explodes before the first step."
        )
    if model.residual and not model.norm and first > 10 * run.evals[-1].baseline_loss:
        return (
            "Residuals alone add 48 updates up, and the output explodes before the first step. Keep each update small: "
            "by normalisation, or by a small init_scale."
        )
    if not model.residual:
        return (
            "All layers get gradients, and the signal of the input is gone after 48 of them. Gradients of one size are "
            "not enough: let each layer add to its input."
        )
    return "The gradients are fine. Is the learning rate of a size that moves the loss in 40 steps?"


def _explosion_hint(run) -> str:
    if run.config.learning_rate > LARGEST_RATE:
        return _TOO_FAST
    return "Something explodes. Is the output of 48 layers still of size 1? See init_scale, norm and residual."
