"""Distributed training on this machine: real ranks from a notebook cell.

`import labs` imports no torch. It starts, in the background, the process that will fork the ranks (labs/forkserver.py).
Names are imported from their rooms when they are first used.
"""

import importlib
import sys

# name -> the module that defines it
_ROOMS = {
    "launch": "labs.launcher",
    "start": "labs.launcher",
    "Run": "labs.launcher",
    "RankFailed": "labs.failures",
    "RankTimeout": "labs.failures",
    "RankDeadlock": "labs.failures",
    "RunCancelled": "labs.failures",
    "CannotSend": "labs.failures",
    "ConfigError": "labs.errors",
    "ModelTrainingConfig": "labs.config",
    "ModelSpec": "labs.spec",
    "RunResult": "labs.records",
    "plot_run": "labs.plots",
    "plot_loss": "labs.plots",
    "plot_layer_norms": "labs.plots",
    "plot_heat_map": "labs.plots",
    "table_heat_map": "labs.plots",
    "plot_memory": "labs.plots",
    "plot_traffic": "labs.plots",
    "plot_comparison": "labs.plots",
    "table_memory": "labs.plots",
    "table_traffic": "labs.plots",
    "table_loss": "labs.plots",
    "table_layer_norms": "labs.plots",
    "table_comparison": "labs.plots",
    "plot_timelines": "labs.plots",
    "plot_largest": "labs.plots",
    "table_differences": "labs.plots",
    "table_largest": "labs.plots",
    "largest_models": "labs.largest",
    "strategy_lab": "labs.widgets.strategy_lab",
    "memory_explorer": "labs.widgets.memory_explorer",
    "ring_animation": "labs.widgets.ring",
    "live_heat_map": "labs.widgets.live_heat_map",
    "Scenario": "labs.scenario",
    "what_breaks_first": "labs.fit",
    "explain": "labs.ds_config",
    "check": "labs.checks",
    "hint": "labs.checks",
    "solved": "labs.checks",
    "predict": "labs.predictions",
    "progress": "labs.progress",  # the module itself, which can be called
}

__all__ = list(_ROOMS)


def __getattr__(name):
    if sys.platform == "win32" and name in ("launch", "start"):
        raise OSError("ranks are forked, which Windows cannot do; install WSL2 and open the course there")
    if name in _ROOMS:
        room = importlib.import_module(_ROOMS[name])
        value = room if _ROOMS[name] == f"labs.{name}" else getattr(room, name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'labs' has no attribute {name!r}")
    else:
        value = _room(name)
    globals()[name] = value
    return value


def _room(name):
    """Import labs/NAME.py, so that `labs.rank.emit` works after `import labs`."""
    try:
        return importlib.import_module(f"labs.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"labs.{name}":
            raise
        raise AttributeError(f"module 'labs' has no attribute {name!r}; it offers {', '.join(_ROOMS)}") from None


def __dir__():
    return sorted({*globals(), *_ROOMS})


def _begin_preload():
    from labs.servers import begin_preload

    begin_preload()


if sys.platform != "win32":
    _begin_preload()
