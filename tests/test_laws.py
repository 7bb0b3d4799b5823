"""Laws that hold for every registered strategy, on every rank. A new strategy is covered without being asked."""

from __future__ import annotations

from functools import cache
from math import sqrt

import awkward
import cloudpickle
import law_runs
import pytest
from law_runs import Job, Seen, run_jobs

from labs import launch, memory, schedule, traffic
from labs.config import STRATEGIES, ConfigError, ModelTrainingConfig
from labs.spec import ModelSpec

for module in (awkward, law_runs):  # ranks do not import from tests/
    cloudpickle.register_pickle_by_value(module)

SPEC = ModelSpec(num_layers=3, hidden_size=18, num_heads=3, context=7, vocab_size=257)  # 257 rows: never divides
COMMON = dict(batch_size=24, steps=4, warmup_steps=1, learning_rate=1e-2, max_grad_norm=0.5, weight_decay=0.1)
WORLDS = (2, 3, 4)
# fp32 sums are taken in another order, so that the last bits differ: 2**-23 times a few, and AdamW divides.
FP32_TOLERANCE = 2e-6
# bf16 keeps 8 bits: gradients of ranks and micro-batches are rounded before they are added, 2**-8 of a norm at most.
BF16_TOLERANCE = 2**-7


def config_of(strategy: str, world_size: int, **changes) -> ModelTrainingConfig | None:
    """Return the config, or None where this strategy refuses it."""
    try:
        return ModelTrainingConfig(**{**COMMON, "strategy": strategy, "world_size": world_size, **changes})
    except ConfigError:
        return None


def jobs_of(strategy: str, world_size: int) -> dict[str, Job]:
    """Name the jobs that every (strategy, world_size) runs; those that it refuses are left out."""

    def spec(mixed: bool, accumulation: int, **changes) -> ModelTrainingConfig | None:
        given = dict(use_mixed_precision=mixed, gradient_accumulation_steps=accumulation, model=SPEC, **changes)
        return config_of(strategy, world_size, **given)

    found = {
        "awkward fp32": Job(spec(False, 2), awkward=True),
        "awkward bf16": Job(spec(True, 1), awkward=True),
        "gpt fp32": Job(spec(False, 1)),
        "gpt bf16": Job(spec(True, 2)),
        "checkpointed": Job(spec(False, 1, activation_checkpointing=True)),
        "offloaded": Job(spec(False, 1, offload=True)),
    }
    return {name: job for name, job in found.items() if job.config is not None}


@cache
def observed(strategy: str, world_size: int) -> dict[str, list[Seen]]:
    """Run all jobs in one launch; returns what every rank saw, by job."""
    jobs = jobs_of(strategy, world_size)
    by_rank = launch(run_jobs, list(jobs.values()), world_size=world_size, timeout_seconds=120)
    return {name: [seen[index] for seen in by_rank] for index, name in enumerate(jobs)}


@cache
def twins() -> dict[str, Seen]:
    """The same jobs in one process; the global batch is the same whatever the world was."""
    jobs = {name: Job(job.config.twin(), job.awkward) for name, job in jobs_of("single", 1).items()}
    return dict(zip(jobs, launch(run_jobs, list(jobs.values()), world_size=1, timeout_seconds=120)[0], strict=True))


WORLDS_OF = [(s, w) for s in STRATEGIES for w in (1, *WORLDS) if config_of(s, w) and (w > 1 or s == "single")]
everywhere = pytest.mark.parametrize(("strategy", "world_size"), WORLDS_OF)


def assert_same_training(seen: Seen, twin: Seen, tolerance: float) -> None:
    assert seen.losses == pytest.approx(twin.losses, rel=tolerance)
    assert seen.norms == pytest.approx(twin.norms, rel=tolerance)
    for layers, twin_layers, norm in zip(seen.layer_norms, twin.layer_norms, twin.norms, strict=True):
        assert layers == pytest.approx(twin_layers, abs=tolerance * norm)


def assert_same_parameters(seen: Seen, twin: Seen, tolerance: float) -> None:
    assert seen.parameters.keys() == twin.parameters.keys()
    for name, expected in twin.parameters.items():
        difference = (seen.parameters[name] - expected).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


