"""DeepSpeed configs side by side: bytes of one rank as `explain` predicts them and as they were measured, and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.engine_facts import EngineFacts
from labs.plots.style import INK, STATE_COLORS, STATE_HATCHES, Picture, byte_unit, clean, headline
from labs.plots.tables import Table
from labs.units import format_bytes

STATES = ("parameters", "gradients", "optimizer", "master_weights")
FIRST, LAST = "micro-batch 1", "micro-batch 2"
Runs = Mapping[str, Sequence[EngineFacts]]


def plot_stages(runs: Runs, explained: Mapping) -> Picture:
    """Draw what rank 0 holds at the fuller of two micro-batches: predicted by `explain` (hatched), measured."""
    picture = Picture(9.6, 4.2)
    axes = picture.panel(right=1.55, left=0.8, bottom=0.5)
    bars = {name: (_predicted(explained[name]), _measured(ranks[0])) for name, ranks in runs.items()}
    size, unit = byte_unit(max(sum(held.values()) for pair in bars.values() for held in pair))
    for x, (predicted, measured) in enumerate(bars.values()):
        _bar(axes, x - 0.2, predicted, size, solid=False)
        _bar(axes, x + 0.2, measured, size, solid=True)
    axes.set_xticks(range(len(bars)), [name.replace(", ", ",\n") for name in bars])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
    clean(axes, "", f"bytes of one rank [{unit}]")
    keys = [Patch(facecolor=STATE_COLORS[s], edgecolor=INK, linewidth=0.5, label=s.replace("_", " ")) for s in STATES]
    axes.legend(handles=keys[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5, frameon=False)
    num_ranks = len(next(iter(runs.values())))
    how = f"rank 0 of {num_ranks}, the fuller of two micro-batches; hatched: predicted by explain, solid: measured"
    headline(axes, _title({name: sum(m.values()) - sum(p.values()) for name, (p, m) in bars.items()}), how)
    return picture


def _predicted(explanation) -> dict[str, int]:
    """Bytes by state, wherever they lie; the permanent bucket counts as gradients, as it is measured."""
    states = {state: sum(places.values()) for state, places in explanation.memory.states.items()}
    bucket = states.pop("reduce_bucket", 0)
    return states | {"gradients": states["gradients"] + bucket}


def _measured(facts: EngineFacts) -> dict[str, int]:
    return max((facts.moments[name] for name in (FIRST, LAST)), key=lambda moment: moment.total_bytes).held


def _bar(axes: Axes, x: float, held: Mapping[str, int], size: int, solid: bool) -> None:
    bottom = 0.0
    for state in STATES:
        height = held[state] / size
        look = {"facecolor": STATE_COLORS[state], "edgecolor": INK, "linewidth": 0.5}
        if not solid:
            look = {"facecolor": "white", "edgecolor": STATE_COLORS[state], "hatch": STATE_HATCHES[state]}
        axes.bar(x, height, 0.36, bottom, **look)
        bottom += height
    axes.annotate(f"{bottom:.3g}", (x, bottom), (0, 3), "data", "offset points", ha="center", fontsize=8, color=INK)


def _title(surplus: Mapping[str, int]) -> str:
    most = max(surplus, key=surplus.get)
    return f"{most[:1].upper()}{most[1:]}: {format_bytes(surplus[most])} more than predicted"


def table_stages(runs: Runs) -> Table:
    """List what rank 0 of each run holds before the step, gradients between micro-batches too, and what it calls."""
    columns = ("config", "parameters", "at most", "gradients between", "gradients", "optimizer", "masters", "in all",
               "calls of each part")  # fmt: skip
    caption = "Rank 0, measured: bytes before the step, collectives in micro-batch 1, in 2, in the step"
    return Table(caption, columns, tuple(_row(name, ranks[0]) for name, ranks in runs.items()))


def _row(name: str, facts: EngineFacts) -> tuple[str, ...]:
    moment, held = facts.moments[LAST], facts.moments[LAST].held
    between = facts.moments[FIRST].held["gradients"]
    calls = ", ".join(str(part.num_calls) for key, part in facts.moments.items() if key != "step 1")
    sizes = (held["parameters"], moment.peak_parameters_bytes, between, held["gradients"], held["optimizer"])
    sizes += (held["master_weights"], moment.total_bytes)
    return (name, *map(format_bytes, sizes), calls)
