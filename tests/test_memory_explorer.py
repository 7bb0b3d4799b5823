"""The memory explorer and what lesson 01 calculates, against published tables, planning and hand counts."""

import subprocess
import sys

import pytest

from labs.checks.reference import memory_math
from labs.config import STRATEGIES, ConfigError
from labs.fit import what_breaks_first
from labs.footprint import footprint
from labs.named_models import NAMED_MODELS
from labs.plots.footprints import footprints, parts_of, plot_footprints, table_footprints
from labs.scenario import Scenario
from labs.spec import ModelSpec
from labs.units import GB, GiB
from labs.widgets.explorer_controls import CAPACITIES, CHOICES
from labs.widgets.memory_explorer import memory_explorer

PATIENCE_SECONDS = 60
PLAN = Scenario(model="llama-3-8b", strategy="zero3", world_size=8)
# Source: Rajbhandari et al. 2020 (arXiv 1910.02054), table 1 [GB]: ranks, then stages 1, 2 and 3.
TABLE_1 = {
    7_500_000_000: {4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88), 256: (30.4, 15.4, 0.47)},
    128_000_000_000: {4: (896, 704, 512), 16: (608, 368, 128), 64: (536, 284, 32), 1024: (513, 257, 2)},
    1_000_000_000_000: {
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}


@pytest.fixture
def explorer():
    explorer = memory_explorer(PLAN)
    yield explorer
    assert explorer.wait(PATIENCE_SECONDS)


def choose(explorer, **choices):
    for name, value in choices.items():
        getattr(explorer.controls, name).value = value
    assert explorer.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("num_params", TABLE_1)
def test_the_lessons_arithmetic_gives_table_1_of_the_zero_paper(num_params):
    for ranks, row in TABLE_1[num_params].items():
        for stage, quoted in zip(("zero1", "zero2", "zero3"), row, strict=True):
            held = memory_math.per_rank_bytes(stage, ranks, [num_params], 1)
            assert sum(held.values()) / GB == pytest.approx(quoted, rel=0.01)


@pytest.mark.parametrize("precision", memory_math.WIDTHS)
@pytest.mark.parametrize("optimizer", memory_math.OPTIMIZER_TENSORS)
def test_the_lessons_states_are_those_of_planning(precision, optimizer):
    plan = Scenario(model="gpt2", strategy="single", precision=precision, optimizer=optimizer)
    planned = footprint(plan).states
    for state, num_bytes in memory_math.state_bytes(124_439_808, precision, optimizer).items():  # GPT-2, as published
        assert num_bytes == planned[state]


def test_the_explorer_needs_no_torch():
    program = "import labs.widgets.memory_explorer as m, sys; m.memory_explorer(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_controls_describe_the_scenario_that_they_were_given():
    given = PLAN.replace(precision="bf16", optimizer="momentum", micro_batch_size=3, context=3000, world_size=12)
    assert memory_explorer(given).scenario == given


def test_every_control_has_a_label_and_every_choice_can_be_planned(explorer):
    assert all(control.description for control in explorer.controls.all.values())
    for name, labels in CHOICES.items():
        for value in labels:
            choose(explorer, **{name: value})
            assert getattr(explorer.scenario, name) == value
        choose(explorer, **{name: getattr(PLAN, name)})


def test_every_published_model_is_offered():
    offered = {value for _, value in memory_explorer(PLAN).controls.model.options}
    assert offered >= NAMED_MODELS.keys()


def test_the_sentence_is_that_of_planning_and_the_table_has_every_strategy(explorer):
    choose(explorer, world_size=64, capacity_gib=24)
    sentence = what_breaks_first(PLAN.replace(world_size=64), 24 * GiB)
    assert sentence.replace("'", "&#x27;") in explorer.verdict.value
    assert all(f">{strategy}<" in explorer.table.value for strategy in STRATEGIES)


def test_a_move_changes_words_and_picture(explorer):
    before = explorer.verdict.value, explorer.table.value, explorer.picture.value
    choose(explorer, micro_batch_size=64)
    after = explorer.verdict.value, explorer.table.value, explorer.picture.value
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert bytes(after[2]).startswith(b"\x89PNG")


def test_a_refused_choice_is_said_and_the_other_strategies_stay_in_the_picture(explorer):
    choose(explorer, strategy="ddp", offload="optimizer")
    with pytest.raises(ConfigError):
        _ = explorer.scenario
    assert "Not possible" in explorer.verdict.value and explorer.picture.layout.display == ""
    choose(explorer, optimizer="adamw-8bit")
    assert "Not possible" in explorer.verdict.value and explorer.picture.layout.display == "none"
    choose(explorer, offload="none")
    assert "Not possible" not in explorer.verdict.value and explorer.picture.layout.display == ""


def test_the_context_stays_within_what_a_model_with_learned_positions_can_read(explorer):
    choose(explorer, context=16384, model="gpt2")
    assert explorer.scenario.context == 1024
    choose(explorer, model="llama-3.1-405b", context=131072)
    assert explorer.scenario.context == 131072


def test_only_a_mixture_of_experts_is_warned_about(explorer):
    assert explorer.warning.value == ""
    choose(explorer, model="mixtral-8x7b")
    assert "12.9 B" in explorer.warning.value and "46.7 B" in explorer.warning.value


def test_an_unknown_capacity_is_refused_with_those_that_are_offered():
    with pytest.raises(ConfigError, match=f"{CAPACITIES[0]}, {CAPACITIES[1]}"):
        memory_explorer(PLAN, capacity_gib=81)


def test_without_a_kernel_there_are_the_picture_and_the_table(explorer):
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == str(table_footprints(PLAN, 80 * GiB))
    assert len(bundle["image/png"]) > 10_000


@pytest.mark.parametrize("model", ["gpt2-xl", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_the_parts_that_are_drawn_add_up_to_the_peak(model, offload):
    plan = PLAN.replace(model=ModelSpec.from_name(model), offload=offload, context=1024, gradient_accumulation_steps=2)
    counted = [found for found in footprints(plan).values() if not isinstance(found, str)]
    assert counted and all(sum(parts_of(found).values()) == found.peak_bytes for found in counted)


def test_the_bars_say_in_words_which_strategies_fit():
    words = [label.get_text() for label in plot_footprints(PLAN, 80 * GiB).axes[0].get_xticklabels()]
    for strategy, found in footprints(PLAN).items():
        label = next(word for word in words if strategy in word)
        assert ("fits" in label) == (found.peak_bytes <= 80 * GiB)
