"""What an answer of lesson 04 does with shards of a gradient on real ranks: facts for its judges.

The last rank owns nothing in some cases, as the last ranks of a sharded run may. Every rank can build the shards of
all, so what is expected is counted without any communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from labs.checks.ranks import Call
from labs.checks.seal import sealed
from labs.recorder import Recorder

WORLD_SIZE = 3
Shards = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Sizes of the shards of each rank, and what they are filled with."""

    name: str
    sizes: tuple[tuple[tuple[int, ...], ...], ...]
    dtype: torch.dtype = torch.float32
    std: float = 1.0
    max_norm: float = 1.0
    loss_scale: float = 1.0
    infinite_rank: int | None = None  # which rank has an element that is no finite number
    infinity: float = torch.inf

    def __str__(self) -> str:
        return self.name


EVEN = (((4, 3), (5,)), ((4, 3), (5,)), ((4, 3), (5,)))
UNEVEN = (((6, 5), (7,), (0,)), ((3,),), ())
NORM_CASES = (
    Case("equal shards", EVEN),
    Case("unequal shards, rank 2 owns nothing", UNEVEN, std=3.0),
    Case("bf16 shards", (((40, 30), (9,)), ((50, 20),), ((11,),)), torch.bfloat16, std=0.1),
    Case("one element is inf", EVEN, infinite_rank=1),
)
CLIP_CASES = (
    Case("norm above the limit", EVEN, std=2.0),
    Case("norm below the limit", EVEN, std=0.1),
    Case("unequal shards, rank 2 owns nothing", UNEVEN, std=2.0, max_norm=0.5),
    Case("loss scale 1,024, norm below the limit", UNEVEN, std=0.05, loss_scale=1024.0),
    Case("loss scale 1,024, norm above the limit", EVEN, std=1.0, loss_scale=1024.0),
    Case("all gradients are 0", EVEN, std=0.0),
    Case("one element is nan", EVEN, infinite_rank=1, infinity=torch.nan),
)


@dataclass(frozen=True)
class ShardFacts:
    """One case on one rank: `value` is the number that was returned (None: no number), `after` this rank's shards."""

    rank: int
    case: Case
    value: float | None
    returned: str
    calls: tuple[Call, ...]
    after: Shards


def shards_of(case: Case, rank: int) -> Shards:
    """Build the shards of a rank, as backward leaves them: times the loss scale."""
    source = torch.Generator().manual_seed(17 + rank)
    shards = [
        (case.std * case.loss_scale * torch.randn(size, generator=source)).to(case.dtype) for size in case.sizes[rank]
    ]
    if rank == case.infinite_rank:
        shards[0].view(-1)[2] = case.infinity
    return shards


def normed(global_grad_norm) -> list[ShardFacts]:
    """Call the answer once a case."""
    return [_observed(case, lambda shards, case: global_grad_norm(shards)) for case in NORM_CASES]


def clipped(clip_) -> list[ShardFacts]:
    """Call the answer once a case; it changes the shards in place."""
    return [_observed(case, lambda shards, case: clip_(shards, case.max_norm, case.loss_scale)) for case in CLIP_CASES]


def _observed(case: Case, call) -> ShardFacts:
    """Call the answer with views of one buffer, as a sharded optimizer has them: `after` is what stands in that."""
    recorder, (buffer, shards) = Recorder(), _in_a_buffer(shards_of(case, dist.get_rank()), case.dtype)
    recorder.start()
    with sealed():
        value = call(list(shards), case)
    calls = tuple(Call(c.kind, c.size_bytes, c.element_bytes, c.group_size) for c in recorder.stop().calls)
    after = _views(buffer, shards)
    return ShardFacts(dist.get_rank(), case, _number(value), repr(value)[:80], calls, after)


def _in_a_buffer(shards: Shards, dtype: torch.dtype) -> tuple[torch.Tensor, Shards]:
    buffer = torch.cat([torch.empty(0, dtype=dtype), *(shard.flatten() for shard in shards)])
    return buffer, _views(buffer, shards)


def _views(buffer: torch.Tensor, shards: Shards) -> Shards:
    pieces = buffer.split([shard.numel() for shard in shards])
    return [piece.view(shard.shape) for piece, shard in zip(pieces, shards, strict=True)]


def _number(value: Any) -> float | None:
    """Read a number, or a tensor with one element."""
    value = value.detach() if isinstance(value, torch.Tensor) else value
    try:
        return None if isinstance(value, bool) or getattr(value, "numel", lambda: 1)() != 1 else float(value)
    except (TypeError, ValueError):
        return None