@everywhere
def test_fp32_training_of_the_awkward_model_equals_the_twin_on_every_rank(strategy, world_size):
    for seen in observed(strategy, world_size)["awkward fp32"]:
        assert_same_training(seen, twins()["awkward fp32"], FP32_TOLERANCE)
        assert_same_parameters(seen, twins()["awkward fp32"], FP32_TOLERANCE)
    assert min(twins()["awkward fp32"].norms) > COMMON["max_grad_norm"], "clipping must be active to be tested"


@everywhere
@pytest.mark.parametrize("name", ["awkward bf16", "gpt bf16"])
def test_bf16_training_stays_near_the_bf16_twin(strategy, world_size, name):
    for seen in observed(strategy, world_size)[name]:
        assert_same_training(seen, twins()[name], BF16_TOLERANCE)


@everywhere
@pytest.mark.parametrize("name", ["checkpointed", "offloaded"])
def test_what_saves_memory_changes_no_number(strategy, world_size, name):
    jobs = observed(strategy, world_size)
    for seen, plain in zip(jobs.get(name, []), jobs["gpt fp32"], strict=name in jobs):
        assert seen.losses == plain.losses
        assert seen.norms == plain.norms


@everywhere
def test_squared_layer_norms_sum_to_the_squared_global_norm(strategy, world_size):
    for name, ranks in observed(strategy, world_size).items():
        tolerance = BF16_TOLERANCE if "bf16" in name else FP32_TOLERANCE
        for seen in ranks:
            for layers, norm in zip(seen.layer_norms, seen.norms, strict=True):
                assert sqrt(sum(value**2 for value in layers.values())) == pytest.approx(norm, rel=tolerance)


@everywhere
def test_all_ranks_report_the_same_numbers(strategy, world_size):
    for ranks in observed(strategy, world_size).values():
        for seen in ranks:
            assert (seen.losses, seen.norms, seen.layer_norms) == (
                ranks[0].losses,
                ranks[0].norms,
                ranks[0].layer_norms,
            )


@everywhere
def test_every_state_holds_the_predicted_bytes_on_every_rank(strategy, world_size):
    for name, job in jobs_of(strategy, world_size).items():
        for rank, seen in enumerate(observed(strategy, world_size)[name]):
            predicted = memory.state_bytes(job.config, rank, described(job))
            for state in predicted.keys() - ({"activations"} if job.awkward else set()):
                assert (name, rank, state, seen.held_bytes[state]) == (name, rank, state, predicted[state])


@everywhere
def test_live_parameters_peak_at_the_predicted_bytes(strategy, world_size):
    for name, job in jobs_of(strategy, world_size).items():
        if not job.awkward:  # it calls a block twice, which the arithmetic does not know
            for rank, seen in enumerate(observed(strategy, world_size)[name]):
                predicted = memory.peak_parameters_bytes(job.config, rank)
                assert (name, rank, seen.peak_parameters_bytes) == (name, rank, predicted)


@everywhere
def test_every_step_issues_the_predicted_collectives_in_order(strategy, world_size):
    for name, job in jobs_of(strategy, world_size).items():
        if not job.awkward:
            for rank, seen in enumerate(observed(strategy, world_size)[name]):
                for step, calls in enumerate(seen.calls):
                    predicted = schedule.step_collectives(job.config, rank, step)
                    assert (name, rank, step, calls) == (name, rank, step, [as_recorded(call) for call in predicted])


@everywhere
def test_the_sockets_carry_the_predicted_bytes_of_every_rank(strategy, world_size):
    for name, job in jobs_of(strategy, world_size).items():
        for rank, seen in enumerate(observed(strategy, world_size)[name]):
            if not job.awkward and seen.sent_bytes is not None:
                predicted, _ = traffic.predict(schedule.run_collectives(job.config, rank), rank)
                assert seen.sent_bytes == pytest.approx(predicted, rel=0.005), (name, rank)


def described(job: Job):
    return awkward.specs_of(awkward.build_awkward()) if job.awkward else None


def as_recorded(call: traffic.Collective) -> tuple:
    assert call.count == 1, "a step lists every call"
    return call.kind, call.size_bytes, call.group_size, call.element_bytes
