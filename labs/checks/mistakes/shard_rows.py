"""Mistakes in counting the rows of a weight that a rank owns and has memory for, and the hint for each."""

from __future__ import annotations

EVENED_OUT = (
    "You even out the pieces. torch.chunk makes full chunks of ceil(num_rows / world_size) first, and what is left "
    "over makes the last pieces short or empty."
)
SHARD_ROWS = (
    (
        lambda num_rows, world_size, rank: (num_rows // world_size, num_rows // world_size),
        "Division without remainder loses rows: every row needs an owner.",
    ),
    (
        lambda num_rows, world_size, rank: (num_rows // world_size + (rank < num_rows % world_size),) * 2,
        EVENED_OUT,
    ),
    (
        lambda num_rows, world_size, rank: (
            num_rows // world_size + (rank < num_rows % world_size),
            -(-num_rows // world_size),
        ),
        EVENED_OUT,
    ),
    (
        lambda num_rows, world_size, rank: (
            min(-(-num_rows // world_size), num_rows - rank * -(-num_rows // world_size)),
            -(-num_rows // world_size),
        ),
        "A rank behind the last row owns none: 0, and not fewer.",
    ),
    (
        lambda num_rows, world_size, rank: (-(-num_rows // world_size),) * 2,
        "The memory is right. A rank owns a full chunk only as long as there are rows left.",
    ),
    (
        lambda num_rows, world_size, rank: (_own(num_rows, world_size, rank),) * 2,
        "The rows are right. Every rank has memory for a full chunk, used or not: an all_gather takes equal pieces.",
    ),
    (
        lambda num_rows, world_size, rank: (
            _own(num_rows, world_size, rank),
            -(-num_rows // world_size) if _own(num_rows, world_size, rank) else 0,
        ),
        "A rank without rows has memory for a full chunk, too: an all_gather takes equal pieces from all ranks.",
    ),
    (
        lambda num_rows, world_size, rank: (
            num_rows - rank * -(-num_rows // world_size) if rank == world_size - 1 else -(-num_rows // world_size),
            -(-num_rows // world_size),
        ),
        "More than the last rank can be short: of 1 row on 4 ranks, rank 0 has it, and three own none.",
    ),
    (
        lambda num_rows, world_size, rank: (-(-num_rows // world_size), _own(num_rows, world_size, rank)),
        "Own rows first, memory second.",
    ),
    (
        lambda num_rows, world_size, rank: (
            num_rows // world_size + (num_rows % world_size if rank == world_size - 1 else 0),
            num_rows // world_size + num_rows % world_size,
        ),
        "The last rank gets what is left over on top of its share. In torch.chunk it gets what is left over alone.",
    ),
    (
        lambda num_rows, world_size, rank: (_own(num_rows, world_size, rank - 1), -(-num_rows // world_size)),
        "Ranks count from 0: rank 0 owns the first chunk.",
    ),
)


def _own(num_rows: int, world_size: int, rank: int) -> int:
    chunk = -(-num_rows // world_size)
    return max(0, min(chunk, num_rows - rank * chunk))
