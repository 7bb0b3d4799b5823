"""Bytes that tensors really hold: those given, those autograd keeps, and the peak of live parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of memory behind the tensors of this rank: every storage once.

    Tied tensors and views of one flat buffer count the buffer once, a DTensor counts its local shard, a freed
    (resized to zero) storage counts nothing.
    """
    return sum(_storages(tensors).values())


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return {address: bytes} of the distinct storages that are not empty."""
    locals_ = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors)
    storages = (tensor.untyped_storage() for tensor in locals_)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
