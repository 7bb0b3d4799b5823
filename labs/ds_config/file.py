"""Reads the file of a DeepSpeed config as DeepSpeed does: as Hjson, which is JSON with comments and more. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from labs.ds_config.refusals import Finding
from labs.errors import ConfigError

MOST_CHARACTERS = 10_000_000  # configs have some thousand


def read_file(path: str | os.PathLike) -> tuple[dict, list[Finding]]:
    """Return the object in a file, and a finding for each key that stands twice (the last one is kept).

    Raises ConfigError, in one sentence, for a file that cannot be read or holds no object.
    """
    text = _text(Path(path))
    if not text.strip("\ufeff \t\r\n"):
        raise ConfigError(f"{path} is empty; a config is an object, {{ ... }}")
    twice: list[str] = []

    def collect(pairs):
        keys = [key for key, _ in pairs]
        twice.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return dict(pairs)

    found = _parsed(path, text, collect)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds {_kind(found)}, no object; a config begins with {{ and ends with }}")
    return found, [_twice(key) for key in dict.fromkeys(twice)]


def _text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)  # a device gives them without end
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(f"{path} has more than {MOST_CHARACTERS:,} characters; a config has some thousand")
        return text
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of a ds_config.json") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give the path of a ds_config.json in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8; a config is a JSON file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _parsed(path, text: str, collect):
    import hjson  # DeepSpeed brings it, and reads with it

    try:
        return hjson.loads(text, object_pairs_hook=collect)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a config") from None
    except OverflowError:
        raise ConfigError(f"{path} holds a number that is too large for a float") from None
    except ValueError as error:  # HjsonDecodeError is one
        raise ConfigError(f"{path} is not a JSON file: {' '.join(str(error).split())}") from None


def _kind(found) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(found), "a number")


def _twice(key: str) -> Finding:
    return Finding(
        "error", key, f"{key} stands twice", "DeepSpeed refuses a key that stands twice", "leave one of them"
    )
