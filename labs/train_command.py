"""Train a small model with any strategy; print a table for people, or one JSON object for tools."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin

from labs.config import TABLES, ConfigError, ModelTrainingConfig
from labs.records import RunResult, strict_json
from labs.spec import PRESETS, ModelSpec

_DERIVED = ("kind", "num_features", "num_classes", "llama")  # the data decides these, and that llamas do not train
_TEXT_ONLY = ("num_heads", "context", "vocab_size", "tied_embedding")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Answer a bad value in one sentence, exit status 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Make one kebab-case option of each field of ModelTrainingConfig and of its model."""
    parser = _Parser(
        prog="python -m labs train", argument_default=argparse.SUPPRESS, description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--config", metavar="RUN.json", help="start from a saved run; other options change it")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table; null is not finite"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the run into a picture")
    parser.add_argument("--save", metavar="FILE.json", help="write the whole run, which labs.RunResult.load reads")
    parser.add_argument("--timeout-seconds", type=_seconds, default=600, help="give up after this long (default 600)")
    run, model = parser.add_argument_group("run"), parser.add_argument_group("model")
    for name, field in ModelTrainingConfig.model_fields.items():
        if name != "model":
            _add_option(run, name, field)
    model.add_argument("--model", metavar="|".join(PRESETS), help="a preset; the options below change it")
    for name, field in ModelSpec.model_fields.items():
        if name not in _DERIVED:
            _add_option(model, name, field)
    return parser


def _add_option(group, name: str, field) -> None:
    flag, about = "--" + name.replace("_", "-"), f"{field.description or ''} (default {field.default})".strip()
    if field.annotation is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=about)
    elif get_origin(field.annotation) is UnionType:  # float | None
        kind = get_args(field.annotation)[0]
        group.add_argument(flag, type=partial(_or_none, kind), metavar=kind.__name__.upper(), help=about + ", or none")
    elif field.annotation in (int, float):
        group.add_argument(flag, type=field.annotation, metavar=field.annotation.__name__.upper(), help=about)
    else:
        choices = get_args(field.annotation)
        group.add_argument(flag, metavar="|".join(choices) or None, help=about)


def _or_none(kind: type, text: str):
    with contextlib.suppress(ValueError):
        return None if text.lower() == "none" else kind(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a {'whole ' * (kind is int)}number nor none")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def read_config(given: argparse.Namespace) -> ModelTrainingConfig:
    """Build the config from the options that were given, on top of --config.

    Raises ConfigError for bad values, OSError or ValueError for a file that cannot be read.
    """
    options = vars(given)
    run = {name: options[name] for name in ModelTrainingConfig.model_fields if name in options and name != "model"}
    model = {name: options[name] for name in ModelSpec.model_fields if name in options}
    base = _read_file(given.config) if "config" in options else {}
    data = run.get("data", base.get("data", "text"))
    if "model" in options or model or data != base.get("data", "text"):
        base["model"] = _model(options.get("model"), model, data, base)
    return ModelTrainingConfig(**{**base, **run})


def _model(name: str | None, changes: dict, data: str, base: dict):
    """Change the model of --config (`base`), or a fresh one where the options name one or go from text to a table."""
    before, given = base.get("data", "text"), base.get("model")
    if _is_table(data):
        _refuse_what_a_table_ignores(name, changes, data)
    if name is not None or given is None or _is_table(data) != _is_table(before):
        table = ModelTrainingConfig(data=data).model if _is_table(data) else None
        return table.replace(**changes) if table else ModelSpec.from_name(name or "tiny", **changes)
    if isinstance(given, str):
        return ModelSpec.from_name(given, **changes)
    if not isinstance(given, dict):
        return given  # the config says why not
    if _is_table(data) and data != before:
        _, features, classes = TABLES[data]
        given = {**given, "num_features": features, "num_classes": classes}
    return ModelSpec(**{**given, **changes})


def _is_table(data) -> bool:
    return data in tuple(TABLES)


def _refuse_what_a_table_ignores(name: str | None, changes: dict, data: str) -> None:
    if name is not None:
        raise ConfigError(f"--model {name} reads text, --data {data} is a table; leave out one of the two")
    if ignored := [f"--{option.replace('_', '-')}" for option in _TEXT_ONLY if option in changes]:
        raise ConfigError(f"{' and '.join(ignored)} would be ignored: --data {data} is a table, not text; leave it out")


def _read_file(path: str) -> dict:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=_once_each)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as problem:  # neither text nor JSON
        raise ConfigError(f"--config {path} is not a JSON file ({problem}); make one with --save") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not an object of fields; see ModelTrainingConfig")
    return data["config"] if isinstance(data.get("config"), dict) else data


