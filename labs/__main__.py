"""`python -m labs train | explain | progress | doctor`: the course from a shell, and the contract for other tools."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {  # each module has main(arguments) -> exit status
    "train": ("labs.train_command", "train a model and print losses, memory and traffic"),
    "explain": ("labs.explain_command", "say what a DeepSpeed config will really do"),
    "progress": ("labs.progress", "show which exercises are solved"),
    "doctor": ("labs.doctor", "say whether this machine is ready, and which command mends it"),
}
MEND = "make lab installs everything into .venv; then source .venv/bin/activate, and the same command again"


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m labs", description=__doc__.partition(":")[2].strip())
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    command = parser.parse_args(arguments[:1]).command
    try:
        status = import_module(COMMANDS[command][0]).main(arguments[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "labs":
            raise
        print(f"python -m labs {command} needs {error.name}, which {sys.executable} has not: {MEND}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
