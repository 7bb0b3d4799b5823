"""What an answer of lesson 03 does to replicas of a small model on real ranks: facts for its judges.

The model has what breaks a hand-made DDP: a tied weight, a frozen one, a module used twice, a buffer, odd sizes.
The twin is the same model on the whole batch in one process; every rank keeps one and compares.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from labs.checks.reference.ddp import Bucketed, plan_buckets
from labs.checks.seal import sealed
from labs.timeline import RankTimeline, TimelineRecorder

VOCAB, WIDTH, SEQ = 11, 6, 5
SAMPLES = 2  # of one rank in one micro-batch
NUM_STEPS, NUM_MICRO_BATCHES = 3, 3
BUCKET_BYTES = 150  # four buckets
LEARNING_RATE = 0.5
PATIENCE = timedelta(seconds=3)
Gradients = dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class Replica:
    """What one rank saw: lists by step of the gradients it had, those of the twin, and those of each rank alone.

    `replaced` names parameters that are other tensors than before, `switched` those frozen or freed.
    """

    rank: int
    world_size: int
    timeline: RankTimeline
    built: list[Gradients] = field(default_factory=list)
    expected: list[Gradients] = field(default_factory=list)
    alone: list[list[Gradients]] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    twin_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()
    waited: bool = False
    num_left: int = 0


class SmallModel(nn.Module):
    """Embedding and head are one tensor, `mix` is used twice, `position` is frozen, `mean` is a buffer."""

    def __init__(self, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.token_embedding = nn.Embedding(VOCAB, WIDTH)
            self.position = nn.Embedding(SEQ, WIDTH)
            self.mix = nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)
            self.register_buffer("mean", torch.randn(WIDTH))
        self.head.weight = self.token_embedding.weight
        self.position.weight.requires_grad_(False)

    def forward(self, tokens, targets):  # [batch, seq] each -> []
        x = self.token_embedding(tokens) + self.position(torch.arange(SEQ)) - self.mean
        x = x + self.down(F.gelu(self.up(self.mix(self.mix(x)))))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def batch_of(step: int, rank: int, micro_batch: int = 0):
    """Return (tokens, targets) [SAMPLES, SEQ] of one rank in one micro-batch."""
    source = torch.Generator().manual_seed(1000 * step + 10 * micro_batch + rank)
    tokens = torch.randint(0, VOCAB, (SAMPLES, SEQ + 1), generator=source)
    return tokens[:, :-1], tokens[:, 1:]


def joined(batches):
    """Put batches together into a large one."""
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def gradients_of(model: nn.Module) -> Gradients:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def fresh_gradients(model: nn.Module, batch) -> Gradients:
    """Gradients of a copy of the model on a batch."""
    other = copy.deepcopy(model)
    other.zero_grad()
    other(*batch).backward()
    return gradients_of(other)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Twin:
    """The same training in one process on the whole batch; notes what is expected and what each rank has alone."""

    def __init__(self, seed: int = 0):
        self.model = SmallModel(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.expected: list[Gradients] = []
        self.alone: list[list[Gradients]] = []

    def step(self, batches_by_rank) -> None:
        self.alone.append([fresh_gradients(self.model, joined(batches)) for batches in batches_by_rank])
        self.optimizer.zero_grad()
        self.model(*joined([batch for batches in batches_by_rank for batch in batches])).backward()
        self.expected.append(gradients_of(self.model))
        self.optimizer.step()


@sealed()
def equalled(start_equal) -> Replica:
    """Let ranks begin with different seeds, and let the answer make them equal."""
    model = SmallModel(seed=dist.get_rank() + 1)
    recorder, before = TimelineRecorder(model, times_transfers=False), _parameters(model)
    was_trained = {name: parameter.requires_grad for name, parameter in before.items()}
    with recorder:
        start_equal(model)
    after = _parameters(model)
    replaced = tuple(name for name in before if after.get(name) is not before[name])
    switched = tuple(name for name, trained in was_trained.items() if before[name].requires_grad != trained)
    found = {"weights": state_of(model), "twin_weights": state_of(SmallModel(seed=1))}
    return Replica(
        dist.get_rank(), dist.get_world_size(), recorder.timeline, **found, replaced=replaced, switched=switched
    )


def _parameters(model: nn.Module) -> Gradients:
    """Parameters by name, a tied one under both of its names."""
    return dict(model.named_parameters(remove_duplicate=False))


@sealed()
def averaged(average) -> Replica:
    """Train a few steps; the answer is called after each backward."""
    model = SmallModel(seed=0)
    recorder = TimelineRecorder(model, times_transfers=False)

    def one_step(step: int) -> None:
        model(*batch_of(step, dist.get_rank())).backward()
        average(model)

    return _trained(model, recorder, one_step, lambda step, rank: [batch_of(step, rank)])


@sealed()
def launched(launch_when_ready, folder: str) -> Replica:
    """Train with the answer's hooks on the course's own buckets.

    In step 1 the other ranks begin backward only when rank 0 has ended its own: a hook that waits is found out. The
    last step has two micro-batches, and `active` is off in the first.
    """
    model = SmallModel(seed=0)
    recorder = TimelineRecorder(model, times_transfers=False)
    sync, turn, waited = Bucketed.__new__(Bucketed), Turn(folder), []
    sync.active, sync.in_flight = True, []
    for turn_by, bucket in enumerate(plan_buckets(list(model.parameters()), BUCKET_BYTES)):
        turn_by %= len(bucket)  # so that the one that is ready last stands in other places
        launch_when_ready([*bucket[turn_by:], *bucket[:turn_by]], sync)

    def batches(step: int, rank: int) -> list:
        return [batch_of(step, rank, micro_batch) for micro_batch in range(1 + (step == NUM_STEPS - 1))]

    def one_step(step: int) -> None:
        mine = batches(step, dist.get_rank())
        for number, batch in enumerate(mine, 1):
            sync.active = number == len(mine)
            loss = model(*batch) / len(mine)
            waited.append(step == 1 and not turn.comes())
            loss.backward()
            turn.has_ended(step)
        sync.finish()

    replica = _trained(model, recorder, one_step, batches)
    return Replica(**{**vars(replica), "waited": any(waited), "num_left": len(sync.in_flight)})


class Turn:
    """Lets the other ranks wait until rank 0 has ended its backward of step 1, but not for ever."""

    def __init__(self, folder: str):
        self._store = dist.FileStore(f"{folder}/turn", dist.get_world_size())

    def comes(self) -> bool:
        """Wait for rank 0; False when it began its backward and does not end it."""
        if dist.get_rank() == 0:
            self._store.set("began", "yes")
            return True
        self._store.wait(["began"])
        try:
            self._store.wait(["ended"], PATIENCE)
        except RuntimeError:  # DistStoreError: the time is over
            return False
        return True

    def has_ended(self, step: int) -> None:
        if dist.get_rank() == 0 and step == 1:
            self._store.set("ended", "yes")


@sealed()
def accumulated(train_step) -> Replica:
    """Let the answer make optimizer steps of several micro-batches, with the course's own buckets."""
    model, steps = SmallModel(seed=0), []
    recorder = TimelineRecorder(model, times_transfers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer.register_step_pre_hook(lambda *_: steps.append(gradients_of(model)))
    sync = Bucketed(model, BUCKET_BYTES)

    def batches(step: int, rank: int) -> list:
        return [batch_of(step, rank, micro_batch) for micro_batch in range(NUM_MICRO_BATCHES)]

    with recorder:
        for step in range(NUM_STEPS):
            train_step(model, optimizer, batches(step, dist.get_rank()), sync)
    twin = Twin()
    for step in range(NUM_STEPS):
        twin.step([batches(step, rank) for rank in range(dist.get_world_size())])
    return Replica(
        dist.get_rank(), dist.get_world_size(), recorder.timeline, steps, twin.expected, twin.alone,
        state_of(model), state_of(twin.model), num_left=len(sync.in_flight),
    )  # fmt: skip


def _trained(model: nn.Module, recorder: TimelineRecorder, one_step, batches) -> Replica:
    built = []
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    with recorder:
        for step in range(NUM_STEPS):
            one_step(step)
            built.append(gradients_of(model))
            optimizer.step()
            optimizer.zero_grad()
    twin = Twin()  # only now: an answer that looks around finds nothing to copy
    for step in range(NUM_STEPS):
        twin.step([batches(step, rank) for rank in range(dist.get_world_size())])
    return Replica(
        dist.get_rank(), dist.get_world_size(), recorder.timeline, built, twin.expected, twin.alone,
        state_of(model), state_of(twin.model),
    )  # fmt: skip
