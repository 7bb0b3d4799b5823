"""A deadlock is told at once, and whatever can still go on is left alone."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import labs
from labs import standstill

shows_threads = Path("/proc/self/syscall").exists()
pytestmark = pytest.mark.skipif(not shows_threads, reason="this system does not show what threads wait for")
LONG_SECONDS = 150.0  # far beyond what any of these takes: whoever waits for the deadline fails by the test's own limit


def ring():
    rank, size, got = dist.get_rank(), dist.get_world_size(), torch.empty(1)
    dist.send(torch.ones(1), (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)


def one_alone():
    if dist.get_rank() == 1:
        dist.barrier()


def different_collectives():
    if dist.get_rank() == 0:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1))


def requests():
    dist.irecv(torch.empty(1), 1 - dist.get_rank()).wait()


def uneven_steps_of_ddp():
    """The call that hangs is made by DDP's C++, in a backward pass."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
    for _ in range(3 - dist.get_rank()):
        model(torch.ones(2, 4)).sum().backward()


def once_more_after_work():
    dist.all_reduce(torch.ones(1000))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1000))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (ring, "ranks 0, 1 wait for one another: no rank can go on."),
        (one_alone, "rank 1 waits for what no rank will send: no rank can go on."),
        (different_collectives, "ranks 0, 1 wait for one another: no rank can go on."),
        (requests, "ranks 0, 1 wait for one another: no rank can go on."),
        (uneven_steps_of_ddp, "rank 0 waits for what no rank will send: no rank can go on."),
        (once_more_after_work, "rank 0 waits for what no rank will send: no rank can go on."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.timeout(LONG_SECONDS - 30)
def test_ranks_that_wait_for_one_another_are_told_before_the_deadline(function, words, nothing_left):
    with pytest.raises(labs.RankDeadlock) as caught:
        labs.launch(function, timeout_seconds=LONG_SECONDS)
    assert str(caught.value).splitlines()[0] == words
    assert set(caught.value.stacks) == {0, 1} and "timeout_seconds" not in str(caught.value)


def late_rank():
    if dist.get_rank() == 1:
        time.sleep(2)  # longer than it takes to be certain of a deadlock
    dist.barrier()


def late_thread():
    """Both main threads wait for the other rank; a thread of one of them sends."""
    got, rank = torch.zeros(1), dist.get_rank()
    if rank == 1:
        threading.Timer(2, dist.send, (torch.ones(1), 0)).start()
    dist.recv(got, 1 - rank)
    if rank == 0:
        dist.send(got, 1)


def late_child():
    """A process that a rank has started may do anything."""
    child = subprocess.Popen(["sleep", "2"])
    if dist.get_rank() == 1:
        child.wait()
    dist.barrier()


def large_tensors():
    tensor = torch.ones(40_000_000)
    for _ in range(2):
        dist.all_reduce(tensor)


def late_thread_of_a_finished_rank():
    if dist.get_rank() == 1:
        threading.Timer(2, dist.send, (torch.ones(1), 0)).start()
    else:
        dist.recv(torch.empty(1), 1)


def late_grandchild():
    """A process whose parent has gone is nobody's child, and writes into the pipe all the same."""
    if dist.get_rank() == 1:
        out, into = os.pipe()
        subprocess.run(["sh", "-c", "(sleep 2; echo) &"], stdout=into, check=True)
        os.read(out, 1)
    dist.barrier(async_op=True).wait()


@pytest.mark.parametrize(
    "function",
    [late_rank, late_thread, late_thread_of_a_finished_rank, late_child, late_grandchild, large_tensors],
    ids=lambda f: f.__name__,
)
def test_ranks_that_can_go_on_do(function):
    assert labs.launch(function, timeout_seconds=LONG_SECONDS) == [None, None]


def sleep():
    if dist.get_rank() == 1:
        time.sleep(2)
    dist.barrier(async_op=True).wait()


def lock():
    if dist.get_rank() == 1:
        held = threading.Lock()
        held.acquire()
        held.acquire(timeout=2)
    dist.barrier(async_op=True).wait()


def semaphore():
    if dist.get_rank() == 1:
        multiprocessing.get_context("fork").Semaphore(0).acquire(timeout=2)
    dist.barrier(async_op=True).wait()


def alarm():
    if dist.get_rank() == 1:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.alarm(2)
        signal.pause()
    dist.barrier(async_op=True).wait()


@pytest.mark.parametrize("function", [sleep, lock, semaphore, alarm], ids=lambda f: f.__name__)
def test_a_rank_that_wakes_by_the_clock_goes_on_whatever_else_its_function_waits_for(function):
    assert labs.launch(function, timeout_seconds=LONG_SECONDS) == [None, None]


def monitored_barrier(group):
    dist.monitored_barrier(timeout=timedelta(seconds=2))


def collective(group):
    dist.all_reduce(torch.ones(1), group=group)


def request(group):
    dist.irecv(torch.empty(1), 1).wait(timedelta(seconds=2))


@pytest.mark.parametrize("call", [monitored_barrier, collective, request], ids=lambda f: f.__name__)
def test_a_call_whose_own_limit_ends_it_is_left_to_raise(call):
    def work():
        group = dist.new_group(timeout=timedelta(seconds=2))
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError):
                call(group)

    assert labs.launch(work, timeout_seconds=LONG_SECONDS) == [None, None]


def test_a_rank_that_waits_for_something_else_is_left_to_the_deadline():
    def work():
        if dist.get_rank() == 0:
            threading.Event().wait()
        else:
            dist.barrier()

    with pytest.raises(labs.RankTimeout, match="after 3 s ranks 0, 1 had not finished") as caught:
        labs.launch(work, timeout_seconds=3)
    assert not isinstance(caught.value, labs.RankDeadlock)


def test_a_rank_whose_gpu_may_work_while_its_threads_sleep_is_left_to_the_deadline():
    def work():
        torch.cuda.is_initialized = lambda: True
        dist.recv(torch.empty(1), 1 - dist.get_rank())

    with pytest.raises(labs.RankTimeout, match="after 3 s ranks 0, 1 had not finished") as caught:
        labs.launch(work, timeout_seconds=3)
    assert not isinstance(caught.value, labs.RankDeadlock)


@pytest.mark.parametrize(("glances", "sleeps"), [((False, True), True), ((False,) * 50, False)])
def test_a_look_finds_the_moment_in_which_nobody_is_awake(monkeypatch, glances, sleeps):
    """gloo's threads wake many times a second only to look around; one that waits for a core is awake all the time."""
    left = iter(glances)
    monkeypatch.setattr(standstill, "_others_sleep", lambda: next(left))
    assert standstill.look().sleeps is sleeps
