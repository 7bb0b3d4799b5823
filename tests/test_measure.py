"""Laws of the meters: sockets against arithmetic on real ranks; bytes of tensors against hand counts."""

import os
import socket
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import labs
from labs.measure import KeptActivations, PeakParameters, tensor_bytes
from labs.recorder import Recorder
from labs.traffic import Collective, gloo_received_bytes, gloo_sent_bytes
from labs.wire import WaitClock, WireMeter, new_instrument_group, tcp_sockets

SIZES = (1, 3, 10, 1001, 250_000, 2_500_000)  # elements: from a scalar to 10 MB


def calls_of(kind, num_elements, world_size, dtype=torch.float32):
    """Return [(collective, function that issues it)]: the arithmetic and the call of torch, side by side."""
    shard = torch.ones(-(-num_elements // world_size), dtype=dtype)
    full, tensor = shard.repeat(world_size), torch.ones(num_elements, dtype=dtype)
    parts, width = list(full.chunk(world_size)), dtype.itemsize
    of_full = dict(size_bytes=width * full.numel(), group_size=world_size, element_bytes=width)
    of_tensor = dict(size_bytes=width * num_elements, group_size=world_size, element_bytes=width)
    root, me = world_size - 1, dist.get_rank()
    return {
        "all_reduce": [(Collective("all_reduce", **of_tensor), lambda: dist.all_reduce(tensor))],
        "reduce_scatter": [
            (Collective("reduce_scatter", **of_full), lambda: dist.reduce_scatter_tensor(shard.clone(), full))
        ],
        "all_gather": [
            (Collective("all_gather", **of_full), lambda: dist.all_gather_into_tensor(full.clone(), shard)),
            (Collective("all_gather", **of_full), lambda: dist.all_gather([p.clone() for p in parts], shard)),
        ],
        "broadcast": [
            (Collective("broadcast", **of_tensor, root=r), lambda r=r: dist.broadcast(tensor, r)) for r in (0, root)
        ],
        "reduce": [(Collective("reduce", **of_tensor, root=r), lambda r=r: dist.reduce(tensor, r)) for r in (0, root)],
        "all_to_all": [(Collective("all_to_all", **of_full), lambda: dist.all_to_all_single(full.clone(), full))],
        "gather": [
            (
                Collective("gather", **of_full, root=root),
                lambda: dist.gather(shard, [p.clone() for p in parts] if me == root else None, root),
            )
        ],
        "scatter": [
            (Collective("scatter", **of_full), lambda: dist.scatter(shard.clone(), parts if me == 0 else None, 0))
        ],
        "barrier": [(Collective("barrier", 0, world_size), dist.barrier)],
    }[kind]


def weigh(cases):
    """Return [(collective, gloo's arithmetic, sockets)] of this rank; both are (sent, received)."""
    meter, rank, found = WireMeter(new_instrument_group()), dist.get_rank(), []
    for kind, num_elements, dtype in cases:
        for collective, call in calls_of(kind, num_elements, dist.get_world_size(), dtype):
            meter.start()
            call()
            expected = (gloo_sent_bytes(collective, rank), gloo_received_bytes(collective, rank))
            found.append((collective, expected, meter.stop()))
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sockets_carry_exactly_the_bytes_that_arithmetic_says(world_size):
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter")
    cases = [(kind, size, torch.float32) for kind in kinds for size in SIZES]
    cases += [("barrier", 1, torch.float32), ("all_reduce", 1001, torch.bfloat16), ("reduce", 7, torch.float64)]
    for of_rank in labs.launch(weigh, cases, world_size=world_size):
        assert len(of_rank) > len(cases)
        for collective, expected, measured in of_rank:
            assert measured == expected, collective


def work_beside_metrics():
    instrument = new_instrument_group()
    meter, recorder, tensor = WireMeter(instrument), Recorder(instrument), torch.ones(1000)
    recorder.start()
    meter.start()
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=instrument.group)  # a metric: neither in the bytes nor in the calls
    recorder.pause()
    with meter.paused():
        dist.broadcast(tensor, 0)  # an evaluation
    recorder.resume()
    dist.all_reduce(tensor)
    return meter.stop(), recorder.stop(), len(instrument.sockets), len(tcp_sockets())


def test_metrics_and_pauses_stand_outside_the_count():
    twice = Collective("all_reduce", 4000, 2, count=2)
    for rank, (measured, recording, num_own, num_all) in enumerate(labs.launch(work_beside_metrics, world_size=2)):
        assert measured == (gloo_sent_bytes(twice, rank), gloo_received_bytes(twice, rank))
        assert recording.counts() == {"all_reduce": 2}
        assert (num_own, num_all) == (1, 2)  # one connection to the other rank in each of the two groups


def work_beside_a_stranger():
    """Weigh an all-reduce while a program knocks that takes gloo's port for its own rendezvous store."""
    meter, strangers = WireMeter(new_instrument_group()), []
    meter.start()
    for descriptor in range(3, 200):
        try:
            with socket.socket(fileno=os.dup(descriptor)) as door:
                if door.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and door.family != socket.AF_UNIX:
                    strangers.append(socket.create_connection(door.getsockname()[:2], timeout=10))
                    strangers[-1].sendall(bytes(10))  # what a TCPStore says first
        except OSError:
            continue
    while len(tcp_sockets()) < 2 + 2 * len(strangers):  # until gloo has let them in
        time.sleep(0.01)
    dist.all_reduce(torch.ones(1000))
    return len(strangers), meter.stop()


def test_a_stranger_who_connects_to_a_rank_is_not_counted():
    reduced = Collective("all_reduce", 4000, 2)
    for rank, (num_strangers, measured) in enumerate(labs.launch(work_beside_a_stranger, world_size=2)):
        assert num_strangers >= 1
        assert measured == (gloo_sent_bytes(reduced, rank), gloo_received_bytes(reduced, rank))


def issue_one_of_each():
    pair, recorder = dist.new_group([0, 1]), Recorder()
    recorder.start()
    six, shard = torch.ones(6, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)
    dist.all_reduce(six)
    dist.reduce_scatter_tensor(shard, six)  # gloo makes it an all_reduce
    dist.all_gather_into_tensor(six, shard)
    dist.broadcast(torch.ones(5), 0)
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(5, dtype=torch.float64), group=pair)
    first = recorder.stop()
    recorder.start()
    dist.reduce_scatter_tensor(shard, six)
    return [[(c.kind, c.group_size, c.size_bytes, c.element_bytes) for c in r.calls] for r in (first, recorder.stop())]


