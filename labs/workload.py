"""TinyGPT and TinyMLP: small enough to read, deep enough to misbehave when residuals or norms are taken away."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from labs.spec import ModelSpec


def build_model(spec: ModelSpec, seed: int = 0) -> nn.Module:
    """Build the model of a spec in fp32, with the same weights for the same seed on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyGPT(spec) if spec.kind == "gpt" else TinyMLP(spec)
        initialise(model, spec)
    return model


def initialise(model: nn.Module, spec: ModelSpec) -> None:
    """Draw matrices with standard deviation 0.02 (gpt) or 1/sqrt(inputs) (mlp), times init_scale; biases are zero."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = 0.02 if spec.kind == "gpt" else module.weight.shape[1] ** -0.5
            nn.init.normal_(module.weight, std=std * spec.init_scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def checkpoint_activations(model: nn.Module) -> None:
    """Make every block keep only its input for the backward pass and compute the rest a second time."""
    for block in model.blocks:
        block.checkpointed = True


class CheckpointedBlock(nn.Module):
    """A block that can forget its activations. The recomputation stands inside the module that FSDP and ZeRO-3 hook."""

    checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed and torch.is_grad_enabled():
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


def layer_norm(spec: ModelSpec) -> nn.Module:
    return nn.LayerNorm(spec.hidden_size) if spec.norm else nn.Identity()


class Block(CheckpointedBlock):
    """Causal self-attention, then a feed-forward layer; each added to its input unless `residual` is off."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        hidden = spec.hidden_size
        self.num_heads, self.residual = spec.num_heads, spec.residual
        self.norm1 = layer_norm(spec)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.norm2 = layer_norm(spec)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def compute(self, x: torch.Tensor) -> torch.Tensor:  # [batch, seq, hidden] -> the same
        x = self._add(x, self._attend(self.norm1(x)))
        return self._add(x, self.down(F.gelu(self.up(self.norm2(x)))))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        heads = self.qkv(x).view(batch, seq, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)  # [batch, heads, seq, head_dim]
        return self.proj(out.transpose(1, 2).reshape(batch, seq, hidden))

    def _add(self, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return x + update if self.residual else update


class TinyGPT(nn.Module):
    """A decoder-only transformer on bytes. `forward(tokens, targets)` returns the mean cross-entropy [nats]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        # Embeddings are drawn small; scaling them and the logits back up lets Adam move the loss in tens of steps.
        self.scale = spec.hidden_size**0.5
        self.token_embedding = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.position_embedding = nn.Embedding(spec.context, spec.hidden_size)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.final_norm = layer_norm(spec)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied_embedding:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # [batch, seq] each -> []
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = (self.token_embedding(tokens) + self.position_embedding(positions)) * self.scale  # [batch, seq, hidden]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x) * self.scale)  # [batch, seq, vocab]
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class DenseBlock(CheckpointedBlock):
    """Norm, linear, GELU; added to its input unless `residual` is off."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.residual = spec.residual
        self.norm, self.linear = layer_norm(spec), nn.Linear(spec.hidden_size, spec.hidden_size)

    def compute(self, x: torch.Tensor) -> torch.Tensor:  # [batch, hidden] -> the same
        update = F.gelu(self.linear(self.norm(x)))
        return x + update if self.residual else update


class TinyMLP(nn.Module):
    """A classifier for tables; its buffers hold the training set's mean and standard deviation."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.register_buffer("mean", torch.zeros(spec.num_features))
        self.register_buffer("std", torch.ones(spec.num_features))
        self.stem = nn.Linear(spec.num_features, spec.hidden_size)
        self.blocks = nn.ModuleList(DenseBlock(spec) for _ in range(spec.num_layers))
        self.head = nn.Linear(spec.hidden_size, spec.num_classes)

    def forward(self, rows: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:  # [batch, features], [batch] -> []
        scaled = (rows - self.mean) / self.std  # fp32, whatever the parameters are
        # Not self.stem.weight: ZeRO-3 gathers a parameter that another module touches, and keeps it.
        x = self.stem(scaled.to(next(self.stem.parameters()).dtype))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).float(), classes)
