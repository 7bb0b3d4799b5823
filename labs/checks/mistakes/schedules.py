"""Mistakes in a schedule that is legal and too slow: where compute stands still, and why."""

from __future__ import annotations

from collections.abc import Sequence

from labs.checks.verdict import Verdict, failed, row
from labs.puzzle import PUZZLE, Playback, is_compute


def of_time(playback: Playback) -> Verdict:
    """Say why a step takes longer than the limit."""
    found = f"Every move is legal and the memory suffices. The step takes {1e3 * playback.seconds:.1f} ms."
    rows = (
        row("milliseconds", f"at most {1e3 * PUZZLE.limit_seconds:.0f}", f"{1e3 * playback.seconds:.1f}"),
        row("compute stands still, in ms", "5.0, at both ends", f"{1e3 * playback.waited_seconds:.1f}"),
    )
    return failed(found, _hint(playback), *rows)


def _hint(playback: Playback) -> str:
    late = [move for move in _late(playback.moves) if move != "forward 1"]
    in_forward = [move for move in late if move.startswith("forward")]
    in_backward = [move for move in late if move.startswith("backward")]
    if len(late) == sum(move.startswith("gather") for move in playback.moves) - 1:
        return (
            f"Nothing overlaps: each gather stands right above the move that needs it ({', '.join(late)}). Hand it "
            "over one computation earlier, and it travels meanwhile."
        )
    if again := _freed_for_nothing(playback.moves):
        return (
            f"Layer {again} is freed and then gathered again, with no computation between. Keep it: the last layer of "
            "forward is the first of backward."
        )
    if in_forward and in_backward:
        return f"Some gathers stand right above the move that needs them: {', '.join(late)}. Move them up by one."
    if in_forward:
        return f"Backward is without gaps. In forward compute waits at {', '.join(in_forward)}: do the same there."
    if in_backward:
        return f"Forward is without gaps. In backward compute waits at {', '.join(in_backward)}: do the same there."
    waits = [bar for bar in playback.bars if bar.move == "wait"]
    longest = max(waits, key=lambda bar: bar.end_seconds - bar.begin_seconds)
    next_move = next(
        (b.move for b in playback.bars if is_compute(b.move) and b.begin_seconds >= longest.end_seconds), ""
    )
    return f"The longest gap is before {next_move or 'the end'}: what was the wire doing, and could it begin earlier?"


def _late(moves: Sequence[str]) -> list[str]:
    """List the computations whose gather was handed over after the computation before."""
    found = []
    for index, move in enumerate(moves):
        if is_compute(move):
            since = next((i for i in range(index - 1, -1, -1) if is_compute(moves[i])), -1)
            if f"gather {move.split()[1]}" in moves[since + 1 : index]:
                found.append(move)
    return found


def _freed_for_nothing(moves: Sequence[str]) -> str:
    """Return the layer that is freed and gathered again between two computations; "" when there is none."""
    freed: set[str] = set()
    for move in moves:
        verb, _, layer = move.partition(" ")
        if is_compute(move):
            freed.clear()
        elif verb == "free":
            freed.add(layer)
        elif verb == "gather" and layer in freed:
            return layer
    return ""
