"""Tables are read from scikit-learn's own files, and are what scikit-learn reads."""

import sys

import pytest
import torch
from sklearn import datasets

import labs
from labs.config import TABLES, ModelTrainingConfig
from labs.data import _read_table, load_data


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_scikit_learn_to_the_bit(name):
    expected, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    table = _read_table(name)
    assert torch.equal(table[:, :-1], torch.from_numpy(expected))
    assert torch.equal(table[:, -1].long(), torch.from_numpy(labels))


def test_a_rank_that_trains_on_a_table_does_not_import_scikit_learn():
    def work():
        load_data(ModelTrainingConfig(data="digits"))
        return "sklearn" in sys.modules

    assert labs.launch(work) == [False, False]
