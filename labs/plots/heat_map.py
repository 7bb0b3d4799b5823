"""Gradient norms over depth and time: layers down, steps across, colour for the norm on a log scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from labs.plots.style import INK, Picture, clean, headline, say_instead
from labs.plots.tables import Table
from labs.records import StepRecord
from labs.units import format_figures

NORM_MARGINS = {"left": 1.4, "right": 1.35}  # inches: names of layers, values and colour bar
LABEL_INCHES = 0.165  # of the height, for the name of one layer
MAX_ROWS = 16  # of the table
# What no logarithm has a colour for: (fill, hatch, edge).
MARKS = {"0": ("#F2F2F2", "....", "#8C8C8C"), "inf": ("#D55E00", "xxxx", "white"), "nan": (INK, "////", "white")}


def plot_heat_map(
    steps: Sequence[StepRecord],
    title: str | None = None,
    num_steps: int | None = None,
    norm_range: tuple[float, float] | None = None,
) -> Picture:
    """Draw the measured gradient norm of every layer (rows) at every step (columns) before clipping, on a log scale.

    Norms of 0, inf and nan are hatched. `title` replaces the sentence about the last step; `num_steps` fixes the
    width while a run is still going; `norm_range` fixes the colours, so that two maps can be compared.
    """
    num_layers = len(_layers(steps))
    picture = Picture(8.6, min(4.9, max(3.1, 1.3 + LABEL_INCHES * num_layers)))
    draw_heat_map(picture.panel(**NORM_MARGINS), steps, title, num_steps, norm_range)
    return picture


def table_heat_map(steps: Sequence[StepRecord], title: str | None = None) -> Table:
    """List the norms of the heat map at the first, a middle, the last and the worst step; of many layers every n-th."""
    layers, norms = norm_table(steps)
    chosen = sorted({0, _worst(steps), len(steps) // 2, len(steps) - 1}) if layers else []
    shown = _every_nth(len(layers), MAX_ROWS)
    rows = [(layers[row], *(format_figures(norms[row, column]) for column in chosen)) for row in shown]
    if chosen:
        rows.append(("all (global norm)", *(format_figures(steps[column].grad_norm) for column in chosen)))
        rows.append(("largest / smallest layer", *(_spread_words(norms[:, column]) for column in chosen)))
    some = f", {len(shown)} of {len(layers)} layers" if len(shown) < len(layers) else ""
    columns = ("layer", *(f"step {steps[column].step + 1}" for column in chosen))
    return Table(title or f"Gradient norm before clipping, measured{some}", columns, tuple(rows))


def norm_range(*runs: Sequence[StepRecord]) -> tuple[float, float] | None:
    """Return the smallest and the largest norm above zero of the steps of some runs; None when there is none."""
    found = [_usable(norm_table(steps)[1]) for steps in runs]
    ends = [(float(norms.min()), float(norms.max())) for norms in found if norms.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def draw_heat_map(
    axes: Axes,
    steps: Sequence[StepRecord],
    title: str | None = None,
    num_steps: int | None = None,
    colors: tuple[float, float] | None = None,
) -> None:
    """Draw on given axes, the first layer at the top; the norms of the last step stand at the right."""
    layers, norms = norm_table(steps)
    if not layers:
        headline(axes, title or "Gradient norm of each layer")
        return say_instead(axes, "no step finished yet" if not steps else "no layer has a gradient")
    first = steps[0].step + 1
    axes.set_xlim(first - 0.5, max(first - 1 + (num_steps or 0), first - 1 + len(steps)) + 0.5)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    if colors := colors or norm_range(steps):
        _draw_norms(axes, norms, first, *colors)
    _draw_marks(axes, norms, first)
    _label_steps(axes, steps)
    clean(axes, "optimizer step", "", grid="")
    _label_layers(axes, layers, norms[:, -1])
    how = "measured, before clipping; at the right: last step"
    headline(axes, title or _last_step_words(layers, norms[:, -1]), how, 0.75 - NORM_MARGINS["left"])


def norm_table(steps: Sequence[StepRecord]) -> tuple[list[str], np.ndarray]:
    """Return the layers in model order and their norms [num_layers, num_steps]; a layer without gradient has 0."""
    layers = _layers(steps)
    columns = [[record.layer_grad_norms.get(layer, 0.0) for layer in layers] for record in steps]
    return layers, np.array(columns, dtype=float).T.reshape(len(layers), len(steps))


def _worst(steps: Sequence[StepRecord]) -> int:
    """The first column whose global norm is the largest; one that is not finite is larger than any."""
    norms = np.array([record.grad_norm for record in steps])
    return int(np.argmax(np.where(np.isfinite(norms), norms, np.inf)))


def _layers(steps: Sequence[StepRecord]) -> list[str]:
    return list(dict.fromkeys(layer for record in steps for layer in record.layer_grad_norms))


def _usable(norms: np.ndarray) -> np.ndarray:
    return norms[np.isfinite(norms) & (norms > 0)]


def _draw_norms(axes: Axes, norms: np.ndarray, first: int, low: float, high: float) -> None:
    shown = np.ma.masked_where(~np.isfinite(norms) | (norms <= 0), norms)
    x_end = first + norms.shape[1] - 0.5
    image = axes.imshow(
        shown, aspect="auto", norm=LogNorm(low, max(high, low * 1.01)), cmap="viridis", interpolation="nearest",
        extent=(first - 0.5, x_end, len(norms) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_xlim(first - 0.5, max(axes.get_xlim()[1], x_end))
    inches = axes.get_position().width * axes.figure.get_figwidth()
    bar = axes.figure.colorbar(image, cax=axes.inset_axes([1 + 0.5 / inches, 0, 0.14 / inches, 1]))
    few = high < 100 * low
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=9))
    bar.ax.yaxis.set_major_formatter(lambda norm, _: format_figures(norm))
    bar.ax.minorticks_off()
    bar.set_label("gradient norm (log scale)", fontsize=8.5)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)


def _draw_marks(axes: Axes, norms: np.ndarray, first: int) -> None:
    keys = []
    for name, where in (("0", norms == 0), ("inf", np.isinf(norms)), ("nan", np.isnan(norms))):
        boxes = [
            Rectangle((first - 0.5 + left, top - 0.5), right - left, bottom - top)
            for left, right, top, bottom in _boxes(where)
        ]
        if boxes:
            fill, hatch, edge = MARKS[name]
            look = {"facecolor": fill, "hatch": hatch, "edgecolor": edge, "linewidth": 0}
            axes.add_collection(PatchCollection(boxes, **look), autolim=False)
            keys.append(Patch(**look, label=f"norm {name}"))
    if keys:
        wide, high = axes.get_position().size * axes.figure.get_size_inches()
        axes.legend(
            handles=keys, loc="upper right", bbox_to_anchor=(1 + 1.2 / wide, -0.3 / high), ncols=len(keys), fontsize=8,
            frameon=False, borderpad=0, borderaxespad=0, handlelength=1.8, columnspacing=1.2,
        )  # fmt: skip


def _boxes(where: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Cover the true cells by few boxes (left, right, top, bottom): equal runs of neighbouring rows are one."""
    open_boxes: dict[tuple[int, int], int] = {}
    for row in range(len(where) + 1):
        edges = np.flatnonzero(np.diff(where[row], prepend=False, append=False)) if row < len(where) else []
        runs = {(int(edges[i]), int(edges[i + 1])) for i in range(0, len(edges), 2)}
        for run in [run for run in open_boxes if run not in runs]:
            yield (*run, open_boxes.pop(run), row)
        for run in runs:
            open_boxes.setdefault(run, row)


