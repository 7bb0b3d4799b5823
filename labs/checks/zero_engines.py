"""What an answer of lesson 07 does to live DeepSpeed engines on real ranks: facts for its judges.

The twin is the same model on the whole batch in one process; every rank keeps one and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from labs.checks.answer import Raised, call
from labs.checks.seal import sealed
from labs.config import ModelTrainingConfig
from labs.data import load_data
from labs.engine_facts import EngineFacts
from labs.recorder import Recorder
from labs.spec import ModelSpec
from labs.strategies.base import parameter_groups
from labs.strategies.deepspeed_probe import EngineProbe, full_parameters
from labs.wire import InstrumentGroup, new_instrument_group
from labs.workload import build_model

SPEC = ModelSpec(num_layers=1, hidden_size=33, num_heads=3)  # norms and biases that two ranks do not divide
NUM_STEPS, ACCUMULATION, MICRO_BATCH_SIZE = 2, 2, 2
LEARNING_RATE = 0.05
BUCKET = 20_000  # elements
LOOKED_AT = ("token_embedding.weight", "blocks.0.norm1.bias", "blocks.0.up.bias")


def config_of(stage: int, clipping: float = 0.0) -> dict:
    """A config in which stage 3 cuts every parameter, also small ones."""
    zero: dict = {"stage": stage, "reduce_bucket_size": BUCKET, "overlap_comm": False}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
        zero |= {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0}
    return {
        "train_micro_batch_size_per_gpu": MICRO_BATCH_SIZE,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": clipping,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }


def start(config: dict):
    """Build an engine around a fresh model and plain SGD, which forgives no wrong factor as Adam does."""
    from labs.strategies.deepspeed import deepspeed

    model = build_model(SPEC, seed=0)
    optimizer = torch.optim.SGD(parameter_groups(dict(model.named_parameters()), 0.0), lr=LEARNING_RATE)
    settings = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, **config}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]


class Batches:
    """The micro-batches of every rank, the same ones whoever asks."""

    def __init__(self, accumulation: int = ACCUMULATION, world_size: int | None = None):
        self.world_size = world_size or dist.get_world_size()
        batch_size = MICRO_BATCH_SIZE * accumulation * self.world_size
        self.config = ModelTrainingConfig(
            batch_size=batch_size, world_size=self.world_size, gradient_accumulation_steps=accumulation, model=SPEC
        )
        self.data = load_data(self.config)

    def of(self, step: int, rank: int) -> list[tuple[torch.Tensor, ...]]:
        """Return the micro-batches of one rank in one optimizer step."""
        count = self.config.gradient_accumulation_steps
        return [self.data.train_batch(self.config, step, micro, rank) for micro in range(count)]


@dataclass(frozen=True)
class TwinFacts:
    """One process on the whole batch: the norm before clipping of each step, and of its last micro-batch alone."""

    norms: list[float]
    last_norms: list[float]
    weights: dict[str, torch.Tensor]


def twin(batches: Batches, clipping: float = 0.0) -> TwinFacts:
    """Train the twin for NUM_STEPS; gradients are means over all ranks and micro-batches."""
    model, norms, last_norms = build_model(SPEC, seed=0), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(NUM_STEPS):
        by_rank = [batches.of(step, rank) for rank in range(batches.world_size)]
        last_norms.append(_norm_of_mean(model, [micro[-1] for micro in by_rank]) / len(by_rank[0]))
        norms.append(_norm_of_mean(model, [batch for micro in by_rank for batch in micro]))
        if clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
    return TwinFacts(norms, last_norms, {name: p.detach().clone() for name, p in model.named_parameters()})


def _norm_of_mean(model, batches) -> float:
    model.zero_grad()
    for batch in batches:
        (model(*batch) / len(batches)).backward()
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


@dataclass(frozen=True)
class Stepped:
    """What one rank saw of an answer to train_step: counts by optimizer step, norms, and names of wrong weights."""

    rank: int
    stage: int
    forwards: list[int]
    samples: list[int]
    calls_of_step: list[int]
    updates: list[int]
    norms: list[float]
    twin: TwinFacts
    wrong_weights: list[str]


def stepped(train_step, stage: int) -> Stepped:
    """Let the answer make NUM_STEPS optimizer steps under one stage."""
    engine, batches = start(config_of(stage)), Batches()
    forwards, samples, calls, updates, norms = [], [], [], [], []
    seen: list[int] = []
    engine.module.register_forward_hook(lambda _, batch, __: seen.append(len(batch[0]) if batch else 0))
    for step in range(NUM_STEPS):
        with sealed():
            train_step(engine, batches.of(step, dist.get_rank()))
        forwards.append(len(seen))
        samples.append(sum(seen))
        calls.append(engine.micro_steps)
        updates.append(engine.global_steps)
        norms.append(float(engine.get_global_grad_norm() or 0.0))
    expected = twin(batches)
    wrong = wrong_weights(full_parameters(engine), expected.weights)
    return Stepped(dist.get_rank(), stage, forwards, samples, calls, updates, norms, expected, wrong)


def wrong_weights(built: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, value in expected.items() if not torch.allclose(built[name], value, rtol=1e-4, atol=1e-6)]


@dataclass(frozen=True)
class Ran:
    """One rank's run under a config, beside the twin."""

    facts: EngineFacts
    twin: TwinFacts
    wrong_weights: list[str]
    is_whole: bool  # every parameter is there in full, between two steps
    dtype: str


