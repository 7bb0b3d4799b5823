"""Loss over steps, and the gradient norm of every layer over steps."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, MaxNLocator

from labs.plots.style import FAINT, INK, Picture, clean, headline, run_style, say_instead
from labs.plots.view import RunView, view_of, views_of

MAX_LABELLED_LAYERS = 16
NORM_MARGINS = {"left": 1.4, "right": 1.35}  # inches: names of layers, values and colour bar


def plot_loss(runs) -> Picture:
    """Draw the measured training loss [nats] of one or several runs, their evaluations, and the baseline to beat.

    `runs` is a RunResult, a list of them, or {name: RunResult}.
    """
    picture = Picture(8, 4.2)
    draw_loss(picture.panel(), views_of(runs))
    return picture


def plot_layer_norms(run) -> Picture:
    """Draw the measured gradient norm of every layer (rows) at every step (columns) before clipping, log scale."""
    picture = Picture(8, 4.2)
    draw_layer_norms(picture.panel(**NORM_MARGINS), view_of(run))
    return picture


def draw_loss(axes: Axes, views: dict[str, RunView], num_steps: int | None = None) -> None:
    """Draw losses on given axes; `num_steps` fixes the x axis while a run is still going."""
    if not any(view.steps for view in views.values()):
        headline(axes, "Loss")
        return say_instead(axes, "no step finished yet")
    for index, (name, view) in enumerate(views.items()):
        # The first of several lines is the widest, so that equal runs do not hide each other.
        width = max(1.4, 4.2 - 1.2 * index) if len(views) > 1 else 1.8
        _draw_one_loss(axes, view, run_style(index), name if len(views) > 1 else "training loss", width)
    baselines = {round(record.baseline_loss, 6) for view in views.values() for record in view.evals}
    for baseline in baselines:
        axes.axhline(baseline, color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)))
        axes.annotate(
            f"baseline {baseline:.2f}", (0, baseline), (4, 3), ("axes fraction", "data"), "offset points",
            ha="left", va="bottom", fontsize=8, color=FAINT,
        )  # fmt: skip
    if num_steps:
        axes.set_xlim(-0.02 * num_steps, 1.02 * num_steps)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    clean(axes, "optimizer step", "loss [nats], measured")
    axes.legend(fontsize=8, frameon=False, loc="upper right" if len(views) == 1 else "best")
    headline(axes, _loss_title(views), "line: mean over the global batch; markers: validation set")


def _draw_one_loss(axes: Axes, view: RunView, style: dict, name: str, width: float) -> None:
    steps = [record.step + 1 for record in view.steps]
    line = {"color": style["color"], "linestyle": style["linestyle"]}
    axes.plot(steps, [record.loss for record in view.steps], linewidth=width, label=name, **line)
    if view.evals:
        axes.plot(
            [record.step + 1 for record in view.evals], [record.validation_loss for record in view.evals],
            linestyle="none", marker=style["marker"], markersize=7, color=style["color"], markeredgecolor="white",
            label="validation loss" if name == "training loss" else None, zorder=3,
        )  # fmt: skip


def _loss_title(views: dict[str, RunView]) -> str:
    evaluated = [view for view in views.values() if view.evals]
    if len(views) > 1:
        finals = [view.steps[-1].loss for view in views.values() if view.steps]
        return f"Final training losses lie {max(finals) - min(finals):.3g} nats apart"
    if not evaluated:
        view = next(iter(views.values()))
        return f"Training loss {view.steps[0].loss:.2f} -> {view.steps[-1].loss:.2f}"
    last = evaluated[0].evals[-1]
    verdict = "below" if last.validation_loss < last.baseline_loss else "not yet below"
    return f"Validation loss {last.validation_loss:.2f} is {verdict} the baseline {last.baseline_loss:.2f}"


def draw_layer_norms(axes: Axes, view: RunView, num_steps: int | None = None) -> None:
    """Draw the heat map on given axes, the first layer at the top; the last step's norms stand at the right."""
    layers, norms = norm_table(view)
    usable = norms[np.isfinite(norms) & (norms > 0)]
    if not usable.size:
        headline(axes, "Gradient norm of each layer")
        return say_instead(axes, "no step finished yet" if not view.steps else "no finite gradient above zero")
    shown = np.ma.masked_invalid(np.where(norms > 0, norms, np.nan))
    low, high = float(usable.min()), float(usable.max())
    scale = LogNorm(low, high if high > low else low * 1.01)
    image = axes.imshow(
        shown, aspect="auto", norm=scale, cmap="viridis", interpolation="nearest",
        extent=(0.5, norms.shape[1] + 0.5, len(layers) - 0.5, -0.5),
    )  # fmt: skip
    image.cmap = image.cmap.with_extremes(bad="#D55E00")
    if num_steps:
        axes.set_xlim(0.5, num_steps + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    clean(axes, "optimizer step", "", grid="")
    _label_layers(axes, layers, norms[:, -1])
    _draw_color_bar(axes, image)
    how = "before clipping; numbers: last step; orange: zero or not finite"
    headline(axes, _norm_title(layers, norms[:, -1]), how, 0.75 - NORM_MARGINS["left"])


def _draw_color_bar(axes: Axes, image) -> None:
    inches = axes.get_position().width * axes.figure.get_figwidth()
    bar = axes.figure.colorbar(image, cax=axes.inset_axes([1 + 0.5 / inches, 0, 0.14 / inches, 1]))
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(lambda norm, _: f"{norm:.2g}")
    bar.ax.minorticks_off()
    bar.set_label("gradient norm, measured (log)", fontsize=8.5)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)


def norm_table(view: RunView) -> tuple[list[str], np.ndarray]:
    """Return the layers in model order and their norms [num_layers, num_steps]."""
    layers = list(view.steps[0].layer_grad_norms) if view.steps else []
    columns = [[record.layer_grad_norms.get(layer, np.nan) for layer in layers] for record in view.steps]
    return layers, np.array(columns, dtype=float).T.reshape(len(layers), len(view.steps))


def _label_layers(axes: Axes, layers: list[str], last_norms: np.ndarray) -> None:
    every = -(-len(layers) // MAX_LABELLED_LAYERS)
    shown = range(0, len(layers), every)
    axes.set_yticks(list(shown), [layers[index] for index in shown], fontsize=8)
    for index in shown:
        axes.annotate(
            f"{last_norms[index]:.2g}", (1, index), (4, 0), ("axes fraction", "data"), "offset points",
            va="center", fontsize=7.5, color=INK,
        )  # fmt: skip


def _norm_title(layers: list[str], last_norms: np.ndarray) -> str:
    usable = [index for index, norm in enumerate(last_norms) if np.isfinite(norm) and norm > 0]
    if len(usable) < len(layers):
        return f"{len(layers) - len(usable)} of {len(layers)} layers have a gradient of zero or not finite"
    largest, smallest = max(usable, key=last_norms.__getitem__), min(usable, key=last_norms.__getitem__)
    ratio = last_norms[largest] / last_norms[smallest]
    return f"Largest norm: {layers[largest]}, {ratio:.3g} x {layers[smallest]}"
