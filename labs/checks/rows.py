"""What an answer of lesson 05 does to rows of a small model on real ranks: facts for its judges.

The model has what breaks a hand-made ZeRO: a tied weight, a frozen one, a block used twice, a buffer, sizes that do not
divide, and a block of one element, of which most ranks own padding alone. Everything that an answer makes and keeps is
counted, wherever it keeps it: memory that nobody lists is memory all the same.
"""

from __future__ import annotations

import copy
import gc
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from labs.checks.reference import zero_by_hand as right
from labs.checks.seal import sealed
from labs.peaks import REST, MemoryTrace
from labs.recorder import Recorder

VOCAB, WIDTH, INNER, SEQ = 13, 10, 61, 3
WORLD_SIZE = 3  # of two ranks, each is the other's only neighbour: too many mistakes look right
NUM_STEPS = 2  # what is made anew or gathered once shows in the second
OPTIONS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
PATIENCE_SECONDS = 0.5
Parts = dict[str, torch.Tensor | None]  # by name of the row
Call = tuple[str, int]  # kind, bytes of the whole tensor


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.weight


class SmallModel(nn.Module):
    """Embedding and head are one tensor, the first block is used twice, `position` is frozen, `mean` is a buffer."""

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.token_embedding, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
            self.blocks = nn.ModuleList([Block(), Scale(), Block()])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)
            self.register_buffer("mean", torch.randn(WIDTH))
        self.head.weight = self.token_embedding.weight
        self.position.weight.requires_grad_(False)

    def forward(self, tokens, targets):  # [batch, seq] each -> []
        x = self.token_embedding(tokens) + self.position(torch.arange(SEQ)) - self.mean
        for index in (0, 1, 0, 2):
            x = self.blocks[index](x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def batch_of(step: int, rank: int):
    """Return (tokens, targets) [1, SEQ] of one rank."""
    source = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, VOCAB, (1, SEQ + 1), generator=source)
    return tokens[:, :-1], tokens[:, 1:]


def units_of(model: SmallModel) -> dict[str, nn.Module]:
    return {"outside of blocks": model, **{f"blocks.{i}": block for i, block in enumerate(model.blocks)}}


def parameters_of(model: SmallModel) -> dict[str, list[nn.Parameter]]:
    """List the trained parameters of each unit, in an order that is not that of forward."""
    inside = {parameter for block in model.blocks for parameter in block.parameters()}
    found = {"outside of blocks": [p for p in model.parameters() if p not in inside and p.requires_grad]}
    for index, block in enumerate(model.blocks):
        listed = list(block.parameters())
        found[f"blocks.{index}"] = [*listed[1 + index :], *listed[: 1 + index]]
    return found


def rows_of(model: SmallModel) -> dict[str, right.Row]:
    return {name: right.Row(parameters) for name, parameters in parameters_of(model).items()}


