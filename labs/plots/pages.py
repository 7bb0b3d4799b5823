"""Whole pages: one run in four pictures, and kept runs side by side."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.plots.curves import draw_layer_norms, draw_loss
from labs.plots.heat_map import NORM_MARGINS
from labs.plots.memory_bars import MEMORY_MARGINS, draw_memory
from labs.plots.style import INK, STATE_COLORS, Picture, as_label, byte_unit, clean, headline, run_style
from labs.plots.traffic_bars import draw_traffic
from labs.plots.view import RunView, model_state_bytes, sent_bytes_per_step, view_of, views_of
from labs.records import MODEL_STATES, STATES
from labs.units import format_bytes, format_count

PAGE_INCHES, CURVES_INCHES, BYTES_INCHES = 11, 3.95, 3.6
STATE_LETTERS = {state: state[0].upper() for state in STATES}


def plot_run(run) -> Picture:
    """Draw one page of a run, finished or not: loss, gradient norms by layer, memory and bytes sent by rank."""
    view = view_of(run)
    picture = Picture(PAGE_INCHES, CURVES_INCHES + BYTES_INCHES)
    share = BYTES_INCHES / (CURVES_INCHES + BYTES_INCHES)
    _draw_curves(picture, view, share, 1 - share)
    _draw_bytes(picture, view, 0, share)
    return picture


def _draw_curves(picture: Picture, view: RunView, bottom: float, height: float) -> None:
    title_inches = 1.15
    draw_loss(picture.panel((0, bottom, 0.5, height), top=title_inches), {view.name: view}, view.config.steps)
    axes = picture.panel((0.5, bottom, 0.5, height), top=title_inches, **NORM_MARGINS)
    draw_layer_norms(axes, view, view.config.steps)
    y = 1 - 0.12 / picture.get_figheight()
    picture.titles.insert(0, _page_title(view))
    picture.text(0.012, y, _page_title(view), va="top", fontsize=13, fontweight="bold", color=INK)


def _draw_bytes(picture: Picture, view: RunView, bottom: float, height: float) -> None:
    draw_memory(picture.panel((0, bottom, 0.5, height), **MEMORY_MARGINS), view)
    draw_traffic(picture.panel((0.5, bottom, 0.5, height)), view)


def _page_title(view: RunView) -> str:
    parameters = format_count(view.config.model.num_parameters)
    ranks = "1 rank" if view.config.world_size == 1 else f"{view.config.world_size} ranks"
    return f"{view.config.strategy} on {ranks}: {parameters} parameters, {len(view.steps)} of {view.config.steps} steps"


def plot_comparison(runs) -> Picture:
    """Draw kept runs over each other: loss, memory of the fullest rank, bytes sent a step, seconds of a step.

    `runs` is a list of RunResult, or {name: RunResult}. Raises ValueError for none.
    """
    views = views_of(runs)
    if not views:
        raise ValueError("plot_comparison was given no run; keep one first, or pass [launch(config), ...]")
    low = 1.6 + 0.4 * len(views)  # inches of the lower row
    picture = Picture(PAGE_INCHES, 4.2 + low)
    share = low / (4.2 + low)
    draw_loss(picture.panel((0, share, 1, 1 - share)), views)
    names = 0.3 + 0.075 * max(len(name) for name in views)  # inches
    third = (1 - names / PAGE_INCHES) / 3
    draws = (_draw_memory_rows, _draw_traffic_rows, _draw_speed_rows)
    for index, draw in enumerate(draws):
        x, left = (0, names + 0.1) if index == 0 else (names / PAGE_INCHES + index * third, 0.1)
        width = third + names / PAGE_INCHES if index == 0 else third
        axes = picture.panel((x, 0, width, share), left=left, right=0.15, bottom=0.9)
        draw(axes, list(views.values()))
        axes.set_yticks(range(len(views)), list(map(as_label, views)) if index == 0 else [""] * len(views))
        axes.set_ylim(len(views) - 0.4, -0.6)
    return picture


def _draw_memory_rows(axes: Axes, views: list[RunView]) -> None:
    fullest = [max(view.measured or view.predicted or ({},), key=model_state_bytes) for view in views]
    most = max(map(model_state_bytes, fullest))
    size, unit = byte_unit(most)
    axes.set_xlim(0, most / size * 1.3 or 1)
    for row, states in enumerate(fullest):
        left = 0.0
        for state in MODEL_STATES:
            width = states.get(state, 0) / size
            axes.barh(row, width, 0.6, left, color=STATE_COLORS[state], edgecolor="white", linewidth=0.6)
            ink = "white" if state == "parameters" else INK  # the only dark colour of the palette
            if width > 0.05 * axes.get_xlim()[1]:
                axes.text(left + width / 2, row, STATE_LETTERS[state], ha="center", va="center", fontsize=8, color=ink)
            left += width
        _write_beside(axes, left, row, format_bytes(model_state_bytes(states)))
    clean(axes, f"model states held [{unit}]", "", grid="x")
    headline(axes, "States of the fullest rank", "measured; without activations")
    names = {state: f"{STATE_LETTERS[state]} {state.replace('_', ' ')}" for state in MODEL_STATES}
    keys = [Patch(color=STATE_COLORS[state], label=name) for state, name in names.items()]
    axes.figure.legend(handles=keys, fontsize=8, frameon=False, ncols=len(keys), loc="lower left", handlelength=1)


def _draw_traffic_rows(axes: Axes, views: list[RunView]) -> None:
    sent = [sent_bytes_per_step(view) for view in views]
    size, unit = byte_unit(max((number or 0 for number in sent), default=0))
    texts = ["not measured" if number is None else format_bytes(number) for number in sent]
    _draw_rows(axes, [(number or 0) / size for number in sent], texts)
    clean(axes, f"bytes sent in a step [{unit}]", "", grid="x")
    headline(axes, "Bytes on the wire", "measured, the rank that sends most")


def _draw_speed_rows(axes: Axes, views: list[RunView]) -> None:
    def mean_ms(view: RunView, field: str) -> float:
        return 1e3 * sum(getattr(step, field) for step in view.steps) / max(1, len(view.steps))

    _draw_rows(
        axes, [mean_ms(view, "seconds") for view in views], [f"{mean_ms(view, 'seconds'):.3g} ms" for view in views]
    )
    for row, view in enumerate(views):
        talking = mean_ms(view, "communication_seconds")
        axes.barh(row, talking, 0.6, facecolor="none", edgecolor="white", hatch="////", linewidth=0)
    clean(axes, "milliseconds a step", "", grid="x")
    headline(axes, "Time of a step", "measured; hatched: waiting for other ranks")


def _draw_rows(axes: Axes, widths: list[float], texts: list[str]) -> None:
    axes.set_xlim(0, 1.35 * max(widths) or 1)
    for row, (width, text) in enumerate(zip(widths, texts, strict=True)):
        axes.barh(row, width, 0.6, color=run_style(row)["color"])
        _write_beside(axes, width, row, text)


def _write_beside(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
