"""What was counted on one rank of a DeepSpeed engine: bytes held and collectives called, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineMoment:
    """One part of a training step: the collectives called in it, and the bytes of each state held at its end.

    `peak_parameters_bytes` are the most bytes of parameters that were there at once, gathered copies included.
    """

    calls: dict[str, int]
    held: dict[str, int]
    peak_parameters_bytes: int

    @property
    def num_calls(self) -> int:
        return sum(self.calls.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class EngineFacts:
    """One rank's last optimizer step under a config, part by part, with its counters; `num_parameters` of the model."""

    stage: int
    num_parameters: int
    num_updates: int
    grad_norm: float | None
    moments: dict[str, EngineMoment] = field(default_factory=dict)