def _once_each(pairs: list[tuple]) -> dict:
    """Make an object of JSON; of a key that stands twice, nobody can say which one is meant."""
    keys = [key for key, _ in pairs]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise ConfigError(f"--config holds {twice[0]} twice; leave one of them")
    return dict(pairs)


def main(arguments: list[str]) -> int:
    """Train as the options say; return 0, or 2 for bad values, 1 for a run that failed, 130 when stopped."""
    given = build_parser().parse_args(arguments)
    try:
        if os.environ.get("TORCHELASTIC_RUN_ID"):  # one of many processes that torchrun started
            return _train_under_torchrun(given)
        return _train_here(given)
    except (ConfigError, OSError) as problem:
        print(f"python -m labs train: {problem}", file=sys.stderr)
        return 2


def _train_here(given: argparse.Namespace) -> int:
    config = read_config(given)
    _check_outputs(given)
    from labs.failures import LaunchError
    from labs.launcher import start

    with _progress(config) as show:
        run = start(config, timeout_seconds=given.timeout_seconds, on_record=lambda rank, record: show(rank, record))
        try:
            result = run.wait()
        except LaunchError as problem:
            print(problem, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped; the ranks have ended", file=sys.stderr)
            return 130
    return _report(given, result)


def _train_under_torchrun(given: argparse.Namespace) -> int:
    options = vars(given)
    options.setdefault("world_size", int(os.environ["WORLD_SIZE"]))
    config = read_config(given)
    if config.world_size != int(os.environ["WORLD_SIZE"]):
        raise ConfigError(
            f"--world-size {config.world_size} is not the {os.environ['WORLD_SIZE']} processes that torchrun started; "
            "leave it out, or change --nnodes and --nproc-per-node"
        )
    result = _gather_run(config)
    status = _report(given, result) if result is not None else 0
    sys.stdout.flush()
    os._exit(status)  # tearing the process group down can deadlock; the run is complete here


def _gather_run(config: ModelTrainingConfig) -> RunResult | None:
    """Train as one rank of torchrun's world; return the run on rank 0, None elsewhere."""
    started_at = time.time()
    import torch.distributed as dist

    from labs.rank import join_world
    from labs.train import train_rank

    join_world()
    record = train_rank(config)
    records = [None] * config.world_size if dist.get_rank() == 0 else None
    dist.gather_object(record, records)
    return RunResult.from_ranks(config, records, started_at) if records else None


def _check_outputs(given: argparse.Namespace) -> None:
    """Refuse a file that could not be written before the run, not after it."""
    for option in ("plot", "save"):
        if option not in vars(given):
            continue
        path = Path(vars(given)[option]).resolve()
        if not path.parent.is_dir():
            raise ConfigError(f"--{option} names the folder {path.parent}, which does not exist; make it first")
        if path.is_dir():
            raise ConfigError(f"--{option} {path} is a folder; name a file in it")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"--{option} {path} cannot be written; name a file where you may write")
    if "plot" in vars(given):
        _check_format(Path(given.plot))


def _check_format(path: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ConfigError(f"--plot {path} ends in {path.suffix}; the known kinds are {', '.join(known)}; try .png")


def _report(given: argparse.Namespace, result: RunResult) -> int:
    """Write what was asked for; return 0, or 1 where the run is done but its files or its reader are gone."""
    try:
        _write(given, result)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:
        print(f"python -m labs train: the run is done, but cannot be written: {problem}", file=sys.stderr)
    return 1


def _write(given: argparse.Namespace, result: RunResult) -> None:
    options = vars(given)
    if "save" in options:
        result.save(options["save"])
    if "plot" in options:
        from labs.plots import plot_run

        plot_run(result).savefig(options["plot"], dpi=150)
    if "json" in options:
        print(strict_json({name: value for name, value in result.to_dict().items() if name != "ranks"}))
    else:
        from labs.plots import describe_run

        print(describe_run(result))


class _progress:
    """A progress bar on stderr, where a person looks on; silent elsewhere."""

    def __init__(self, config: ModelTrainingConfig):
        from tqdm import tqdm

        text = f"{config.strategy} on {config.world_size}"
        is_disabled = True if sys.stderr is None else None  # None: let tqdm see whether it is a terminal
        self._bar = tqdm(total=config.steps, desc=text, unit="step", disable=is_disabled, leave=False)

    def __enter__(self):
        return self.show

    def __exit__(self, *error):
        self._bar.close()

    def show(self, rank: int, record) -> None:
        if rank == 0 and hasattr(record, "grad_norm"):
            self._bar.set_postfix_str(f"loss {record.loss:.3f}, norm {record.grad_norm:.2f}", refresh=False)
            self._bar.update()
