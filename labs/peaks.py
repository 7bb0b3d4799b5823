"""Bytes that a rank holds after every operation of a step, by state: where the peak is, and what it is made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operation; torch 2.13
from torch.utils._pytree import tree_iter

from labs.records import StepMemory

REST = "activations"  # what belongs to no state: activations and temporaries


class MemoryTrace(TorchDispatchMode):
    """Records one step on this rank: `with MemoryTrace(states) as trace: ...`; afterwards `trace.record` holds it.

    `states()` returns {state: tensors} as they are at this moment; a state it does not name is left out, a tensor that
    it names twice counts where it is named first. Every other memory that an operation inside the block made, and that
    is still there, is counted as activations (and temporaries). What an operation needs only while it runs is not
    seen, nor what gloo copies. `trace.phase = "backward"` names what comes next. It is slow (half a second a step for
    an engine): wrap one step, not a run.
    """

    def __init__(self, states: Callable[[], Mapping[str, Iterable[torch.Tensor]]]):
        super().__init__()
        self._states, self.phase = states, "forward"
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._phases: list[tuple[str, int]] = []
        self._samples: list[dict[str, int]] = []
        self._is_looking, self._last = False, {}
        self.record: StepMemory | None = None

    def __enter__(self) -> MemoryTrace:
        self._note(tensor for tensors in self._states().values() for tensor in tensors)
        self.sample()
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self.sample()
        names = list(dict.fromkeys(name for sample in self._samples for name in sample))
        series = {name: tuple(sample.get(name, 0) for sample in self._samples) for name in names}
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.record = StepMemory(rank, tuple(self._phases), series)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not self._is_looking:
            self._note(tensor for tensor in tree_iter(result) if isinstance(tensor, torch.Tensor))
            if self._sizes() != self._last:
                self.sample()
        return result

    def _note(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = _local(tensor).untyped_storage()
            known = self._made.get(storage._cdata)
            if known is None or known() is None:  # the place of a storage that has died is used again
                self._made[storage._cdata] = weakref.ref(storage)

    def _sizes(self) -> dict[int, int]:
        """Return {identity: bytes} of all memory known here that is still there."""
        found = {key: storage.nbytes() for key, ref in self._made.items() if (storage := ref()) is not None}
        if len(found) < len(self._made):
            self._made = {key: self._made[key] for key in found}
        return found

    def sample(self) -> dict[str, int]:
        """Note what is there now, and return it; inside the block every change is noted by itself."""
        self._is_looking = True  # what a look costs is no operation of the step
        try:
            states = {state: _identities(tensors) for state, tensors in self._states().items()}
        finally:
            self._is_looking = False
        left = self._last = self._sizes()
        left, sample = dict(left), {}
        for state, keys in states.items():
            sample[state] = sum(left.pop(key, 0) for key in keys)
        self._samples.append({**sample, REST: sample.get(REST, 0) + sum(left.values())})
        if not self._phases or self._phases[-1][0] != self.phase:
            self._phases.append((self.phase, len(self._samples) - 1))
        return self._samples[-1]


class ParameterStates:
    """States of some parameters, for a MemoryTrace: themselves, their gradients, and what optimizers keep for them.

    An optimizer of torch is found by itself, once it has made a step.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]):
        self._parameters = list(parameters)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizers.add(optimizer))

    def __call__(self) -> dict[str, list[torch.Tensor]]:
        kept = [
            value for optimizer in self._optimizers for state in optimizer.state.values() for value in state.values()
        ]
        return {
            "parameters": self._parameters,
            "gradients": [p.grad for p in self._parameters if p.grad is not None],
            "optimizer": [value for value in kept if isinstance(value, torch.Tensor) and value.ndim],
        }


def _identities(tensors: Iterable[torch.Tensor]) -> set[int]:
    # _cdata (private, torch 2.13) is the storage itself, as in labs/measure.py
    return {_local(tensor).untyped_storage()._cdata for tensor in tensors}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard
