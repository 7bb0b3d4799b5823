"""A model with everything that has broken a distributed engine before: the laws are held against it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from labs.spec import ParameterSpec, layer_of
from labs.workload import CheckpointedBlock

VOCAB, WIDTH, SEQ = 11, 6, 5  # nothing divides by 4, rows of the position table not even by 2


class AwkwardBlock(CheckpointedBlock):
    """Uses its linear layer twice; its bias has 7 elements, its gain has fewer elements than there are ranks."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(1))

    def compute(self, x):
        x = x + self.mix(self.mix(self.norm(x))) * self.gain
        return x + self.down(F.gelu(self.up(x)))


class AwkwardModel(nn.Module):
    """A tied embedding, a frozen table, a frozen matrix inside a block, and a block that is called twice."""

    def __init__(self, twice: bool = True):
        super().__init__()
        self.twice = twice
        self.token_embedding = nn.Embedding(VOCAB, WIDTH)
        self.position_embedding = nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.ModuleList(AwkwardBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.token_embedding.weight
        self.position_embedding.weight.requires_grad_(False)
        self.blocks[1].mix.weight.requires_grad_(False)

    def forward(self, tokens, targets):
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        for block in (*self.blocks, *self.blocks[: int(self.twice)]):
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())


def build_awkward(seed: int = 0, twice: bool = True) -> AwkwardModel:
    """Build the model with the same weights on every rank."""
    torch.manual_seed(seed)
    return AwkwardModel(twice)


def specs_of(model: nn.Module) -> tuple[ParameterSpec, ...]:
    """Describe the parameters of a built model in the words of the arithmetic."""
    units = {name: layer_of(name) if name.startswith("blocks") else "root" for name, _ in model.named_parameters()}
    return tuple(
        ParameterSpec(name, tuple(p.shape), units[name], p.requires_grad) for name, p in model.named_parameters()
    )


def awkward_batch(step: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of a step: tokens and targets [batch_size, SEQ]."""
    order = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, VOCAB, (batch_size, SEQ + 1), generator=order)
    return tokens[:, :-1], tokens[:, 1:]
