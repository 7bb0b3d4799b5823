"""The trace of a step's memory, held to hand counts; and the pictures made of it."""

import pytest
import torch

import labs
from labs.checks.reference.zero_by_hand import partition
from labs.memory import state_bytes
from labs.peaks import MemoryTrace, ParameterStates
from labs.plots.ownership import plot_ownership, table_ownership
from labs.plots.saw_tooth import plot_saw_tooth, table_saw_tooth
from labs.records import STATES, StepMemory
from labs.traced import by_engine, train_traced

KILO = 1000  # elements: 4,000 bytes


def trace_of(program, states=lambda: {}):
    with MemoryTrace(states) as trace:
        program(trace)
    return trace.record


def test_what_is_made_and_dropped_is_seen_at_its_moment():
    def program(trace):
        first = torch.ones(KILO)
        second = torch.ones(2 * KILO)
        del first
        torch.ones(3 * KILO)
        del second

    assert trace_of(program).totals == (0, 4000, 12_000, 20_000, 0)


def test_memory_that_takes_the_place_of_what_has_died_is_seen():
    def program(trace):
        for _ in range(50):
            torch.ones(KILO)
        trace.sample()
        kept.append(torch.ones(2 * KILO))

    kept = []
    record = trace_of(program)
    assert max(record.totals) == 8000 == record.totals[-1] and record.totals.count(4000) >= 1


def test_a_view_holds_all_of_its_memory():
    kept = []
    record = trace_of(lambda trace: kept.append(torch.ones(KILO)[:1]))
    assert record.totals[-1] == 4000


def test_memory_that_is_resized_away_is_gone_although_views_of_it_live():
    def program(trace):
        row = torch.ones(KILO)
        view = row[:10]
        row.untyped_storage().resize_(0)
        torch.ones(1)
        assert view.numel() == 10

    assert 4000 in (record := trace_of(program)).totals and record.totals[-1] == 0


def test_autograd_keeps_what_nobody_lists():
    weight = torch.ones(KILO, requires_grad=True)
    held = []
    record = trace_of(lambda trace: held.append((weight.exp() * 2).sum()))
    assert record.states["activations"][-1] == 4000 + 4  # the result of exp, and the sum


def test_states_are_counted_once_and_everything_else_apart():
    parameter = torch.nn.Parameter(torch.ones(KILO))
    optimizer = torch.optim.AdamW([parameter])
    states = ParameterStates([parameter, parameter])

    def step(trace):
        parameter.sum().backward()
        trace.phase = "step"
        optimizer.step()
        optimizer.zero_grad()

    step(MemoryTrace(states))  # not traced: the averages are made, and the optimizer is found
    record = trace_of(step, states)
    assert {state: record.at_end(state) for state in ("parameters", "gradients", "optimizer")} == {
        "parameters": 4000,
        "gradients": 0,
        "optimizer": 8000,
    }
    assert record.peak_of("gradients") == 4000 and [name for name, _ in record.phases] == ["forward", "step"]


def test_nothing_is_recorded_outside_of_the_block():
    with MemoryTrace(lambda: {}) as trace:
        pass
    torch.ones(KILO)
    assert trace.record.totals == (0, 0)


CONFIG = labs.ModelTrainingConfig(
    model=labs.ModelSpec(num_layers=1, hidden_size=12, num_heads=2, context=8),
    world_size=2, batch_size=2, use_mixed_precision=False,
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp"])
def test_between_two_steps_the_trace_of_an_engine_shows_the_predicted_bytes(strategy):
    config = CONFIG.replace(strategy=strategy)
    for rank, run in enumerate(labs.launch(train_traced, by_engine(config), config, 2, world_size=2)):
        predicted = state_bytes(config, rank)
        states = ["parameters", "optimizer", "master_weights"]
        assert [run.memory.at_end(s) for s in states] == [predicted[s] for s in states]
        assert run.memory.peak_of("gradients") >= predicted["gradients"]


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_the_bucket_of_deepspeed_is_seen_as_gradients(strategy):
    config, bucket = CONFIG.replace(strategy=strategy), 100_000
    for run in labs.launch(train_traced, by_engine(config, bucket), config, 1, world_size=2):
        assert 4 * bucket <= run.memory.peak_of("gradients") < 4 * bucket + 4 * 2 * config.model.num_parameters


STEP = StepMemory(1, (("forward", 0), ("backward", 2)), {"parameters": (8, 8, 8, 4), "activations": (0, 5, 9, 1)})


def test_a_record_knows_its_peak_and_where_it_is():
    assert (STEP.totals, STEP.peak_bytes, STEP.peak_phase) == ((8, 13, 17, 5), 17, "backward")
    assert STEP.peak_of("parameters") == 8 and STEP.peak_of("gradients") == 0 and STEP.at_end("parameters") == 4


def test_the_saw_tooth_shows_each_run_and_names_its_peak():
    picture = plot_saw_tooth({f"run {n}": STEP for n in range(5)})
    words = " ".join(text.get_text() for axes in picture.axes for text in axes.texts)
    assert len(picture.axes) == 5 and "run 4: 17 B" in words and "peak in backward" in words
    assert table_saw_tooth({"run": STEP}).rows == (("run", "17 B", "backward", "9 B", "8 B", "5 B"),)
    assert len(picture.png()) > 1000


def test_the_saw_tooth_of_every_state_can_be_drawn():
    every = StepMemory(0, (("forward", 0),), {state: (1, 2) for state in STATES})
    assert len(table_saw_tooth({"all": every}).rows[0]) == len(STATES) + 4 and plot_saw_tooth({"all": every}).axes


def test_an_ownership_map_shows_every_element_once():
    sizes = dict(zip("abcde", (30, 7, 5, 20, 9), strict=True))
    owned = partition(list(sizes.values()), 4)
    rows = {name: [int(count) for count in counts] for name, *counts in table_ownership(sizes, owned).rows}
    assert rows["a"] == [18, 12, 0, 0] and rows["e"] == [0, 0, 0, 9] and rows["all"] == [18, 18, 18, 17]
    words = [text.get_text() for text in plot_ownership(sizes, owned).axes[0].texts]
    assert "rank 3" in words and any("3 parameters lie in more than one part" in word for word in words)


@pytest.mark.parametrize("draw", [lambda: plot_saw_tooth({}), lambda: plot_ownership({}, [])])
def test_nothing_to_draw_is_an_error_that_says_what_is_needed(draw):
    with pytest.raises(ValueError, match="at least"):
        draw()
