"""Messages between a rank and the process that started it, over one socket pair."""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("!Q")
_READ_BYTES = 1 << 20
_MOST_BYTES_AT_ONCE = 64 << 20  # one rank that floods its channel must not starve the others

# What the parent may ask of a rank, one byte each.
REPORT = b"?"
LOOK = b"~"
LEAVE = b"."


@dataclass(frozen=True)
class Message:
    """Something a rank said, with the moment it said it (`time.monotonic` is the same clock in every process)."""

    kind: str
    payload: Any
    seconds: float


class Channel:
    """The rank's end. Any thread may send."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def is_mine(self) -> bool:
        """Whether this is the rank itself: a worker that it forks must not write into the middle of its messages."""
        return os.getpid() == self._owner

    def send(self, kind: str, payload=None) -> None:
        """Send one message whole; raises OSError when the parent is gone. Does nothing in a worker of the rank."""
        if not self.is_mine():
            return
        data = pickle.dumps(Message(kind, payload, time.monotonic()), protocol=5)
        with self._lock:
            self._end.sendall(_LENGTH.pack(len(data)))
            self._end.sendall(data)

    def wait_for_request(self) -> bytes:
        """Return REPORT, LOOK, LEAVE, or b"" when the parent is gone."""
        try:
            return self._end.recv(1)
        except OSError:
            return b""


class LineStream(io.TextIOBase):
    """A stand-in for sys.stdout or sys.stderr that sends each line to the parent; `name` says which it is."""

    encoding = "utf-8"

    def __init__(self, channel: Channel, name: str, descriptor: int):
        self._channel, self._name, self._descriptor, self._rest = channel, name, descriptor, ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        if not self._channel.is_mine():
            os.write(self._descriptor, text.encode())
            return len(text)
        text = text.encode(errors="replace").decode()  # half a character could not be shown, or only here and not there
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._channel.send("text", (self._name, line))
        return len(text)

    def finish(self) -> None:
        """Send the last line, if it was not ended."""
        if self._rest:
            self.write("\n")


class Inbox:
    """The parent's end. It never blocks, wherever in a message a rank may be stopped."""

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._end = end
        self._bytes = bytearray()
        self.ended = False

    def fileno(self) -> int:
        return self._end.fileno()

    def read(self) -> list[Message]:
        """Return the messages that have arrived whole; sets `ended` when the rank has closed its end."""
        num_read = 0
        while num_read < _MOST_BYTES_AT_ONCE and not self.ended:
            try:
                data = self._end.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.ended = not data
            self._bytes += data
            num_read += len(data)
        return list(self._whole_messages())

    def ask(self, request: bytes) -> None:
        """Send REPORT or LEAVE; a rank that is gone does not hear it."""
        try:
            self._end.send(request)
        except OSError:
            pass

    def close(self) -> None:
        self._end.close()

    def _whole_messages(self):
        begin = 0
        while len(self._bytes) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, begin)
            end = begin + _LENGTH.size + length
            if len(self._bytes) < end:
                break
            with memoryview(self._bytes) as view:
                yield pickle.loads(view[begin + _LENGTH.size : end])
            begin = end
        del self._bytes[:begin]
