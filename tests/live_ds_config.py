"""What the live DeepSpeedConfig says about a config, in a process that it takes for one of `world_size` ranks."""

from __future__ import annotations

import copy
from unittest import mock

from labs.strategies.deepspeed import deepspeed

READER = deepspeed.runtime.config  # the module of DeepSpeedConfig


def accept(config, world_size=1):
    """Return the live DeepSpeedConfig of a dictionary or a file; it raises where it refuses."""
    ranks = mock.Mock(get_rank=lambda: 0, get_world_size=lambda: world_size)
    with mock.patch.object(READER, "dist", ranks):
        return READER.DeepSpeedConfig(config if isinstance(config, Recording) else copy.deepcopy(config))


def refusal(config, world_size=1) -> str | None:
    """Return why DeepSpeed refuses a config; None when it takes it."""
    try:
        accept(config, world_size)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class Recording(dict):
    """A dictionary that notes which keys it is asked for, in blocks too."""

    def __init__(self, content):
        super().__init__({k: Recording(v) if isinstance(v, dict) else v for k, v in content.items()})
        self.asked: set[str] = set()

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self):
        return self
