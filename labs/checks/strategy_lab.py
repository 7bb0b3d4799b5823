"""Judges of lesson 08: the learner's decision is run, measured, and set beside what every other strategy would hold."""

from __future__ import annotations

from labs import memory
from labs.checks.exercise import Exercise
from labs.checks.verdict import failed, passed, row
from labs.config import STRATEGIES, ModelTrainingConfig
from labs.launcher import launch
from labs.records import RunResult
from labs.schedule import run_collectives
from labs.spec import ModelSpec
from labs.traffic import predict

STATES = ("parameters", "gradients", "optimizer", "master_weights")
MULTI_RANK = tuple(strategy for strategy in STRATEGIES if strategy != "single")
TASK = ModelTrainingConfig(world_size=4, batch_size=32, steps=2)
CAP_BYTES = 2_000_000
LARGEST_DIFFERENCE = 1e-4  # nats, in fp32: another order of sums stays a tenth below it, another batch far above
ARGUMENT = "It must return a labs.ModelTrainingConfig."


def judge_fewest_bytes_held(answer):
    """Measure the four states of the choice; no strategy may hold fewer on its fullest rank."""
    choice = answer()
    if problem := _not_the_task(choice, free=("strategy", "use_mixed_precision")):
        return problem
    run = _run(choice)
    held, fewest, best = _held(run), *_fewest(_predicted_bytes, [choice.replace(strategy=s) for s in MULTI_RANK])
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
    largest = max(STATES, key=lambda state: _state(run, state))
    words = {"optimizer": "optimizer state"}.get(largest, largest.replace("_", " "))
    return (
        f"The largest part, {_state(run, largest):,} bytes, is {words}. "
        "Which strategy cuts every state into one piece a rank?"
    )


def judge_fewest_bytes_sent(answer):
    """Measure what the choice sends in a step; no strategy, precision or accumulation may send less."""
    choice = answer()
    if problem := _not_the_task(choice, free=("strategy", "use_mixed_precision", "gradient_accumulation_steps")):
        return problem
    run = _run(choice)
    sent = max(rank.traffic.sent_bytes or rank.traffic.predicted_bytes for rank in run.ranks) / run.config.steps
    options = [TASK.replace(strategy=s, use_mixed_precision=mixed) for s in MULTI_RANK for mixed in (True, False)]
    fewest, best = _fewest(_predicted_sent, options)
    found = f"{choice.strategy} sends {sent:,.0f} bytes a step from its busiest rank"
    if sent <= fewest * 1.005:
        return passed(f"{found}; none sends fewer.")
    hint = "What a rank does not keep, it has to fetch. Which strategy keeps all, and sends gradients once?"
    if not choice.use_mixed_precision:
        hint = "In fp32 every number on the wire takes 4 bytes. Which setting makes it 2?"
    elif choice.gradient_accumulation_steps > 1 and choice.strategy == best.strategy:
        hint = "Accumulation saves bytes a sample, not bytes an optimizer step."
    return failed(
        f"{found}; fewer is possible.", hint, row("bytes sent by the busiest rank", round(fewest), round(sent))
    )


def judge_largest_model(answer):
    """Measure the choice against the cap; one layer more must not fit under any strategy."""
    choice = answer(CAP_BYTES)
    if problem := _not_the_task(choice, free=("strategy", "use_mixed_precision", "model")):
        return problem
    tiny = ModelSpec.from_name("tiny", num_layers=choice.model.num_layers)
    if choice.model != tiny:
        found = "The model differs from tiny in more than its layers."
        return failed(found, "ModelSpec.from_name('tiny', num_layers=n) changes its layers alone.")
    held = _predicted_bytes(choice)
    held = held if held > CAP_BYTES else _held(_run(choice))  # what cannot fit need not run to be refused
    found = f"{choice.model.num_layers} layers under {choice.strategy} hold {held:,} bytes on the fullest rank"
    if held > CAP_BYTES:
        line = row("bytes on the fullest rank", f"at most {CAP_BYTES:,}", held)
        return failed(f"{found}, over the cap.", "The cap holds on each rank: look at the fullest one.", line)
    larger = choice.replace(model=ModelSpec.from_name("tiny", num_layers=choice.model.num_layers + 1))
    fewest, best = _fewest(_predicted_bytes, [larger.replace(strategy=s) for s in MULTI_RANK])
    if fewest > CAP_BYTES:
        return passed(f"{found}, under the cap of {CAP_BYTES:,}; one layer more fits under no strategy.")
    if best.strategy == choice.strategy or _predicted_bytes(larger) <= CAP_BYTES:
        return failed(f"{found}; one layer more fits, too.", "Search upwards until the prediction passes the cap.")
    return failed(f"{found}; a deeper model fits under another.", "Which strategy leaves most room on each rank?")


