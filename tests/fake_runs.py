"""Runs made of arithmetic alone, shaped like real ones, for tests of plots and widgets."""

from math import exp

from labs.config import ModelTrainingConfig
from labs.records import EvalRecord, MemoryRecord, RankRecord, RunResult, StateBytes, StepRecord, TrafficRecord
from labs.spec import layer_of

BASELINE = 3.18


def fake_step(config: ModelTrainingConfig, step: int, depth_factor: float = 0.9) -> StepRecord:
    """Make a step whose loss falls from 5.5 and whose layer norms change by `depth_factor` from layer to layer."""
    layers = list(dict.fromkeys(layer_of(p.name) for p in config.model.parameters()))
    wobble = 0.06 * ((step * 7919) % 13 - 6) / 6
    scale = 0.4 * exp(-step / 60) + 0.08
    norms = {layer: scale * depth_factor**index * (1 + wobble) for index, layer in enumerate(layers)}
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    loss = 2.45 + 3.1 * exp(-step / (0.25 * config.steps)) + wobble
    return StepRecord(step, loss, total, norms, config.learning_rate, 0.03, 0.012, config.tokens_per_step / 0.03)


def fake_evals(config: ModelTrainingConfig) -> tuple[EvalRecord, ...]:
    """Make the evaluations that the config asks for, a little above the training loss."""
    due = [step for step in range(config.steps) if config.evaluates_after(step)]
    return tuple(EvalRecord(step, fake_step(config, step).loss + 0.08, BASELINE) for step in due)


def fake_rank(config: ModelTrainingConfig, rank: int) -> RankRecord:
    """Make the record of one rank; optimizer bytes are cut by world_size, nothing else is."""
    n, cut = config.model.num_parameters, config.world_size
    sizes = {"parameters": 2 * n, "gradients": 2 * n, "optimizer": 8 * n // cut, "master_weights": 4 * n // cut}
    states = {name: StateBytes(size, size) for name, size in sizes.items()}
    states["activations"] = StateBytes(5_000_000 // cut, 5_000_000 // cut + 1234)
    states["buffers"] = StateBytes(0, 0)
    sent = 3 * n * config.steps * (cut - 1) // cut
    traffic = TrafficRecord(int(sent * 1.002), int(sent * 1.002), sent, sent * 2 // 3, {"all_reduce": 2 * config.steps})
    steps = tuple(fake_step(config, step) for step in range(config.steps))
    return RankRecord(rank, 0.0, steps, fake_evals(config), MemoryRecord(states, StateBytes(2 * n, 2 * n)), traffic)


def fake_result(**fields) -> RunResult:
    """Make a finished run of `ModelTrainingConfig(**fields)`."""
    config = ModelTrainingConfig(**{"strategy": "zero1", "world_size": 4, "learning_rate": 1e-3, **fields})
    return RunResult.from_ranks(config, [fake_rank(config, rank) for rank in range(config.world_size)], 0.4)
