"""A line that tells a waiting person why, and goes away when the wait is over."""

from __future__ import annotations

import sys
from collections.abc import Callable

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show(text: str) -> Callable[[], None]:
    """Show `text` in the notebook, or on stderr elsewhere; returns what removes it again.

    In a notebook it is a widget without a text twin: a saved notebook, and a test that compares outputs, must not
    depend on how early in the life of the kernel a cell ran.
    """
    if not _in_kernel():
        print(text, file=sys.stderr, flush=True)
        return lambda: None
    try:
        from IPython.display import display
        from ipywidgets import HTML
    except ImportError:
        return lambda: None
    widget = HTML(f"<i>{text}</i>")
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({_WIDGET_VIEW: view}, raw=True)
    return widget.close


def _in_kernel() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
