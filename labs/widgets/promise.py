"""What arithmetic promises about a choice before it runs, in one sentence."""

from __future__ import annotations

from labs import schedule, traffic
from labs.config import ModelTrainingConfig
from labs.plots.view import model_state_bytes
from labs.units import format_bytes
from labs.widgets.watch import predicted_memory


def promise(config: ModelTrainingConfig) -> str:
    """Say what the fullest rank will hold, what the busiest will send in a step, and how many samples it computes."""
    ranks = predicted_memory(config)
    totals = [model_state_bytes(states) for states in ranks]
    who = "Each rank" if min(totals) == max(totals) else "The fullest rank"
    activations = max(states["activations"] for states in ranks)
    samples = f"{config.micro_batch_size} sample{'s' if config.micro_batch_size > 1 else ''} at once"
    return (
        f"{who} will hold {format_bytes(max(totals))} of states, {format_bytes(activations)} of activations, "
        f"and send {format_bytes(sent_bytes_in_a_step(config))} a step; {samples}"
    )


def sent_bytes_in_a_step(config: ModelTrainingConfig) -> float:
    """Predict what the busiest rank sends over gloo in one step once training is under way."""
    step = min(1, config.steps - 1)
    ranks = range(config.world_size)
    return max(traffic.predict(schedule.step_collectives(config, rank, step), rank)[0] for rank in ranks)
