"""The largest model under a cap, strategy by strategy: predicted hatched, solid once it was run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from matplotlib.axes import Axes

from labs.largest import MOST_LAYERS, Largest
from labs.plots.style import FAINT, INK, ONE_PICTURE, Picture, clean, headline, say_instead
from labs.plots.tables import Table
from labs.units import format_bytes, format_count

_PREDICTED = {"facecolor": "white", "edgecolor": "#0072B2", "hatch": "////"}
_RUN = {"facecolor": "#0072B2", "edgecolor": "#0072B2"}
Found = Mapping[str, Largest | str]  # {strategy: answer, or the sentence why there is none}
NOT_RUN: Mapping[str, int] = MappingProxyType({})
Measured = Mapping[str, int]  # {strategy: bytes that the fullest rank of that very run held}


def plot_largest(found: Found, cap_bytes: float, measured: Measured = NOT_RUN) -> Picture:
    """Draw the parameters of the largest model that fits under `cap_bytes` on a rank, one bar a strategy."""
    picture = Picture(*ONE_PICTURE)
    axes = picture.panel(bottom=0.75)
    answers = {name: one for name, one in found.items() if isinstance(one, Largest)}
    if not answers:
        headline(axes, f"Nothing fits under {format_bytes(cap_bytes)} a rank")
        say_instead(axes, "raise the cap, or cut more states among more ranks")
        return picture
    sizes = {name: one.config.model.num_parameters for name, one in answers.items()}
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.set_ylim(0, max(sizes.values()) / 1e6 * 1.2)
    for x, (name, one) in enumerate(found.items()):
        if isinstance(one, Largest):
            _draw_bar(axes, x, one, cap_bytes, measured.get(name))
        else:
            axes.text(x, 0, "none" if "layer" in one else "–", ha="center", va="bottom", fontsize=9, color=FAINT)
    axes.set_xticks(range(len(found)), [_tick(name, one) for name, one in found.items()], fontsize=9)
    clean(axes, "", "parameters of the largest model [M]")
    headline(axes, _title(answers, sizes, cap_bytes), _how(measured))
    return picture


def _draw_bar(axes: Axes, x: int, one: Largest, cap_bytes: float, measured: int | None) -> None:
    size = one.config.model.num_parameters / 1e6
    axes.bar(x, size, 0.6, linewidth=0.8, **(_PREDICTED if measured is None else _RUN))
    words = f"{one.num_layers} layer{'s' if one.num_layers > 1 else ''}"
    if measured is not None:
        words = f"{'✓' if measured == one.held_bytes <= cap_bytes else '✗'} {words}"
    axes.annotate(words, (x, size), (0, 3), textcoords="offset points", ha="center", fontsize=9, color=INK)


def _tick(name: str, one: Largest | str) -> str:
    return f"{name}\n{format_bytes(one.held_bytes)}" if isinstance(one, Largest) else name


def _title(answers: Mapping[str, Largest], sizes: Mapping[str, int], cap_bytes: float) -> str:
    best = max(sizes, key=sizes.get)
    words = f"Under {format_bytes(cap_bytes)} a rank: {best} fits {answers[best].num_layers} layers"
    if best != "ddp" and "ddp" in sizes:
        words += f", {sizes[best] / sizes['ddp']:.3g} times the parameters of ddp"
    return words


def _how(measured: Measured) -> str:
    ran = "; solid: was run, ✓ held what was predicted" if measured else ""
    return f"hatched: predicted{ran}; under each name: bytes on the fullest rank"


def table_largest(found: Found, cap_bytes: float, measured: Measured = NOT_RUN) -> Table:
    """List for each strategy the most layers, the bytes predicted and measured, and those of one layer more."""
    columns = ("strategy", "layers", "parameters", "a rank holds, predicted", "measured", "one layer more")
    rows = tuple(_row(name, one, measured.get(name)) for name, one in found.items())
    return Table(f"Largest model under {cap_bytes:,.0f} bytes a rank", columns, rows)


def _row(name: str, one: Largest | str, measured: int | None) -> tuple[str, ...]:
    if isinstance(one, str):
        return (name, "-", "-", one, "-", "-")
    more = f"{one.next_bytes:,}" if one.next_bytes else f"over {MOST_LAYERS} layers"
    ran = "not run yet" if measured is None else f"{measured:,}"
    return (name, str(one.num_layers), format_count(one.config.model.num_parameters), f"{one.held_bytes:,}", ran, more)
