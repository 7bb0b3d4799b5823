"""Loss over steps, and the gradient norm of every layer over steps."""

from __future__ import annotations

from math import isfinite

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labs.plots.heat_map import draw_heat_map, plot_heat_map
from labs.plots.style import FAINT, INK, ONE_PICTURE, Picture, as_label, clean, headline, run_style, say_instead
from labs.plots.view import RunView, view_of, views_of
from labs.records import best_of

WORSE = 1.1  # times the best validation loss: more than what it wavers by from one evaluation to the next


def plot_loss(runs, num_steps: int | None = None) -> Picture:
    """Draw the measured training loss [nats] of one or several runs, their evaluations, and the baseline to beat.

    `runs` is a RunResult, a list of them, or {name: RunResult}; `num_steps` fixes the width while a run is still going.
    """
    picture = Picture(*ONE_PICTURE)
    draw_loss(picture.panel(), views_of(runs), num_steps)
    return picture


def plot_layer_norms(run) -> Picture:
    """Draw the measured gradient norm of every layer (rows) at every step (columns) before clipping, log scale."""
    return plot_heat_map(view_of(run).steps)


def draw_loss(axes: Axes, views: dict[str, RunView], num_steps: int | None = None) -> None:
    """Draw losses on given axes; `num_steps` fixes the x axis while a run is still going."""
    if not any(view.steps for view in views.values()):
        headline(axes, "Loss")
        return say_instead(axes, "no step finished yet")
    for index, (name, view) in enumerate(views.items()):
        # The first of several lines is the widest, so that equal runs do not hide each other.
        width = max(1.4, 4.2 - 1.2 * index) if len(views) > 1 else 1.8
        _draw_one_loss(axes, view, run_style(index), as_label(name) if len(views) > 1 else "training loss", width)
    baselines = {round(record.baseline_loss, 6) for view in views.values() for record in view.evals}
    is_wide = _spans_decades(views)
    for baseline in baselines:
        axes.axhline(baseline, color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)))
        axes.annotate(
            f"baseline {baseline:.2f}", (0.35 if is_wide else 0, baseline), (4, 3), ("axes fraction", "data"),
            "offset points", ha="left", va="bottom", fontsize=8, color=FAINT,
        )  # fmt: skip
    if is_wide:
        axes.set_yscale("log")
    if num_steps:
        axes.set_xlim(-0.02 * num_steps, 1.02 * num_steps)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    clean(axes, "optimizer step", "loss [nats], measured")
    corner = "lower left" if is_wide else "upper right"  # where neither the baseline nor the curve passes
    axes.legend(fontsize=8, frameon=False, loc=corner if len(views) == 1 else "best")
    headline(axes, _loss_title(views), "line: mean over the global batch; markers: validation set" + _stop_words(views))


def _spans_decades(views: dict[str, RunView]) -> bool:
    """Whether losses lie so far apart that a linear axis would show the largest alone, as where a table is learnt."""
    losses = [value for view in views.values() for value in (
        *(record.loss for record in view.steps), *(record.validation_loss for record in view.evals)
    ) if value > 0]  # fmt: skip
    return bool(losses) and max(losses) > 20 * min(losses)


def _draw_one_loss(axes: Axes, view: RunView, style: dict, name: str, width: float) -> None:
    steps = [record.step + 1 for record in view.steps]
    line = {"color": style["color"], "linestyle": style["linestyle"]}
    axes.plot(steps, [record.loss for record in view.steps], linewidth=width, label=name, **line)
    if view.evals:
        axes.plot(
            [record.step + 1 for record in view.evals], [record.validation_loss for record in view.evals],
            linestyle=":" if name == "training loss" else "none", linewidth=1.2,
            marker=style["marker"], markersize=7, color=style["color"], markeredgecolor="white",
            label="validation loss" if name == "training loss" else None, zorder=3,
        )  # fmt: skip
    if view.config.early_stopping_patience is not None and view.evals:
        best = best_of(view.evals)
        axes.plot(
            [best.step + 1], [best.validation_loss], linestyle="none", marker="o", markersize=14, markeredgewidth=1.6,
            markerfacecolor="none", markeredgecolor=INK, zorder=4,
        )  # fmt: skip


def _stop_words(views: dict[str, RunView]) -> str:
    if len(views) > 1 or all(view.config.early_stopping_patience is None or not view.evals for view in views.values()):
        return ""
    return "; ring: the best one"


def _loss_title(views: dict[str, RunView]) -> str:
    evaluated = [view for view in views.values() if view.evals]
    if len(views) > 1:
        finals = [view.steps[-1].loss for view in views.values() if view.steps]
        if lost := [loss for loss in finals if not isfinite(loss)]:
            return f"{len(lost)} of {len(finals)} runs have lost their number: their last training loss is not finite"
        return f"Final training losses lie {max(finals) - min(finals):.3g} nats apart"
    if not evaluated:
        view = next(iter(views.values()))
        return f"Training loss {view.steps[0].loss:.2f} -> {view.steps[-1].loss:.2f}"
    view, last = evaluated[0], evaluated[0].evals[-1]
    best = best_of(view.evals)
    if view.config.early_stopping_patience and len(view.steps) < view.config.steps:
        return (
            f"Best validation loss {best.validation_loss:.2f} after step {best.step + 1}, {len(view.steps)} steps done"
        )
    if last.validation_loss > WORSE * best.validation_loss:
        lowest = f"{best.validation_loss:.2f} after step {best.step + 1}"
        return f"Validation loss: {lowest}, {last.validation_loss:.2f} at the end"
    verdict = "below" if last.validation_loss < last.baseline_loss else "not yet below"
    return f"Validation loss {last.validation_loss:.2f} is {verdict} the baseline {last.baseline_loss:.2f}"


def draw_layer_norms(axes: Axes, view: RunView, num_steps: int | None = None) -> None:
    """Draw the heat map of a run on given axes; `num_steps` fixes the x axis while it is still going."""
    draw_heat_map(axes, view.steps, num_steps=num_steps)
