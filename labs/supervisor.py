"""One thread of the parent that starts the ranks of a run, listens to them, judges them, and sees them to their end."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from labs import rank as rank_room
from labs.channel import LEAVE, REPORT, Inbox, Message
from labs.failures import (
    Failure,
    RankFailed,
    RankTimeout,
    RunCancelled,
    how_it_ended,
    name_ranks,
    parse_stack,
    render_failure,
)
from labs.forkserver import ForkedProcess, Server
from labs.hang import Standing, explain_deadlock, explain_timeout
from labs.standstill import LOOK_SECONDS, Look, Watch

JOIN_SECONDS = 120.0  # forking and meeting take well under a second; a machine that swaps needs more
ECHO_SECONDS = 2.0  # how long to look for the cause after an error that only says "the other one has gone"
COMPANY_SECONDS = 0.5  # an error is often the same on every rank, and then says so
GRACE_SECONDS = 0.5
GLOO_MOST_SECONDS = 1e7  # gloo counts in milliseconds of 64 bits, a person may wait without limit
REPORT_SECONDS = 2.0


@dataclass
class Member:
    """One rank as the parent sees it."""

    rank: int
    process: ForkedProcess
    inbox: Inbox
    thread_id: int | None = None
    value: bytes | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    collectives: tuple | None = None
    look: Look | None = None

    @property
    def joined(self) -> bool:
        return self.thread_id is not None

    @property
    def is_over(self) -> bool:
        return self.value is not None or self.failure is not None


@dataclass
class Crew:
    """All ranks of one run."""

    world_size: int
    timeout_seconds: float
    restarts_clock: bool  # for runs that report each step
    folder: Path
    server: Server
    members: list[Member] = field(default_factory=list)
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    joined_at: float | None = None
    news_at: float = 0.0
    watch: Watch = field(default_factory=Watch)

    def run(self, watcher, wake_up: socket.socket) -> list[bytes]:
        """Start the ranks and return the pickled value of each.

        `watcher` hears on_ready(), on_joined() and on_message(rank, message), and is asked is_cancelled() whenever
        `wake_up` is readable. Raises RankFailed, RankTimeout, RunCancelled, ServerEnded.
        """
        self.watcher = watcher
        self.selector.register(wake_up, selectors.EVENT_READ)
        try:
            self.server.wait_until_ready(self._give_up)
            watcher.on_ready()
            for rank in range(self.world_size):
                self._give_up()
                self._fork(rank)
            self.news_at = time.monotonic()
            while not all(member.value is not None for member in self.members):
                self._listen(min(LOOK_SECONDS, max(0.0, self._deadline() - time.monotonic())))
                self._give_up()
                if self._raise_failure():
                    continue
                is_deadlock = self.joined_at is not None and self.watch.is_deadlock(self.members)
                if (is_deadlock or time.monotonic() >= self._deadline()) and (timeout := self._timeout(is_deadlock)):
                    raise timeout
            return [member.value for member in self.members]
        finally:
            self._end()
            self.selector.close()

    def _give_up(self) -> None:
        if self.watcher.is_cancelled():
            raise RunCancelled("the run was cancelled; its ranks have ended")

    def _fork(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        inbox = Inbox(ours)
        try:
            # gloo's own limit is only a last resort: the deadline of the run explains more.
            limit = min(max(1800.0, 2 * self.timeout_seconds), GLOO_MOST_SECONDS)
            seat = rank_room.Seat(rank, self.world_size, str(self.folder), limit)
            process = self.server.fork(rank_room.main, (seat, theirs), f"labs rank {rank}")
        except BaseException:
            inbox.close()
            raise
        finally:
            theirs.close()
        member = Member(rank, process, inbox)
        self.members.append(member)
        self.selector.register(inbox, selectors.EVENT_READ, member)
        self.selector.register(process.sentinel, selectors.EVENT_READ, member)

    def _deadline(self) -> float:
        if self.joined_at is None:
            return self.news_at + JOIN_SECONDS
        return (self.news_at if self.restarts_clock else self.joined_at) + self.timeout_seconds

    def _listen(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            member = key.data
            if member is None:  # woken up by cancel()
                continue
            self._read(member)
            if member.exit_code is None and member.process.poll() is not None:
                self._read(member)  # what it said before it ended
                self._bury(member)

    def _read(self, member: Member) -> None:
        if member.inbox.ended:
            return
        for message in member.inbox.read():
            self._hear(member, message)
        if member.inbox.ended:
            self.selector.unregister(member.inbox)

    def _hear(self, member: Member, message: Message) -> None:
        if message.kind == "joined":
            member.thread_id = message.payload
            if len(self.members) == self.world_size and all(member.joined for member in self.members):
                self.joined_at = self.news_at = time.monotonic()
                self.watcher.on_joined()
        elif message.kind == "value":
            member.value = message.payload
        elif message.kind == "failed":
            failure = message.payload
            member.failure = Failure(failure.headline, failure.frames, failure.is_echo, message.seconds, failure.cause)
        elif message.kind == "collectives":
            member.collectives = message.payload
        elif message.kind == "look":
            member.look = message.payload
        else:
            self.news_at = time.monotonic()
            self.watcher.on_message(member.rank, message)

    def _bury(self, member: Member) -> None:
        self.selector.unregister(member.process.sentinel)
        member.exit_code = member.process.poll()
        if member.value is None and member.failure is None:
            words = how_it_ended(member.exit_code)
            if not self.server.is_alive():
                words = self.server.last_words()
            elif tail := self._file(member, "log").strip()[-1500:]:
                words += f"\nits last words:\n{tail}"
            frames = parse_stack(self._file(member, "stack"), member.thread_id)
            member.failure = Failure(words, frames, seconds=time.monotonic())

    def _raise_failure(self) -> bool:
        """Raise the earliest failure that is a cause, after a moment for others to fail too; True while it waits."""
        failed = [member for member in self.members if member.failure is not None]
        if not failed:
            return False
        first = min(failed, key=lambda member: (member.failure.is_echo, member.failure.seconds)).failure
        patience = ECHO_SECONDS if first.is_echo else COMPANY_SECONDS
        if time.monotonic() < first.seconds + patience and not all(member.is_over for member in self.members):
            self._listen(0.05)
            return True
        company = [member.rank for member in failed if member.failure.headline == first.headline]
        failure = next(member.failure for member in failed if member.rank == company[0])
        text = render_failure(failure)
        raise RankFailed(f"{name_ranks(company)} of {self.world_size} failed\n{text}", company[0], text)

    def _timeout(self, is_deadlock: bool) -> RankTimeout | None:
        """Ask every rank where it stands, then explain; None if all have come to an end in that moment."""
        for member in self.members:
            member.inbox.ask(REPORT)
            if member.exit_code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.process.pid, signal.SIGUSR1)
        until = time.monotonic() + REPORT_SECONDS
        while time.monotonic() < until and not all(self._has_reported(member) for member in self.members):
            self._listen(0.05)
        if all(member.is_over for member in self.members):
            return None
        standings = [
            Standing(m.rank, m.joined, m.value is not None, self._file(m, "stack"), m.thread_id, m.collectives)
            for m in self.members
        ]
        if is_deadlock:
            return explain_deadlock(standings)
        return explain_timeout(standings, self.timeout_seconds if self.joined_at else JOIN_SECONDS)

    def _file(self, member: Member, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / f"rank{member.rank}.{name}").read_text(errors="replace")
        return ""

    def _has_reported(self, member: Member) -> bool:
        return member.exit_code is not None or (member.collectives is not None and bool(self._file(member, "stack")))

    def _end(self) -> None:
        """Let finished ranks leave, end the others, and wait until every one is gone."""
        all_done = all(member.value is not None for member in self.members)
        if all_done:
            for member in self.members:
                member.inbox.ask(LEAVE)
            self._wait_for_ends(GRACE_SECONDS * 4)
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            if not all(member.exit_code is not None for member in self.members):
                for member in self.members:
                    if member.exit_code is None:
                        member.process.signal_group(number)
                self._wait_for_ends(seconds)
        for member in self.members:
            member.process.kill_descendants()  # what a rank has started itself
            member.process.finalizer()
            member.inbox.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_ends(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            waiting = [member.process.sentinel for member in self.members if member.exit_code is None]
            if not waiting:
                return
            with selectors.DefaultSelector() as selector:
                for descriptor in waiting:
                    selector.register(descriptor, selectors.EVENT_READ)
                selector.select(max(0.0, until - time.monotonic()))
            for member in self.members:
                if member.exit_code is None:
                    member.exit_code = member.process.poll()
