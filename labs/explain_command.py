"""Say what a DeepSpeed config will really do: for people at 80 columns, or one JSON object for tools."""

from __future__ import annotations

import argparse
import json
import os
import sys

from labs.ds_config import ACCELERATORS, MOST_PARAMETERS, explain
from labs.errors import ConfigError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Answer a bad option in one sentence, exit status 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Make the options of `python -m labs explain`."""
    parser = _Parser(prog="python -m labs explain", description=__doc__, allow_abbrev=False)
    parser.add_argument("config", metavar="ds_config.json", help="the file, JSON as DeepSpeed reads it")
    parser.add_argument("--world-size", type=int, default=1, metavar="RANKS", help="number of ranks (default 1)")
    parser.add_argument("--params", type=_count, metavar="N", help="parameters of the model, 7e9 for one: counts bytes")
    parser.add_argument("--trainer", action="store_true", help="a trainer (Hugging Face's, ...) fills in every auto")
    parser.add_argument("--accelerator", choices=ACCELERATORS, help="what it will run on (default: this machine)")
    parser.add_argument("--json", action="store_true", help="print one JSON object: effective, memory, findings")
    return parser


def _count(text: str) -> float:
    try:
        if 1 <= float(text) <= MOST_PARAMETERS:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters, such as 7e9")


def main(arguments: list[str] | None = None) -> int:
    """Explain one file; return 0, 1 where DeepSpeed refuses it, 2 for what is no config at all."""
    given = build_parser().parse_args(arguments)
    try:
        found = explain(given.config, given.world_size, given.params, trainer=given.trainer,
                        accelerator=given.accelerator)  # fmt: skip
    except ConfigError as error:
        print(f"python -m labs explain: {error}", file=sys.stderr)
        return 2
    try:
        print(json.dumps(json.loads(found.to_json()), indent=2) if given.json else found)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if found.is_refused else 0
