"""What is particular to DDP and FSDP2: buckets and units."""

from __future__ import annotations

import awkward
import cloudpickle
import law_runs
import pytest
from law_runs import Job, run_jobs

from labs import launch
from labs.config import ModelTrainingConfig
from labs.schedule import step_collectives
from labs.spec import ModelSpec

for module in (awkward, law_runs):  # ranks do not import from tests/
    cloudpickle.register_pickle_by_value(module)


@pytest.mark.parametrize("mixed", [False, True])
def test_ddp_cuts_a_larger_model_into_the_predicted_buckets(mixed):
    spec = ModelSpec(num_layers=2, hidden_size=192, num_heads=2, context=4)
    config = ModelTrainingConfig(model=spec, world_size=2, batch_size=2, steps=3, use_mixed_precision=mixed)
    predicted = [step_collectives(config, 0, step) for step in range(3)]
    assert [len(calls) for calls in predicted] == [1, 4, 2], "the model is too small for two buckets"
    for seen in launch(run_jobs, [Job(config)], world_size=2):
        sizes = [[(kind, size) for kind, size, _, _ in calls] for calls in seen[0].calls]
        assert sizes == [[(call.kind, call.size_bytes) for call in calls] for calls in predicted]


def test_ddp_gradients_share_the_bucket_and_stay_in_it_from_step_to_step():
    def storages_of_gradients(config):
        from labs.data import load_data
        from labs.strategies.base import build_engine
        from labs.workload import build_model

        engine, found = build_engine(config, build_model(config.model)), []
        for step in range(4):
            engine.backward(engine.forward_loss(load_data(config).train_batch(config, step, 0, 0)))
            before = {gradient.untyped_storage().data_ptr() for gradient in engine.held()["gradients"]}
            engine.step()
            found.append((before, {gradient.untyped_storage().data_ptr() for gradient in engine.held()["gradients"]}))
        return found

    config = ModelTrainingConfig(world_size=2, batch_size=4, steps=4, model=ModelSpec(num_layers=1, context=4))
    for steps in launch(storages_of_gradients, config, world_size=2):
        _first, *settled = steps  # buckets are made anew after the first step
        assert len({frozenset(storages) for step in settled for storages in step}) == 1
        assert all(len(storages) == 1 for step in steps for storages in step)


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_fsdp_gathers_the_units_that_the_spec_names(strategy):
    def units(config):
        from torch.distributed.fsdp import FSDPModule

        from labs.strategies.base import build_engine
        from labs.workload import build_model

        engine = build_engine(config, build_model(config.model))
        return [name or "root" for name, module in engine.module.named_modules() if isinstance(module, FSDPModule)]

    config = ModelTrainingConfig(strategy=strategy, world_size=2, batch_size=4, model=ModelSpec(context=4))
    expected = {parameter.unit for parameter in config.model.parameters()}
    assert [set(found) for found in launch(units, config, world_size=2)] == [expected, expected]
