"""Counts what a DeepSpeed engine holds and calls, whatever its config: for lessons and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labs.engine_facts import EngineFacts, EngineMoment
from labs.measure import PeakParameters, tensor_bytes
from labs.recorder import Recorder
from labs.strategies import deepspeed_states as states


class EngineProbe:
    """Notes each part of a step: `with probe.during("micro-batch 1"): engine.backward(engine(x))`.

    A later part of the same name replaces the earlier one, so that the last step is what `facts()` tells.
    """

    def __init__(self, engine):
        self.engine, self._moments = engine, {}

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Record the collectives of the block, and what is held when it ends."""
        recorder = Recorder()
        recorder.start()
        with PeakParameters(self.engine.module, lambda: live_parameters(self.engine)) as peak:
            yield
        calls = recorder.stop().counts()
        held = held_bytes(self.engine)
        self._moments[name] = EngineMoment(calls, held, max(peak.peak_bytes, held["parameters"]))

    def facts(self) -> EngineFacts:
        """Return what was noted, and the engine's own counters."""
        norm = self.engine.get_global_grad_norm()
        whole = sum(getattr(p, "ds_numel", p.numel()) for p in self.engine.module.parameters())
        stage, updates = int(self.engine.zero_optimization_stage()), self.engine.global_steps
        return EngineFacts(stage, whole, updates, None if norm is None else float(norm), dict(self._moments))


def held_bytes(engine) -> dict[str, int]:
    """Return {state: bytes} of what this rank holds now; gathered copies of parameters count as parameters.

    Buffers of DeepSpeed that gradients pass through count as gradients. On a machine without a GPU what is offloaded
    lies in the same memory and counts, too.
    """
    held = _held(engine)
    held["gradients"] += [p.grad for p in engine.module.parameters() if p.grad is not None]
    return {state: tensor_bytes(tensors) for state, tensors in held.items() if state != "buffers"}


def live_parameters(engine) -> list[torch.Tensor]:
    """List every tensor that holds parameters now: under stage 3 the parts and what is gathered."""
    if engine.zero_optimization_stage() == 3:
        return states.cut_live_parameters(engine.module)
    return list(engine.module.parameters())


def _held(engine) -> dict[str, list[torch.Tensor]]:
    stage, optimizer, module = engine.zero_optimization_stage(), engine.optimizer, engine.module
    if stage == 3:
        held = states.cut_held(optimizer, module)
        return held | {"parameters": live_parameters(engine)}
    if stage:
        held = states.flat_held(optimizer, module)
        return held | {"gradients": held["gradients"] + states.flat_waiting(optimizer, module)}
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    kept = [value for value in kept if value.ndim]
    return {"parameters": list(module.parameters()), "gradients": [], "optimizer": kept, "master_weights": []}


def full_parameters(engine) -> dict[str, torch.Tensor]:
    """Return {name: full fp32 tensor} on every rank, under any stage. Collective."""
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    stage = engine.zero_optimization_stage()
    if stage == 0:
        return {name: parameter.detach().float().clone() for parameter, name in names.items()}
    gather = states.cut_full_parameters if stage == 3 else states.flat_full_parameters
    return gather(engine.optimizer, names, engine.device)
