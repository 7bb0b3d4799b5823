"""Why do ranks wait? Put together where each rank stands when the deadline passes. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from labs.failures import RankTimeout, parse_stack, render_frames


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
    """Write one paragraph a rank: its state, its last collective, its stack cut to the learner's lines."""
    collectives = {standing.rank: _last_words(standing, standings) for standing in standings}
    stacks = {s.rank: "\n".join(render_frames(parse_stack(s.stack, s.thread_id))) for s in standings}
    paragraphs = []
    for standing in standings:
        paragraphs.append(f"rank {standing.rank}: {collectives[standing.rank]}")
        if not standing.returned:
            paragraphs.append(stacks[standing.rank] or "  (it did not answer; is its process stopped?)")
    late = [s.rank for s in standings if not s.returned]
    text = (
        f"after {seconds:g} s {_ranks(late)} had not finished.\n" + "\n".join(paragraphs) + "\n"
        "Every rank must issue the same collectives in the same order. If the work is only slow, raise timeout_seconds."
    )
    return RankTimeout(text, stacks, collectives)


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


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
