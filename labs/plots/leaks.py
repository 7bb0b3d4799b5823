"""What was reported beside what is true: one line a way to fool oneself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from labs.plots.style import FAINT, INK, RUN_COLORS, Picture, clean, headline
from labs.plots.tables import Table

REPORTED, TRUE = RUN_COLORS[1], RUN_COLORS[0]


@dataclass(frozen=True)
class Leak:
    """One way to be wrong: accuracies [0, 1] as reported and on data that nobody touched, one pair a study."""

    name: str
    pairs: Sequence[tuple[float, float]]

    @property
    def reported(self) -> tuple[float, float]:
        """Mean and spread (standard deviation) over the studies."""
        return _mean_and_spread([reported for reported, _ in self.pairs])

    @property
    def true(self) -> tuple[float, float]:
        return _mean_and_spread([true for _, true in self.pairs])

    @property
    def gap(self) -> tuple[float, float]:
        return _mean_and_spread([reported - true for reported, true in self.pairs])


def _mean_and_spread(values: list[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def by_gap(leaks: Sequence[Leak]) -> list[Leak]:
    """Sort them, the widest gap first."""
    return sorted(leaks, key=lambda leak: -leak.gap[0])


def table_leaks(leaks: Sequence[Leak]) -> Table:
    """List reported and true accuracy and the gap [points], mean ± spread over studies, the widest gap first."""
    rows = [
        (leak.name, _percent(leak.reported), _percent(leak.true), f"{100 * leak.gap[0]:+.1f} ± {100 * leak.gap[1]:.1f}")
        for leak in by_gap(leaks)
    ]
    return Table(
        f"Accuracy [%], measured, {_repetitions(leaks)}", ("", "reported", "true", "gap [points]"), tuple(rows)
    )


def _percent(value: tuple[float, float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"


def _repetitions(leaks: Sequence[Leak]) -> str:
    counts = sorted({len(leak.pairs) for leak in leaks})
    return f"mean ± spread over {' to '.join(map(str, counts[:1] + counts[1:][-1:]))} studies"


def plot_leaks(leaks: Sequence[Leak]) -> Picture:
    """Draw reported (square) and true (circle) accuracy of each leak on one line, the widest gap on top."""
    picture = Picture(9, 1.5 + 0.55 * len(leaks))
    axes = picture.panel(left=2.75, right=1.2, top=0.8, bottom=0.6)
    ordered = by_gap(leaks)
    for height, leak in zip(range(len(ordered), 0, -1), ordered, strict=True):
        _draw(axes, height, leak)
    axes.set_yticks(range(len(ordered), 0, -1), [leak.name for leak in ordered])
    axes.set_ylim(0.4, len(ordered) + 0.6)
    axes.set_xlim(40, 102)
    clean(axes, "accuracy [%], measured", "", grid="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    worst = ordered[0]
    headline(
        axes,
        f"{worst.name[0].upper()}{worst.name[1:]}: {100 * worst.gap[0]:.0f} points that are not there",
        f"square: reported; circle: on rows that nobody touched; {_repetitions(leaks)}",
        shift_inches=-2.6,
    )
    return picture


def _draw(axes, height: int, leak: Leak) -> None:
    (reported, reported_spread), (true, true_spread) = leak.reported, leak.true
    axes.plot([100 * true, 100 * reported], [height, height], color="#CFCFCF", linewidth=5, solid_capstyle="butt")
    for value, spread, color, marker in (
        (reported, reported_spread, REPORTED, "s"),
        (true, true_spread, TRUE, "o"),
    ):
        axes.errorbar(
            100 * value, height, xerr=100 * spread, color=color, marker=marker, markersize=9, capsize=3, linewidth=1.2,
            markerfacecolor="white" if marker == "s" else color, markeredgewidth=2,
        )  # fmt: skip
    is_small = abs(leak.gap[0]) < 2 * leak.gap[1] / len(leak.pairs) ** 0.5
    axes.annotate(
        f"{round(100 * leak.gap[0]) or 0:+d} points", (1, height), (8, 0), ("axes fraction", "data"), "offset points",
        va="center", fontsize=9.5, color=FAINT if is_small else INK, fontweight="normal" if is_small else "bold",
    )  # fmt: skip
