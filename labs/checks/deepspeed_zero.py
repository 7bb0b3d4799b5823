"""Judges of lesson 07: live engines on real ranks against the twin, configs against what DeepSpeed does with them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from labs.checks.answer import Raised, learners_lines, outcomes
from labs.checks.broken_configs import BROKEN, NUM_RANKS, broken_configs
from labs.checks.exercise import Exercise
from labs.checks.mistakes import zero_engines as mistakes
from labs.checks.verdict import Verdict, failed, passed, row
from labs.ds_config import explain
from labs.failures import RankFailed

LIMIT_SECONDS = 20.0
WORLDS = (1, 2, 4, 8)
SAVERS = 4  # ranks of the checkpoint to consolidate: with two, half is as good as one part
SAMPLES = 16


def _on_ranks(harness: str, *arguments, world_size: int) -> list:
    """Run a harness of labs.checks.zero_engines on ranks; returns what each saw."""
    from labs.checks import zero_engines
    from labs.launcher import launch

    return launch(getattr(zero_engines, harness), *arguments, world_size=world_size, timeout_seconds=LIMIT_SECONDS)


def judge_train_step(answer) -> Verdict:
    """Stage 2 first, which most mistakes show in; then 1 and 3."""
    for stage in (2, 1, 3):
        try:
            ranks = _on_ranks("stepped", answer, stage, world_size=2)
        except RankFailed as error:
            if hint := mistakes.step_hint(error.traceback):
                return failed(f"The engine raised an error.\n{learners_lines(error.traceback)}", hint)
            raise
        if verdict := mistakes.of_steps(ranks, accumulation=2, micro_batch_size=2):
            return verdict
    return passed("Two steps of two micro-batches on two ranks: norms and weights of the twin at stages 1, 2 and 3.")


def _wanted(world_size: int) -> dict:
    return {
        "train_batch_size": SAMPLES,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": SAMPLES // 2 // world_size,
        "zero_stage": 2,
        "precision": "fp32",
        "offload_optimizer": "none",
        "gradient_clipping": 0.5,
        "reduce_bucket_size": 20_000,
    }


_HINTS = {
    "train_batch_size": "train_batch_size counts the samples of all ranks and micro-batches together.",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu is what one rank computes at a time.",
    "gradient_accumulation_steps": "The accumulation follows from the other two and the ranks: leave it out.",
    "gradient_clipping": "gradient_clipping stands at the top level; without it DeepSpeed clips at 1.0.",
    "reduce_bucket_size": "reduce_bucket_size belongs into zero_optimization, in elements.",
    "precision": "Compute is to be in fp32: leave fp16 and bf16 out.",
    "offload_optimizer": "Nothing is to be offloaded.",
}
_STAGE_HINTS = {
    0: "At stage 0 every rank holds everything: it is plain data parallelism, with right numbers.",
    1: "Stage 1 cuts the optimizer alone; whole gradients wait from micro-batch to micro-batch.",
    3: "Stage 3 cuts the parameters, too; they were to stay whole.",
}
_ALL_FIVE = "Return the dictionary that you were given, with all five configs in it."


def judge_write_config(answer) -> Verdict:
    """What DeepSpeed makes of it on 1, 2, 4 and 8 ranks; then a live run on 2."""
    configs = dict(zip(WORLDS, outcomes(answer, [(world,) for world in WORLDS]), strict=True))
    for world, config in configs.items():
        where = f"On {world} rank{'s' * (world > 1)}"
        if verdict := _no_config(config) or _findings(config, world, where) or _own_optimizer(config):
            return verdict
        holds = explain(config, world, accelerator="cpu").effective
        for key, value in _wanted(world).items():
            if holds.get(key) != value:
                hint = _STAGE_HINTS.get(holds[key], "") if key == "zero_stage" else _HINTS[key]
                found = f"{where} it does something else than was asked for."
                return failed(found, hint, row(key, value, holds.get(key)))
    return _live(configs[2])


def _no_config(config, hint: str = "Return the config as a dictionary.") -> Verdict | None:
    if isinstance(config, Raised):
        from labs.checks.answer import AnswerRaised

        raise AnswerRaised(config.traceback)
    if not isinstance(config, dict):
        built = type(config).__name__
        return failed(f"The function returned {built}.", hint, row("type", "dict", built))
    return None


def _own_optimizer(config: dict) -> Verdict | None:
    if "optimizer" not in config:
        return None
    found = "The config asks for an optimizer, and the script passes its own to deepspeed.initialize."
    hint = "The script's wins, and the block is ignored without a word: leave it out."
    return failed(found, hint, row("optimizer", "the script's own", config["optimizer"]))


def _findings(config: dict, world: int, where: str) -> Verdict | None:
    """The worst of what `explain` finds, as a verdict."""
    for finding in explain(config, world, accelerator="cpu").findings:
        if finding.level != "note":
            takes = "refuses it" if finding.level == "error" else "takes it"
            found = f"{where} DeepSpeed {takes}, and at {finding.key}: {finding.what}; {finding.why}."
            hint = f"{finding.key}: {finding.fix}."
            return failed(found, hint, row(f"{finding.level}s at {finding.key}", "none", finding.what))
    return None


def _live(config: dict) -> Verdict:
    ranks = _on_ranks("ran", config, 0.5, world_size=2)
    for rank, run in enumerate(ranks):
        norm = run.twin.norms[-1]
        if not abs(run.facts.grad_norm - norm) <= 1e-3 * norm or run.wrong_weights:  # a norm of nan is wrong, too
            hint = "The engine trains otherwise than the twin does with batches of 16 and clipping at 0.5."
            return failed(f"Rank {rank} left the twin.", hint, row("global norm", norm, run.facts.grad_norm))
    moment = ranks[0].facts.moments["micro-batch 1"]
    whole = 4 * ranks[0].facts.num_parameters
    return passed(
        f"Right on {', '.join(map(str, WORLDS))} ranks. Live on 2: the twin's norms and weights; a rank holds "
        f"{moment.held['parameters']:,} bytes of parameters, all of them, and {moment.held['gradients']:,} of "
        f"{whole:,} bytes of gradients."
    )


def judge_mend(answer) -> Verdict:
    """Each of the five: no finding, what was wanted, nothing else; then a live step with all of them."""
    from labs.checks.reference import deepspeed_zero as right

    mended = outcomes(answer, [(broken_configs(),)])[0]
    if verdict := _no_config(mended, _ALL_FIVE):
        return verdict
    expected = right.mend(broken_configs())
    for name, case in BROKEN.items():
        if verdict := _of_mended(name, case, mended, expected[name]):
            return verdict
    return _live_mended([mended[name] for name in BROKEN], [expected[name] for name in BROKEN])


def _of_mended(name: str, case, mended: dict, expected: dict) -> Verdict | None:
    config = mended.get(name)
    if not isinstance(config, dict):
        return failed(f"{name}: there is no config.", _ALL_FIVE, row(name, "a config", type(config).__name__))
    if verdict := _findings(config, NUM_RANKS, f"{name}:"):
        return verdict
    holds, wanted = (explain(one, NUM_RANKS, accelerator="cpu").effective for one in (config, expected))
    for key in dict.fromkeys((*wanted, *holds)):
        if holds.get(key) != wanted.get(key):
            found = f"{name}: DeepSpeed takes it, and does something else than was wanted ({case.wanted})."
            return failed(found, _mend_hint(name, key, case), row(key, wanted.get(key), holds.get(key)))
    return None


def _mend_hint(name: str, key: str, case) -> str:
    if name == "batch":
        return "The number of samples was right. Which of the other two follows from it?"
    if key == "precision":
        return "Leaving the block out ends the error and the bf16. Only its loss scale has to go."
    if name == "offload":
        return "Without offload_param there is nothing to offload. At which stage does it work?"
    if name == "threshold":
        return "The threshold is a key of zero_optimization; left out, its default keeps small parameters whole."
    if name == "template":
        return 'Left out, "auto" becomes the default. Write the numbers that were wanted.'
    return f"Change what is broken, and nothing else: {case.wanted}."


def _live_mended(mended: list[dict], expected: list[dict]) -> Verdict:
    runs = _on_ranks("ran_each", mended, world_size=NUM_RANKS)[0]
    for name, config, run in zip(BROKEN, expected, runs, strict=True):
        holds = explain(config, NUM_RANKS, accelerator="cpu").effective
        built = (run.facts.stage, run.is_whole, run.dtype)
        wanted = (holds["zero_stage"], holds["zero_stage"] < 3, _dtype(holds["precision"]))
        if built != wanted:
            rows = row("stage, parameters whole between steps, type", str(wanted), str(built))
            return failed(f"{name}: the live engine does something else.", BROKEN[name].wanted + ".", rows)
    return passed(f"All five run on {NUM_RANKS} ranks and do what was wanted: {', '.join(BROKEN)}.")


def _dtype(precision: str) -> str:
    return {"fp32": "float32", "bf16": "bfloat16"}[precision]


def judge_look(answer) -> Verdict:
    ranks = _on_ranks("looked", answer, world_size=2)
    return mistakes.of_looks(ranks) or passed(
        "Three parameters on two ranks: whole on every rank, gathered one by one, and parts again afterwards."
    )


@functools.cache
def _checkpoint():
    """A checkpoint of SAVERS ranks, as {file: bytes}, so that every answer gets a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        return _on_ranks("saved", folder, world_size=SAVERS)[0]


