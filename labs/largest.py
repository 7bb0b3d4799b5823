"""The largest model that fits under a cap on each rank, by the arithmetic of labs/memory.py: exact, so it can be run.

"Larger" is deeper: the model keeps its width and grows by blocks, so every strategy answers the same question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labs import memory
from labs.config import STRATEGIES, TRAINABLE, ModelTrainingConfig
from labs.errors import ConfigError
from labs.records import MODEL_STATES

MOST_LAYERS = TRAINABLE["num_layers"]


@dataclass(frozen=True)
class Largest:
    """The deepest run that fits, the bytes of its fullest rank, and those with one layer more (None at MOST_LAYERS)."""

    config: ModelTrainingConfig
    held_bytes: int
    next_bytes: int | None

    @property
    def num_layers(self) -> int:
        return self.config.model.num_layers


def held_bytes(config: ModelTrainingConfig, states: Iterable[str] = MODEL_STATES) -> int:
    """Predict the bytes that the fullest rank of a run holds of these states."""
    parameters = config.model.parameters()
    ranks = (memory.state_bytes(config, rank, parameters) for rank in range(config.world_size))
    return max(sum(held[state] for state in states) for held in ranks)


def largest_model(
    config: ModelTrainingConfig, cap_bytes: float, states: Iterable[str] = MODEL_STATES
) -> Largest | None:
    """Find the most layers with which a run's fullest rank holds at most `cap_bytes` of these states; None: not one.

    Raises ConfigError for a cap that is not positive.
    """
    if cap_bytes <= 0:
        raise ConfigError(f"a cap of {cap_bytes} bytes holds nothing; try cap_bytes=2 * MiB")
    states, sizes = tuple(states), {}

    def size(num_layers: int) -> int:
        if num_layers not in sizes:
            sizes[num_layers] = held_bytes(_deepened(config, num_layers), states)
        return sizes[num_layers]

    fits, too_many = 0, MOST_LAYERS + 1
    while too_many - fits > 1:  # bytes grow with every layer, so halving the range finds the edge
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if size(middle) <= cap_bytes else (fits, middle)
    if fits == 0:
        return None
    return Largest(_deepened(config, fits), size(fits), size(too_many) if too_many <= MOST_LAYERS else None)


def largest_models(
    config: ModelTrainingConfig, cap_bytes: float, states: Iterable[str] = MODEL_STATES
) -> dict[str, Largest | str]:
    """Answer for every strategy; in place of an answer, the sentence why there is none."""
    found: dict[str, Largest | str] = {}
    for strategy in STRATEGIES:
        ranks = {"world_size": 1} if strategy == "single" else {}
        try:
            answer = largest_model(config.replace(strategy=strategy, **ranks), cap_bytes, states)
        except ConfigError as refused:
            found[strategy] = str(refused)
        else:
            found[strategy] = answer or "not even one layer fits"
    return found


def _deepened(config: ModelTrainingConfig, num_layers: int) -> ModelTrainingConfig:
    return config.replace(model=config.model.replace(num_layers=num_layers))
