"""The puzzle's arithmetic is that of a hand count, its refusals are in words, and ranks hold the bytes it says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labs
from labs.checks.reference import fsdp as reference
from labs.plots.gantt import plot_gantt, table_gantt
from labs.puzzle import PUZZLE, IllegalMove, Playback, Puzzle, moves_of, play
from labs.replay import replay
from labs.units import MiB

G, F, B, R = 2.5, 3.0, 6.0, 2.5  # milliseconds of gather, forward, backward, reduce: 0.5 + 2 MiB at 1,000 MiB/s
TWO_LAYERS = Puzzle(num_layers=2)


def plain(num_layers: int) -> list[str]:
    found = []
    for n in range(1, num_layers + 1):
        found += [f"gather {n}", f"forward {n}", f"free {n}"]
    for n in range(num_layers, 0, -1):
        found += [f"gather {n}", f"backward {n}", f"free {n}", f"reduce {n}"]
    return found


def milliseconds(playback: Playback, move: str) -> tuple[float, float]:
    bar = next(bar for bar in playback.bars if bar.move == move)
    return 1000 * bar.begin_seconds, 1000 * bar.end_seconds


def test_a_transfer_costs_latency_and_the_bytes_that_one_rank_sends():
    assert 1000 * PUZZLE.gather_seconds == pytest.approx(0.5 + 4 / 2)
    assert 1000 * Puzzle(world_size=4).gather_seconds == pytest.approx(3 * 0.5 + 4 * 3 / 4)
    assert PUZZLE.reduce_seconds == PUZZLE.gather_seconds


@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_one_after_another_takes_the_sum_of_all_moves(num_layers):
    playback = play(plain(num_layers), Puzzle(num_layers=num_layers))
    assert 1000 * playback.seconds == pytest.approx(num_layers * (2 * G + F + B + R))
    assert playback.peak_bytes == (2 if num_layers == 1 else 3) * 4 * MiB
    assert 1000 * playback.waited_seconds == pytest.approx(num_layers * (2 * G + R))


def test_a_gather_handed_over_before_a_computation_travels_during_it():
    moves = "gather 1, gather 2, forward 1, forward 2, backward 2, free 2, reduce 2, backward 1, free 1, reduce 1"
    playback = play(moves, TWO_LAYERS)
    assert milliseconds(playback, "gather 2") == pytest.approx((G, 2 * G))
    assert milliseconds(playback, "forward 2") == pytest.approx((G + F, G + 2 * F))
    assert 1000 * playback.seconds == pytest.approx(G + 2 * F + 2 * B + R)


def test_a_computation_waits_until_its_gather_has_ended():
    slow_wire = Puzzle(num_layers=2, latency_seconds=0.008)  # a gather takes 10 ms
    playback = play(["gather 1", "gather 2", *plain(2)[1:3], *plain(2)[4:]], slow_wire)
    assert milliseconds(playback, "forward 2") == pytest.approx((20, 23))


def test_the_wire_carries_one_transfer_at_a_time_and_the_next_reduce_gives_a_gradient_back():
    moves = [*"gather 1,gather 2,forward 1,forward 2,backward 2,reduce 2,free 2".split(",")]
    playback = play([*moves, "backward 1", "free 1", "reduce 1"], TWO_LAYERS)
    live = [live.gradients_bytes // (4 * MiB) for live in playback.live]
    assert live == [0, 0, 0, 0, 1, 1, 1, 2, 2, 1, 0], "reduce 1 frees the gradient of layer 2, the end that of layer 1"
    wire = [bar for bar in playback.bars if bar.lane == "wire"]
    assert all(a.end_seconds <= b.begin_seconds for a, b in zip(wire, wire[1:], strict=False))


def test_the_reference_meets_both_limits_and_neither_slack_alone_would_do():
    playback = play(reference.schedule())
    assert playback.peak_bytes == PUZZLE.limit_bytes
    assert 1000 * playback.seconds == pytest.approx(G + 4 * F + 4 * B + R), "compute never stands still in between"
    with pytest.raises(IllegalMove, match="it makes 16.0 MiB live, 12.0 MiB is the limit"):
        play(reference.schedule(), Puzzle(limit_bytes=12 * MiB))


REFUSED = {
    "forward 1": "layer 1 is not whole",
    "gather 1, gather 1": "layer 1 is whole already",
    "gather 1, free 1": "has not computed yet",
    "free 1": "layer 1 is not whole",
    "gather 2, forward 2": "not the turn of forward 2",
    "gather 1, forward 1, backward 1": "not the turn of backward 1",
    "gather 1, forward 1, forward 1": "not the turn of forward 1",
    "gather 1, forward 1, reduce 1": "is not there yet",
    "gather 1, forward 1, free 1": "ends without forward 2, backward 1, backward 2, reduce 1, reduce 2",
    "gather 3": "there is no such move",
    "gather one": "there is no such move",
    "swap 1": "there is no such move",
    ", ".join(plain(2)[:-2] + plain(2)[-1:]): "ends with whole weights in memory: layer 1",
    ", ".join([*plain(2), "reduce 1"]): "has been reduced",
    ", ".join([*plain(2)[:7], "gather 1", "forward 1"]): "not the turn of forward 1",
}


@pytest.mark.parametrize(("moves", "why"), REFUSED.items(), ids=list(REFUSED.values()))
def test_an_illegal_move_is_refused_in_words(moves, why):
    with pytest.raises(IllegalMove, match=why) as caught:
        play(moves, TWO_LAYERS)
    assert caught.value.advice[0].isupper() or caught.value.advice.startswith("backward")


@pytest.mark.parametrize("schedule", [3, [1, 2], None, [["gather 1"]]])
def test_what_is_no_schedule_is_refused_in_words(schedule):
    with pytest.raises(IllegalMove, match="a schedule is a list of texts"):
        play(schedule)


def test_a_schedule_may_be_a_list_or_a_text():
    assert moves_of(" gather 1,\n Forward  1 ,") == moves_of(["gather 1", "forward 1"]) == ("gather 1", "forward 1")


@settings(max_examples=100, deadline=None)
@given(swaps=st.lists(st.integers(0, 24), max_size=6), dropped=st.sets(st.integers(0, 25), max_size=2))
def test_whatever_is_played_is_refused_or_within_the_limit_and_never_faster_than_its_parts(swaps, dropped):
    moves = reference.schedule()
    for place in swaps:
        moves[place], moves[place + 1] = moves[place + 1], moves[place]
    try:
        playback = play([move for number, move in enumerate(moves) if number not in dropped])
    except IllegalMove:
        return
    assert playback.peak_bytes <= PUZZLE.limit_bytes and playback.live[-1].total_bytes == 0
    assert 1000 * playback.seconds >= G + 4 * (F + B) + R - 1e-9


def test_ranks_hold_the_bytes_of_the_puzzle_after_each_move_and_compute_the_gradients_of_the_twin():
    small = Puzzle(layer_bytes=4 * 96 * 96)
    for moves in (reference.schedule(), plain(4)):
        expected = [live.total_bytes for live in play(moves, small.without_limit()).live]
        runs = labs.launch(replay, moves, small, world_size=2)
        for run in runs:
            assert [live.total_bytes for live in run.playback.live] == expected
            assert run.gradient_error < 1e-5
            sent = [bar.move for bar in run.playback.bars if bar.lane == "wire"]
            assert sorted(sent) == sorted(move for move in moves if move.startswith(("gather", "reduce")))


def test_the_gantt_shows_every_bar_and_says_what_is_measured():
    playback = play(reference.schedule())
    picture = plot_gantt({"mine": playback, "again": playback})
    lanes = picture.axes[0]
    bars = [patch for patch in lanes.patches if patch.get_width() > 0]
    assert len(bars) == len(playback.bars)
    assert "41.0 ms, at most 16.0 MiB live" in "\n".join(t.get_text() for t in lanes.texts)
    assert "simulated" in str(table_gantt({"mine": playback})) and picture.png(40).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one"):
        plot_gantt({})
