"""Text and tables that every Python install already has. The split is made by position before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy
import torch

from labs.config import ModelTrainingConfig

VALIDATION_SHARE = 0.1
EVAL_SAMPLES = 256


@dataclass(frozen=True)
class Dataset:
    """Samples split into training and validation, and a baseline fitted on the training part alone.

    text: `train` and `validation` are byte streams [num_bytes], `context` the tokens of one sample.
    tables: rows [num_rows, features] with `train_labels`, `validation_labels` [num_rows]; `context` is 0.
    """

    train: torch.Tensor
    validation: torch.Tensor
    context: int = 0
    train_labels: torch.Tensor | None = None
    validation_labels: torch.Tensor | None = None
    baseline_loss: float = 0.0

    def to(self, device: torch.device) -> Dataset:
        """Return the same samples on another device; the training loop cuts its batches there."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **{name: value.to(device) for name, value in tensors.items()})

    def train_batch(self, config: ModelTrainingConfig, step: int, micro_step: int, rank: int):
        """Return (inputs, targets) of one micro-batch of one rank.

        The global batch of a step depends on the seed and the step alone; ranks and micro-batches cut it into slices.
        """
        order = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        starts = torch.randint(0, self._num_samples(self.train), (config.batch_size,), generator=order)
        first = (micro_step * config.world_size + rank) * config.micro_batch_size
        return self._samples(self.train, self.train_labels, starts[first : first + config.micro_batch_size])

    def validation_batches(self, rank: int, world_size: int, batch_size: int = 32):
        """Yield (num_samples, (inputs, targets)) of this rank's share of the validation samples: none counted twice.

        Every rank yields as many batches as rank 0, since a sharded forward pass is collective; a rank whose share
        has run out yields one sample with num_samples 0.
        """
        total = min(EVAL_SAMPLES, self._num_samples(self.validation))
        spacing = max(1, self._num_samples(self.validation) // total)
        starts = torch.arange(total)[rank::world_size] * spacing
        for first in range(0, -(-total // world_size), batch_size):
            chunk = starts[first : first + batch_size]
            filler = torch.zeros(0 if len(chunk) else 1, dtype=torch.long)
            yield len(chunk), self._samples(self.validation, self.validation_labels, torch.cat([chunk, filler]))

    def _num_samples(self, part: torch.Tensor) -> int:
        return len(part) - self.context

    def _samples(self, part: torch.Tensor, labels: torch.Tensor | None, starts: torch.Tensor):
        if labels is not None:
            return part[starts], labels[starts]
        window = part[starts[:, None] + torch.arange(self.context + 1)].long()  # [batch, context + 1]
        # A copy, as the loss would make one: of a single sample it would keep a view, and a run 8 bytes a token less.
        return window[:, :-1], window[:, 1:].clone()


def load_data(config: ModelTrainingConfig) -> Dataset:
    """Load the data of a run, split by position (text) or by a fixed shuffle (tables), baseline included."""
    return _load_text(config.model.context) if config.data == "text" else _load_table(config.data)


@cache
def _load_text(context: int) -> Dataset:
    """Read the topics of Python's own help: about half a megabyte of English that every CPython carries."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    stream = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cut = int(len(stream) * (1 - VALIDATION_SHARE))
    train, validation = stream[:cut], stream[cut:]
    return Dataset(train, validation, context, baseline_loss=unigram_loss(train, validation))


@cache
def _load_table(name: str) -> Dataset:
    table = _read_table(name)
    rows, labels = table[:, :-1].float(), table[:, -1].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    cut = int(len(rows) * (1 - VALIDATION_SHARE))
    train, validation = order[:cut], order[cut:]
    baseline = unigram_loss(labels[train], labels[validation])
    return Dataset(rows[train], rows[validation], 0, labels[train], labels[validation], baseline)


def _read_table(name: str) -> torch.Tensor:
    """Read a table that scikit-learn carries: [num_rows, features and label], in float64.

    From its file, in a few hundredths of a second: a rank would import scikit-learn for 0.7 s to do the same.
    """
    folder = Path(find_spec("sklearn").origin).parent / "datasets" / "data"
    (file,) = folder.glob(f"{name}*.csv*")  # wine_data.csv, digits.csv.gz
    num_heads = 1 if file.suffix == ".csv" else 0  # counts, and the names of the labels
    return torch.from_numpy(numpy.loadtxt(file, delimiter=",", skiprows=num_heads))


def unigram_loss(train: torch.Tensor, validation: torch.Tensor) -> float:
    """Cross-entropy [nats] of the validation symbols under the training frequencies, plus one count for each symbol."""
    num_symbols = max(256 if train.dtype == torch.uint8 else 0, int(train.max()) + 1, int(validation.max()) + 1)
    counts = torch.bincount(train.long(), minlength=num_symbols).double() + 1
    return float(-(counts / counts.sum()).log()[validation.long()].mean())


def fit_buffers(model: torch.nn.Module, dataset: Dataset) -> None:
    """Set the model's mean and std from the training rows alone; a column that never varies keeps std 1."""
    if dataset.train_labels is None:
        return
    std = dataset.train.std(dim=0, correction=0)
    model.mean.copy_(dataset.train.mean(dim=0))
    model.std.copy_(torch.where(std > 0, std, torch.ones_like(std)))
