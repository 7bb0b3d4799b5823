"""Bytes that ranks send: what a ring would, what gloo should, what the sockets saw."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labs.plots.style import ONE_PICTURE, Picture, byte_unit, clean, headline, say_instead
from labs.plots.view import RunView, view_of
from labs.units import format_bytes

# (label, field of TrafficRecord, look of the bar): three answers to one question, told apart without colour.
TRAFFIC_BARS = (
    ("ideal ring, theory", "theory_bytes", {"facecolor": "white", "edgecolor": "#999999", "linestyle": (0, (2, 1.5))}),
    ("gloo, predicted", "predicted_bytes", {"facecolor": "#FBE3D3", "edgecolor": "#D55E00", "hatch": "////"}),
    ("sockets, measured", "sent_bytes", {"facecolor": "#D55E00", "edgecolor": "#D55E00"}),
)


def plot_traffic(run) -> Picture:
    """Draw the bytes that each rank sent over all training steps: an ideal ring, gloo predicted, sockets measured."""
    picture = Picture(*ONE_PICTURE)
    draw_traffic(picture.panel(), view_of(run))
    return picture


def draw_traffic(axes: Axes, view: RunView) -> None:
    """Draw three bars a rank on given axes; a missing measurement is said, not drawn as zero."""
    if not view.traffic:
        headline(axes, "Bytes on the wire")
        return say_instead(axes, "counted when the run has ended")
    if len(view.traffic) == 1:
        headline(axes, "Bytes on the wire")
        return say_instead(axes, "One rank sends nothing: there is no other to agree with.")
    numbers = [getattr(record, field) or 0 for record in view.traffic for _, field, _ in TRAFFIC_BARS]
    size, unit = byte_unit(max(numbers))
    for index, (_, field, look) in enumerate(TRAFFIC_BARS):
        for rank, record in enumerate(view.traffic):
            sent = getattr(record, field)
            if sent is not None:
                axes.bar(rank + (index - 1) * 0.27, sent / size, 0.25, linewidth=1, **look)
    axes.set_xticks(range(len(view.traffic)))
    axes.set_xlim(-0.6, len(view.traffic) - 0.4)
    axes.set_ylim(0, max(numbers) / size * 1.28 or 1)
    clean(axes, "rank", f"bytes sent in {view.config.steps} steps [{unit}]")
    keys = [Patch(label=label, linewidth=1, **look) for label, _, look in TRAFFIC_BARS]
    axes.legend(
        handles=keys, fontsize=8, frameon=False, ncols=3, loc="upper left", columnspacing=1.2, borderaxespad=0.2
    )
    headline(axes, *_traffic_title(view))


def _traffic_title(view: RunView) -> tuple[str, str]:
    sent = [record.sent_bytes for record in view.traffic]
    if None in sent and len(view.steps) < view.config.steps:
        most = max(record.predicted_bytes for record in view.traffic)
        return (
            f"Each rank will send {format_bytes(most)}",
            "predicted for the whole run; measured when the run has ended",
        )
    if None in sent:
        return "Bytes on the wire, predicted", "this system has no counters for its sockets: not measured"
    off = max(abs(record.sent_bytes / record.predicted_bytes - 1) for record in view.traffic if record.predicted_bytes)
    theory = max(record.theory_bytes for record in view.traffic)
    ratio = f"{max(sent) / theory:.2f} times an ideal ring" if theory else "an ideal ring sends nothing"
    return f"Each rank sent {format_bytes(max(sent))}: {ratio}", f"sockets {_apart(off)} for gloo"


def _apart(share: float) -> str:
    if share == 0:
        return "measured exactly what was predicted"
    return f"within {max(share, 0.0001):.2%} of the prediction"
