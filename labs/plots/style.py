"""One look for every figure: a palette for the states, one for runs, and a picture that needs no pyplot."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labs.units import GiB, KiB, MiB

# Okabe and Ito's colours, told apart with any kind of colour vision; the hatches tell them apart in print.
STATE_COLORS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "master_weights": "#56B4E9",
    "activations": "#CC79A7",
    "buffers": "#8C8C8C",
}
STATE_HATCHES = {
    "parameters": "////",
    "gradients": "\\\\\\\\",
    "optimizer": "xxx",
    "master_weights": "....",
    "activations": "----",
    "buffers": "||||",
}
RUN_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
RUN_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")
RUN_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ONE_PICTURE = (8.4, 3.35)  # inches; under the controls of a lab it still fits on a projector of 1280 x 720
INK, FAINT, GRID = "#222222", "#666666", "#E4E4E4"


class Picture(Figure):
    """A matplotlib Figure that a notebook shows by itself, drawn by Agg without any pyplot state."""

    def __init__(self, width: float, height: float):
        super().__init__(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self)
        self.titles: list[str] = []  # what `headline` writes, in order

    def panel(self, box=(0.0, 0.0, 1.0, 1.0), left=0.75, right=0.3, top=0.62, bottom=0.5) -> Axes:
        """Add axes into a box (x, y, width, height as fractions, y upwards) with margins in inches.

        Margins by hand, because matplotlib's automatic layouts draw everything twice: too slow for a live picture.
        """
        x, y, width, height = box
        wide, high = self.get_size_inches()
        return self.add_axes(
            (x + left / wide, y + bottom / high, width - (left + right) / wide, height - (top + bottom) / high)
        )

    def png(self, dots_per_inch: int = 110) -> bytes:
        """Return the picture as PNG bytes."""
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=dots_per_inch)
        return stream.getvalue()

    @property
    def words(self) -> str:
        """What the picture says, for who does not see it: the titles of its parts, which are sentences to see."""
        return ". ".join(self.titles)

    def _repr_png_(self) -> tuple[bytes, dict]:
        return self.png(), {"alt": self.words}


def headline(axes: Axes, title: str, subtitle: str = "", shift_inches: float = 0.0) -> None:
    """Write what to see in bold over the axes, and how to read it in grey under that; shift moves both to the right."""
    axes.figure.titles.append(title)
    for text, up, look in (
        (title, 23 if subtitle else 8, {"fontsize": 10.5, "fontweight": "bold", "color": INK}),
        (subtitle, 8, {"fontsize": 8.5, "color": FAINT}),
    ):
        offset = (72 * shift_inches, up)
        axes.annotate(text, (0, 1), offset, "axes fraction", textcoords="offset points", va="bottom", **look)


def clean(axes: Axes, x_label: str, y_label: str, grid: str = "y") -> None:
    """Take away what carries no information and label what is left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(labelsize=8.5, color="#999999", labelcolor=INK)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)


def say_instead(axes: Axes, text: str) -> None:
    """Write a sentence where there is nothing to draw yet."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9.5, color=FAINT)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def run_style(index: int) -> dict:
    """Return colour, dash and marker of the run with this index: no two of 49 runs differ by colour alone.

    When the colours are used up they begin again, with other dashes and other markers.
    """
    again, n = divmod(index, len(RUN_COLORS))
    other = (n + 2 * again) % len(RUN_DASHES)
    return {"color": RUN_COLORS[n], "linestyle": RUN_DASHES[other], "marker": RUN_MARKERS[other]}


def as_label(name: str) -> str:
    """Write a name that a person has typed so that matplotlib shows it: $ begins no formula, _ hides no line."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def byte_unit(largest_bytes: float) -> tuple[int, str]:
    """Choose the unit of a bytes axis: (bytes in one unit, name of the unit)."""
    for size, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if largest_bytes >= size:
            return size, name
    return 1, "bytes"
