"""The training loop. Everything else in this package exists to explain it, to start it or to measure it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from labs.config import ModelTrainingConfig
from labs.data import Dataset, fit_buffers, load_data
from labs.observe import Observer
from labs.rank import emit
from labs.records import EvalRecord, RankRecord, StepRecord
from labs.stopping import BestSoFar
from labs.strategies.base import Engine, build_engine
from labs.workload import build_model


def train_rank(config: ModelTrainingConfig) -> RankRecord:
    """Train on this rank, together with the other ranks of the default process group, and return what was measured."""
    rank, device = dist.get_rank(), training_device()
    dataset = load_data(config).to(device)
    model = build_model(config.model, config.seed).to(device)
    fit_buffers(model, dataset)
    engine = build_engine(config, model)
    observer = Observer(config, engine)
    best = BestSoFar(config, engine, observer)
    first_step_at = time.time()
    steps: list[StepRecord] = []
    evals: list[EvalRecord] = []
    for step in range(config.steps):
        with observer.step(step):
            loss, norm = train_step(config, engine, dataset, observer, step, rank)
        steps.append(observer.step_record(step, loss, norm))
        emit(steps[-1])
        if config.evaluates_after(step):
            evals.append(EvalRecord(step, evaluate(engine, dataset, observer), dataset.baseline_loss))
            emit(evals[-1])
            if best.ends_run(evals[-1]):
                break
    memory, traffic = observer.memory_record(), observer.traffic_record()
    return RankRecord(rank, first_step_at, tuple(steps), tuple(evals), memory, traffic, observer.timeline)


def training_device() -> torch.device:
    """Return this rank's GPU where the ranks talk over NCCL, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def train_step(
    config: ModelTrainingConfig, engine: Engine, dataset: Dataset, observer: Observer, step: int, rank: int
) -> tuple[float, float]:
    """Run one optimizer step; return this rank's mean loss and the global gradient norm before clipping."""
    total = 0.0
    for micro_step in range(config.gradient_accumulation_steps):
        batch = dataset.train_batch(config, step, micro_step, rank)
        with observer.forward():
            loss = engine.forward_loss(batch)
        with observer.backward():
            engine.backward(loss)
        total += loss.item()
    observer.gradients_ready()
    engine.set_learning_rate(config.learning_rate_at(step))
    with observer.optimizer():
        norm = engine.step()
    return total / config.gradient_accumulation_steps, norm


@torch.no_grad()
def evaluate(engine: Engine, dataset: Dataset, observer: Observer) -> float:
    """Return the mean loss over the whole validation sample, each sample counted once over all ranks."""
    loss_sum = num_samples = 0.0
    with observer.paused():
        for count, batch in dataset.validation_batches(dist.get_rank(), dist.get_world_size()):
            loss_sum += count * engine.forward_loss(batch).item()
            num_samples += count
        loss_sum, num_samples = observer.sum_over_ranks([loss_sum, num_samples])
    return loss_sum / num_samples
