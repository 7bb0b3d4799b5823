"""Does it fit, what breaks first, and what would change it: one sentence about a scenario. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from labs.activations import kept_terms
from labs.errors import ConfigError
from labs.footprint import Bytes, Footprint, footprint
from labs.scenario import Scenario
from labs.units import format_bytes

STATE_PARTS = ("parameters", "master_weights", "optimizer", "gradients", "buffers")
MANY_RANKS = 4096
# What the parts of a moment are called together in a sentence.
PILE = {
    "model states": (*STATE_PARTS, "unreduced gradients", "fp32 gradients"),
    "gathered parameters": ("gathered",),
    "communication buckets": ("buckets",),
    "activations": ("activations", "recomputed"),
    "logits": ("logits",),
}


def fits(scenario: Scenario, capacity_bytes: float, host_capacity_bytes: float | None = None) -> bool:
    """Whether a rank's peak stays within a device, and its offloaded states within its share of a host's memory."""
    found = footprint(scenario)
    on_host = host_capacity_bytes is None or found.host_bytes <= host_capacity_bytes
    return on_host and found.peak_bytes <= capacity_bytes


def what_breaks_first(scenario: Scenario, capacity_bytes: float, host_capacity_bytes: float | None = None) -> str:
    """Say in one sentence what does not fit, by how much, and which single changes would make it fit.

    Both capacities are those of one rank. The device's peak is an estimate (see labs/footprint.py); leave a few GiB.
    Raises ConfigError for a capacity that is not positive.
    """
    for capacity in (capacity_bytes, host_capacity_bytes):
        if capacity is not None and capacity <= 0:
            raise ConfigError(f"a capacity of {capacity} bytes holds nothing; try capacity_bytes=80 * GiB")
    found = footprint(scenario)
    problem = _host_problem(found, host_capacity_bytes) or _device_problem(scenario, found, capacity_bytes)
    if problem is None:
        return _fits_sentence(found, capacity_bytes)
    ways = _ways(scenario, capacity_bytes, host_capacity_bytes)
    cure = f"it would fit with {', or '.join(ways)}" if ways else "no single change of those known here is enough"
    return f"{problem}; {cure}."


def pile(scenario: Scenario, moment: Bytes) -> Bytes:
    """Group the parts of a moment as the sentences name them; kept log-probabilities count with the logits."""
    piled = {name: sum(moment.get(part, 0) for part in parts) for name, parts in PILE.items()}
    if "logits" in moment or "recomputed" in moment:  # the moment at which everything that was kept is there
        kept = kept_terms(scenario.trained_model, scenario.micro_batch_size, scenario.width)["log-probabilities"]
        piled["activations"] -= kept
        piled["logits"] += kept
    return piled


def _host_problem(found: Footprint, capacity_bytes: float | None) -> str | None:
    if capacity_bytes is None or found.host_bytes <= capacity_bytes:
        return None
    return (
        f"The offloaded states do not fit: they take {format_bytes(found.host_bytes)} of host memory a rank, "
        f"{format_bytes(found.host_bytes - capacity_bytes)} more than its share of {format_bytes(capacity_bytes)}"
    )


def _device_problem(scenario: Scenario, found: Footprint, capacity_bytes: float) -> str | None:
    """Blame the model states where they alone are too much at some moment, else the largest of what lies on them."""
    if found.peak_bytes <= capacity_bytes:
        return None
    states = max(pile(scenario, moment)["model states"] for moment in found.moments.values())
    culprit, size = "model states alone", states
    if states <= capacity_bytes:
        passing = pile(scenario, found.moments[found.peak_moment])
        del passing["model states"]
        culprit = max(passing, key=passing.get)
        size = passing[culprit]
    rest = f" and the {_in_words(found)} {format_bytes(found.peak_bytes)} in all" if size < found.peak_bytes else ""
    over = format_bytes(found.peak_bytes - capacity_bytes)
    return (
        f"The {culprit} break it: they take {format_bytes(size)}{rest}, {over} more than the device's "
        f"{format_bytes(capacity_bytes)}"
    )


def _fits_sentence(found: Footprint, capacity_bytes: float) -> str:
    moment = found.moments[found.peak_moment]
    largest, words = max(moment, key=moment.get), {"gathered": "gathered parameters", "recomputed": "activations"}
    return (
        f"It fits: the {_in_words(found)} needs {format_bytes(found.peak_bytes)} of {format_bytes(capacity_bytes)}, "
        f"most of it {words.get(largest, largest).replace('_', ' ')} ({format_bytes(moment[largest])})."
    )


def _in_words(found: Footprint) -> str:
    return {
        "backward begins": "beginning of the backward pass",
        "backward ends": "end of the backward pass",
        "optimizer step": "optimizer step",
    }[found.peak_moment]


def _ways(scenario: Scenario, capacity_bytes: float, host_capacity_bytes: float | None) -> list[str]:
    """List the single changes that make it fit, the cheapest in speed first; of each kind the smallest that does."""
    found = []
    for changes in map(list, _changes(scenario)):
        if len(changes) > 3 and not _fits_with(scenario, changes[-1], capacity_bytes, host_capacity_bytes):
            continue  # a long list halves or doubles one number: when its end is not enough, nothing before it is
        for change in changes:
            if _fits_with(scenario, change, capacity_bytes, host_capacity_bytes):
                found.append(", ".join(f"{name}={value!r}" for name, value in change.items() if value is not None))
                break
    return found


def _fits_with(scenario: Scenario, change: dict, capacity_bytes: float, host_capacity_bytes: float | None) -> bool:
    return fits(scenario.replace(**change), capacity_bytes, host_capacity_bytes)


def _changes(scenario: Scenario) -> Iterator[Iterator[dict]]:
    """Yield for each kind of change the changes from small to large, each a dictionary of fields."""
    yield ({"micro_batch_size": size} for size in _halves(scenario.micro_batch_size, least=1))
    levels = ("none", "selective", "full")
    yield ({"activation_checkpointing": level} for level in _later(levels, scenario.activation_checkpointing))
    strategies = _later(("ddp", "zero1", "zero2", "zero3"), scenario.strategy)
    yield ({"strategy": strategy} for strategy in strategies)
    yield _more_ranks(scenario)
    levels = ("none", "optimizer", "optimizer+parameters")
    yield ({"offload": level} for level in _later(levels, scenario.offload) if _can_offload(scenario, level))
    yield ({"context": context} for context in _halves(scenario.context, least=512))


def _more_ranks(scenario: Scenario) -> Iterator[dict]:
    """Double the ranks; for hsdp also the ranks that share a copy, since more copies save nothing; one rank shards."""
    world, shards = scenario.world_size, scenario.shard_size
    while scenario.strategy != "ddp" and world * 2 <= MANY_RANKS:
        world, shards = world * 2, shards and shards * 2
        moved = {"strategy": "fsdp"} if scenario.strategy == "single" else {}
        yield {**moved, "world_size": world, "shard_size": shards}


def _can_offload(scenario: Scenario, level: str) -> bool:
    try:
        scenario.replace(offload=level)
    except ConfigError:
        return False
    return True


def _halves(number: int, least: int) -> Iterator[int]:
    while number // 2 >= least:
        number //= 2
        yield number


def _later(values: tuple[str, ...], given: str) -> tuple[str, ...]:
    return values[values.index(given) + 1 :] if given in values else ()
