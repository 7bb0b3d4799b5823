"""Laws that hold for every registered strategy, on every rank. A new strategy is covered without being asked.

Every (strategy, world_size) is launched once; the tests ask for different parts of what its ranks saw.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from tempfile import TemporaryDirectory

import awkward
import cloudpickle
import law_runs
import pytest
import torch
from law_runs import Job, Seen, run_jobs

from labs import launch, memory, schedule, traffic
from labs.config import STRATEGIES, ConfigError, ModelTrainingConfig
from labs.spec import ModelSpec

for module in (awkward, law_runs):  # ranks do not import from tests/
    cloudpickle.register_pickle_by_value(module)

SPEC = ModelSpec(num_layers=3, hidden_size=18, num_heads=3, context=7, vocab_size=257)  # 257 rows never divide
# AdamW moves a weight by the learning rate whichever way its gradient was rounded: at 1e-2 the third norm is 2 % off
# where the first is 0.1 % off, on a build of torch that rounds otherwise.
COMMON = dict(batch_size=24, steps=3, warmup_steps=1, learning_rate=3e-3, max_grad_norm=0.5, weight_decay=0.1)
# fp32 sums are taken in another order, so that the last bits differ: a few times 2**-23, and AdamW divides.
FP32_TOLERANCE = 2e-6
# bf16 keeps 8 bits: gradients of ranks and micro-batches are rounded before they are added, 2**-8 of a norm at most.
BF16_TOLERANCE = 2**-7


def jobs_of(strategy: str, world_size: int, folder: str = "") -> dict[str, Job]:
    """Name the jobs of a strategy; those that it refuses are left out.

    Two ranks run them all. Three are there for the padding, four for groups of groups: they run the first ones.
    """

    def config(mixed: bool, accumulation: int, **changes) -> ModelTrainingConfig | None:
        given = dict(use_mixed_precision=mixed, gradient_accumulation_steps=accumulation, model=SPEC)
        try:
            return ModelTrainingConfig(**{**COMMON, **given, "strategy": strategy, "world_size": world_size, **changes})
        except ConfigError:
            return None

    found = {
        "awkward fp32": Job(config(False, 2, steps=4), awkward=True),
        "mlp bf16": Job(config(True, 2, model=None, data="wine")),
        "awkward bf16": Job(config(True, 1), awkward=True),
        "resumed bf16": Job(config(True, 1), awkward=True, resume_from=folder),
        "gpt fp32": Job(config(False, 1)),
        "gpt bf16": Job(config(True, 2)),
        "checkpointed fp32": Job(config(False, 1, activation_checkpointing=True)),
        "offloaded fp32": Job(config(False, 1, offload=True)),
    }
    possible = {name: job for name, job in found.items() if job.config is not None}
    return dict(list(possible.items())[: {3: 2, 4: 6}.get(world_size)])


def observed(strategy: str, world_size: int) -> dict[str, list[Seen]]:
    """Return what every rank saw, by job. Raises what the launch raised, without launching again for every test."""
    outcome = _outcome(strategy, world_size)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@cache
def _outcome(strategy: str, world_size: int) -> dict[str, list[Seen]] | Exception:
    """Run all jobs of a strategy in one launch."""
    with TemporaryDirectory() as folder:
        jobs = jobs_of(strategy, world_size, folder)
        try:
            by_rank = launch(run_jobs, list(jobs.values()), world_size=world_size, timeout_seconds=150)
        except Exception as error:
            return error
    return {name: [seen[index] for seen in by_rank] for index, name in enumerate(jobs)}


@cache
def twins() -> dict[str, Seen]:
    """The same jobs in one process and one micro-batch; the global batch is the same in every world."""
    jobs = {name: Job(job.config.twin(), job.awkward) for name, job in jobs_of("single", 1).items()}
    return dict(zip(jobs, launch(run_jobs, list(jobs.values()), world_size=1, timeout_seconds=150)[0], strict=True))


def law(*words: str, but: str = "nothing"):
    """Parametrise over every strategy, world and job whose name has one of the words."""
    worlds = [(strategy, world) for strategy in STRATEGIES for world in ((1,) if strategy == "single" else (2, 3, 4))]
    cases = [
        (strategy, world, name)
        for strategy, world in worlds
        for name in jobs_of(strategy, world)
        if any(word in name for word in words) and but not in name
    ]
    return pytest.mark.parametrize(("strategy", "world_size", "name"), cases)


def ranks_of(strategy: str, world_size: int, name: str) -> list[tuple[int, Seen, Job]]:
    seen = observed(strategy, world_size)[name]
    return [(rank, one, jobs_of(strategy, world_size)[name]) for rank, one in enumerate(seen)]


def assert_same_training(seen: Seen, twin: Seen, tolerance: float) -> None:
    assert seen.losses == pytest.approx(twin.losses, rel=tolerance)
    assert seen.norms == pytest.approx(twin.norms, rel=tolerance)
    for layers, twin_layers, norm in zip(seen.layer_norms, twin.layer_norms, twin.norms, strict=True):
        assert layers == pytest.approx(twin_layers, abs=tolerance * norm)


@law("awkward fp32")
def test_fp32_training_of_the_awkward_model_equals_the_twin_on_every_rank(strategy, world_size, name):
    twin = twins()[name]
    assert min(twin.norms) > COMMON["max_grad_norm"], "clipping must be active to be tested"
    for _, seen, _ in ranks_of(strategy, world_size, name):
        assert_same_training(seen, twin, FP32_TOLERANCE)
        assert seen.parameters.keys() == twin.parameters.keys()
        for parameter, expected in twin.parameters.items():
            torch.testing.assert_close(seen.parameters[parameter], expected, rtol=0, atol=FP32_TOLERANCE)


@law("bf16", but="resumed")
def test_bf16_training_stays_near_the_bf16_twin(strategy, world_size, name):
    for _, seen, _ in ranks_of(strategy, world_size, name):
        assert_same_training(seen, twins()[name], BF16_TOLERANCE)


@law("checkpointed", "offloaded")
def test_what_saves_memory_changes_no_number(strategy, world_size, name):
    for rank, seen, _ in ranks_of(strategy, world_size, name):
        assert_same_training(seen, observed(strategy, world_size)["gpt fp32"][rank], FP32_TOLERANCE)


@law("resumed")
def test_a_saved_run_continues_as_if_it_had_not_stopped(strategy, world_size, name):
    for rank, seen, job in ranks_of(strategy, world_size, name):
        whole = observed(strategy, world_size)["awkward bf16"][rank]
        assert seen.losses == whole.losses
        # Not to the bit: a fresh DDP has other buckets for one step, so that bf16 sums are taken in another order.
        assert seen.norms == pytest.approx(whole.norms, rel=BF16_TOLERANCE)
        for parameter, expected in whole.parameters.items():  # a lost AdamW state would move them by the learning rate
            close = 0.02 * job.config.learning_rate
            torch.testing.assert_close(seen.parameters[parameter], expected, rtol=0, atol=close)


@law("fp32", "bf16")
def test_squared_layer_norms_sum_to_the_squared_global_norm(strategy, world_size, name):
    tolerance = BF16_TOLERANCE if "bf16" in name else FP32_TOLERANCE
    for _, seen, _ in ranks_of(strategy, world_size, name):
        for layers, norm in zip(seen.layer_norms, seen.norms, strict=True):
            assert sqrt(sum(value**2 for value in layers.values())) == pytest.approx(norm, rel=tolerance)


@law("fp32", "bf16")
def test_all_ranks_report_the_same_numbers(strategy, world_size, name):
    (_, first, _), *others = ranks_of(strategy, world_size, name)
    for _, seen, _ in others:
        assert (seen.losses, seen.norms, seen.layer_norms) == (first.losses, first.norms, first.layer_norms)


@law("fp32", "bf16")
def test_every_state_holds_the_predicted_bytes_on_every_rank(strategy, world_size, name):
    for rank, seen, job in ranks_of(strategy, world_size, name):
        predicted = memory.state_bytes(job.config, rank, described(job))
        states = predicted.keys() - ({"activations", "buffers"} if job.awkward else set())  # not those of the config
        assert {state: seen.held_bytes[state] for state in states} == {state: predicted[state] for state in states}


@law("fp32", "bf16")
def test_gradients_wait_whole_between_micro_batches(strategy, world_size, name):
    for _, seen, job in ranks_of(strategy, world_size, name):
        if not strategy.startswith("zero"):
            assert seen.waiting_gradients_bytes == memory.waiting_gradients_bytes(job.config, described(job))


@law(
    "gpt", "mlp", "checkpointed", "offloaded"
)  # the awkward model calls a block twice, which the arithmetic cannot know
def test_live_parameters_peak_at_the_predicted_bytes(strategy, world_size, name):
    for rank, seen, job in ranks_of(strategy, world_size, name):
        assert seen.peak_parameters_bytes == memory.peak_parameters_bytes(job.config, rank)


@law("gpt", "mlp", "checkpointed", "offloaded")
def test_every_step_issues_the_predicted_collectives_in_order(strategy, world_size, name):
    for rank, seen, job in ranks_of(strategy, world_size, name):
        for step, calls in enumerate(seen.calls):
            assert calls == [as_recorded(call) for call in schedule.step_collectives(job.config, rank, step)]


@law("gpt", "mlp", "checkpointed", "offloaded")
def test_the_sockets_carry_the_predicted_bytes_of_every_rank(strategy, world_size, name):
    for rank, seen, job in ranks_of(strategy, world_size, name):
        if seen.sent_bytes is None:
            pytest.skip("this system does not count the bytes of a socket")
        predicted, _ = traffic.predict(schedule.run_collectives(job.config, rank), rank)
        assert seen.sent_bytes == pytest.approx(predicted, rel=0.005)


def described(job: Job):
    return awkward.specs_of(awkward.build_awkward()) if job.awkward else None


def as_recorded(call: traffic.Collective) -> tuple:
    assert call.count == 1, "a step lists every call"
    return call.kind, call.size_bytes, call.group_size, call.element_bytes
