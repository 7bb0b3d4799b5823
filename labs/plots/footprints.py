"""Bytes of one rank under every strategy, predicted: bars under a device's capacity, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.config import STRATEGIES
from labs.errors import ConfigError
from labs.footprint import Footprint, footprint
from labs.named_models import NAMED_MODELS
from labs.plots.style import FAINT, INK, STATE_COLORS, STATE_HATCHES, Picture, byte_unit, clean, headline
from labs.plots.tables import Table
from labs.plots.view import model_name
from labs.scenario import Scenario
from labs.spec import ModelSpec
from labs.units import GB, format_bytes, format_count

BAR_WIDTH = 0.62
TALLEST = 1.9  # times the capacity: taller bars are cut off, or the others would be too small to read
# What is drawn, from the bottom up, and the parts of a footprint's moment that it adds.
PARTS = {
    "parameters": ("parameters",),
    "master_weights": ("master_weights",),
    "optimizer": ("optimizer",),
    "gradients": ("gradients", "unreduced gradients", "fp32 gradients"),
    "activations": ("activations", "recomputed", "logits"),
    "buffers": ("buffers", "gathered", "buckets"),
}
NAMES = {"buffers": "temporary", "master_weights": "master weights"}


def footprints(scenario: Scenario) -> dict[str, Footprint | str]:
    """Count one rank's bytes under every strategy; in place of a footprint the sentence why a strategy is refused."""
    found: dict[str, Footprint | str] = {}
    for strategy in STRATEGIES:
        world_size = 1 if strategy == "single" else scenario.world_size
        try:
            found[strategy] = footprint(scenario.replace(strategy=strategy, world_size=world_size, shard_size=None))
        except ConfigError as refused:
            found[strategy] = str(refused)
    return found


def plot_footprints(scenario: Scenario, capacity_bytes: float, chosen: str | None = None) -> Picture:
    """Draw what one rank's device holds at its fullest moment under every strategy, beside a line at its capacity.

    `chosen` is the strategy to mark, that of the scenario when not given.
    """
    found = footprints(scenario)
    picture = Picture(9.6, 4.3)
    axes = picture.panel(right=1.75, left=0.8, bottom=0.72)
    peaks = [one.peak_bytes for one in found.values() if isinstance(one, Footprint)]
    size, unit = byte_unit(max(capacity_bytes, *peaks))
    top = max(capacity_bytes, min(max(peaks), TALLEST * capacity_bytes)) * 1.14 / size
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.set_ylim(0, top)
    for index, one in enumerate(found.values()):
        _bar(axes, index, one, size, top)
    _capacity_line(axes, capacity_bytes / size, format_bytes(capacity_bytes))
    _name_bars(axes, found, chosen or scenario.strategy, capacity_bytes)
    clean(axes, "", f"bytes on the device of one rank [{unit}]")
    _legend(axes, PARTS)
    headline(axes, *_titles(scenario, found, capacity_bytes))
    return picture


def table_footprints(scenario: Scenario, capacity_bytes: float) -> Table:
    """List what one rank holds at its fullest moment under every strategy, part by part, and whether it fits."""
    columns = ("strategy", *(NAMES.get(part, part) for part in PARTS), "device, in all", "on the host", "fits")
    rows = tuple(_row(strategy, one, capacity_bytes) for strategy, one in footprints(scenario).items())
    model = f"{model_title(scenario.model)}, {format_count(scenario.model.num_parameters)} parameters"
    caption = f"{model}, one rank of {scenario.world_size}, device of {format_bytes(capacity_bytes)}"
    return Table(f"{caption}: predicted, the fullest moment", columns, rows)


def plot_partition(states: Mapping[str, Mapping[str, int]]) -> Picture:
    """Draw {strategy: {state: bytes}} of one rank as lying bars in GB, as figure 1 of the ZeRO paper does."""
    picture = Picture(8.6, 2.9)
    axes = picture.panel(right=1.75, left=0.8)
    for y, held in enumerate(states.values()):
        left = 0.0
        for state, num_bytes in held.items():
            axes.barh(y, num_bytes / GB, 0.62, left, linewidth=0.8, **_look(state))
            left += num_bytes / GB
        axes.annotate(f"{left:.3g} GB", (left, y), (5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(states)), list(states))
    axes.invert_yaxis()
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
    clean(axes, "bytes on one rank [GB]", "", grid="x")
    _legend(axes, next(iter(states.values())))
    headline(axes, "Each stage cuts one state more", "calculated, not measured")
    return picture


