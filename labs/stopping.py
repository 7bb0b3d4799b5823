"""The best evaluation so far: when to stop, and which weights to keep."""

from __future__ import annotations

import os
import shutil
from math import inf

import torch.distributed as dist

from labs.config import ConfigError, ModelTrainingConfig
from labs.observe import Observer
from labs.records import EvalRecord
from labs.strategies.base import Engine
from labs.whole import problem_of_folder, put_in_place


class BestSoFar:
    """Follows the validation loss of a run; saves the weights of the best one where the config names a folder.

    The loss is a sum over all ranks, equal on each to the last bit, so all take the same decision without asking.
    The best weights take the place of the whole folder, so one that holds something else is refused.
    """

    def __init__(self, config: ModelTrainingConfig, engine: Engine, observer: Observer):
        self._config, self._engine, self._observer = config, engine, observer
        self._loss, self._num_worse = inf, 0
        # A link stays a link, and what is written beside its target can be put there by a move.
        self._folder = config.best_checkpoint and os.path.realpath(config.best_checkpoint)
        if self._folder and (problem := problem_of_folder(self._folder)):  # launch has looked, torchrun has not
            raise ConfigError(f"best_checkpoint {config.best_checkpoint} {problem}")

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
        """Write all of it beside the last best one, then put it in its place: a run that ends meanwhile keeps that."""
        if not self._folder:
            return
        fresh = f"{self._folder}.next"
        with self._observer.paused():
            self._first(lambda: shutil.rmtree(fresh, ignore_errors=True))
            self._engine.save(fresh)
            self._meet()
            self._first(lambda: put_in_place(fresh, self._folder))

    def _first(self, act) -> None:
        """Let rank 0 act, and the others wait for it."""
        if dist.get_rank() == 0:
            act()
        self._meet()

    def _meet(self) -> None:
        self._observer.sum_over_ranks([0.0])
