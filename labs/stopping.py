"""The best evaluation so far: when to stop, and which weights to keep."""

from __future__ import annotations

from math import inf

from labs.config import ModelTrainingConfig
from labs.observe import Observer
from labs.records import EvalRecord
from labs.strategies.base import Engine


class BestSoFar:
    """Follows the validation loss of a run; saves the weights of the best one where the config names a folder.

    The loss is a sum over all ranks, equal on each to the last bit, so all take the same decision without asking.
    """

    def __init__(self, config: ModelTrainingConfig, engine: Engine, observer: Observer):
        self._config, self._engine, self._observer = config, engine, observer
        self._loss, self._num_worse = inf, 0

    def ends_run(self, record: EvalRecord) -> bool:
        """Take the newest evaluation and return whether too many have come since the best one. Collective.

        A loss that is not a number is not better than any.
        """
        if record.validation_loss < self._loss:
            self._loss, self._num_worse = record.validation_loss, 0
            self._save()
        else:
            self._num_worse += 1
        return self._num_worse == self._config.early_stopping_patience

    def _save(self) -> None:
        if self._config.best_checkpoint is not None:
            with self._observer.paused():
                self._engine.save(self._config.best_checkpoint)