def parts_of(found: Footprint) -> dict[str, int]:
    """Add up what the device holds at its fullest moment into the parts that are drawn."""
    moment = found.moments[found.peak_moment]
    return {part: sum(moment.get(name, 0) for name in names) for part, names in PARTS.items()}


def model_title(spec: ModelSpec) -> str:
    """Name a model as published, or by its kind and size."""
    return next((name for name, known in NAMED_MODELS.items() if known.spec == spec), model_name(spec))


def _look(part: str) -> dict:
    return {"facecolor": "white", "edgecolor": STATE_COLORS[part], "hatch": STATE_HATCHES[part]}


def _bar(axes: Axes, x: int, found: Footprint | str, size: int, top: float) -> None:
    """Stack the parts of one bar, the total over it; a bar that is too tall is cut off and says so."""
    if isinstance(found, str):
        axes.text(x, top * 0.03, "not possible", rotation=90, ha="center", va="bottom", fontsize=8.5, color=FAINT)
        return
    bottom = 0.0
    for part, num_bytes in parts_of(found).items():
        height = min(num_bytes / size, top - bottom)
        if height > 0:
            axes.bar(x, height, BAR_WIDTH, bottom, linewidth=0.8, **_look(part))
            bottom += height
    total = format_bytes(found.peak_bytes)
    if found.peak_bytes / size > top:
        total = f"↑ {total}"
    look = {
        "ha": "center",
        "fontsize": 8.5,
        "color": INK,
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
    }
    axes.annotate(total, (x, min(bottom, top * 0.94)), (0, 3), textcoords="offset points", **look)


def _capacity_line(axes: Axes, capacity: float, words: str) -> None:
    axes.axhline(capacity, color=INK, linewidth=1.4, linestyle=(0, (6, 2)))
    axes.annotate(
        f"capacity\n{words}", (1, capacity), (6, 0), ("axes fraction", "data"), textcoords="offset points",
        va="center", fontsize=8.5, color=INK,
    )  # fmt: skip


def _name_bars(axes: Axes, found: Mapping[str, Footprint | str], chosen: str, capacity_bytes: float) -> None:
    """Write under each bar its strategy and whether it fits; the chosen one in bold between marks."""
    words = [f"▸ {name} ◂" if name == chosen else name for name in found]
    words = [f"{name}\n{_fits(one, capacity_bytes)}" for name, one in zip(words, found.values(), strict=True)]
    labels = axes.set_xticks(range(len(found)), words)
    for label, name in zip(labels, found, strict=True):
        label.label1.set_fontweight("bold" if name == chosen else "normal")


def _fits(found: Footprint | str, capacity_bytes: float) -> str:
    if isinstance(found, str):
        return "–"
    verdict = "✓ fits" if found.peak_bytes <= capacity_bytes else "✗ too large"
    return f"{verdict}\n+{format_bytes(found.host_bytes)} host" if found.host_bytes else verdict


def _legend(axes: Axes, parts) -> None:
    keys = [Patch(label=NAMES.get(part, part.replace("_", " ")), linewidth=0.8, **_look(part)) for part in parts]
    axes.legend(
        handles=keys[::-1], loc="lower left", bbox_to_anchor=(1.005, -0.2), fontsize=8.5, frameon=False,
        handlelength=1.8, handleheight=1.1,
    )  # fmt: skip


def _titles(scenario: Scenario, found: Mapping[str, Footprint | str], capacity_bytes: float) -> tuple[str, str]:
    counted = {name: one for name, one in found.items() if isinstance(one, Footprint)}
    fitting = [name for name, one in counted.items() if one.peak_bytes <= capacity_bytes]
    ranks = f"{scenario.world_size} rank{'s' if scenario.world_size > 1 else ''}"
    verdict = f"{', '.join(fitting)} fit" if fitting else "no strategy fits"
    verdict += "s" if len(fitting) == 1 else ""
    note = "predicted for one rank at its fullest moment; activations and temporary bytes are estimates"
    return f"{model_title(scenario.model)} on {ranks}: {verdict} into {format_bytes(capacity_bytes)}", note


def _row(strategy: str, found: Footprint | str, capacity_bytes: float) -> tuple[str, ...]:
    if isinstance(found, str):
        return (strategy, *["-"] * (len(PARTS) + 2), "not possible")
    parts = [format_bytes(num_bytes) for num_bytes in parts_of(found).values()]
    fits = "yes" if found.peak_bytes <= capacity_bytes else "no"
    return (strategy, *parts, format_bytes(found.peak_bytes), format_bytes(found.host_bytes), fits)
