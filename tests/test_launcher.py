"""Promises of labs.launch and labs.start: values, failures in words, nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from processes import becomes_true, is_running

import labs
from labs import failures

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_values_come_back_in_order_of_rank():
    offset = 10

    def work(factor):
        import torch.distributed as dist

        return offset + factor * dist.get_rank()

    assert labs.launch(work, 3, world_size=4) == [10, 13, 16, 19]


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_ranks_find_a_group_of_that_size_and_add_up_in_it(world_size):
    def work():
        import torch
        import torch.distributed as dist

        number = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(number)
        return dist.get_world_size(), number.item()

    expected = (world_size, world_size * (world_size + 1) // 2)  # 1 + 2 + ... + n
    assert labs.launch(work, world_size=world_size) == [expected] * world_size


def test_lambdas_methods_and_partials_can_be_launched():
    class Learner:
        def __init__(self, name):
            self.name = name

        def greet(self, word, mark="!"):
            return f"{word} {self.name}{mark}"

    learner = Learner("Ada")
    assert labs.launch(lambda: 7) == [7, 7]
    assert labs.launch(learner.greet, "Hello") == ["Hello Ada!"] * 2
    assert labs.launch(functools.partial(learner.greet, mark="?"), "Who is") == ["Who is Ada?"] * 2


def test_whatever_can_be_called_can_be_launched():
    class Learner:
        def __init__(self, name="Ada"):
            self.name = name

        def __call__(self):
            return self.name

        @classmethod
        def title(cls):
            return cls.__name__

        @staticmethod
        def one():
            return 1

    for module in ("__main__", Learner.__module__):  # a notebook's own class, or one of a file
        Learner.__module__ = module
        assert [learner.name for learner in labs.launch(Learner)] == ["Ada"] * 2
        assert labs.launch(Learner("Eve")) == ["Eve"] * 2
    assert labs.launch(Learner.title) == ["Learner"] * 2
    assert labs.launch(Learner.one) == labs.launch(max, 0, 1) == [1, 1]


def test_a_class_made_here_is_the_same_class_when_it_comes_back():
    class Point:
        x = 1

    assert all(type(point) is Point for point in labs.launch(lambda: Point()))


def test_an_attribute_named_as_a_special_module_does_not_stop_a_function():
    """torch.distributed.config is a module of a special type, which cloudpickle finds by the attribute's name."""
    import torch.distributed as dist

    class Holder:
        config = 40

    holder = Holder()
    assert labs.launch(lambda: holder.config + dist.get_rank()) == [40, 41]


def test_a_value_of_50_megabytes_comes_back_whole():
    values = labs.launch(lambda: bytes(50_000_000))
    assert [len(value) for value in values] == [50_000_000] * 2


