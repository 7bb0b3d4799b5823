"""Pure `records -> Figure`: nothing here keeps state, touches pyplot or imports torch."""

from labs.plots.curves import plot_layer_norms, plot_loss
from labs.plots.differences import table_differences
from labs.plots.heat_map import plot_heat_map, table_heat_map
from labs.plots.largest import plot_largest, table_largest
from labs.plots.memory_bars import plot_memory
from labs.plots.pages import plot_comparison, plot_run
from labs.plots.shard_map import plot_shard_map, table_shard_map
from labs.plots.style import STATE_COLORS, STATE_HATCHES, Picture
from labs.plots.tables import (
    Table,
    describe_run,
    table_comparison,
    table_layer_norms,
    table_loss,
    table_memory,
    table_traffic,
)  # fmt: skip
from labs.plots.timeline import plot_timelines, table_timelines
from labs.plots.traffic_bars import plot_traffic
from labs.plots.view import RunView

__all__ = [
    "STATE_COLORS", "STATE_HATCHES", "Picture", "RunView", "Table", "describe_run",
    "plot_comparison", "plot_heat_map", "plot_largest", "plot_layer_norms", "plot_loss",
    "plot_memory", "plot_run", "plot_shard_map", "plot_timelines", "plot_traffic",
    "table_comparison", "table_differences", "table_heat_map", "table_largest", "table_layer_norms", "table_loss",
    "table_memory", "table_shard_map", "table_timelines", "table_traffic",
]  # fmt: skip