VOCAB, WIDTH, SEQ = 7, 4, 6
# Real tokens of each sample, by rank; what is behind them is padding.
TOKEN_CASES = {
    "equal counts": ((6, 2), (4, 4), (3, 5)),
    "unequal counts": ((6, 6), (2, 1), (1, 0)),
    "rank 2 has padding alone": ((5, 6), (3, 0), (0, 0)),
}


@dataclass(frozen=True)
class LossFacts:
    """One case on one rank: the gradient after the average over ranks, beside the twin's and beside wrong ones."""

    rank: int
    case: str
    value: float | None
    mean_value: float
    twin_value: float
    built: torch.Tensor | None
    expected: torch.Tensor
    wrong: dict[str, torch.Tensor]
    calls: tuple[Call, ...]


def lost(token_loss) -> list[LossFacts]:
    """Let the answer make the loss of each rank's tokens, go backward, average gradients as DDP does."""
    return [_lost(token_loss, name, counts) for name, counts in TOKEN_CASES.items()]


def _lost(token_loss, name: str, counts) -> LossFacts:
    rank, recorder = dist.get_rank(), Recorder()
    weight, losses, is_real = _tokens(rank, counts[rank])
    recorder.start()
    with sealed():
        loss = token_loss(losses, is_real)
    calls = tuple(Call(c.kind, c.size_bytes, c.element_bytes, c.group_size) for c in recorder.stop().calls)
    value, built = _number(loss), None
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
        loss.backward()
        built = weight.grad
    total = torch.zeros(WIDTH, VOCAB) if built is None else built.clone()
    sums = torch.tensor([0.0 if value is None else value, 0.0 if built is None else 1.0])
    dist.all_reduce(total)  # what DDP does after backward
    dist.all_reduce(sums)
    mean, everywhere = sums / WORLD_SIZE
    wrong = {key: _gradient(counts, way) for key, way in WRONG_LOSSES.items()}
    expected, twin_value = _gradient(counts, _twin), _value(counts, _twin)
    built = total / WORLD_SIZE if everywhere == 1 else None
    return LossFacts(rank, name, value, float(mean), twin_value, built, expected, wrong, calls)


def _tokens(rank: int, counts: tuple[int, ...]):
    """Return a weight, the loss of each token [batch, SEQ] and which tokens are real."""
    source = torch.Generator().manual_seed(5)
    weight = torch.randn(WIDTH, VOCAB, generator=source).requires_grad_()
    source.manual_seed(100 + rank)
    x = torch.randn(len(counts), SEQ, WIDTH, generator=source)
    targets = torch.randint(0, VOCAB, (len(counts), SEQ), generator=source)
    losses = F.cross_entropy((x @ weight).transpose(1, 2), targets, reduction="none")
    return weight, losses, torch.arange(SEQ) < torch.tensor(counts)[:, None]


def _value(counts, way) -> float:
    return way([_tokens(rank, own)[1:] for rank, own in enumerate(counts)]).item()


def _gradient(counts, way) -> torch.Tensor:
    """Gradient of the weight under a way to make one loss of the (losses, is_real) of all ranks."""
    parts = [_tokens(rank, own) for rank, own in enumerate(counts)]
    loss = way([part[1:] for part in parts])
    return sum(torch.autograd.grad(loss, [part[0] for part in parts], retain_graph=True, allow_unused=False))


def _twin(parts):
    return sum((losses * is_real).sum() for losses, is_real in parts) / sum(is_real.sum() for _, is_real in parts)


def _mean_of_means(parts):
    means = [(losses * is_real).sum() / is_real.sum().clamp(min=1) for losses, is_real in parts]
    return sum(means) / len(means)


def _padding_too(parts):
    return sum(losses.mean() for losses, _ in parts) / len(parts)


def _sums(parts):
    return sum((losses * is_real).sum() for losses, is_real in parts) / len(parts)


def _sample_means(parts):
    """Mean over each sample's tokens, then over all samples."""
    means = [(losses * is_real).sum(1) / is_real.sum(1).clamp(min=1) for losses, is_real in parts]
    return torch.cat(means).mean()


WRONG_LOSSES = {
    "mean of means": _mean_of_means,
    "padding too": _padding_too,
    "sums": _sums,
    "divided twice": lambda parts: _twin(parts) / len(parts),
    "padding counted": lambda parts: (
        sum((losses * is_real).sum() for losses, is_real in parts) / sum(is_real.numel() for _, is_real in parts)
    ),
    "sample means": _sample_means,
    "samples": lambda parts: (
        sum((losses * is_real).sum() for losses, is_real in parts) / sum(len(is_real) for _, is_real in parts)
    ),
}