def test_each_rank_knows_its_place_and_its_share_of_the_cores():
    def work():
        from labs import rank

        return rank.current()

    cores = len(os.sched_getaffinity(0))
    places = labs.launch(work, world_size=3)
    assert [(place.rank, place.local_rank, place.world_size) for place in places] == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]
    assert {place.num_threads for place in places} == {max(1, cores // 3)}
    assert labs.rank.current() is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot keep a process on a core")
def test_ranks_that_outnumber_the_cores_keep_to_one_core_each_by_turns():
    def work():
        return os.sched_getaffinity(0)

    cores = sorted(os.sched_getaffinity(0))
    fewest = len(cores) + 1
    if fewest > 9:
        pytest.skip("too many cores to outnumber")
    assert labs.launch(work, world_size=fewest) == [{core} for core in (*cores, cores[0])]
    assert labs.launch(work, world_size=len(cores)) == [set(cores)] * len(cores)
    assert sorted(os.sched_getaffinity(0)) == cores, "the notebook's own process stays where it was"


def test_ranks_draw_different_numbers_from_numpy():
    def work():
        import numpy

        return numpy.random.random()

    first, second = labs.launch(work)
    assert first != second


def test_what_is_set_in_the_environment_now_reaches_the_ranks(monkeypatch):
    monkeypatch.setenv("A_LEARNERS_SETTING", "on")
    assert labs.launch(lambda: os.environ["A_LEARNERS_SETTING"]) == ["on", "on"]


def test_every_listening_socket_of_a_rank_is_on_loopback():
    def work():
        import torch.distributed as dist

        dist.new_group(list(range(dist.get_world_size())))
        dist.barrier()
        inodes = set()
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                inodes.add(os.readlink(f"/proc/self/fd/{descriptor}"))
            except OSError:
                pass
        listening = []
        for table in ("tcp", "tcp6"):
            for line in open(f"/proc/self/net/{table}").readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:  # 0A: LISTEN
                    listening.append(fields[1].split(":")[0])
        return listening

    for addresses in labs.launch(work):
        assert addresses and set(addresses) == {"0100007F"}  # 127.0.0.1 in the kernel's byte order


def test_prints_are_shown_rank_by_rank(capsys):
    def work():
        import torch.distributed as dist

        for step in range(3):
            dist.barrier()
            print("step", step)
        print("no newline", end="")
        print("trouble", file=sys.stderr)

    labs.launch(work)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"rank {rank}: {line}" for rank in range(2) for line in ("step 0", "step 1", "step 2", "no newline")
    ]
    assert shown.err.splitlines()[-2:] == ["rank 0: trouble", "rank 1: trouble"]


def test_text_that_no_terminal_can_show_is_printed_with_question_marks(capfd):
    with open(os.dup(1), "w", encoding="utf-8") as strict, contextlib.redirect_stdout(strict):
        assert labs.launch(lambda: print("half \udcff, whole \u2603"), world_size=1) == [None]
    assert capfd.readouterr().out == "rank 0: half ?, whole \u2603\n"


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
def test_a_person_may_wait_without_limit(seconds):
    assert labs.launch(lambda: 1, timeout_seconds=seconds) == [1, 1]


def test_a_rank_that_raises_is_named_with_the_learners_line():
    def work():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise ValueError("the loss is not a number")
        dist.barrier()

    with pytest.raises(labs.RankFailed) as caught:
        labs.launch(work)
    text = str(caught.value)
    assert caught.value.rank == 1 and text.startswith("rank 1 of 2 failed")
    assert "ValueError: the loss is not a number" in text
    assert 'raise ValueError("the loss is not a number")' in text
    assert "labs/rank.py" not in text and "site-packages" not in text


def test_an_error_inside_torch_points_at_the_learners_line_alone():
    def work():
        import torch

        return torch.ones(2, 3) @ torch.ones(2, 3)

    with pytest.raises(labs.RankFailed, match="shapes cannot be multiplied") as caught:
        labs.launch(work)
    assert "torch.ones(2, 3) @ torch.ones(2, 3)" in caught.value.traceback
    assert str(caught.value).startswith("ranks 0, 1 of 2 failed")


def test_the_cause_of_an_error_is_told_before_it():
    def work():
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("no such layer") from error

    with pytest.raises(labs.RankFailed) as caught:
        labs.launch(work)
    assert str(caught.value).index("KeyError: 'missing'") < str(caught.value).index("RuntimeError: no such layer")


def raise_from_itself():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def raise_below_many(depth=300):
    try:
        assert depth > 0, "the deepest"
        raise_below_many(depth - 1)
    except Exception:
        raise ValueError(f"level {depth}")  # noqa: B904


def recur(depth=0):
    return recur(depth + 1)


def raise_many():
    raise ExceptionGroup("many", [ValueError("first"), ExceptionGroup("inner", [KeyError("second")])])


def raise_much():
    raise ValueError("x" * 10**7)


AWKWARD = {
    "ValueError: one": raise_from_itself,
    "ValueError: level 300": raise_below_many,
    "RecursionError: maximum recursion depth exceeded": recur,
    "- KeyError: 'second'": raise_many,
    "ValueError: xxx": raise_much,
}


@pytest.mark.parametrize("words", AWKWARD)
def test_an_error_of_any_shape_is_told_on_one_page(words):
    with pytest.raises(labs.RankFailed) as caught:
        labs.launch(AWKWARD[words], world_size=1)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) < 80 and len(str(caught.value)) < 10_000