def test_the_recorder_names_what_was_asked_for_and_the_full_size():
    of_all = [("all_reduce", 3, 12, 2), ("reduce_scatter", 3, 12, 2), ("all_gather", 3, 12, 2), ("broadcast", 3, 20, 4)]
    of_pair, again = [("all_reduce", 2, 40, 8)], [("reduce_scatter", 3, 12, 2)]
    expected = [[of_all + of_pair, again]] * 2 + [[of_all, again]]
    assert labs.launch(issue_one_of_each, world_size=3) == expected


def train_with_ddp_and_overflow():
    model = nn.parallel.DistributedDataParallel(nn.Linear(10, 4))
    model(torch.ones(2, 10)).sum().backward()
    recorder = Recorder()
    recorder.start()
    model(torch.ones(2, 10)).sum().backward()
    from_ddp = recorder.stop()
    counts, capacity = [], recorder.capacity
    for reads_every_step in (True, False):
        recorder.start()
        for _ in range(capacity // 100 + 2):
            for _ in range(100):
                dist.barrier()
            if reads_every_step:
                recorder.step()
        recording = recorder.stop()
        counts.append((len(recording.calls), recording.num_lost))
    return from_ddp.calls, counts, capacity


def test_the_recorder_sees_calls_from_cpp_and_admits_what_it_lost():
    (calls, counts, capacity), _ = labs.launch(train_with_ddp_and_overflow, world_size=2)
    assert [(c.kind, c.size_bytes) for c in calls][-1] == ("all_reduce", 4 * (10 * 4 + 4))
    issued = (capacity // 100 + 2) * 100
    assert counts == [(issued, 0), (capacity, issued - capacity)]


def wait_for_a_busy_rank():
    dist.barrier()
    clock, until = WaitClock(), time.thread_time() + 0.3
    while dist.get_rank() == 1 and time.thread_time() < until:
        pass
    dist.barrier()
    return clock.lap()


def test_a_rank_that_waits_for_another_says_so():
    (idle_waited, idle_elapsed), (busy_waited, busy_elapsed) = labs.launch(wait_for_a_busy_rank, world_size=2)
    assert 0.1 < idle_waited <= idle_elapsed
    assert 0 <= busy_waited <= busy_elapsed - 0.3  # its own work is no waiting


def test_a_storage_is_counted_once_however_many_tensors_show_it():
    flat = torch.empty(100)
    assert tensor_bytes([flat, flat[10:20], flat.view(10, 10).T, nn.Parameter(flat)]) == 400
    assert tensor_bytes([torch.empty(3), torch.empty(5, dtype=torch.bfloat16)]) == 22
    flat.untyped_storage().resize_(0)
    assert tensor_bytes([flat, torch.empty(0)]) == 0


def test_tied_weights_are_held_once():
    embedding, head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
    head.weight = embedding.weight
    assert tensor_bytes([*embedding.parameters(), *head.parameters()]) == 7 * 3 * 4


def hold_a_shard():
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    half = DTensor.from_local(torch.ones(5, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
    return list(half.shape), tensor_bytes([half])


def test_a_dtensor_counts_its_local_shard():
    assert labs.launch(hold_a_shard, world_size=2) == [([10, 4], 80)] * 2


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(32, 8)


def gradients(model, forward):
    """Return (bytes kept by autograd, gradients) of one forward and backward pass."""
    model.zero_grad()
    with KeptActivations(model.parameters) as kept:
        loss = forward().square().mean()
    loss.backward()
    return kept.kept_bytes, [parameter.grad.clone() for parameter in model.parameters()]


def test_autograd_keeps_inputs_and_outputs_but_no_parameters():
    model, x = two_layers()
    kept_bytes, _ = gradients(model, lambda: model(x))
    # the input, the output of the ReLU (which the second layer shares) and the output, squared by the loss
    assert kept_bytes == 4 * 32 * (8 + 16 + 4)


def test_checkpointing_keeps_only_what_enters_and_leaves_and_changes_no_gradient():
    model, x = two_layers()
    model(x).square().mean().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    for forward in (lambda: model(x), lambda: checkpoint(model, x, use_reentrant=False)):
        kept_bytes, found = gradients(model, forward)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert kept_bytes == 4 * 32 * (8 + 4)


def test_a_graph_that_is_gone_keeps_nothing():
    model, x = two_layers()
    with KeptActivations(model.parameters) as kept:
        model(x)
    assert kept.kept_bytes == 0


class Gathered(nn.Linear):
    """Gathers its weight for its own computation and frees it after, as a sharded engine does."""

    def __init__(self, size):
        super().__init__(size, size, bias=False)
        self.num_bytes = self.weight.untyped_storage().nbytes()
        self.register_forward_pre_hook(self.gather)
        self.register_forward_hook(self.free)

    def gather(self, *_):
        self.weight.untyped_storage().resize_(self.num_bytes)

    def free(self, module, args, output):
        self.weight.untyped_storage().resize_(0)
        output.register_hook(self.gather)
        args[0].register_hook(self.free_after_backward)

    def free_after_backward(self, _):
        self.weight.untyped_storage().resize_(0)


def test_the_peak_of_parameters_sees_units_that_come_and_go():
    model, x = nn.Sequential(Gathered(8), Gathered(8), nn.Linear(8, 2)), torch.ones(4, 8, requires_grad=True)
    for unit in model[:2]:
        unit.free_after_backward(None)
    always, unit_bytes = 4 * (8 * 2 + 2), 4 * 8 * 8
    with PeakParameters(model, model.parameters) as forward:
        loss = model(x).sum()
    with PeakParameters(model, model.parameters) as forward_backward:
        model(x).sum().backward()
    loss.backward()  # the hooks of a meter that has ended are gone with it
    assert forward.peak_bytes == always + unit_bytes
    assert (
        forward_backward.peak_bytes == always + 2 * unit_bytes
    )  # the unit before is gathered before this one is freed
    assert tensor_bytes(model.parameters()) == always
