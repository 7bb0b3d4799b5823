"""`make bench`: start-up, parity with one process, and bytes predicted beside measured, for every strategy.

Times are compared within one run of this file, since machines differ and are shared; no test asserts them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labs.config import STRATEGIES, ModelTrainingConfig
from labs.records import RunResult

STEPS = 5


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds run from the call to the begin of the first step on the last rank."""

    strategy: str
    launch_seconds: float
    spawn_seconds: float | None
    torchrun_seconds: float | None
    loss_difference: float
    norm_difference: float
    state_bytes_difference: int
    wire_difference_percent: float


def config_of(strategy: str, world_size: int) -> ModelTrainingConfig:
    """The job that is timed: the tiny model in fp32, so that losses can be compared to rounding."""
    ranks = 1 if strategy == "single" else world_size
    return ModelTrainingConfig(
        strategy=strategy, world_size=ranks, steps=STEPS, use_mixed_precision=False, eval_every=0, learning_rate=1e-3
    )


def measure(strategy: str, world_size: int, twin: RunResult, with_baselines: bool) -> Row:
    """Run one strategy from here and, if asked, through spawn and torchrun; set it beside its twin."""
    from labs.launcher import launch

    config = config_of(strategy, world_size)
    result = launch(config, timeout_seconds=300)
    loss, norm = difference(result, twin)
    return Row(
        strategy,
        result.startup_seconds,
        spawn_seconds(config) if with_baselines else None,
        torchrun_seconds(config) if with_baselines else None,
        loss,
        norm,
        state_bytes_difference(result),
        wire_difference_percent(result),
    )


def difference(result: RunResult, twin: RunResult) -> tuple[float, float]:
    """Largest |difference| to the twin over all steps and ranks: (loss, gradient norm)."""
    pairs = [pair for rank in result.ranks for pair in zip(rank.steps, twin.steps, strict=True)]
    apart = [(mine.loss - other.loss, mine.grad_norm - other.grad_norm) for mine, other in pairs]
    loss, norm = np.abs(apart).max(axis=0)  # numpy keeps a nan, Python's max() loses one
    return float(loss), float(norm)


def state_bytes_difference(result: RunResult) -> int:
    """Largest |predicted - measured| [bytes] over ranks and states."""
    states = [state for rank in result.ranks for state in rank.memory.states.values()]
    return max(abs(state.predicted_bytes - state.measured_bytes) for state in states)


def wire_difference_percent(result: RunResult) -> float:
    """Largest |sockets / prediction - 1| over ranks, in percent."""
    traffic = [rank.traffic for rank in result.ranks if rank.traffic.predicted_bytes]
    if any(record.sent_bytes is None for record in traffic):
        return float("nan")
    return max((abs(record.sent_bytes / record.predicted_bytes - 1) * 100 for record in traffic), default=0.0)


def spawn_seconds(config: ModelTrainingConfig) -> float:
    """Seconds to the first step when torch.multiprocessing.spawn starts the ranks."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        started_at = time.time()
        torch.multiprocessing.spawn(_spawned, (config.model_dump_json(), folder), nprocs=config.world_size)
        return max(float(file.read_text()) for file in Path(folder).glob("first_step.*")) - started_at


def _spawned(rank: int, config_json: str, folder: str) -> None:
    from labs.rank import join_world
    from labs.train import train_rank

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the profiler's chatter; an error reaches the parent another way
    config = ModelTrainingConfig(**json.loads(config_json))
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": config.world_size, "LOCAL_WORLD_SIZE": config.world_size}
    os.environ.update({name: str(value) for name, value in world.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo")
    join_world(os.path.join(folder, "store"))
    record = train_rank(config)
    Path(folder, f"first_step.{rank}").write_text(str(record.first_step_at))
    os._exit(0)  # as ranks of this package do: taking the group down can deadlock


def torchrun_seconds(config: ModelTrainingConfig) -> float:
    """Seconds to the first step when torchrun starts the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run, saved = Path(folder, "run.json"), Path(folder, "saved.json")
        run.write_text(config.model_dump_json())
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(config.world_size), "-m", "labs", "train", "--config", str(run), "--save", str(saved), "--json"]
        started_at = time.time()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
        return max(rank.first_step_at for rank in RunResult.load(saved).ranks) - started_at


def table(rows: list[Row]) -> str:
    """Write the rows as a Markdown table; ratios are to spawn and to torchrun."""
    lines = [
        "| strategy | first step s | spawn s | torchrun s | spawn / ours | torchrun / ours "
        "| largest loss diff | largest norm diff | state bytes diff | sockets vs predicted |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        times = [_seconds(row.launch_seconds), _seconds(row.spawn_seconds), _seconds(row.torchrun_seconds)]
        ratios = [_ratio(row.spawn_seconds, row.launch_seconds), _ratio(row.torchrun_seconds, row.launch_seconds)]
        differences = [f"{row.loss_difference:.1e}", f"{row.norm_difference:.1e}", str(row.state_bytes_difference)]
        cells = [row.strategy, *times, *ratios, *differences, f"{row.wire_difference_percent:.3f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(other: float | None, ours: float) -> str:
    return "-" if other is None else f"{other / ours:.1f} x"


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m labs.bench", description=__doc__)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=[s for s in STRATEGIES if s != "single"])
    parser.add_argument("--no-baselines", action="store_true", help="leave out spawn and torchrun, which are slow")
    given = parser.parse_args(arguments)
    from labs.launcher import launch

    launch(int, world_size=1)  # the preloaded process is warm from here on, as it is in a notebook
    twin = launch(config_of("single", 1))
    rows = []
    for strategy in given.strategies:
        print(f"measuring {strategy} ...", file=sys.stderr, flush=True)
        rows.append(measure(strategy, given.world_size, twin, not given.no_baselines))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
