"""Judges of lesson 08: the learner's decision is run, measured, and set beside what every other strategy would hold."""

from __future__ import annotations

from labs.checks.curves import judge_same_loss, judge_what_parts_curves
from labs.checks.decisions import (
    STATES,
    ask_all,
    config_of,
    fewest_of,
    held_bytes,
    no_config,
    predicted_bytes,
    predicted_sent_bytes,
    run_of,
    sent_bytes,
    state_bytes,
)
from labs.checks.exercise import Exercise
from labs.checks.verdict import failed, passed, row
from labs.config import STRATEGIES, ModelTrainingConfig
from labs.records import RunResult
from labs.spec import ModelSpec

MULTI_RANK = tuple(strategy for strategy in STRATEGIES if strategy != "single")
TASK = ModelTrainingConfig(world_size=4, batch_size=32, steps=2)
CAP_BYTES = 2_000_000
CAPS_BYTES = (4_000_000, 2_000_000, 1_000_000)  # under which ddp, zero1 and fsdp send the fewest bytes
OTHER_CAPS_BYTES = (700_000, 1_300_000, 3_100_000, 7_900_000)  # under which fsdp fits 2 to 38 layers


def judge_fewest_bytes_held(answer):
    """Measure the four states of the choice; no strategy may hold fewer on its fullest rank."""
    choice, problem = _read(answer(), free=("strategy", "use_mixed_precision"))
    if problem:
        return problem
    run = run_of(choice)
    held, fewest, best = held_bytes(run), *fewest_of(predicted_bytes, [choice.replace(strategy=s) for s in MULTI_RANK])
    found = f"{choice.strategy} holds {held:,} bytes on its fullest rank"
    if held <= fewest:
        return passed(f"{found}; none holds fewer.")
    hint = _held_hint(choice, best, run)
    return failed(f"{found}; fewer is possible.", hint, row("bytes on the fullest rank", fewest, held))


def _held_hint(choice: ModelTrainingConfig, best: ModelTrainingConfig, run: RunResult) -> str:
    if choice.strategy == "hsdp":
        return "hsdp cuts within half of the ranks and keeps two copies. Who cuts among all four?"
    if {choice.strategy, best.strategy} == {"fsdp", "zero3"}:
        return "The right idea. Another engine cuts the same states and keeps no buffers beside them."
    largest = max(STATES, key=lambda state: state_bytes(run, state))
    words = {"optimizer": "optimizer state"}.get(largest, largest.replace("_", " "))
    return (
        f"The largest part, {state_bytes(run, largest):,} bytes, is {words}. "
        "Which strategy cuts every state into one piece a rank?"
    )


def judge_fewest_bytes_sent(answer):
    """Measure what the choice sends in a step; no strategy, precision or accumulation may send less."""
    choice, problem = _read(answer(), free=("strategy", "use_mixed_precision", "gradient_accumulation_steps"))
    if problem:
        return problem
    run = run_of(choice)
    sent = sent_bytes(run)
    options = [TASK.replace(strategy=s, use_mixed_precision=mixed) for s in MULTI_RANK for mixed in (True, False)]
    fewest, best = fewest_of(predicted_sent_bytes, options)
    found = f"{choice.strategy} sends {sent:,.0f} bytes a step from its busiest rank"
    if sent <= fewest * 1.005:
        return passed(f"{found}; none sends fewer.")
    hint = "What a rank does not keep, it has to fetch. Which strategy keeps all, and sends gradients once?"
    if not choice.use_mixed_precision:
        hint = "In fp32 every number on the wire takes 4 bytes. Which setting makes it 2?"
    elif choice.gradient_accumulation_steps > 1 and choice.strategy == best.strategy:
        hint = "Accumulation saves bytes a sample, not bytes an optimizer step."
    return failed(f"{found}; fewer is possible.", hint, _sent_row(fewest, sent))