def judge_same_loss(answer):
    """Run the choice beside the given config: another strategy, another number of ranks, the same losses."""
    given = TASK.replace(batch_size=16, steps=6, use_mixed_precision=False)
    choice = answer(given)
    if not isinstance(choice, ModelTrainingConfig):
        return failed(f"The function returned {choice!r}.", ARGUMENT)
    same = [name for name in ("strategy", "world_size") if getattr(choice, name) == getattr(given, name)]
    if same:
        found = f"Both runs have the same {' and '.join(same)}."
        return failed(found, "Change the strategy and the number of ranks.")
    if choice.steps != given.steps:
        return failed(f"{choice.steps} steps cannot be laid over {given.steps}.", "Keep the number of steps.")
    first, second = launch(given), launch(choice.replace(early_stopping_patience=None))
    largest = max(abs(a - b) for a, b in zip(first.losses, second.losses, strict=True))
    if largest < LARGEST_DIFFERENCE:
        found = f"{choice.strategy} on {choice.world_size} follows ddp on 4 to within {LARGEST_DIFFERENCE} nats."
        return passed(found)
    line = row("largest difference of a loss [nats]", f"below {LARGEST_DIFFERENCE:g}", largest)
    return failed("The curves part.", _curve_hint(given, choice), line)


def _curve_hint(given: ModelTrainingConfig, choice: ModelTrainingConfig) -> str:
    if choice.batch_size != given.batch_size:
        return "batch_size counts the samples of all ranks together: it must not grow or shrink with the ranks."
    free = ("strategy", "world_size", "gradient_accumulation_steps", "offload", "activation_checkpointing")
    changed = [
        name
        for name in ModelTrainingConfig.model_fields
        if name not in free and getattr(given, name) != getattr(choice, name)
    ]
    return f"These fields decide what is computed, not where, and were changed: {', '.join(changed) or 'none'}."


def _not_the_task(choice, free: tuple[str, ...]):
    """Say which part of the task a choice changes; None when it changes only what is free."""
    if not isinstance(choice, ModelTrainingConfig):
        return failed(f"The function returned {choice!r}.", ARGUMENT)
    for name in ("world_size", "batch_size", "model", "offload", "gradient_accumulation_steps"):
        wanted = getattr(TASK, name)
        if name not in free and getattr(choice, name) != wanted:
            wanted = "tiny" if name == "model" else wanted
            built = getattr(choice, name) if name != "model" else "another"
            return failed(f"{name} is not as the task says.", f"Keep {name}={wanted}.", row(name, wanted, built))
    return None


def _run(choice: ModelTrainingConfig) -> RunResult:
    return launch(choice.replace(steps=2, warmup_steps=0, early_stopping_patience=None), timeout_seconds=60)


def _state(run: RunResult, state: str) -> int:
    return max(rank.memory.states[state].measured_bytes for rank in run.ranks)


def _held(run: RunResult) -> int:
    return max(sum(rank.memory.states[state].measured_bytes for state in STATES) for rank in run.ranks)


def _predicted_bytes(config: ModelTrainingConfig) -> int:
    by_rank = [memory.state_bytes(config, rank) for rank in range(config.world_size)]
    return max(sum(rank[state] for state in STATES) for rank in by_rank)


def _predicted_sent(config: ModelTrainingConfig) -> float:
    return max(predict(run_collectives(config, rank), rank)[0] for rank in range(config.world_size)) / config.steps


def _fewest(cost, configs) -> tuple[float, ModelTrainingConfig]:
    best = min(configs, key=cost)
    return cost(best), best


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
