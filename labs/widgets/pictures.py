"""Pictures on a screen of widgets, in light and dark; a screen that the keyboard can work; the end of a screen."""

from __future__ import annotations

import ipywidgets as widgets
from traitlets import Unicode

from labs.plots import Picture

# Pictures are drawn on white. On a dark page lightness is turned round and the hue turned back: text becomes light,
# blue stays blue, and hatches stay what tells bars apart.
LOOK = """<style>
[data-jp-theme-light="false"] .labs-picture,
[data-jp-theme-light="false"] .labs-picture img { filter: invert(0.92) hue-rotate(180deg) brightness(1.15); }
.labs-line .widget-html-content { line-height: 1.4; white-space: normal; }
.labs-screen .jupyter-widget-tab > .lm-TabBar { height: auto; max-height: none; min-height: 0; flex: 0 0 auto;
  contain: none; }
.labs-screen .jupyter-widget-tab > .lm-TabBar .lm-TabBar-content { flex-wrap: wrap; }
.labs-screen .jupyter-widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto; min-width: 0; }
.labs-screen .widget-html { overflow-x: auto; }
.labs-screen pre.labs-code { user-select: all; white-space: pre-wrap; word-break: normal; overflow-wrap: normal;
  line-height: 1.35; margin: 2px 0 8px; font-size: 12px; }
</style>"""
# JupyterLab 4 takes a plain key that is pressed on a list, a tick or a button for a shortcut of its own: an arrow walks
# to another cell, "m" turns the cell into text and its output goes. Such keys stay in the screen; Ctrl+S gets through.
# ipywidgets 8.1 cannot say so, nor label the handle of a slider: an image that cannot load carries the script.
KEYS = """<img alt="" src="data:," style="display:none" onerror="
const begin = triesLeft => {
  const screen = this.closest('.labs-screen');
  if (!screen) return triesLeft && setTimeout(begin, 100, triesLeft - 1);
  screen.addEventListener('keydown', key => key.ctrlKey || key.metaKey || key.altKey || key.stopPropagation());
  screen.addEventListener('focusin', ({target}) => target.classList.contains('noUi-handle') &&
    target.setAttribute('aria-label', target.closest('.widget-slider').querySelector('label').textContent));
};
begin(100)">"""


def screen(children: list[widgets.Widget]) -> widgets.VBox:
    """Put the parts of a lab below each other."""
    page = widgets.HTML(LOOK + KEYS, layout={"height": "0", "margin": "0", "overflow": "hidden"})
    box = widgets.VBox([page, *children])
    box.add_class("labs-screen")
    return box


class ToldImage(widgets.Image):
    """An image whose tooltip names it, for who does not see it: ipywidgets 8.1 knows no alt.

    Its page gives a tooltip only to a widget with an empty description, and fails on one without any.
    """

    description = Unicode("").tag(sync=True)


def image(max_width: str) -> ToldImage:
    """Return an image that is as wide as the page, up to a limit, and dark on a dark page."""
    image = ToldImage(format="png", layout={"width": "100%", "max_width": max_width})
    image.add_class("labs-picture")
    return image


def hidden_image() -> ToldImage:
    """Return an image that takes no room until it has a picture: without a value it would show as broken."""
    hidden = image("860px")
    hidden.layout.display = "none"
    return hidden


def line() -> widgets.HTML:
    """Return an empty line of words."""
    html = widgets.HTML()
    html.add_class("labs-line")
    return html


def show(image: ToldImage, picture: Picture | None, dots_per_inch: int) -> None:
    """Show a picture, and its words to who does not see it, or hide the image where there is none."""
    image.value = picture.png(dots_per_inch) if picture else b""
    image.tooltip = picture.words if picture else None
    image.layout.display = "" if picture else "none"


def close_with_children(widget: widgets.Widget) -> None:
    """Take a widget and all inside it off the page and out of the kernel."""
    for child in getattr(widget, "children", ()):
        close_with_children(child)
    widget.close()
