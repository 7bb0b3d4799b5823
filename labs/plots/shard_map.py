"""Which rank owns which slice of which layer, by the arithmetic that predicts the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from labs.config import ModelTrainingConfig
from labs.ds_layout import flat_part_elements, optimizer_groups, part_elements
from labs.memory import num_shards, state_bytes
from labs.plots.style import INK, Picture, clean, headline
from labs.plots.tables import Table
from labs.spec import ParameterSpec, layer_of
from labs.units import format_count

NUM_COLUMNS = 960  # of the drawn rows: divides by 1 to 6 and 8 ranks
CUT_STATES = {
    "zero1": ("optimizer", "master_weights"),
    "zero2": ("optimizer", "master_weights", "gradients"),
    "zero3": ("optimizer", "master_weights", "gradients", "parameters"),
    "fsdp": ("optimizer", "master_weights", "gradients", "parameters"),
    "hsdp": ("optimizer", "master_weights", "gradients", "parameters"),
}


@dataclass(frozen=True)
class Slice:
    """Elements [start, stop) of one flattened parameter, and the shard that holds them."""

    parameter: ParameterSpec
    start: int
    stop: int
    shard: int


def slices(config: ModelTrainingConfig) -> list[Slice]:
    """List who owns what of every parameter, padding left out; one shard where nothing is cut."""
    parameters, shards = config.model.parameters(), num_shards(config)
    if config.strategy in ("zero1", "zero2"):
        found = [s for group in optimizer_groups(parameters) for s in _flat_slices(group, shards)]
        order = {parameter.name: index for index, parameter in enumerate(parameters)}
        return sorted(found, key=lambda s: (order[s.parameter.name], s.start))
    return [s for parameter in parameters for s in _own_slices(parameter, _part(config, parameter, shards))]


def _part(config: ModelTrainingConfig, parameter: ParameterSpec, shards: int) -> int:
    """Elements of the largest slice of a parameter that is cut by itself."""
    if config.strategy == "zero3":
        return part_elements(parameter.num_elements, shards)
    if config.strategy in ("fsdp", "hsdp"):  # by rows, which cannot be cut
        return -(-parameter.shape[0] // shards) * (parameter.num_elements // parameter.shape[0])
    return parameter.num_elements


def _own_slices(parameter: ParameterSpec, part: int) -> Iterator[Slice]:
    for shard, start in enumerate(range(0, parameter.num_elements, part)):
        yield Slice(parameter, start, min(start + part, parameter.num_elements), shard)


def _flat_slices(group: list[ParameterSpec], shards: int) -> Iterator[Slice]:
    part, offset = flat_part_elements(group, shards), 0
    for parameter in group:
        start = 0
        while start < parameter.num_elements:
            shard = (offset + start) // part
            stop = min(parameter.num_elements, (shard + 1) * part - offset)
            yield Slice(parameter, start, stop, shard)
            start = stop
        offset += parameter.num_elements


def plot_shard_map(config: ModelTrainingConfig) -> Picture:
    """Draw every layer as a row of its elements, coloured and numbered by the rank that owns them (predicted)."""
    layers = _by_layer(config)
    picture = Picture(9.2, 1.5 + 0.27 * len(layers))
    axes = picture.panel(left=1.5, right=0.75, bottom=0.8)
    _draw_rows(axes, config, layers)
    axes.set_yticks(range(len(layers)), list(layers), fontsize=8.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["first element", "share of the layer's elements, in order", "last"])
    clean(axes, "", "", grid="")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    headline(axes, *_titles(config), shift_inches=-0.75)
    return picture


def _by_layer(config: ModelTrainingConfig) -> dict[str, list[Slice]]:
    layers: dict[str, list[Slice]] = {}
    for found in slices(config):
        layers.setdefault(layer_of(found.parameter.name), []).append(found)
    return layers


def _draw_rows(axes: Axes, config: ModelTrainingConfig, layers: dict[str, list[Slice]]) -> None:
    shards = num_shards(config) if config.strategy in CUT_STATES else 1
    colors = ListedColormap(rank_colors(shards) if shards > 1 else ["#D9D9D9"])
    image = np.array([_columns(found) for found in layers.values()])
    extent = (0, 1, len(layers) - 0.5, -0.5)
    axes.imshow(
        image, aspect="auto", cmap=colors, vmin=0, vmax=max(1, shards - 1), extent=extent, interpolation="nearest"
    )
    for row, found in enumerate(layers.values()):
        axes.axhline(row - 0.5, color="white", linewidth=4)
        elements = sum(s.stop - s.start for s in found)
        axes.annotate(
            format_count(elements),
            (1, row),
            (6, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
            fontsize=8,
        )
        _write_owners(axes, row, image[row], lambda shard: _owners(config, shard))
    if shards > 1:
        keys = [Patch(color=colors(shard), label=f"rank {_owners(config, shard)}") for shard in range(shards)]
        axes.legend(
            handles=keys,
            ncols=8,
            fontsize=8,
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.3 / len(layers) * 4),
        )


def rank_colors(shards: int) -> np.ndarray:
    """Return viridis mixed with white, on which dark numbers can be read [shards, 4]."""
    return 0.6 * colormaps["viridis"](np.linspace(0.2, 1, shards)) + 0.4


def _columns(found: list[Slice]) -> np.ndarray:
    """Return the owner of each drawn column of one layer [NUM_COLUMNS]."""
    ends = np.cumsum([s.stop - s.start for s in found])
    middles = (np.arange(NUM_COLUMNS) + 0.5) * ends[-1] / NUM_COLUMNS
    return np.array([s.shard for s in found])[np.searchsorted(ends, middles, side="right")]


def _write_owners(axes: Axes, row: int, columns: np.ndarray, name) -> None:
    position = 0
    for shard, run in groupby(columns.tolist()):
        length = len(list(run))
        if length > NUM_COLUMNS * (0.008 + 0.007 * len(text := name(shard))):
            x = (position + length / 2) / NUM_COLUMNS
            axes.text(x, row, text, ha="center", va="center", fontsize=8, color=INK)
        position += length


def _owners(config: ModelTrainingConfig, shard: int) -> str:
    if config.strategy not in CUT_STATES:
        return "every rank" if config.world_size > 1 else "0"
    return ", ".join(str(rank) for rank in range(shard, config.world_size, num_shards(config)))


def _titles(config: ModelTrainingConfig) -> tuple[str, str]:
    ranks = f"{config.world_size} ranks" if config.world_size > 1 else "the only rank"
    if config.strategy not in CUT_STATES:
        return (
            f"{config.strategy}: nothing is cut, {ranks} hold every state whole",
            "predicted; right: elements of the layer",
        )
    held = state_bytes(config, 0)
    cut = [state for state in CUT_STATES[config.strategy] if held[state]]
    whole = [state for state in ("gradients", "parameters") if state not in CUT_STATES[config.strategy]]
    words = " and ".join(state.replace("_", " ") for state in whole)
    rest = f"; {words} stay whole on every rank" if whole else "; no rank holds a whole layer"
    states = ", ".join(state.replace("_", " ") for state in cut)
    how = {
        "zero3": "each tensor is cut by itself",
        "fsdp": "each tensor is cut by rows",
        "hsdp": "each tensor is cut by rows",
    }
    cutting = how.get(config.strategy, "one long row of all matrices is cut, and one of norms and biases")
    return (
        f"{config.strategy} cuts {states} in {num_shards(config)}{rest}",
        f"predicted; {cutting}; right: elements of the layer",
    )


def table_shard_map(config: ModelTrainingConfig) -> Table:
    """List the elements of each layer that each rank owns of the states that are cut, or of all where none is."""
    rows = tuple(_table_row(config, layer, found) for layer, found in _by_layer(config).items())
    columns = ("layer", *(f"rank {rank}" for rank in range(config.world_size)))
    return Table("Elements of each layer owned, predicted", columns, rows)


def _table_row(config: ModelTrainingConfig, layer: str, found: list[Slice]) -> tuple[str, ...]:
    owned = [0] * config.world_size
    for s in found:
        for rank in range(config.world_size):
            if config.strategy not in CUT_STATES or rank % num_shards(config) == s.shard:
                owned[rank] += s.stop - s.start
    return (layer, *(f"{count:,}" for count in owned))
