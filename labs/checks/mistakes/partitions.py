"""Ways to cut a row wrongly, and the hint for each. No torch."""

from __future__ import annotations


def _cut(part_of=None, places=False, inclusive=False, padded=False, drops_empty=False, whole=False, empties=False):
    """partition with one thing done otherwise."""

    def partition(sizes, world_size):
        total = sum(sizes)
        part = part_of(total, world_size) if part_of else -(-total // world_size)
        owned, offset = [[] for _ in range(world_size)], 0
        for index, size in enumerate(sizes):
            for rank in range(world_size):
                first, end = max(0, rank * part - offset), min(size, (rank + 1) * part - offset)
                if whole:  # a parameter goes as a whole to the rank in whose part it begins
                    first, end = (0, size) if rank == min(offset // max(1, part), world_size - 1) else (0, 0)
                if padded and index == len(sizes) - 1 and (rank + 1) * part > offset:
                    end = (rank + 1) * part - offset
                if empties:
                    first, end = min(first, size), max(0, end)
                if first < end or empties:
                    shift = offset if places else 0
                    owned[rank].append((index, first + shift, end + shift - inclusive))
            offset += size
        return [pieces for pieces in owned if pieces] if drops_empty else owned

    return partition


def _each_alone(sizes, world_size):
    owned = [[] for _ in range(world_size)]
    for index, size in enumerate(sizes):
        part = -(-size // world_size)
        for rank in range(world_size):
            first, end = min(size, rank * part), min(size, (rank + 1) * part)
            if first < end:
                owned[rank].append((index, first, end))
    return owned


def _with_lengths(sizes, world_size):
    return [[(i, first, end - first) for i, first, end in pieces] for pieces in _cut()(sizes, world_size)]


def _round_robin(sizes, world_size):
    return [[(i, 0, size) for i, size in enumerate(sizes) if i % world_size == r and size] for r in range(world_size)]


def _rest_to_the_last(sizes, world_size):
    total = sum(sizes)
    edges = [rank * (total // world_size) for rank in range(world_size)] + [total]
    return _by_edges(sizes, edges)


def _rest_to_the_first(sizes, world_size):
    part, rest = divmod(sum(sizes), world_size)
    edges = [rank * part + min(rank, rest) for rank in range(world_size + 1)]
    return _by_edges(sizes, edges)


def _by_edges(sizes, edges):
    owned, offset = [[] for _ in edges[1:]], 0
    for index, size in enumerate(sizes):
        for rank, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
            first, last = max(0, begin - offset), min(size, end - offset)
            if first < last:
                owned[rank].append((index, first, last))
        offset += size
    return owned


PARTITION = (
    (
        _cut(part_of=lambda total, n: total // n),
        "Rounded down, the parts do not reach the end of the row: the last elements belong to nobody. Round up.",
    ),
    (
        _rest_to_the_last,
        "The last rank gets more than the others. Collectives want parts of one length: round up, so that the last "
        "one is padded instead.",
    ),
    (
        _rest_to_the_first,
        "The first ranks get an element more than the others. Collectives want parts of one length: round up, so that "
        "only the end of the row is padded.",
    ),
    (
        _each_alone,
        "You cut each parameter by itself. Lay all of them end to end first, and cut the row.",
    ),
    (
        _round_robin,
        "You deal out whole parameters in turn. Then ranks hold as much as their parameters happen to be large.",
    ),
    (
        _cut(whole=True),
        "You give a parameter to one rank as a whole. The cut ignores where a parameter ends: some lie in two parts.",
    ),
    (
        _cut(places=True),
        "start and stop are places in the row. Count them from the beginning of the parameter.",
    ),
    (
        _cut(empties=True),
        "Some slices hold nothing. List a piece only where parameter and part overlap: start < stop.",
    ),
    (
        _cut(part_of=lambda total, n: -(-total // 2)),
        "For two ranks it is right. Cut into world_size parts, and not into 2.",
    ),
    (_with_lengths, "The third number is where the slice stops, and not how long it is."),
    (_cut(inclusive=True), "stop is the first element that is not owned any more, as in Python's slices."),
    (
        _cut(padded=True),
        "The last parameter ends before the row does. Padding belongs to no parameter: stop at its size.",
    ),
    (
        _cut(drops_empty=True),
        "There is a list for each rank, an empty one for a rank that owns nothing. Who is who would be lost otherwise.",
    ),
)
