"""Which collectives a rank really issued, with their sizes; also those that DDP issues from C++."""

from __future__ import annotations

import functools
import os
import pickle
from collections import Counter
from dataclasses import dataclass
from math import prod

import torch.distributed as dist

# torch's flight recorder is the only witness of calls made in C++ (DDP's reducer). Its reader is private; torch 2.13.
from torch._C._distributed_c10d import _dump_fr_trace, _resolve_process_group

from labs.wire import InstrumentGroup

_ELEMENT_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}  # others: 1
_DEFAULT_CAPACITY = 2000  # entries; the environment variable TORCH_FR_BUFFER_SIZE changes it
# On gloo these issue an all_reduce, the last one an all_reduce a part; wrapped while a Recorder runs, so that the
# record says what was asked for.
_REDUCE_SCATTERS = (
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter",
)


@dataclass(frozen=True)
class CollectiveRecord:
    """One call: `size_bytes` is the full tensor as in `labs.traffic.Collective`; `created_ns` counts from the epoch."""

    kind: str
    group_name: str
    group_size: int
    size_bytes: int
    element_bytes: int
    sequence: int
    created_ns: int


@dataclass(frozen=True)
class Recording:
    """The calls between start and stop in order; `num_lost` calls were overwritten before they were read."""

    calls: tuple[CollectiveRecord, ...]
    num_lost: int = 0

    def counts(self) -> dict[str, int]:
        """Return {kind: number of calls}."""
        return dict(Counter(call.kind for call in self.calls))


class Recorder:
    """Records the collectives of this rank between `start()` and `stop()`, those of the instrument group left out.

    Call `step()` after every training step: the recorder of torch keeps the last 2,000 calls only, and `step()` reads
    them before they are overwritten. Costs about 0.3 ms a step; nothing is sent.
    """

    def __init__(self, instrument: InstrumentGroup | None = None):
        self._instrument_name = instrument.name if instrument else None
        self._reduce_scatters: set[tuple[str, int]] = set()
        self._restore: dict[str, object] = {}
        self.capacity = int(os.environ.get("TORCH_FR_BUFFER_SIZE") or _DEFAULT_CAPACITY)

    def start(self) -> None:
        """Begin with the next call.

        Raises RuntimeError when torch's flight recorder is switched off, or this recorder is running.
        """
        if self._restore:
            raise RuntimeError("this recorder is running; stop() it before it starts again")
        if self.capacity < 1:
            raise RuntimeError("TORCH_FR_BUFFER_SIZE=0 switches the flight recorder off; unset it to record calls")
        self._calls, self._num_lost = [], 0
        entries = recent_calls()
        self._next_id = entries[-1]["record_id"] + 1 if entries else 0
        self._steps_since_read, self._calls_per_step = 0, self.capacity
        for name in _REDUCE_SCATTERS:
            self._wrap(name)

    def step(self) -> None:
        """Mark the end of a training step."""
        self._steps_since_read += 1
        if self._steps_since_read * self._calls_per_step >= self.capacity // 2:
            self._read()

    def pause(self) -> None:
        """Read what there is, and ignore the calls until `resume()`."""
        self._read()

    def resume(self) -> None:
        entries = recent_calls()
        self._next_id = entries[-1]["record_id"] + 1 if entries else 0

    def stop(self) -> Recording:
        """Return the calls since `start()`."""
        self._read()
        for name, original in self._restore.items():
            setattr(dist.ProcessGroup, name, original)
        self._restore.clear()
        return Recording(tuple(self._calls), self._num_lost)

    def _read(self) -> None:
        new = [entry for entry in recent_calls() if entry["record_id"] >= self._next_id]
        if new:
            self._num_lost += new[0]["record_id"] - self._next_id
            self._next_id = new[-1]["record_id"] + 1
            self._calls_per_step = max(1, len(new) // max(1, self._steps_since_read))
        self._steps_since_read = 0
        kept = (entry for entry in new if entry["process_group"][0] != self._instrument_name)
        self._calls += [_record(entry, self._reduce_scatters) for entry in kept]

    def _wrap(self, name: str) -> None:
        """Note the sequence numbers that a reduce_scatter will get."""
        original = getattr(dist.ProcessGroup, name)

        @functools.wraps(original)
        def noting(group, outputs, inputs, *args, **kwargs):
            first = group._get_sequence_number_for_group() + 1
            num_calls = sum(len(i) if isinstance(i, list) else 1 for i in inputs) if isinstance(inputs, list) else 1
            self._reduce_scatters |= {(group.group_name, first + i) for i in range(num_calls)}
            return original(group, outputs, inputs, *args, **kwargs)

        self._restore[name] = vars(dist.ProcessGroup)[name]
        setattr(dist.ProcessGroup, name, noting)


def members_of(call: CollectiveRecord) -> tuple[int, ...]:
    """Return the ranks that took part in a call, in order."""
    return tuple(dist.get_process_group_ranks(_resolve_process_group(call.group_name)))


def recent_calls() -> list[dict]:
    """Return the entries of torch's flight recorder, oldest first, as torch words them."""
    return pickle.loads(_dump_fr_trace(includeCollectives=True, includeStackTraces=False))["entries"]


def _record(entry: dict, reduce_scatters: set[tuple[str, int]]) -> CollectiveRecord:
    name, sequence = entry["process_group"][0], entry["collective_seq_id"]
    kind = entry["profiling_name"].partition(":")[2].removeprefix("_").removesuffix("_base")  # NCCL: _all_gather_base
    group_size = _resolve_process_group(name).size()
    element_bytes = [_ELEMENT_BYTES.get(dtype, 1) for dtype in entry["input_dtypes"]]
    size = sum(prod(shape) * width for shape, width in zip(entry["input_sizes"], element_bytes, strict=True))
    if kind in ("all_gather", "gather"):
        size *= group_size
    if kind == "all_reduce" and (name, sequence) in reduce_scatters:
        kind = "reduce_scatter"
    return CollectiveRecord(
        kind, name, group_size, size, element_bytes[0] if element_bytes else 1, sequence, entry["time_created_ns"]
    )
