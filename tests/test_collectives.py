"""Collectives from send and recv: right on every rank, also where sizes do not divide, and as cheap as promised."""

import pytest
import torch
import torch.distributed as dist

from labs import collectives, launch
from labs.checks import on_ranks
from labs.plots.collectives import plot_seconds, plot_sent
from labs.plots.ring import plot_ring, plot_ring_step, ring_moments, table_ring
from labs.traffic import Collective, Exchange, alpha_beta_seconds, ring_bytes
from labs.widgets.ring import ring_animation
from labs.wire import measured_bytes

SIZES = (12, 7, 2, 0, 1000)


def tensor_of(rank, size):
    """Whole numbers, so that sums are exact in any order."""
    return torch.randint(-999, 999, (size,), generator=torch.Generator().manual_seed(100 * rank + size)).float()


def all_results():
    found = {}
    for size in SIZES:
        mine = tensor_of(dist.get_rank(), size)
        piece = collectives.ring_reduce_scatter(mine)
        whole = collectives.ring_all_gather(piece, size)
        both = collectives.ring_all_reduce(mine)
        assert torch.equal(mine, tensor_of(dist.get_rank(), size)), "the argument was changed"
        found[size] = [each.tolist() for each in (piece, whole, both)]
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_rank_gets_its_part_of_the_sum_whatever_the_size(world_size):
    for rank, found in enumerate(launch(all_results, world_size=world_size)):
        for size in SIZES:
            total = sum(tensor_of(r, size) for r in range(world_size))
            assert found[size] == [total.tensor_split(world_size)[rank].tolist(), total.tolist(), total.tolist()]


def by_doubling():
    return collectives.doubling_all_reduce(tensor_of(dist.get_rank(), 7)).tolist()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_doubling_gives_the_sum_to_every_rank(world_size):
    total = sum(tensor_of(r, 7) for r in range(world_size)).tolist()
    assert launch(by_doubling, world_size=world_size) == [total] * world_size


def test_a_rank_sends_what_theory_says_of_a_ring_in_as_many_messages():
    for kind, ring, messages in (
        ("reduce_scatter", collectives.ring_reduce_scatter, 2),
        ("all_reduce", collectives.ring_all_reduce, 4),
    ):
        for fact in on_ranks(ring, [(torch.ones(300),)] * 3):
            sent = sum(message.size_bytes for message in fact.messages)
            assert sent == ring_bytes(Collective(kind, 1200, 3), fact.rank), kind
            assert [message.to for message in fact.messages] == [(fact.rank + 1) % 3] * messages


def to_the_last_in_a_group_of_two():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 1:
        dist.send(torch.ones(3), 2, group=group)
    if dist.get_rank() == 2:
        dist.recv(torch.ones(3), 1, group=group)


def test_a_message_in_a_group_is_one_to_a_rank_and_not_to_its_number_there():
    messages = [fact.messages for fact in on_ranks(to_the_last_in_a_group_of_two, [()] * 3)]
    assert [[(message.to, message.size_bytes) for message in own] for own in messages] == [[], [(2, 12)], []]


def bytes_of_a_ring():
    tensor = torch.ones(400)
    return measured_bytes(lambda: collectives.ring_all_reduce(tensor))


def test_the_sockets_carry_the_pieces_and_three_headers_a_message():
    for counted in launch(bytes_of_a_ring, world_size=4):
        if counted is None:
            pytest.skip("this system does not count the bytes of sockets")
        expected = Exchange(6, 6 * 400, 6, 6 * 400)
        assert (counted.sent_bytes, counted.received_bytes) == (expected.sent_bytes, expected.received_bytes)


def test_the_seconds_of_the_exercise_are_those_of_the_planner():
    from labs.checks.reference.collectives import all_reduce_seconds

    for world_size in (1, 2, 3, 8, 1024):
        planned = alpha_beta_seconds(Collective("all_reduce", 2**20 * 3, world_size), 2e-5, 4e9)
        assert all_reduce_seconds(2**20 * 3, world_size, 2e-5, 1 / 4e9) == pytest.approx(planned)


def test_the_picture_sends_the_pieces_that_the_ring_sends():
    sizes = [2, 2, 2, 1]  # 7 elements on 4 ranks: the last piece gives itself away
    drawn = [[4 * sizes[moment.sends[rank]] for moment in ring_moments(4)[:-1]] for rank in range(4)]
    facts = on_ranks(collectives.ring_all_reduce, [(torch.ones(7),)] * 4)
    assert [[message.size_bytes for message in fact.messages] for fact in facts] == drawn


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_every_piece_of_the_picture_ends_with_the_parts_of_all_ranks(world_size):
    moments = ring_moments(world_size)
    assert len(moments) == 2 * (world_size - 1) + 1 == len(table_ring(world_size).rows) + 1
    after_one_trip = moments[world_size - 1].parts
    assert [after_one_trip[rank][rank] for rank in range(world_size)] == [world_size] * world_size
    assert moments[-1].parts == ((world_size,) * world_size,) * world_size
    assert all(sorted(moment.sends) == list(range(world_size)) for moment in moments[:-1])


def test_pictures_say_what_they_cannot_draw():
    with pytest.raises(ValueError, match="moments 0 to 6"):
        plot_ring_step(4, 7)
    with pytest.raises(ValueError, match="makes no ring"):
        plot_ring(1)
    with pytest.raises(ValueError, match="2 to 8 ranks"):
        ring_animation(9)
    with pytest.raises(ValueError, match="one for each size"):
        plot_seconds([1, 2], {"ring": [1.0]})


def test_bytes_that_were_not_measured_leave_the_theory_to_be_drawn():
    assert plot_sent({("all_reduce", 2): 100.0}, {("all_reduce", 2): None}, 100).png()


def test_the_sliders_move_the_picture_and_fewer_ranks_have_fewer_steps():
    ring = ring_animation(4)
    pictures = {ring.picture.value}
    for step in (1, 6):
        ring.step.value = step
        pictures.add(ring.picture.value)
    ring.ranks.value = 3
    assert (ring.step.value, ring.step.max, ring.play.max) == (0, 4, 4)
    assert len(pictures | {ring.picture.value}) == 4
    assert {"text/plain", "image/png"} < ring._repr_mimebundle_().keys()