def _label_steps(axes: Axes, steps: Sequence[StepRecord]) -> None:
    """Write the numbers of the steps, also where some are left out between two columns."""
    first, last = steps[0].step + 1, steps[-1].step + 1
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if last - first != len(steps) - 1:
        number = {first + index: record.step + 1 for index, record in enumerate(steps)}
        axes.xaxis.set_major_formatter(lambda x, _: str(number.get(round(x), "")))


def _label_layers(axes: Axes, layers: list[str], last_norms: np.ndarray) -> None:
    height = axes.get_position().height * axes.figure.get_figheight()
    shown = _every_nth(len(layers), max(2, int(height / LABEL_INCHES)))
    axes.set_yticks(shown, [layers[index] for index in shown], fontsize=8)
    for index in shown:
        axes.annotate(
            format_figures(last_norms[index], 2), (1, index), (4, 0), ("axes fraction", "data"), "offset points",
            va="center", fontsize=7.5, color=INK,
        )  # fmt: skip


def _every_nth(count: int, most: int) -> list[int]:
    """Choose at most `most` of 0 ... count - 1, evenly, the first and the last among them."""
    every = -(-(count - 1) // (most - 1)) if count > most else 1
    shown = list(range(0, count, every))
    if count and shown[-1] != count - 1:
        has_room = (count - 1 - shown[-1]) * most >= count and len(shown) < most
        shown = [*(shown if has_room else shown[:-1]), count - 1]
    return shown


def _last_step_words(layers: list[str], last_norms: np.ndarray) -> str:
    usable = [index for index, norm in enumerate(last_norms) if np.isfinite(norm) and norm > 0]
    if len(usable) < len(layers):
        bad = list(dict.fromkeys(f"{norm:g}" for norm in last_norms if not np.isfinite(norm) or norm == 0))
        return f"Last step: {len(layers) - len(usable)} of {len(layers)} layers have norm {' or '.join(bad)}"
    if len(layers) == 1:
        return f"Norm of {layers[0]}: {format_figures(last_norms[0])}"
    largest, smallest = max(usable, key=last_norms.__getitem__), min(usable, key=last_norms.__getitem__)
    return f"Largest norm: {layers[largest]}, {_spread_words(last_norms)} {layers[smallest]}"


def _spread_words(norms: np.ndarray) -> str:
    if not (np.isfinite(norms) & (norms > 0)).all():
        return "-"
    with np.errstate(over="ignore"):
        return f"{format_figures(norms.max() / norms.min())} x"
