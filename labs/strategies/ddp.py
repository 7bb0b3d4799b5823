"""Distributed data parallel: every rank holds the whole model; gradients are averaged while the backward pass runs."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labs.config import ModelTrainingConfig
from labs.strategies.single import SingleEngine


class DDPEngine(SingleEngine):
    """The twin's own step on every rank, after DDP has all-reduced the gradients bucket by bucket.

    Parameters in mixed precision are bf16 before DDP sees them, so that buckets and wire are bf16 too.
    """

    shards = frozenset()

    def __init__(self, model: nn.Module, config: ModelTrainingConfig):
        super().__init__(model, config)
        # Gradients are views of the buckets, so they are held once. Buffers never change: no broadcast.
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)

    def forward_loss(self, batch):
        # What `no_sync()` sets; a `with` block cannot reach from here to `backward`.
        self.model.require_backward_grad_sync = self.is_last_micro_batch
        return self.model(*batch)

    def _clear_gradient(self, parameter):
        """Keep the view of the bucket: a fresh gradient would stand beside the bucket, and be copied into it."""
        if parameter.grad is not None:
            parameter.grad.zero_()

    def save(self, path):
        if dist.get_rank() == 0:  # the ranks hold the same numbers
            super().save(path)
        dist.barrier()
