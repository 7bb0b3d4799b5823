"""Reads a DeepSpeed config and says what it will really do. Truth is DeepSpeed 0.19.8. No torch.

`explain` reads as DeepSpeed reads (reader.py), counts bytes (memory.py), and looks for what DeepSpeed
takes without doing it (findings.py, stage_findings.py) or stops at later (start_findings.py).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from labs.ds_config.blocks import is_auto
from labs.ds_config.file import read_file
from labs.ds_config.findings import RULES
from labs.ds_config.keys import BATCH
from labs.ds_config.memory import RankMemory, rank_memory
from labs.ds_config.reader import read
from labs.ds_config.refusals import LEVELS, Finding, shown
from labs.ds_config.settings import effective
from labs.ds_config.stage_findings import RULES as STAGE_RULES
from labs.ds_config.start_findings import RULES as START_RULES
from labs.ds_config.text import as_html, as_text
from labs.errors import ConfigError
from labs.records import strict_json

ACCELERATORS = ("cpu", "cuda")
MOST_PARAMETERS, MOST_RANKS = 10**15, 10**6


@dataclass(frozen=True)
class Explanation:
    """What a config does on this many ranks. `print` writes it for a terminal, a notebook shows it as a card."""

    name: str
    world_size: int
    effective: dict[str, object]
    memory: RankMemory | None
    findings: tuple[Finding, ...]

    @property
    def is_refused(self) -> bool:
        """Whether DeepSpeed stops at this config."""
        return bool(self.of_level("error"))

    def of_level(self, level: str) -> tuple[Finding, ...]:
        """Return the findings of one level: error, warning or note."""
        return tuple(finding for finding in self.findings if finding.level == level)

    def to_dict(self) -> dict:
        """Return {effective, memory, findings}; memory is None without a number of parameters."""
        memory = self.memory and self.memory.to_dict()
        return {"effective": self.effective, "memory": memory, "findings": [asdict(f) for f in self.findings]}

    def to_json(self) -> str:
        """Write what `to_dict` returns as strict JSON: what is not finite is null."""
        return strict_json(json.loads(json.dumps(self.to_dict(), default=str)))

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)


def explain(
    source: dict | str | os.PathLike,
    world_size: int = 1,
    params: float | None = None,
    *,
    trainer: bool = False,
    accelerator: str | None = None,
) -> Explanation:
    """Say what a config, given as a dictionary or as a path, will really do on `world_size` ranks.

    `params` is the number of parameters of the model; with it, the bytes of one rank are counted. `trainer`: a trainer
    (Hugging Face's, Accelerate) replaces every "auto" first. `accelerator` is "cpu" or "cuda", this machine's if not
    given.
    Raises ConfigError for what is no config at all: no such file, no JSON, no object in it, no ranks.
    """
    _check(world_size, params, accelerator)
    if isinstance(source, dict):
        name, config, refusals = "config", source, []
    elif isinstance(source, str | os.PathLike):
        name = Path(source).name
        config, refusals = read_file(source)
    else:
        raise ConfigError(f"{shown(source)} is no config; give a dictionary, or the path of a ds_config.json")
    ranks = _data_parallel_ranks(config if isinstance(source, dict) else {}, world_size, refusals)
    found = read(_filled(config) if trainer else config, ranks, accelerator or this_accelerator())
    findings = [*refusals, *found.refusals]
    findings += [finding for rule in (*RULES, *STAGE_RULES, *START_RULES) for finding in rule(found)]
    holds = effective(found)
    if trainer and found.config != config:
        findings = [_FILLED, *(finding for finding in findings if not _is_auto_at(config, finding.key))]
        holds |= {name: "auto" for name in holds if _is_auto_in(config, name)}
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    memory = rank_memory(found, round(params)) if params else None
    unique = tuple(dict.fromkeys(finding.printable() for finding in findings))
    return Explanation(name, world_size, holds, memory, unique)


def this_accelerator() -> str:
    """Name what DeepSpeed would compute on here, without asking torch: DS_ACCELERATOR, or CUDA where there is a GPU."""
    has_gpu = shutil.which("nvidia-smi") is not None
    return os.environ.get("DS_ACCELERATOR") or ("cuda" if has_gpu else "cpu")


def _check(world_size: int, params: float | None, accelerator: str | None) -> None:
    if not isinstance(world_size, int) or isinstance(world_size, bool) or not 1 <= world_size <= MOST_RANKS:
        raise ConfigError(f"world_size {shown(world_size)} is no number of ranks; try world_size=8")
    is_number = isinstance(params, int | float) and not isinstance(params, bool)
    if params is not None and not (is_number and 1 <= params <= MOST_PARAMETERS):
        raise ConfigError(f"params {shown(params)} is no number of parameters; try params=7e9")
    if accelerator not in (None, *ACCELERATORS):
        raise ConfigError(f"accelerator {shown(accelerator)} is unknown; the known ones are {', '.join(ACCELERATORS)}")


def _data_parallel_ranks(config: dict, world_size: int, refusals: list[Finding]) -> float:
    """Ranks that share a batch are counted once; DeepSpeed looks for the key in dictionaries alone, not in files."""
    key = "sequence_parallel_size"
    if key not in config:
        return world_size
    try:
        return world_size / config[key]
    except (TypeError, ZeroDivisionError, OverflowError):
        what, why = f"{key} is {shown(config[key])}", "the ranks are divided by it"
        refusals.append(Finding("error", key, what, why, "write a divisor of the number of ranks"))
        return world_size


def _filled(config: dict) -> dict:
    """Leave every "auto" out, as if it were filled in; without any batch key left the micro-batch counts as 1."""
    filled = {key: _filled(value) if isinstance(value, dict) else value for key, value in config.items()
              if not is_auto(value)}  # fmt: skip
    if not any(key in filled for key in BATCH[:2]) and any(is_auto(config.get(key)) for key in BATCH):
        filled[BATCH[1]] = 1
    return filled


def _is_auto_at(config: dict, path: str) -> bool:
    """Whether a setting is "auto" in a config, named by its path such as scheduler.params.total_num_steps."""
    value = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return is_auto(value)


def _is_auto_in(config: dict, setting: str) -> bool:
    zero = config.get("zero_optimization")
    places = [config, zero if isinstance(zero, dict) else {}]
    return any(is_auto(place.get(name)) for place in places for name in (setting, f"stage3_{setting}"))


_FILLED = Finding(
    "note", "auto", "the trainer fills in every auto", "what it takes is not known here", "see the trainer's settings"
)
