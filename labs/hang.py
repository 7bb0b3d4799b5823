"""Why do ranks wait? Each rank tells where it stands when the deadline passes; the parent puts that together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from labs.failures import RankDeadlock, RankTimeout, name_ranks, parse_stack, render_frames

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32", "Byte": "uint8"}


@dataclass(frozen=True)
class LastCollective:
    """The newest collective of one process group on a rank: its number in the group, its size, whether it has ended."""

    group: str
    number: int
    name: str
    num_elements: int
    dtype: str
    has_ended: bool


def last_collectives() -> tuple[LastCollective, ...]:
    """Return the newest collective of each process group of this rank, the newest of all last.

    Calls that DDP makes from C++ are among them; send and recv are not, torch does not record those of gloo.
    """
    from labs.recorder import recent_calls  # here, because it imports torch: the parent needs none

    newest: dict[str, dict] = {}
    for entry in recent_calls():
        newest.pop(entry["process_group"][0], None)
        newest[entry["process_group"][0]] = entry
    return tuple(_last(group, entry) for group, entry in newest.items())


def _last(group: str, entry: dict) -> LastCollective:
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    num_elements = sum(prod(sizes) for sizes in entry["input_sizes"])
    dtype = (entry["input_dtypes"] or [""])[0]
    name = entry["profiling_name"].partition(":")[2]
    return LastCollective(group, number, name, num_elements, _DTYPES.get(dtype, dtype.lower()), bool(entry["retired"]))


@dataclass(frozen=True)
class Standing:
    """One rank at the deadline: what it has reached, its raw stack, and its newest collective of each group."""

    rank: int
    joined: bool
    returned: bool
    stack: str
    thread_id: int | None
    collectives: tuple | None


def explain_timeout(standings: list[Standing], seconds: float) -> RankTimeout:
    """Explain a run that the deadline ended, a paragraph a rank."""
    paragraphs, stacks, collectives = _paragraphs(standings)
    text = f"after {seconds:g} s {name_ranks(_late(standings))} had not finished.\n{paragraphs}"
    return RankTimeout(f"{text} If the work is only slow, raise timeout_seconds.", stacks, collectives)


def explain_deadlock(standings: list[Standing]) -> RankDeadlock:
    """Explain a run in which every rank has returned or waits for another, a paragraph a rank."""
    late = _late(standings)
    waits = "waits" if len(late) == 1 else "wait"
    whom = "one another" if len(late) == len(standings) > 1 else "what no rank will send"
    paragraphs, stacks, collectives = _paragraphs(standings)
    return RankDeadlock(f"{name_ranks(late)} {waits} for {whom}: no rank can go on.\n{paragraphs}", stacks, collectives)


def _late(standings: list[Standing]) -> list[int]:
    return [standing.rank for standing in standings if not standing.returned]


def _paragraphs(standings: list[Standing]) -> tuple[str, dict[int, str], dict[int, str]]:
    """Write one paragraph a rank: its state, its last collective, its stack cut to the learner's lines."""
    collectives = {standing.rank: _last_words(standing, standings) for standing in standings}
    stacks = {s.rank: "\n".join(render_frames(parse_stack(s.stack, s.thread_id))) for s in standings}
    paragraphs = []
    for standing in standings:
        paragraphs.append(f"rank {standing.rank}: {collectives[standing.rank]}")
        if not standing.returned:
            paragraphs.append(stacks[standing.rank] or "  (it did not answer; is its process stopped?)")
    paragraphs.append("Every rank must issue the same collectives in the same order.")
    return "\n".join(paragraphs), stacks, collectives


def _last_words(standing: Standing, standings: list[Standing]) -> str:
    state = "returned from the function" if standing.returned else "still running"
    if not standing.joined:
        return "has not joined the others yet"
    if standing.collectives is None:
        return f"{state}; it could not tell its last collective (busy in native code?)"
    if not standing.collectives:
        state += "; it has issued no collective"
    else:
        last = standing.collectives[-1]
        if not last.has_ended:
            state = f"waiting in {_name(last)}"
        else:
            state += f"; its last collective was {_name(last)}"
    missing = _missing(standing, standings)
    return state + (f"; it has not issued {missing}" if missing else "")


def _missing(standing: Standing, standings: list[Standing]) -> str:
    """The collective of another rank that this one should have issued too."""
    mine = {last.group: last.number for last in standing.collectives or ()}
    for other in standings:
        for last in other.collectives or ():
            is_shared = last.group in mine or last.group == "0"  # every rank is in the default group
            if not last.has_ended and is_shared and last.number > mine.get(last.group, 0):
                return f"{_name(last)}, in which rank {other.rank} waits"
    return ""


def _name(last) -> str:
    size = f" ({last.num_elements} x {last.dtype})" if last.dtype else ""
    return f"{last.name} #{last.number}{size}"
