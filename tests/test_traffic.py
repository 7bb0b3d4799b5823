"""Laws of labs/traffic.py: against hand counts, a slow twin and conservation. The sockets speak in test_measure.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.errors import ConfigError
from labs.traffic import (
    KINDS,
    Collective,
    alpha_beta_seconds,
    gloo_exchange,
    gloo_received_bytes,
    gloo_sent_bytes,
    predict,
    ring_bytes,
)

GROUP_KINDS = sorted(set(KINDS) - {"send", "recv"})
members = st.integers(2, 9)
element_widths = st.sampled_from([1, 2, 4, 8])


def exchanges(kind, size, group_size, element_bytes=4, root=0):
    collective = Collective(kind, size, group_size, element_bytes=element_bytes, root=root)
    return [gloo_exchange(collective, rank) for rank in range(group_size)]


def twin_of_ring(size, group_size, element_bytes):
    """Walk gloo's ring all-reduce segment by segment: {rank: [bytes of each message it sends]}, and who receives it."""
    limit = element_bytes * max(1, 2**20 // element_bytes)
    num_segments = max(-(-size // limit), 2 * group_size)
    num_segments += -num_segments % group_size
    segment = -(-size // num_segments)
    segment += -segment % element_bytes
    lengths = [min(segment, max(0, size - i * segment)) for i in range(num_segments)]
    per_rank = num_segments // group_size
    sent = {rank: [] for rank in range(group_size)}
    for first_chunk in (1, 0):  # reduce-scatter begins with the chunk after the own one, all-gather with the own
        for rank in range(group_size):
            for i in range(num_segments - per_rank):
                sent[rank].append(lengths[((rank + first_chunk) * per_rank + i) % num_segments])
    return {rank: [length for length in messages if length] for rank, messages in sent.items()}


@given(st.integers(1, 40_000_000), members, element_widths)
def test_all_reduce_counts_the_messages_of_a_ring_walked_segment_by_segment(num_elements, group_size, element_bytes):
    size = num_elements * element_bytes
    twin = twin_of_ring(size, group_size, element_bytes)
    for rank, exchange in enumerate(exchanges("all_reduce", size, group_size, element_bytes)):
        after = twin[(rank + 1) % group_size]  # the ring runs downwards: a rank receives what the next one sends
        assert (exchange.sent_messages, exchange.sent_payload) == (len(twin[rank]), sum(twin[rank]))
        assert (exchange.received_messages, exchange.received_payload) == (len(after), sum(after))


@given(st.sampled_from(GROUP_KINDS), st.integers(0, 5_000_000), members, element_widths, st.data())
def test_what_all_ranks_send_is_what_all_ranks_receive(kind, num_elements, group_size, element_bytes, data):
    size = num_elements * element_bytes * group_size
    root = data.draw(st.integers(0, group_size - 1))
    found = exchanges(kind, size, group_size, element_bytes, root)
    assert sum(e.sent_messages for e in found) == sum(e.received_messages for e in found)
    assert sum(e.sent_payload for e in found) == sum(e.received_payload for e in found)
    assert sum(e.sent_bytes for e in found) == sum(e.received_bytes for e in found)
    assert all(e.sent_payload >= 0 and e.received_payload >= 0 for e in found)


@pytest.mark.parametrize(
    ("kind", "copies"),
    [
        ("all_reduce", lambda n: 2 * (n - 1)),
        ("reduce_scatter", lambda n: 2 * (n - 1)),
        ("all_gather", lambda n: n - 1),
        ("broadcast", lambda n: n - 1),
        ("all_to_all", lambda n: n - 1),
        ("gather", lambda n: (n - 1) / n),
        ("scatter", lambda n: (n - 1) / n),
        ("barrier", lambda n: 0),
    ],
)
def test_the_group_moves_this_many_copies_of_the_tensor(kind, copies):
    for group_size in range(2, 9):
        size = 12 * 840
        assert sum(e.sent_payload for e in exchanges(kind, size, group_size)) == copies(group_size) * size


# Counted by hand from the segments: 10 floats on 2 ranks are chunks of 24 and 16 bytes, each in two segments.
@pytest.mark.parametrize(
    ("collective", "sent_by_rank"),
    [
        (Collective("all_reduce", 40, 2), [40 + 4 * 144] * 2),
        (Collective("all_reduce", 4, 2), [4 + 48 * 3, 4 + 48 * 3]),  # one message each way
        (Collective("all_gather", 80, 2), [40 + 2 * 144] * 2),
        (Collective("broadcast", 100, 4), [2 * 196, 196 + 48, 48, 48]),  # 0 -> 1, then 0 -> 2 and 1 -> 3
        (Collective("broadcast", 100, 4, root=1), [48, 2 * 196, 196 + 48, 48]),
        (Collective("reduce", 40, 2), [16 + 2 * 96 + 3 * 48, 24 + 16 + 3 * 96 + 2 * 48]),
        (Collective("gather", 40, 4), [3 * 48, 106, 106, 106]),
        (Collective("scatter", 40, 4), [3 * 106, 48, 48, 48]),
        (Collective("all_to_all", 40, 4), [3 * (10 + 144)] * 4),
        (Collective("barrier", 0, 4), [2 * 144] * 4),
        (Collective("broadcast", 0, 2), [96, 48]),  # an empty tensor still costs its headers
        (Collective("all_reduce", 0, 2), [0, 0]),
    ],
)
def test_sent_bytes_equal_the_hand_count(collective, sent_by_rank):
    assert [gloo_sent_bytes(collective, rank) for rank in range(collective.group_size)] == sent_by_rank


@given(st.integers(0, 10**9), members, st.integers(0, 8))
def test_reduce_scatter_costs_gloo_an_all_reduce_and_a_ring_half_of_one(num_elements, group_size, rank):
    size, rank = num_elements * 4 * group_size, rank % group_size
    reduce_scatter, all_reduce, all_gather = (
        Collective(kind, size, group_size) for kind in ("reduce_scatter", "all_reduce", "all_gather")
    )
    assert gloo_sent_bytes(reduce_scatter, rank) == gloo_sent_bytes(all_reduce, rank)
    assert ring_bytes(reduce_scatter, rank) * 2 == ring_bytes(all_reduce, rank)
    assert ring_bytes(reduce_scatter) + ring_bytes(all_gather) == ring_bytes(all_reduce)


@given(st.integers(2**20, 2**30), members)
def test_headers_are_under_half_a_percent_of_large_tensors(num_elements, group_size):
    for kind in ("all_reduce", "all_gather"):
        collective = Collective(kind, num_elements * 4 * group_size, group_size)
        for rank in range(group_size):
            assert gloo_sent_bytes(collective, rank) == pytest.approx(ring_bytes(collective, rank), rel=0.005)


def test_theory_of_a_ring_on_four_ranks_is_what_the_papers_say():
    def sizes(kind, **more):
        return [ring_bytes(Collective(kind, 400, 4, **more), rank) for rank in range(4)]

    assert sizes("all_reduce") == [600] * 4
    assert sizes("reduce_scatter") == sizes("all_gather") == [300] * 4
    assert sizes("broadcast") == [400, 400, 400, 0]  # a chain: the last member sends nothing
    assert sizes("reduce", root=2) == [400, 400, 0, 400]


def test_a_group_of_one_sends_nothing():
    for kind in GROUP_KINDS:
        assert predict([Collective(kind, 4000, 1)]) == (0, 0)


def test_predict_adds_up_calls_and_counts():
    calls = [Collective("all_reduce", 4000, 2, count=3), Collective("barrier", 0, 2)]
    one, pause = (
        gloo_sent_bytes(Collective(kind, size, 2), 1) for kind, size in (("all_reduce", 4000), ("barrier", 0))
    )
    assert predict(calls, rank=1) == (3 * one + pause, 3 * 4000)


def test_an_index_says_the_place_in_a_smaller_group():
    replicate = Collective("broadcast", 4000, 2, index=0)
    assert predict([replicate], rank=3) == predict([Collective("broadcast", 4000, 2)], rank=0)
    with pytest.raises(ConfigError, match="rank 3 is not in a group of 2"):
        predict([Collective("broadcast", 4000, 2)], rank=3)


def test_a_message_between_two_ranks_costs_three_headers():
    send, recv = Collective("send", 1000, 2), Collective("recv", 1000, 2)
    assert (gloo_sent_bytes(send), gloo_received_bytes(send)) == (1096, 48)
    assert (gloo_sent_bytes(recv), gloo_received_bytes(recv)) == (48, 1096)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_redude", 4, 2), "known kinds are all_reduce"),
        (("all_gather", 10, 4), "pad it to 12 bytes"),
        (("all_reduce", -4, 2), "negative"),
        (("all_reduce", 4, 0), "start at 1"),
    ],
)
def test_a_collective_that_cannot_be_is_refused_with_a_way_out(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Collective(*arguments)


def test_seconds_are_steps_times_latency_plus_bytes_over_bandwidth():
    link = dict(latency_seconds=1e-3, bytes_per_second=1e6)
    assert alpha_beta_seconds(Collective("all_reduce", 4_000_000, 4), **link) == pytest.approx(6e-3 + 6.0)
    assert alpha_beta_seconds(Collective("all_gather", 4_000_000, 4, 2), **link) == pytest.approx(2 * (3e-3 + 3.0))
    assert alpha_beta_seconds(Collective("broadcast", 4_000_000, 2), **link) == pytest.approx(1e-3 + 4.0)
    assert alpha_beta_seconds(Collective("send", 1_000_000, 2), **link) == pytest.approx(1e-3 + 1.0)
    assert alpha_beta_seconds(Collective("all_reduce", 4_000_000, 1), **link) == 0
