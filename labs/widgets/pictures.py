"""Pictures on a screen of widgets, and the end of a screen."""

from __future__ import annotations

import ipywidgets as widgets

from labs.plots import Picture


def hidden_image() -> widgets.Image:
    """Return an image that takes no room until it has a picture: without a value it would show as broken."""
    return widgets.Image(format="png", layout={"width": "100%", "max_width": "1100px", "display": "none"})


def show(image: widgets.Image, picture: Picture | None, dots_per_inch: int) -> None:
    """Show a picture, or hide the image where there is none."""
    image.value = picture.png(dots_per_inch) if picture else b""
    image.layout.display = "" if picture else "none"


def close_with_children(widget: widgets.Widget) -> None:
    """Take a widget and all inside it off the page and out of the kernel."""
    for child in getattr(widget, "children", ()):
        close_with_children(child)
    widget.close()