ENDS = {
    "killed by SIGKILL (out of memory?)": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crashed with SIGSEGV": lambda: __import__("ctypes").string_at(0),
    "gave up with SIGABRT": os.abort,
    "ended before its result, with exit status 0": functools.partial(os._exit, 0),
    "ended before its result: SystemExit: 0": functools.partial(sys.exit, 0),
}


@pytest.mark.parametrize("words", ENDS)
def test_a_rank_that_ends_without_a_result_has_failed_and_says_how(words):
    end = ENDS[words]

    def work():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            end()
        dist.barrier()  # raises "Connection closed by peer" on rank 0, which is not the cause

    with pytest.raises(labs.RankFailed) as caught:
        labs.launch(work)
    assert caught.value.rank == 1
    assert words in str(caught.value)


def test_a_rank_that_never_arrives_is_explained_at_the_deadline():
    def work():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(4))

    run = labs.start(work, timeout_seconds=1)
    with pytest.raises(labs.RankTimeout) as caught:
        run.wait()
    assert run.state == "timeout"
    assert caught.value.collectives == {
        0: "waiting in all_reduce #2 (4 x float32)",
        1: "still running; its last collective was all_reduce #1 (2 x float32); "
        "it has not issued all_reduce #2 (4 x float32), in which rank 0 waits",
    }
    assert "dist.all_reduce(torch.ones(4))" in caught.value.stacks[0]
    assert "time.sleep(1000)" in caught.value.stacks[1]
    assert "labs/rank.py" not in str(caught.value)


def test_a_rank_that_returned_while_others_wait_is_said():
    def work():
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(labs.RankTimeout, match="rank 1: returned from the function; it has issued no collective"):
        labs.launch(work, timeout_seconds=1)


def test_a_rank_stuck_in_native_code_with_the_interpreter_lock_is_located_and_ended():
    def work():
        import ctypes

        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)  # waits for itself; PyDLL keeps the lock: no thread of the rank can run

    with pytest.raises(labs.RankTimeout, match="could not tell its last collective") as caught:
        labs.launch(work, timeout_seconds=1)
    assert "library.pthread_mutex_lock(mutex)  # waits" in caught.value.stacks[0]


def test_a_stopped_rank_is_reported_and_ended():
    with pytest.raises(labs.RankTimeout, match="did not answer"):
        labs.launch(lambda: os.kill(os.getpid(), signal.SIGSTOP), world_size=1, timeout_seconds=1)


def test_what_a_rank_has_started_ends_with_it():
    def work():
        import subprocess

        return subprocess.Popen(["sleep", "1000"]).pid

    for pid in labs.launch(work):
        assert becomes_true(lambda pid=pid: not is_running(pid))


lock = threading.Lock()


def test_what_cannot_be_sent_is_named():
    local = {"deep": [io.StringIO(), lock]}

    def uses_variable():
        return local

    with pytest.raises(labs.CannotSend, match=r"variable `local\['deep'\]\[1\]` that your function `uses_variable`"):
        labs.launch(uses_variable)
    with pytest.raises(labs.CannotSend, match=r"the argument `args\[1\]`"):
        labs.launch(print, 1, lock)

    # As in a notebook: the function's module is __main__, so its globals travel with it.
    scope = {"__name__": "__main__", "lock": lock}
    exec("def helper():\n    return lock\ndef uses_global():\n    return [helper() for _ in range(2)]", scope)
    with pytest.raises(labs.CannotSend, match="the global `lock` that your function `uses_global` uses"):
        labs.launch(scope["uses_global"])