def ran(config: dict, clipping: float) -> Ran:
    """Train NUM_STEPS under a config, as its own batch numbers say."""
    engine = start(config)
    accumulation = engine.gradient_accumulation_steps()
    batches, probe = Batches(accumulation), EngineProbe(engine)
    for step in range(NUM_STEPS):
        for number, batch in enumerate(batches.of(step, dist.get_rank()), 1):
            with probe.during(f"micro-batch {number}"):
                engine.backward(engine(*batch))
            engine.step()
    parameters = list(engine.module.parameters())
    is_whole, dtype = all(p.numel() for p in parameters), str(parameters[0].dtype).removeprefix("torch.")
    expected = twin(batches, clipping)
    wrong = wrong_weights(full_parameters(engine), expected.weights)
    return Ran(probe.facts(), expected, wrong, is_whole, dtype)


def ran_each(configs: list[dict]) -> list[Ran]:
    return [ran(config, 1.0) for config in configs]


@dataclass(frozen=True)
class Looked:
    """What one rank got for one parameter: the answer's value, the truth, bytes gathered, and how it was left."""

    rank: int
    name: str
    value: object
    truth: torch.Tensor
    part: torch.Tensor
    gathered_bytes: int
    is_released: bool
    is_changed: bool


def looked(look) -> list[Looked]:
    """Let the answer look at three parameters after a step of stage 3, then make one more step."""
    engine, batches, meter = start(config_of(3)), Batches(), new_instrument_group()
    found = []
    for step in range(NUM_STEPS):
        for batch in batches.of(step, dist.get_rank()):
            engine.backward(engine(*batch))
            engine.step()
        if step == 0:
            truths = full_parameters(engine)
            found = [_look_at(look, engine, name, truths[name], meter) for name in LOOKED_AT]
    return found


def _look_at(look, engine, name: str, truth: torch.Tensor, meter: InstrumentGroup) -> Looked:
    """The ranks meet again over a group of the meter's own, so that a rank that gathers alone is seen waiting."""
    recorder = Recorder(meter)
    parameter = dict(engine.module.named_parameters())[name]
    before = parameter.ds_tensor.clone()
    recorder.start()
    with sealed():
        value = look(engine, name)
    dist.barrier(meter.group)
    gathered = sum(c.size_bytes for c in recorder.stop().calls)
    value = value.detach().clone() if isinstance(value, torch.Tensor) else value
    part = parameter.ds_tensor.clone()
    is_changed = not torch.equal(part, before)
    return Looked(dist.get_rank(), name, value, truth, part, gathered, parameter.numel() == 0, is_changed)


@dataclass(frozen=True)
class Saved:
    """The files of a ZeRO-3 checkpoint {name: bytes}, and the weights that it holds."""

    files: dict[str, bytes] = field(repr=False)
    weights: dict[str, torch.Tensor] = field(repr=False)


def saved(folder: str) -> Saved:
    """Train a little under stage 3, and save."""
    engine, batches = start(config_of(3)), Batches()
    for batch in batches.of(0, dist.get_rank()):
        engine.backward(engine(*batch))
        engine.step()
    engine.save_checkpoint(folder, tag="step1")
    dist.barrier()
    files = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    return Saved(files if dist.get_rank() == 0 else {}, full_parameters(engine))


def consolidated(consolidate, folder: str) -> object:
    """Call the answer on a folder; an error is returned as a Raised."""
    found = call(consolidate, (folder,))
    if isinstance(found, Raised) or not isinstance(found, dict):
        return found
    return {name: v.detach().clone() if isinstance(v, torch.Tensor) else v for name, v in found.items()}