def judge_largest_model(answer):
    """Measure the choice against the cap; one layer more must not fit under any strategy. Other caps by arithmetic."""
    caps = (CAP_BYTES, *OTHER_CAPS_BYTES)
    for cap_bytes, choice in zip(caps, ask_all(answer, [(cap,) for cap in caps]), strict=True):
        choice, problem = _read(choice, free=("strategy", "use_mixed_precision", "model"))
        if problem := problem or _problem_of_depth(choice, cap_bytes):
            return problem
        if cap_bytes == CAP_BYTES:
            found = (
                f"{choice.model.num_layers} layers under {choice.strategy} hold {held_bytes(run_of(choice)):,} bytes"
            )
    return passed(
        f"{found} on the fullest rank, under the cap of {CAP_BYTES:,}; one layer more fits under no strategy. "
        f"So it is under {len(caps) - 1} other caps, by arithmetic."
    )


def _problem_of_depth(choice: ModelTrainingConfig, cap_bytes: int):
    """Say why a choice is not the deepest model under a cap; None where it is."""
    num_layers = choice.model.num_layers
    if choice.model != ModelSpec.from_name("tiny", num_layers=num_layers):
        found = "The model differs from tiny in more than its layers."
        return failed(found, "ModelSpec.from_name('tiny', num_layers=n) changes its layers alone.")
    held = predicted_bytes(choice)
    if held <= cap_bytes == CAP_BYTES:  # what cannot fit need not run to be refused
        held = held_bytes(run_of(choice))
    found = f"{num_layers} layers under {choice.strategy} hold {held:,} bytes on the fullest rank"
    if held > cap_bytes:
        line = row("bytes on the fullest rank", f"at most {cap_bytes:,}", held)
        return failed(f"{found}, over the cap.", "The cap holds on each rank: look at the fullest one.", line)
    larger = choice.replace(model=ModelSpec.from_name("tiny", num_layers=num_layers + 1))
    fewest, best = fewest_of(predicted_bytes, [larger.replace(strategy=s) for s in MULTI_RANK])
    if fewest > cap_bytes:
        return None
    found += f", under a cap of {cap_bytes:,}"
    if best.strategy == choice.strategy or predicted_bytes(larger) <= cap_bytes:
        return failed(f"{found}; one layer more fits, too.", "Search upwards until the prediction passes the cap.")
    return failed(f"{found}; a deeper model fits under another.", "Which strategy leaves most room on each rank?")


def judge_fewest_sent_under_cap(answer):
    """Run the choice for many caps: it must fit each, and no strategy that fits may send less."""
    caps, words = (*CAPS_BYTES, *_edges_bytes()), []
    for cap_bytes, choice in zip(caps, ask_all(answer, [(cap,) for cap in caps]), strict=True):
        choice, problem = _read(choice, free=("strategy",))
        if problem := problem or _precision_problem(choice) or _problem_under_cap(choice, cap_bytes):
            return problem
        words.append(f"{choice.strategy} under {cap_bytes:,}")
    words = ", ".join(words[: len(CAPS_BYTES)])
    return passed(f"{words}: each fits, and none that fits sends fewer bytes. So it is under {len(caps)} caps.")


def _edges_bytes() -> list[int]:
    """Caps under which a strategy fits to the byte, and those of one byte less: there a guessed limit shows."""
    fitting = {predicted_bytes(TASK.replace(strategy=strategy)) for strategy in MULTI_RANK}
    return sorted({*fitting, *(held - 1 for held in fitting if held > min(fitting))})


def _problem_under_cap(choice: ModelTrainingConfig, cap_bytes: int):
    """Say why a choice is not the best under a cap, by what its run measured; None where it is."""
    run = run_of(choice)
    held, sent, found = held_bytes(run), sent_bytes(run), f"Under a cap of {cap_bytes:,} bytes: {choice.strategy}"
    if held > cap_bytes:
        line = row("bytes on the fullest rank", f"at most {cap_bytes:,}", held)
        return failed(f"{found} does not fit.", "First leave out what does not fit on the fullest rank.", line)
    options = [option for s in MULTI_RANK if predicted_bytes(option := choice.replace(strategy=s)) <= cap_bytes]
    fewest, best = fewest_of(predicted_sent_bytes, options)
    if sent <= fewest * 1.005:
        return None
    hint = f"{len(options)} strategies fit here. Sharding is paid for on the wire: take the least of it that fits."
    return failed(f"{found} fits, and sends more than need be.", hint, _sent_row(fewest, sent))


