"""What a rank does for tests/test_deepspeed.py: look where the laws do not look."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import torch
from awkward import awkward_batch, build_awkward
from torch.distributed import get_rank
from torch.multiprocessing.reductions import StorageWeakRef

from labs.config import ModelTrainingConfig
from labs.recorder import Recorder
from labs.strategies.base import Engine, build_engine
from labs.strategies.deepspeed import deepspeed
from labs.workload import build_model


def train_step(engine: Engine, step: int) -> tuple[float, float]:
    """Train one step of the awkward model; return this rank's last loss and the global norm."""
    config = engine.config
    for micro_step in range(config.gradient_accumulation_steps):
        loss = engine.forward_loss(micro_batch(config, step, micro_step))
        engine.backward(loss)
    return loss.item(), engine.step()


def micro_batch(config: ModelTrainingConfig, step: int, micro_step: int = 0) -> tuple[torch.Tensor, ...]:
    first = (micro_step * config.world_size + get_rank()) * config.micro_batch_size
    return tuple(part[first : first + config.micro_batch_size] for part in awkward_batch(step, config.batch_size))


def norms_of(configs: list[ModelTrainingConfig]) -> list[list[float]]:
    """Return the norm of every step of each run."""
    return [[train_step(engine, step)[1] for step in range(3)] for engine in map(awkward_engine, configs)]


def awkward_engine(config: ModelTrainingConfig) -> Engine:
    return build_engine(config, build_awkward())


@dataclass(frozen=True)
class Resumed:
    """A step after a save, and the same step in an engine that began elsewhere and loaded."""

    numbers_went_on: tuple[float, float]
    numbers_loaded: tuple[float, float]
    unequal: list[str]


def save_and_resume(configs: list[ModelTrainingConfig], folder: str) -> list[Resumed]:
    return [_resume(config, f"{folder}/{index}") for index, config in enumerate(configs)]


def _resume(config: ModelTrainingConfig, folder: str) -> Resumed:
    engine = awkward_engine(config)
    for step in range(2):
        train_step(engine, step)
    engine.save(folder)
    went_on, expected = train_step(engine, 2), engine.full_parameters()
    model = build_awkward(seed=1)
    other = build_engine(config, model)
    other.load(folder)
    loaded, found = train_step(other, 2), other.full_parameters()
    return Resumed(went_on, loaded, [name for name in expected if not torch.equal(expected[name], found[name])])


def load_nothing(config: ModelTrainingConfig, folder: str) -> str:
    """Return what the engine says about a directory without a checkpoint."""
    try:
        awkward_engine(config).load(folder)
    except FileNotFoundError as error:
        return str(error)
    return "no error"


def unexplained_tensors(configs: list[ModelTrainingConfig]) -> list[list[tuple]]:
    """List, between the last backward and the step, the tensors that are alive and that no state names."""
    return [_unexplained(config) for config in configs]


def _unexplained(config: ModelTrainingConfig) -> list[tuple]:
    before = {id(tensor) for tensor in _living_tensors()}
    engine = awkward_engine(config)
    train_step(engine, 0)
    for micro_step in range(config.gradient_accumulation_steps):
        engine.backward(engine.forward_loss(micro_batch(config, 1, micro_step)))
    deadline = time.monotonic() + 10
    while (found := _unknown(engine, before)) and time.monotonic() < deadline:
        time.sleep(0.01)  # gloo's threads let go of the last tensors they sent a moment after the call has returned
    return found


def _unknown(engine: Engine, before: set[int]) -> list[tuple]:
    gc.collect()
    named = [tensor for tensors in engine.held().values() for tensor in tensors]
    known = {tensor.untyped_storage()._cdata for tensor in [*named, *engine.live_parameters()]}
    unknown = [t for t in _living_tensors() if id(t) not in before and t.untyped_storage()._cdata not in known]
    return [(tuple(t.shape), str(t.dtype)) for t in unknown if t.numel() > 1]


def _living_tensors() -> list[torch.Tensor]:
    return [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.device.type != "meta"]


def copies_alive_after_forward(config: ModelTrainingConfig) -> tuple[int, int, bool]:
    """Count the gathered copies that modules computed with, those alive before backward; is F.linear torch's again?"""
    linear = torch.nn.functional.linear
    engine = build_engine(config, build_model(config.model, config.seed))
    copies: list[StorageWeakRef] = []

    def note(module, *_):
        copies.extend(StorageWeakRef(p.untyped_storage()) for p in module.parameters(recurse=False))

    for module in engine.module.modules():
        module.register_forward_hook(note, prepend=True)  # before DeepSpeed's own, which frees
    tokens = torch.zeros(config.micro_batch_size, config.model.context, dtype=torch.int64)
    loss = engine.forward_loss((tokens, tokens))
    alive = sum(not copy.expired() for copy in copies)
    engine.backward(loss)
    return len(copies), alive, torch.nn.functional.linear is linear


def evaluate_between(config: ModelTrainingConfig, evaluates: bool) -> tuple[list[tuple[float, float]], list[tuple]]:
    """Train three steps, with or without an evaluation after each; return its numbers and the calls of its steps."""
    engine = build_engine(config, build_model(config.model, config.seed))
    recorder, numbers, calls = Recorder(), [], []
    generator = torch.Generator().manual_seed(get_rank())
    tokens = torch.randint(0, 256, (config.micro_batch_size, config.model.context), generator=generator)
    for _ in range(config.steps):
        recorder.start()
        loss = engine.forward_loss((tokens, tokens))
        engine.backward(loss)
        numbers.append((loss.item(), engine.step()))
        calls.append([(c.kind, c.size_bytes, c.group_size, c.element_bytes) for c in recorder.stop().calls])
        if evaluates:
            with torch.no_grad():
                engine.forward_loss((tokens, tokens))
    return numbers, calls


def filled_with_sevens(modifier_rank: int | None) -> list[float]:
    """Build a weight inside zero.Init, fill it with 7 while it is gathered, and return what is there afterwards."""
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        weight = torch.nn.Linear(2, 2, bias=False).weight
    with deepspeed.zero.GatheredParameters(weight, modifier_rank=modifier_rank), torch.no_grad():
        weight.fill_(7.0)
    with deepspeed.zero.GatheredParameters(weight):
        return weight.flatten().tolist()
