"""What a rank does for the laws: train a few steps and return everything that a law may ask about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from awkward import awkward_batch, build_awkward
from torch.distributed import all_reduce, get_rank

from labs.config import ModelTrainingConfig
from labs.data import load_data
from labs.measure import KeptActivations, PeakParameters, tensor_bytes
from labs.recorder import Recorder
from labs.strategies.base import Engine, build_engine
from labs.wire import WireMeter, new_instrument_group
from labs.workload import build_model


@dataclass(frozen=True)
class Job:
    """A config, and whether it trains the awkward model instead of its own."""

    config: ModelTrainingConfig
    awkward: bool = False


@dataclass
class Seen:
    """What one rank saw of one job: a value a step, or bytes."""

    losses: list[float]
    norms: list[float]
    layer_norms: list[dict[str, float]]
    parameters: dict[str, torch.Tensor]
    held_bytes: dict[str, int]
    peak_parameters_bytes: int
    calls: list[list[tuple]]
    sent_bytes: int | None
    received_bytes: int | None


def run_jobs(jobs: list[Job]) -> list[Seen]:
    """Train every job on this rank, one after the other."""
    torch.set_num_threads(1)
    instrument = new_instrument_group()
    return [_run(job, instrument) for job in jobs]


def _run(job: Job, instrument) -> Seen:
    config, rank = job.config, get_rank()
    engine = build_engine(config, build_awkward() if job.awkward else build_model(config.model, config.seed))
    seen = Seen([], [], [], {}, {}, 0, [], None, None)
    recorder, wire = Recorder(instrument), WireMeter(instrument)
    wire.start()
    for step in range(config.steps):
        recorder.start()
        peak = PeakParameters(engine.module, engine.live_parameters)
        with peak:
            _train_step(job, engine, seen, step, rank, instrument.group)
        seen.peak_parameters_bytes = peak.peak_bytes
        calls = recorder.stop().calls
        seen.calls.append([(c.kind, c.size_bytes, c.group_size, c.element_bytes) for c in calls])
    seen.sent_bytes, seen.received_bytes = wire.stop()
    for state in ("parameters", "optimizer", "master_weights", "buffers"):
        seen.held_bytes[state] = tensor_bytes(engine.held()[state])
    seen.parameters = {name: value.clone() for name, value in engine.full_parameters().items()}
    return seen


def _train_step(job: Job, engine: Engine, seen: Seen, step: int, rank: int, group) -> None:
    config, losses = job.config, []
    for micro_step in range(config.gradient_accumulation_steps):
        with KeptActivations(engine.live_parameters) as kept:
            loss = engine.forward_loss(_batch(job, step, micro_step, rank))
        engine.backward(loss)
        losses.append(loss.item())
    seen.held_bytes["activations"] = kept.kept_bytes
    seen.held_bytes["gradients"] = tensor_bytes(engine.held()["gradients"])
    mean = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
    all_reduce(mean, group=group)
    seen.losses.append(mean.item() / config.world_size)
    seen.layer_norms.append(engine.layer_grad_norms(group))
    engine.set_learning_rate(config.learning_rate_at(step))
    seen.norms.append(engine.step())


def _batch(job: Job, step: int, micro_step: int, rank: int) -> tuple[torch.Tensor, ...]:
    config = job.config
    if not job.awkward:
        return load_data(config).train_batch(config, step, micro_step, rank)
    first = (micro_step * config.world_size + rank) * config.micro_batch_size
    return tuple(part[first : first + config.micro_batch_size] for part in awkward_batch(step, config.batch_size))