def in_a_row(tensors, world_size: int) -> torch.Tensor:
    """Lay tensors end to end and pad them with zeros [world_size * part]."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return F.pad(flat, (0, -len(flat) % world_size))


def weights_in_rows(model: SmallModel) -> Parts:
    return {name: in_a_row(ps, dist.get_world_size()) for name, ps in parameters_of(model).items()}


def gradients_in_rows(model: SmallModel, *batches) -> Parts:
    """Gradients of a copy of the model on some batches together, by row [ranks * part]."""
    other = copy.deepcopy(model)
    other.zero_grad()
    other(*(torch.cat(parts) for parts in zip(*batches, strict=True))).backward()
    return {n: in_a_row([p.grad for p in ps], dist.get_world_size()) for n, ps in parameters_of(other).items()}


class Twin:
    """The same training in one process on the whole batch."""

    def __init__(self, optimizer=torch.optim.AdamW, options=OPTIONS, forgets: bool = False):
        self.model, self.forgets = SmallModel(), forgets
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(trained, **options)

    def step(self, step: int) -> tuple[float, Parts]:
        """Make one step; return the loss before it and the weights after it, by row [ranks * part]."""
        batches = [batch_of(step, rank) for rank in range(dist.get_world_size())]
        if self.forgets:
            self.optimizer.state.clear()
        self.optimizer.zero_grad()
        loss = self.model(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
        loss.backward()
        self.optimizer.step()
        return loss.item(), weights_in_rows(self.model)


@dataclass
class Facts:
    """What one rank saw, by step. Which lists are filled depends on the exercise; tensors are copies."""

    rank: int = field(default_factory=dist.get_rank)
    world_size: int = field(default_factory=dist.get_world_size)
    built: list[Parts] = field(default_factory=list)
    expected: list[Parts] = field(default_factory=list)
    alone: list[Parts] = field(default_factory=list)  # what this rank has without the others
    calls: list[list[Call]] = field(default_factory=list)
    left: list[list[str]] = field(default_factory=list)  # gradients that are still there
    storage_bytes: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    losses: list[float] = field(default_factory=list)
    weights: list[tuple[Parts, Parts]] = field(default_factory=list)  # before and after
    others: dict[str, list[Parts]] = field(default_factory=dict)  # weights by other ways to train

    @property
    def row_bytes(self) -> dict[str, int]:
        return {name: whole.nbytes for name, whole in self.expected[0].items()}

    def part_of(self, whole: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        return whole.chunk(self.world_size)[self.rank if rank is None else rank]


class Watch:
    """Counts the collectives of each step, and what the answer keeps beside parameters, gradients and notes."""

    def __init__(self, model: SmallModel, rows: dict[str, right.Row]):
        self.model, self.rows, self.notes = model, rows, []
        self.recorder, self.trace = Recorder(), MemoryTrace(self._states)

    def note(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Copy a tensor for the judge, out of the count."""
        if tensor is None:
            return None
        self.notes.append(tensor.detach().clone())
        return self.notes[-1]

    def settle(self, at_most_bytes: int) -> int:
        """Return what is kept beside the states, once gloo's thread has let go of the tensors of its last call."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while (kept := self.trace.sample()[REST]) > at_most_bytes and time.monotonic() < patience:
            time.sleep(0.001)
        return kept

    def calls(self) -> list[Call]:
        return [(call.kind, call.size_bytes) for call in self.recorder.stop().calls]

    def _states(self) -> dict[str, list[torch.Tensor]]:
        parameters = [*self.model.parameters(), *(row.mine for row in self.rows.values())]
        wholes = [row.whole for row in self.rows.values() if isinstance(row.whole, torch.Tensor)]
        return {
            "parameters": [*parameters, *wholes],
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "notes": [*self.notes, *self.model.buffers()],
        }


def reduced(reduce_part) -> Facts:
    """Call the answer after backward, for each row, on other batches each time; memory that is not filled is nan."""
    torch.use_deterministic_algorithms(True)  # torch.empty is filled with nan then
    model, facts = SmallModel(), Facts()
    rows = rows_of(model)
    watch = Watch(model, rows)
    for step in range(2):
        batches = [batch_of(step, rank) for rank in range(facts.world_size)]
        facts.expected.append(gradients_in_rows(model, *batches))
        facts.alone.append(gradients_in_rows(model, batches[facts.rank]))
        model(*batches[facts.rank]).backward()
        before = weights_in_rows(model)
        watch.recorder.start()
        with watch.trace if step else nullcontext():
            with sealed():
                for row in rows.values():
                    reduce_part(row)
            facts.kept_bytes = watch.settle(0) if step else 0
        facts.calls.append(watch.calls())
        facts.weights.append((before, weights_in_rows(model)))
        facts.built.append({name: watch.note(row.mine.grad) for name, row in rows.items()})
        facts.left.append([name for name, p in model.named_parameters() if p.grad is not None])
        for name, row in rows.items():
            facts.storage_bytes[name] = 0 if row.mine.grad is None else row.mine.grad.untyped_storage().nbytes()
            row.mine.grad = None
        model.zero_grad()
    return facts


def stepped(sharded_adamw) -> Facts:
    """Train with the answer's optimizer on parts that the course's own code has reduced."""
    model, facts, twin = SmallModel(), Facts(), Twin()
    facts.alone.append(weights_in_rows(model))
    others = {"defaults": Twin(options={}), "adam": Twin(torch.optim.Adam), "forgets": Twin(forgets=True)}
    facts.others = {name: [other.step(step)[1] for step in range(NUM_STEPS)] for name, other in others.items()}
    facts.expected += [twin.step(step)[1] for step in range(NUM_STEPS)]
    rows = rows_of(model)
    watch = Watch(model, rows)
    batches = [batch_of(step, facts.rank) for step in range(NUM_STEPS)]
    watch.notes += [tensor for batch in batches for tensor in batch]
    with watch.trace:
        step = sharded_adamw(list(rows.values()), **OPTIONS)
        for number in range(NUM_STEPS):
            model(*batches[number]).backward()
            for row in rows.values():
                right.reduce_part(row)
            watch.recorder.start()
            with sealed():
                step()
            facts.calls.append(watch.calls())
            facts.built.append({name: watch.note(whole) for name, whole in weights_in_rows(model).items()})
            facts.left.append([name for name, row in rows.items() if row.mine.grad is not None])
            for row in rows.values():
                row.mine.grad = None
        gc.collect()  # cycles of an answer that nothing refers to are not held
        facts.kept_bytes = watch.settle(2 * sum(row.mine.nbytes for row in rows.values()) + 64 * len(rows))
    return facts
