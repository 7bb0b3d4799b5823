"""What a person reads when ranks go wrong. No torch."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib")})
# Errors that only say that another rank has gone: never the cause, always an echo.
_ECHOES = re.compile(
    r"Connection (closed|reset|refused) by peer|Connection refused|Broken pipe|Socket closed|"
    r"Connection (was )?(aborted|closed)|Timed out waiting \d+ms",
    re.IGNORECASE,
)
_MOST_CAUSES = 8  # errors in a chain
_MOST_FRAMES = 20  # a recursion without end has a thousand
_SIGNALS = {
    "SIGKILL": "killed by SIGKILL (out of memory?)",
    "SIGTERM": "ended by SIGTERM (somebody asked it to stop)",
    "SIGSEGV": "crashed with SIGSEGV (a fault in native code)",
    "SIGBUS": "crashed with SIGBUS (is /dev/shm or the disk full?)",
    "SIGABRT": "gave up with SIGABRT (native code found an error; see its last words)",
    "SIGFPE": "crashed with SIGFPE (a division in native code)",
    "SIGILL": "crashed with SIGILL (an instruction that this processor lacks)",
}


class LaunchError(RuntimeError):
    """A run of several ranks that did not end well; the text is meant for the person who started it."""

    def _render_traceback_(self):
        """IPython shows these lines instead of the frames of labs/, which would bury the message."""
        return f"{type(self).__name__}: {self}".splitlines()


class RankFailed(LaunchError):
    """One rank raised, was killed, or ended before its result.

    `rank` names it; `traceback` is its traceback cut to the learner's lines, empty where there is none.
    """

    def __init__(self, text: str, rank: int = -1, traceback: str = ""):
        super().__init__(text)
        self.rank = rank
        self.traceback = traceback


class RankTimeout(LaunchError):
    """The deadline passed; the text tells where each rank stands. `stacks` and `collectives` hold it by rank."""

    def __init__(self, text: str, stacks: dict[int, str] | None = None, collectives: dict[int, str] | None = None):
        super().__init__(text)
        self.stacks = stacks or {}
        self.collectives = collectives or {}


class RankDeadlock(RankTimeout):
    """No rank can go on, seen before the deadline; `stacks` and `collectives` as in RankTimeout."""


class RunCancelled(LaunchError):
    """The run was cancelled before its end."""


class CannotSend(LaunchError, TypeError):
    """A function, argument or result that cannot be sent to another process; the text names the variable."""


@dataclass(frozen=True)
class Frame:
    """One line of a stack. `source` is empty where the rank cannot know it (a cell of the notebook)."""

    filename: str
    line_number: int
    function: str
    source: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a rank has no result: `headline` as Python words it, `frames` outermost first, `seconds` since boot."""

    headline: str
    frames: tuple[Frame, ...] = ()
    is_echo: bool = False
    seconds: float = 0.0
    cause: Failure | None = None


def describe(error: BaseException) -> Failure:
    """Take an exception and its causes apart so that they can leave the rank, whatever they hold."""
    failure = None
    for link in reversed(_chain(error)):
        failure = _describe_alone(link, failure)
    return failure


def _describe_alone(error: BaseException, cause: Failure | None) -> Failure:
    frames = tuple(
        Frame(entry.filename, entry.lineno or 0, entry.name, entry.line or "")
        for entry in traceback.extract_tb(error.__traceback__)
    )
    headline = _headline(error)
    is_echo = isinstance(error, (RuntimeError, OSError)) and bool(_ECHOES.search(headline))
    return Failure(headline[:4000], frames, is_echo or (cause is not None and cause.is_echo), 0.0, cause)


def _headline(error: BaseException) -> str:
    """The error in Python's words; under a group of errors, one line for each of them."""
    inner = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
    lines = ["".join(traceback.format_exception_only(error)).strip(), *(f"- {_headline(part)}" for part in inner)]
    return "\n".join(lines).replace("\n", "\n  ") if inner else lines[0]


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what led to it, newest first; ends where the chain bites its own tail."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < _MOST_CAUSES and not any(error is known for known in chain):
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def render_failure(failure: Failure) -> str:
    """Write a traceback of the learner's own lines, the cause first, in Python's order."""
    parts = []
    if failure.cause is not None:
        parts += [render_failure(failure.cause), "", "and while that was handled:", ""]
    return "\n".join([*parts, *render_frames(failure.frames), failure.headline])


def render_frames(frames: tuple[Frame, ...]) -> list[str]:
    """Two lines a frame; lines of libraries are left out unless there is nothing else to show."""
    lines, shown = [], learners_frames(frames)
    half, num_left_out = _MOST_FRAMES // 2, len(shown) - _MOST_FRAMES
    for index, frame in enumerate(shown):
        if num_left_out > 0 and half <= index < half + num_left_out:
            if index == half:
                lines.append(f"  ... {num_left_out} more calls ...")
            continue
        lines.append(f"  {place(frame.filename)}, line {frame.line_number}, in {frame.function}")
        source = frame.source or linecache.getline(frame.filename, frame.line_number)
        if source.strip():
            lines.append(f"    {source.strip()}")
    return lines


def learners_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames in files that are neither this package nor a library; without such, those of this package."""
    mine = tuple(f for f in frames if not f.filename.startswith((_PACKAGE, *_LIBRARIES, "<frozen")))
    plumbing = (_PACKAGE + "rank.py", *_LIBRARIES, "<frozen")
    return mine or tuple(f for f in frames if not f.filename.startswith(plumbing)) or frames[-3:]


def place(filename: str) -> str:
    """Name a file the way a reader knows it: a cell by its number, a file from where the reader stands."""
    cell = _cell_name(filename)
    if cell:
        return cell
    for root in (os.path.dirname(_PACKAGE.rstrip(os.sep)) + os.sep, *_LIBRARIES, os.getcwd() + os.sep):
        if filename.startswith(root):
            return filename[len(root) :]
    return filename


def _cell_name(filename: str) -> str | None:
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    known = shell and shell.compile.format_code_name(filename)
    return " ".join(known) if known else None


def name_ranks(ranks: list[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def how_it_ended(exit_code: int) -> str:
    """Put an exit status in words: a signal by name, anything else as an end before the result."""
    if exit_code >= 0:
        return f"ended before its result, with exit status {exit_code} (os._exit?)"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return _SIGNALS.get(name, f"killed by {name}")


_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_STACK_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")  # how faulthandler writes what is not ASCII


def parse_stack(text: str, thread_id: int | None) -> tuple[Frame, ...]:
    """Read the main thread out of what faulthandler wrote; frames outermost first, without the fork server's."""
    blocks: dict[int, list[Frame]] = {}
    current: list[Frame] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            current = blocks.setdefault(int(match[1], 16), [])
        elif match := _STACK_LINE.match(line):
            current.append(Frame(_unescaped(match[1]), int(match[2]), _unescaped(match[3])))
    frames = blocks.get(thread_id) or (list(blocks.values())[-1] if blocks else [])
    return tuple(frame for frame in reversed(frames) if frame.filename != "<string>")


def _unescaped(name: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[match.lastindex], 16)), name)