def _read(choice, free: tuple[str, ...]):
    """Return the choice as a config, and what is wrong with it: that it is none, or changes what is not free."""
    config = config_of(choice)
    return config, _not_the_task(config, free) if config else no_config(choice)


def _not_the_task(choice: ModelTrainingConfig, free: tuple[str, ...]):
    """Say which part of the task a choice changes; None when it changes only what is free."""
    for name in ("world_size", "batch_size", "model", "offload", "gradient_accumulation_steps"):
        wanted = getattr(TASK, name)
        if name not in free and getattr(choice, name) != wanted:
            wanted = "tiny" if name == "model" else wanted
            built = getattr(choice, name) if name != "model" else "another"
            return failed(f"{name} is not as the task says.", f"Keep {name}={wanted}.", row(name, wanted, built))
    return None


def _precision_problem(choice: ModelTrainingConfig):
    if choice.use_mixed_precision:
        return None
    return failed("use_mixed_precision is not as the task says.", "Keep use_mixed_precision=True.")


def _sent_row(fewest: float, sent: float):
    return row("bytes sent by the busiest rank", round(fewest), round(sent))


EXERCISES = {
    "fewest_bytes_held": Exercise(
        asked="Return the config that holds the fewest bytes on its fullest rank.",
        judge=judge_fewest_bytes_held,
        hints=(
            "Four states are held. Which strategies leave one of them whole on every rank?",
            "Run fsdp, zero2 and zero3 on 4 ranks, and compare the four states of the fullest rank.",
            "labs.ModelTrainingConfig(strategy=..., world_size=4, batch_size=32, steps=2), with the strategy that cuts "
            "all four states among all four ranks and keeps no buffers of its own.",
        ),
    ),
    "fewest_bytes_sent": Exercise(
        asked="Return the config whose busiest rank sends the fewest bytes in an optimizer step.",
        judge=judge_fewest_bytes_sent,
        hints=(
            "What must be sent at least once a step, whatever the strategy? What is sent on top, and by whom?",
            "A rank that keeps all parameters never fetches any. Then ask how wide one number on the wire is.",
            "Gradients once, in 2 bytes each: the strategy of lesson 03, with use_mixed_precision=True.",
        ),
    ),
    "largest_model": Exercise(
        asked="Return the config with the most layers whose four states fit into cap_bytes on each rank.",
        judge=judge_largest_model,
        hints=(
            "Which strategy leaves the most room on each rank? Begin with that one.",
            "Raise num_layers one by one, predict the bytes, and keep the last config that fits.",
            "for layers in range(1, 97): make the config with ModelSpec.from_name('tiny', num_layers=layers); "
            "when predicted(config) > cap_bytes, return the one before.",
        ),
    ),
    "fewest_bytes_sent_under_cap": Exercise(
        asked="Return the config that sends the fewest bytes among those whose states fit into cap_bytes a rank.",
        judge=judge_fewest_sent_under_cap,
        hints=(
            "Two demands, one after the other: what fits, and among that, what sends least.",
            "runs holds a measured run of every strategy; held(run) and sent(run) say what you need of it.",
            "fitting = [run for run in runs.values() if max(held(run)) <= cap_bytes]; "
            "then return min(fitting, key=sent).config",
        ),
    ),
    "what_parts_curves": Exercise(
        asked="Return the set of the fields that part the loss curve when they alone are changed.",
        judge=judge_what_parts_curves,
        hints=(
            "For each field ask: is another number computed, or the same number in another place?",
            "Four of the eight only move work or memory around. The other four change samples, steps or rounding.",
            "batch_size, learning_rate and weight_decay change the update; use_mixed_precision changes the rounding.",
        ),
    ),
    "same_loss": Exercise(
        asked="Return a config with another strategy and another world size, and the same losses.",
        judge=judge_same_loss,
        hints=(
            "A strategy decides where the states live. Which fields decide what is computed?",
            "Change strategy and world_size, and leave batch_size alone: it counts the samples of all ranks together.",
            "return config.replace(strategy=..., world_size=...)",
        ),
    ),
}
