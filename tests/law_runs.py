"""What a rank does for the laws: train a few steps and return everything that a law may ask about."""

from __future__ import annotations

from contextlib import nullcontext
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
    """A config, whether it trains the awkward model instead of its own, and where to stop, save and resume."""

    config: ModelTrainingConfig
    awkward: bool = False
    resume_from: str | None = None


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
    waiting_gradients_bytes: int
    sent_bytes: int | None


def run_jobs(jobs: list[Job]) -> list[Seen]:
    """Train every job on this rank, one after the other."""
    torch.set_num_threads(1)
    instrument = new_instrument_group()
    return [_run(job, instrument) for job in jobs]


def _run(job: Job, instrument) -> Seen:
    config, seen = job.config, Seen([], [], [], {}, {}, 0, [], 0, None)
    engine = _build(job)
    recorder, wire = Recorder(instrument), WireMeter(instrument)
    wire.start()
    for step in range(config.steps):
        recorder.start()
        is_last = step + 1 == config.steps
        with PeakParameters(engine.module, engine.live_parameters) if is_last else nullcontext() as peak:
            _train_step(job, engine, seen, step, instrument.group)
        calls = recorder.stop().calls
        seen.calls.append([(c.kind, c.size_bytes, c.group_size, c.element_bytes) for c in calls])
        if job.resume_from and step + 2 == config.steps:
            engine = _resume(job, engine)
    seen.peak_parameters_bytes, (seen.sent_bytes, _) = peak.peak_bytes, wire.stop()
    for state in ("parameters", "optimizer", "master_weights", "buffers"):
        seen.held_bytes[state] = tensor_bytes(engine.held()[state])
    seen.parameters = {name: value.clone() for name, value in engine.full_parameters().items()}
    return seen


def _build(job: Job) -> Engine:
    model = build_awkward() if job.awkward else build_model(job.config.model, job.config.seed)
    return build_engine(job.config, model)


def _resume(job: Job, engine: Engine) -> Engine:
    """Save, and go on with another engine that has only what was saved."""
    folder = f"{job.resume_from}/{job.config.strategy}-{job.config.world_size}"
    engine.save(folder)
    fresh = _build(job)
    fresh.load(folder)
    return fresh


def _train_step(job: Job, engine: Engine, seen: Seen, step: int, group) -> None:
    config, losses = job.config, []
    for micro_step in range(config.gradient_accumulation_steps):
        seen.waiting_gradients_bytes = tensor_bytes(engine.held()["gradients"]) if micro_step else 0
        with KeptActivations(engine.live_parameters) as kept:
            loss = engine.forward_loss(_batch(job, step, micro_step, get_rank()))
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
    if not job.awkward and config.data == "text":
        return load_data(config).train_batch(config, step, micro_step, rank)
    batch = awkward_batch(step, config.batch_size) if job.awkward else _rows(config, step)
    first = (micro_step * config.world_size + rank) * config.micro_batch_size
    return tuple(part[first : first + config.micro_batch_size].clone() for part in batch)


def _rows(config: ModelTrainingConfig, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of a table; drawn here, because scikit-learn takes a second to import on every rank."""
    order = torch.Generator().manual_seed(step)
    rows = torch.randn(config.batch_size, config.model.num_features, generator=order)
    return rows, torch.randint(0, config.model.num_classes, (config.batch_size,), generator=order)