def test_a_value_that_cannot_be_sent_back_is_named_with_its_rank():
    def work():
        import torch.distributed as dist

        return {"handle": threading.Lock()} if dist.get_rank() == 1 else None

    with pytest.raises(labs.RankFailed, match=r"rank 1 of 2 failed\n.*value\['handle'\] is a lock"):
        labs.launch(work)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"world_size": 0}, ValueError, "1 to 64 ranks"),
        ({"world_size": 65}, ValueError, "1 to 64 ranks"),
        ({"world_size": "2"}, TypeError, "number of processes"),
        ({"world_size": True}, TypeError, "number of processes"),
        ({"timeout_seconds": 0}, ValueError, "above 0"),
        ({"worldsize": 2}, TypeError, "did you mean world_size"),
        ({"learning_rate": 1}, TypeError, r"functools.partial\(work, learning_rate=...\)"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(options, error, words):
    def work():
        return None

    with pytest.raises(error, match=words):
        labs.launch(work, **options)


def test_launching_from_inside_a_rank_is_refused_in_words():
    with pytest.raises(labs.RankFailed, match="a rank cannot launch ranks"):
        labs.launch(lambda: labs.launch(len, "x"), world_size=1)


def test_records_arrive_while_the_ranks_run(tmp_path):
    heard = threading.Event()

    def work():
        from labs import rank

        rank.emit({"step": 1})
        while not flag.exists():
            time.sleep(0.01)

    flag = tmp_path / "may end"
    run = labs.start(work, on_record=lambda number, record: heard.set())
    try:
        assert heard.wait(60), "no record came before the ranks were allowed to end"
        assert becomes_true(lambda: run.state == "running") and run.startup_seconds > 0
    finally:
        flag.touch()
    assert run.wait() == [None, None]
    assert sorted(run.records) == [(0, {"step": 1}), (1, {"step": 1})] and run.state == "done"


def test_emit_outside_a_rank_does_nothing():
    labs.rank.emit({"step": 1})


def test_a_failing_callback_ends_the_run_and_is_raised():
    def work():
        from labs import rank

        rank.emit(1)
        time.sleep(1000)

    run = labs.start(work, on_record=lambda number, record: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.wait()
    assert run.state == "failed"


def test_cancel_ends_every_rank_and_says_so():
    ended = []
    run = labs.start(time.sleep, 1000, world_size=3, on_end=ended.append)
    assert becomes_true(lambda: run.state == "running", 60)
    run.cancel()
    with pytest.raises(labs.RunCancelled):
        run.wait()
    assert run.state == "cancelled" and becomes_true(lambda: ended == [run])
    run.cancel()  # a run that has ended stays as it is
    assert labs.launch(lambda: "next") == ["next", "next"]


def test_two_runs_at_once_do_not_meet():
    def work(number):
        import torch
        import torch.distributed as dist

        value = torch.tensor([number])
        for _ in range(20):
            dist.broadcast(value, 0)
        return value.item()

    first, second = labs.start(work, 1, world_size=2), labs.start(work, 2, world_size=2)
    assert (first.wait(), second.wait()) == ([1, 1], [2, 2])


def test_many_runs_leave_no_descriptor_open():
    def count():
        return len(os.listdir("/proc/self/fd"))

    labs.launch(len, "")
    before = count()
    for _ in range(10):
        labs.launch(len, "", world_size=1)
    assert count() == before


def test_a_config_runs_the_training_loop_and_returns_its_result():
    config = labs.ModelTrainingConfig(steps=2, batch_size=4, world_size=2)
    result = labs.launch(config)
    assert isinstance(result, labs.RunResult)
    assert len(result.losses) == 2 and [record.rank for record in result.ranks] == [0, 1]
    with pytest.raises(ValueError, match="the config says 2"):
        labs.launch(config, world_size=4)


def test_a_stack_names_files_and_functions_as_they_are_written(tmp_path):
    """faulthandler writes ASCII alone, and a line is shown only if its file is found again."""
    folder = tmp_path / "Übung 𝛼 пример"
    folder.mkdir()
    (folder / "größe.py").write_text(
        "import faulthandler, sys\ndef größe():\n    faulthandler.dump_traceback(sys.stdout)\ngröße()\n"
    )
    written = subprocess.check_output([sys.executable, folder / "größe.py"], text=True)
    frames = failures.parse_stack(written, thread_id=None)
    assert [(frame.filename, frame.function) for frame in frames] == [
        (str(folder / "größe.py"), "<module>"),
        (str(folder / "größe.py"), "größe"),
    ]
    assert "faulthandler.dump_traceback" in failures.render_frames(frames)[-1]
