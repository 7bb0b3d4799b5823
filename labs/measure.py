"""Bytes that tensors really hold: those given, those autograd keeps, and the peak of live parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

Tensors = Iterable[torch.Tensor]


def tensor_bytes(tensors: Tensors) -> int:
    """Bytes of memory behind the tensors of this rank: every storage once.

    Tied tensors and views of one flat buffer count the buffer once, a DTensor counts its local shard, a freed
    (resized to zero) storage counts nothing.
    """
    return sum(_storages(tensors).values())


class KeptActivations:
    """Measures the bytes that autograd keeps for backward: `with KeptActivations(...) as kept: loss = model(x)`.

    `kept_bytes` is taken at the end of the block and counts every storage once; storages of the parameters (and
    buffers) that `parameters()` lists when a tensor is saved or at the end are left out, so gathered copies of
    parameters are no activations. What activation checkpointing recomputes is not kept and not counted. Backward may
    run inside or after the block; it sees the same values.
    """

    def __init__(self, parameters: Callable[[], Tensors]):
        self._parameters = parameters
        self._saved: list[weakref.ref[_Saved]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self.kept_bytes = 0

    def __enter__(self) -> KeptActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)
        alive = [saved.tensor for reference in self._saved if (saved := reference()) is not None]
        storages, parameters = _storages(alive), _storages(self._parameters())
        self.kept_bytes = sum(size for key, size in storages.items() if key not in parameters)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        saved, parameters = _Saved(tensor.detach()), list(self._parameters())  # with its graph it would never die
        if _storages([tensor]).keys().isdisjoint(_storages(parameters)):
            self._saved.append(weakref.ref(saved))
            return saved
        # Not the alias that autograd passes here: an engine may swap the parameter's memory before backward.
        return next((parameter for parameter in parameters if _is_same_view(tensor, _local(parameter))), saved)


class PeakParameters:
    """Measures the peak bytes of parameters that are live at once: `with PeakParameters(...) as peak: one_step()`.

    `sample()` is called before and after every submodule's forward, and in backward when the gradient of its output,
    of its input and of a parameter is ready, so a unit that is gathered for its computation is seen. `parameters()`
    lists every tensor that holds parameters at this moment. It is slow (milliseconds a step): wrap one step, not a run.
    """

    def __init__(self, module: nn.Module, parameters: Callable[[], Tensors]):
        self._module, self._parameters = module, parameters
        self._handles: list[RemovableHandle] = []
        self.peak_bytes = 0

    def sample(self, *_) -> None:
        """Take the bytes that are live now into the peak."""
        self.peak_bytes = max(self.peak_bytes, tensor_bytes(self._parameters()))

    def __enter__(self) -> PeakParameters:
        self.sample()
        for module in self._module.modules():
            self._handles.append(module.register_forward_pre_hook(self._around, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after))
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self.sample))
        return self

    def __exit__(self, *_) -> None:
        self.sample()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _around(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._watch((args, kwargs))

    def _after(self, module: nn.Module, args: tuple, output: object) -> None:
        self._watch(output)

    def _watch(self, values: object) -> None:
        self.sample()
        for tensor in tensors_in(values):
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(self.sample))


class _Saved:
    """Holds one saved tensor; dies with the graph that saved it."""

    __slots__ = ("tensor", "__weakref__")

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


def _unpack(saved: torch.Tensor | _Saved) -> torch.Tensor:
    return saved.tensor if isinstance(saved, _Saved) else saved


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard, without its autograd


def _storages(tensors: Tensors) -> dict[int, int]:
    """Return {identity: bytes} of the distinct storages that are not empty."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    # _cdata (private, torch 2.13) is the storage object itself; fake tensors have no address, freed memory is reused.
    return {storage._cdata: storage.nbytes() for storage in storages if storage.nbytes()}


def _is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage are the same elements in the same order."""
    view_of_a, view_of_b = ((t.storage_offset(), t.shape, t.stride(), t.dtype) for t in (a, b))
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and view_of_a == view_of_b


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