def judge_consolidate(answer) -> Verdict:
    checkpoint = _checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in checkpoint.files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        full = _on_ranks("consolidated", answer, folder, world_size=1)[0]
    if isinstance(full, Raised):
        return _raised(full)
    return mistakes.of_state_dict(full, checkpoint.weights) or passed(
        f"All {len(checkpoint.weights)} parameters come out of the parts of {SAVERS} ranks, to the bit."
    )


def _raised(full: Raised) -> Verdict:
    from labs.checks.answer import AnswerRaised

    if "invalid for input of size" in full.traceback or "shape" in str(full):
        found = f"Your function raised an error.\n{learners_lines(full.traceback)}"
        hint = "A parameter's parts are padded to the same length: join those of all ranks, cut at shape.numel()."
        return failed(found, hint)
    raise AnswerRaised(full.traceback)


EXERCISES = {
    "train_step": Exercise(
        asked="Make one optimizer step of several micro-batches with a DeepSpeed engine.",
        judge=judge_train_step,
        hints=(
            "What tells DeepSpeed that a micro-batch is over?",
            "For each micro-batch: forward, engine.backward(loss), engine.step(). The engine divides and counts.",
            "for batch in micro_batches: engine.backward(engine(*batch)); engine.step()",
        ),
    ),
    "write_config": Exercise(
        asked="Write the config for 16 samples a step, 2 at a time; gradients and optimizer cut, parameters whole.",
        judge=judge_write_config,
        hints=(
            "Which of the three batch numbers changes with the ranks, and must therefore not be written?",
            "Which stage cuts gradients, and no parameters? Clipping stands at the top, the bucket in the block.",
            '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, '
            '"zero_optimization": {"stage": 2, "reduce_bucket_size": 20000}}',
        ),
    ),
    "mend": Exercise(
        asked="Mend five configs so that DeepSpeed does what their owners want, and nothing else.",
        judge=judge_mend,
        hints=(
            "labs.explain(config, world_size=2) says for each what is refused or ignored.",
            "One number; two keys too many; a stage too low; a key in the wrong place; three texts for numbers.",
            'batch: accumulation 4. loss scale: {"enabled": True}. offload: stage 3. threshold: into '
            "zero_optimization. template: 2, 1.0 and 20000.",
        ),
    ),
    "look": Exercise(
        asked="Return a copy of one whole parameter of a ZeRO-3 engine, on every rank.",
        judge=judge_look,
        hints=(
            "Outside of its computation a parameter is an empty placeholder. Who can put its parts together?",
            "deepspeed.zero.GatheredParameters(parameter) is a context: inside, the parameter is whole, on all ranks.",
            "parameter = dict(engine.module.named_parameters())[name]; with deepspeed.zero.GatheredParameters("
            "parameter): return parameter.detach().clone()",
        ),
    ),
    "consolidate": Exercise(
        asked="Build the full state dict {name: tensor} from the files of a ZeRO-3 checkpoint.",
        judge=judge_consolidate,
        hints=(
            "How is one parameter cut, and what is at the end of the last rank's part?",
            "Walk through the parameters with an offset: a part has ceil(n / ranks) elements; join the ranks' parts.",
            "part = -(-shape.numel() // len(flats)); torch.cat([flat[offset:offset + part] for flat in flats])"
            "[:shape.numel()].view(shape); offset += part",
        ),
    ),
}
