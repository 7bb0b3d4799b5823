"""Swimlanes: what each rank computes and communicates over one step, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.moments import RankTimeline, Transfer
from labs.plots.style import FAINT, INK, Picture, clean, headline
from labs.plots.tables import Table
from labs.units import format_bytes, format_seconds

# (colour, hatch, edge); the hatches tell them apart in print
_LOOKS = {
    "forward": ("#56B4E9", "", "white"),
    "backward": ("#0072B2", "", "white"),
    "optimizer": ("#009E73", "xxx", "white"),
    "wait": ("white", "....", "#999999"),
    "collective": ("#E69F00", "////", "#7A5200"),
}
_ROW, _HEAD, _FOOT = 0.62, 0.66, 0.3  # inches: of a rank, above its panel, below it


def plot_timelines(runs: Mapping[str, Sequence[RankTimeline]]) -> Picture:
    """Draw {name: timelines of all ranks} below each other, two lanes a rank, each run on an axis of its own.

    Above is what the rank computes, below are its collectives, from when gloo takes one up until it is done. A small
    mark stands where a gradient becomes ready. Raises ValueError when there is nothing to draw.
    """
    if not runs or not all(runs.values()):
        raise ValueError("plot_timelines needs {name: [timeline of rank 0, ...]}, at least one with a rank")
    heights = [_HEAD + _ROW * len(timelines) + _FOOT for timelines in runs.values()]
    picture = Picture(11, sum(heights) + 0.6)
    width, height = picture.get_size_inches()
    top = height - 0.35
    for index, (name, timelines) in enumerate(runs.items()):
        top -= heights[index]
        box = (0, top / height, 1, heights[index] / height)
        axes = picture.panel(box, left=0.75, right=0.25, top=_HEAD, bottom=_FOOT)
        _draw_run(axes, timelines)
        headline(axes, f"{name}: {_overlap_words(timelines)}", _calls_words(timelines))
    axes.set_xlabel("milliseconds since the first rank began the step", fontsize=9, color=INK)
    _legend(picture)
    return picture


def _draw_run(axes: Axes, timelines: Sequence[RankTimeline]) -> None:
    zero = _begin_ns(timelines)

    def bar(begin_ns: int, end_ns: int, lane: float, what: str, tall: float = 0.38) -> None:
        color, hatch, edge = _LOOKS[what]
        axes.barh(
            lane, (end_ns - begin_ns) / 1e6, tall, (begin_ns - zero) / 1e6, facecolor=color, hatch=hatch,
            edgecolor=edge, linewidth=0.4,
        )  # fmt: skip

    for place, timeline in enumerate(timelines):
        for span in sorted(timeline.spans, key=lambda span: span.name == "wait"):
            bar(span.begin_ns, span.end_ns, place - 0.2, span.name)
        for transfer in timeline.transfers:
            if transfer.end_ns is not None:
                bar(transfer.begin_ns, transfer.end_ns, place + 0.2, "collective", 0.3)
        ready = [(gradient.at_ns - zero) / 1e6 for gradient in timeline.gradients]
        axes.vlines(ready, place - 0.47, place - 0.39, color=INK, linewidth=0.6)
    axes.set_yticks(range(len(timelines)), [f"rank {timeline.rank}" for timeline in timelines])
    axes.set_ylim(len(timelines) - 0.45, -0.6)
    axes.set_xlim(0, (_end_ns(timelines) - zero) / 1e6 * 1.01)
    clean(axes, "", "", grid="x")
    axes.tick_params(axis="y", length=0)


def _legend(picture: Picture) -> None:
    names = ("forward", "backward", "optimizer", "wait", "collective")
    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor=edge if edge != "white" else color, label=name)
        for name, (color, hatch, edge) in ((name, _LOOKS[name]) for name in names)
    ]
    picture.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(0.06, 1.0), ncols=5, frameon=False, fontsize=8.5,
        handlelength=1.6, columnspacing=1.4,
    )  # fmt: skip
    note = "measured; a mark above backward: a gradient is ready"
    x, y = 0.975, 1 - 0.115 / picture.get_size_inches()[1]
    picture.text(x, y, note, ha="right", va="top", fontsize=8.5, color=FAINT)


def _overlap_words(timelines: Sequence[RankTimeline]) -> str:
    shares = [t.overlapped_share for t in timelines if t.overlapped_share is not None]
    if not shares:
        return "no communication was timed"
    percent = [f"{100 * share:.0f} %" for share in shares]
    if len(percent) > 2:
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the communication overlapped"
    return (
        f"{' and '.join(percent)} of the communication overlapped" if len(percent) > 1 else f"{percent[0]} overlapped"
    )


def _calls_words(timelines: Sequence[RankTimeline]) -> str:
    calls = timelines[0].transfers
    if not calls:
        return "no collectives"
    total = format_bytes(sum(call.size_bytes for call in calls))
    number = f"{len(calls)} collective{'s' if len(calls) > 1 else ''}, {total}"
    when = _first_call(timelines[0])
    words = f"when {when} gradients are ready" if " of " in when else f"during {when}"
    return f"{number}; the first is issued {words}"


def table_timelines(runs: Mapping[str, Sequence[RankTimeline]]) -> Table:
    """List for each run and rank what the swimlanes show: calls, bytes, first call, communication, overlap."""
    rows = [
        (
            name,
            str(timeline.rank),
            str(len(timeline.transfers)),
            format_bytes(sum(transfer.size_bytes for transfer in timeline.transfers)),
            _first_call(timeline),
            format_seconds(timeline.communicating_seconds),
            "-" if timeline.overlapped_share is None else f"{100 * timeline.overlapped_share:.0f} %",
        )
        for name, timelines in runs.items()
        for timeline in timelines
    ]
    columns = ("run", "rank", "calls", "bytes", "gradients ready at the first call", "communicating", "overlapped")
    return Table("One step of each rank, measured", columns, tuple(rows))


def _first_call(timeline: RankTimeline) -> str:
    """Say how many gradients were ready at the first call, or what ran when there were none yet."""
    if not timeline.transfers:
        return "-"
    first = timeline.transfers[0]
    if first.num_ready == 0 and (pass_ := _running(timeline, first)):
        return pass_
    return f"{first.num_ready} of {sum(g.micro_batch == first.micro_batch for g in timeline.gradients)}"


def _running(timeline: RankTimeline, call: Transfer) -> str | None:
    """Name the pass in which a call was issued."""
    found = [span.name for span in timeline.spans if span.begin_ns <= call.issued_ns <= span.end_ns]
    return next((name for name in found if name in ("forward", "backward", "optimizer")), None)


def _begin_ns(timelines: Sequence[RankTimeline]) -> int:
    return min(_moments(timelines))


def _end_ns(timelines: Sequence[RankTimeline]) -> int:
    return max(_moments(timelines))


def _moments(timelines: Sequence[RankTimeline]) -> list[int]:
    found = [edge for t in timelines for span in t.spans for edge in (span.begin_ns, span.end_ns)]
    found += [x.end_ns for t in timelines for x in t.transfers if x.end_ns is not None]
    return found or [0]
