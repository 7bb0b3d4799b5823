"""The course's own evaluation is exact: every validation sample counts once, on any number of ranks."""

from collections import Counter

import pytest

from labs.config import ModelTrainingConfig
from labs.data import load_data
from labs.launcher import launch


@pytest.mark.parametrize("data, samples", [("wine", 18), ("breast_cancer", 57), ("digits", 180)])
@pytest.mark.parametrize("world_size", [1, 2, 4, 7, 64])
def test_every_validation_row_counts_once_and_all_ranks_make_the_same_number_of_batches(data, samples, world_size):
    dataset = load_data(ModelTrainingConfig(data=data))
    counted, num_batches = Counter(), set()
    for rank in range(world_size):
        batches = list(dataset.validation_batches(rank, world_size))
        num_batches.add(len(batches))
        for count, (rows, _) in batches:
            counted.update(tuple(row.tolist()) for row in rows[:count])
    expected = Counter(tuple(row.tolist()) for row in dataset.validation)
    assert counted == expected and counted.total() == samples and len(num_batches) == 1


def test_the_validation_loss_does_not_know_how_many_ranks_there_are():
    config = ModelTrainingConfig(data="wine", steps=1, batch_size=8, learning_rate=1e-30, use_mixed_precision=False)
    one, four = (launch(config.replace(world_size=world)).evals[-1].validation_loss for world in (1, 4))
    assert four == pytest.approx(one, rel=1e-6)  # 18 rows: shares of 5, 5, 4 and 4
