"""A timeline knows what was ready when a collective was issued, and counts as overlapped what ran beside compute."""

import dataclasses
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import labs
from labs import schedule, traffic
from labs.plots.timeline import plot_timelines, table_timelines
from labs.timeline import GradientReady, RankTimeline, Span, TimelineRecorder, Transfer

MS = 10**6


class Chain(nn.Module):
    """Three layers without bias, so that backward readies their weights in the order third, second, first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x):
        return self.third(self.second(self.first(x))).sum()


def calls_at_known_places(waits: bool, times_transfers: bool):
    """Two micro-batches; in the second a collective is issued when two gradients are ready, one after backward."""
    model, is_on, handles = Chain(), [False], []
    recorder = TimelineRecorder(model, times_transfers=times_transfers)

    def send(parameter):
        if is_on[0]:
            handles.append(dist.all_reduce(parameter.grad, async_op=True))
            if waits:
                handles[-1].wait()

    model.second.weight.register_post_accumulate_grad_hook(send)
    dist.all_reduce(torch.ones(1))  # before the recorder listens
    with recorder:
        for number in range(2):
            is_on[0] = number == 1
            model(torch.ones(2, 8)).backward()
        for handle in handles:
            handle.wait()
        dist.broadcast(torch.ones(3), 0)
    dist.all_reduce(torch.ones(1))
    return recorder.timeline


@pytest.mark.parametrize("times_transfers", [False, True])
def test_a_collective_has_its_kind_its_bytes_and_its_place_among_the_gradients(times_transfers):
    for timeline in labs.launch(calls_at_known_places, False, times_transfers, world_size=2):
        found = [(t.kind, t.size_bytes, t.micro_batch, t.num_ready) for t in timeline.transfers]
        assert found == [("all_reduce", 4 * 64, 1, 2), ("broadcast", 4 * 3, 1, 3)]
        assert all((t.end_ns is not None) == times_transfers for t in timeline.transfers)
        assert [g.parameter.partition(".")[0] for g in timeline.gradients] == ["third", "second", "first"] * 2
        assert [g.micro_batch for g in timeline.gradients] == [0, 0, 0, 1, 1, 1]
        assert [s.name for s in timeline.spans].count("backward") == 2


def test_a_hook_that_waits_is_seen_to_wait_inside_backward():
    for timeline in labs.launch(calls_at_known_places, True, False, world_size=2):
        waits = [span for span in timeline.spans if span.name == "wait"]
        backward = [span for span in timeline.spans if span.name == "backward"][1]
        assert backward.begin_ns < waits[0].begin_ns <= waits[0].end_ns < backward.end_ns


def ddp_recorded_twice():
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = TimelineRecorder(model, optimizer)
    ddp, found = DistributedDataParallel(model), []
    for _ in range(2):
        with recorder:
            ddp(torch.ones(2, 8)).backward()
            optimizer.step()
        found.append(recorder.timeline)
    return found


def test_the_calls_that_ddp_makes_in_cpp_are_timed_as_well_and_each_recording_stands_alone():
    for timelines in labs.launch(ddp_recorded_twice, world_size=2):
        for timeline in timelines:
            (call,) = [t for t in timeline.transfers if t.kind == "all_reduce"]
            assert (call.size_bytes, call.num_ready) == (3 * 4 * 64, 3)
            assert call.issued_ns <= call.end_ns and call.begin_ns <= call.end_ns
            assert sorted({span.name for span in timeline.spans}) == ["backward", "forward", "optimizer"]
            assert len(timeline.gradients) == 3


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "fsdp"])
def test_a_run_records_its_last_step_but_one_and_counts_nothing_of_its_own(strategy):
    config = labs.ModelTrainingConfig(strategy=strategy, steps=3, batch_size=8, gradient_accumulation_steps=2)
    result = labs.launch(config)
    for rank, record in enumerate(result.ranks):
        expected = [(call.kind, call.size_bytes) for call in schedule.step_collectives(config, rank, 1)]
        assert [(t.kind, t.size_bytes) for t in record.timeline.transfers] == expected
        assert all(t.begin_ns <= t.end_ns for t in record.timeline.transfers)
        names = Counter(span.name for span in record.timeline.spans)
        assert (names["forward"], names["backward"], names["optimizer"]) == (2, 2, 1)
        whole_run = [call for step in range(3) for call in schedule.step_collectives(config, rank, step)]
        assert record.traffic.collectives == Counter(call.kind for call in whole_run)
        predicted, _ = traffic.predict(schedule.run_collectives(config, rank), rank)
        assert record.traffic.sent_bytes in (None, pytest.approx(predicted, rel=0.005))
    assert labs.RunResult.from_dict(result.to_dict()) == result


def test_the_first_and_the_inspected_step_are_never_recorded():
    result = labs.launch(labs.ModelTrainingConfig(steps=2, batch_size=4))
    assert [rank.timeline for rank in result.ranks] == [None, None]
    assert labs.RunResult.from_dict(result.to_dict()) == result


def timeline(*spans, transfers=(), gradients=()):
    """Build one by hand: spans as (name, begin, end), transfers as (begin, end), in milliseconds."""
    return RankTimeline(
        0,
        tuple(Span(name, begin * MS, end * MS) for name, begin, end in spans),
        tuple(GradientReady(name, 0, at * MS) for name, at in gradients),
        tuple(Transfer("all_reduce", 2**20, 0, 1, begin * MS, begin * MS, end * MS) for begin, end in transfers),
    )


COMPUTE = (("forward", 0, 10), ("backward", 10, 30))


@pytest.mark.parametrize(
    ("spans", "transfers", "share"),
    [
        (COMPUTE, [(30, 40)], 0.0),
        (COMPUTE, [(20, 30)], 1.0),
        (COMPUTE, [(25, 45)], 0.25),
        (COMPUTE, [(20, 28), (24, 32)], 10 / 12),  # two at once count once
        ((*COMPUTE, ("wait", 20, 26)), [(20, 28)], 2 / 8),  # a rank that waits does not compute
        (COMPUTE, [], None),
    ],
)
def test_the_overlapped_share_is_that_of_the_communicating_time(spans, transfers, share):
    assert timeline(*spans, transfers=transfers).overlapped_share == (share if share is None else pytest.approx(share))


def test_the_picture_and_its_table_say_calls_place_and_overlap():
    run = {"mine": [timeline(*COMPUTE, transfers=[(25, 45)], gradients=[("a", 15), ("b", 29)])]}
    texts = [text.get_text() for axes in plot_timelines(run).axes for text in axes.texts]
    assert "mine: 25 % overlapped" in texts
    assert "1 collective, 1.00 MiB; the first is issued when 1 of 2 gradients are ready" in texts
    assert table_timelines(run).rows == (("mine", "0", "1", "1.00 MiB", "1 of 2", "20.0 ms", "25 %"),)


def test_a_call_before_any_gradient_is_placed_by_the_pass_in_which_it_is_issued():
    run = {"mine": [timeline(*COMPUTE, transfers=[(5, 8)]), timeline(*COMPUTE), timeline(*COMPUTE)]}
    early = dataclasses.replace(run["mine"][0].transfers[0], num_ready=0)
    run["mine"][0] = dataclasses.replace(run["mine"][0], transfers=(early,))
    texts = [text.get_text() for axes in plot_timelines(run).axes for text in axes.texts]
    assert "1 collective, 1.00 MiB; the first is issued during forward" in texts
    assert table_timelines(run).rows[0][4] == "forward" and table_timelines(run).rows[1][4] == "-"


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="at least one"):
        plot_timelines({})


def test_a_rank_that_only_communicates_has_transfers_and_no_spans_but_waits():
    def send():
        with TimelineRecorder() as recorder:
            dist.all_reduce(torch.ones(4))
        return recorder.timeline

    for timeline in labs.launch(send, world_size=2):
        assert [transfer.size_bytes for transfer in timeline.transfers] == [16] and timeline.gradients == ()
        assert {span.name for span in timeline.spans} <= {"wait"}
