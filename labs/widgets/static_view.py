"""A widget in a cell's output that leaves a plain picture behind, for readers without a kernel."""

from __future__ import annotations

from base64 import b64encode
from uuid import uuid4

import ipywidgets as widgets

from labs.plots import Picture

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class StaticView:
    """Shows a widget; its output also carries words, and after a run the picture, for pages without a kernel."""

    def __init__(self, widget: widgets.Widget, words: str = "strategy_lab: run this cell to use its controls"):
        self._widget, self._words = widget, words
        self._handle = None

    def display(self) -> None:
        """Show the widget as output of the current cell."""
        from IPython.display import display

        self._handle = display(self._bundle(), raw=True, display_id=uuid4().hex)

    def update(self, picture: Picture, words: str | None = None) -> None:
        """Put a picture, and words for who sees none, into the output that `display` made; callable from any thread."""
        self._words = words or self._words
        if self._handle is not None:
            self._handle.update(self._bundle(picture), raw=True, metadata={"image/png": {"alt": picture.words}})

    def _bundle(self, picture: Picture | None = None) -> dict:
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        words = {WIDGET_VIEW: view, "text/plain": self._words}
        return words if picture is None else {**words, "image/png": b64encode(picture.png()).decode()}
