"""One training step of a sharded model, measured: live parameters from place to place, collectives, activations."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from labs.gathered import live_parameters
from labs.measure import KeptActivations, PeakParameters, tensor_bytes, tensors_in
from labs.recorder import CollectiveRecord, Recorder, members_of


@dataclass(frozen=True)
class LiveSample:
    """Bytes of parameters that are live at one place: `pass_name` is forward or backward, `module` as it is named."""

    pass_name: str
    module: str
    live_bytes: int


@dataclass(frozen=True)
class ShardedStep:
    """What one rank saw in one forward and backward pass; `members` are the ranks of each call, in its order."""

    rank: int
    loss: float
    live: tuple[LiveSample, ...]
    calls: tuple[CollectiveRecord, ...]
    members: tuple[tuple[int, ...], ...]
    kept_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(sample.live_bytes for sample in self.live)

    @property
    def resting_bytes(self) -> int:
        """Bytes of parameters before the first layer computes."""
        return self.live[0].live_bytes

    def count(self, kind: str) -> int:
        return sum(call.kind == kind for call in self.calls)

    def sent_bytes(self, kind: str) -> int:
        """Bytes of the full tensors of all calls of a kind."""
        return sum(call.size_bytes for call in self.calls if call.kind == kind)


class LiveTrace(PeakParameters):
    """Writes down the live bytes wherever PeakParameters looks, with the place; `samples` are in program order."""

    def __init__(self, module: nn.Module, parameters):
        super().__init__(module, parameters)
        self._name_of = {part: name or "model" for name, part in module.named_modules()}
        self._place = ("forward", "model")
        self.samples: list[LiveSample] = []

    def sample(self, *_) -> None:
        held_bytes = tensor_bytes(self._parameters())
        self.samples.append(LiveSample(*self._place, held_bytes))
        self.peak_bytes = max(self.peak_bytes, held_bytes)

    def _around(self, module, args, kwargs) -> None:
        self._place = (self._place[0], self._name_of.get(module, "model"))
        super()._around(module, args, kwargs)

    def _after(self, module, args, output) -> None:
        self._place = (self._place[0], self._name_of.get(module, "model"))
        super()._after(module, args, output)

    def _watch(self, values: object) -> None:
        self.sample()
        for tensor in tensors_in(values):
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(functools.partial(self._backward_at, self._place[1])))

    def _backward_at(self, module: str, _) -> None:
        self._place = ("backward", module)
        self.sample()


def measure_step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> ShardedStep:
    """Run forward and backward once, and return what was live, sent and kept. Every rank of the group calls it.

    `model(*batch)` is the loss; the model may be sharded in any way, or not at all.
    """
    shards = list(model.parameters())

    def live():
        return live_parameters(model, shards)

    recorder = Recorder()
    recorder.start()
    with LiveTrace(model, live) as trace:
        with KeptActivations(live) as kept:
            loss = model(*batch)
        loss.backward()
    calls = recorder.stop().calls
    members = tuple(map(members_of, calls))
    return ShardedStep(dist.get_rank(), loss.item(), tuple(trace.samples), calls, members, kept.kept_bytes)
