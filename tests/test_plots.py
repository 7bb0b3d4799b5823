"""Laws of the pictures and of their text twins: what they show is what the records say."""

import dataclasses
import re
import subprocess
import sys

import pytest
from fake_runs import BASELINE, fake_rank, fake_result, fake_step

from labs import plots
from labs.config import ModelTrainingConfig
from labs.memory import state_bytes
from labs.plots.shard_map import slices
from labs.plots.style import RUN_COLORS, RUN_DASHES, RUN_MARKERS
from labs.plots.view import view_of
from labs.records import STATES, EvalRecord, RunResult, TrafficRecord

PLOTS = (plots.plot_loss, plots.plot_layer_norms, plots.plot_memory, plots.plot_traffic, plots.plot_run)
TABLES = (plots.table_loss, plots.table_layer_norms, plots.table_memory, plots.table_traffic)


def texts(picture) -> str:
    """Collect every word that a picture shows."""
    return "\n".join(t.get_text() for t in picture.findobj(lambda artist: hasattr(artist, "get_text")))


def with_traffic(result: RunResult, **changes) -> RunResult:
    ranks = [dataclasses.replace(r, traffic=dataclasses.replace(r.traffic, **changes)) for r in result.ranks]
    return dataclasses.replace(result, ranks=tuple(ranks))


def with_norms(result: RunResult, layer: str, norm: float) -> RunResult:
    def step(record):
        return dataclasses.replace(record, layer_grad_norms={**record.layer_grad_norms, layer: norm})

    ranks = [dataclasses.replace(rank, steps=tuple(map(step, rank.steps))) for rank in result.ranks]
    return dataclasses.replace(result, ranks=tuple(ranks))


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("fields", [{}, {"strategy": "single", "world_size": 1, "steps": 1}, {"world_size": 8}])
def test_every_plot_of_every_size_of_run_becomes_a_png(plot, fields):
    assert plot(fake_result(**fields)).png(50).startswith(b"\x89PNG")


def test_plots_load_neither_torch_nor_pyplot():
    code = "import sys, labs.plots; print([m for m in ('torch', 'matplotlib.pyplot') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"LABS_PRELOAD": "0"})
    assert done.stdout.strip() == "[]", done.stderr


def test_bars_of_memory_are_as_high_as_the_bytes_of_every_rank_and_state():
    result = fake_result(world_size=2, steps=2)
    solid, hatched = [], []
    states_axes = plots.plot_memory(result).axes[0]
    for axes in (states_axes, *states_axes.child_axes):
        unit = {"KiB": 2**10, "MiB": 2**20}[axes.get_ylabel()[-4:-1]]
        for bar in axes.patches:
            (hatched if bar.get_hatch() else solid).append(bar.get_height() * unit)
    solid, hatched = sorted(solid), sorted(hatched)
    states = [state for rank in result.ranks for state in rank.memory.states.values() if state.predicted_bytes]
    assert solid == pytest.approx(sorted(state.measured_bytes for state in states))
    assert hatched == pytest.approx(sorted(state.predicted_bytes for state in states))


def test_no_two_states_or_runs_differ_by_colour_alone():
    assert set(plots.STATE_COLORS) == set(plots.STATE_HATCHES) == set(STATES)
    assert len(set(plots.STATE_HATCHES.values())) == len(set(plots.STATE_COLORS.values())) == len(STATES)
    looks = list(zip(RUN_DASHES, RUN_MARKERS, strict=True))
    assert len(RUN_COLORS) == len(looks) == len({str(look) for look in looks})


def test_every_state_that_is_drawn_is_also_named_in_words():
    shown = texts(plots.plot_memory(fake_result()))
    assert all(word in shown for word in ("parameters", "gradients", "optimizer", "master weights", "activations"))
    assert "buffers" not in shown  # the fake run has none


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_say_whether_a_number_is_measured_or_predicted(plot):
    assert "measured" in texts(plot(fake_result()))


def test_the_title_of_the_loss_compares_with_the_baseline():
    assert "is below the baseline 3.18" in texts(plots.plot_loss(fake_result(steps=100)))
    assert "is not yet below the baseline 3.18" in texts(plots.plot_loss(fake_result(steps=1)))
    assert BASELINE == 3.18


def test_the_title_of_the_loss_says_when_a_model_overfits():
    def of(*losses):
        evals = tuple(EvalRecord(10 * n + 9, loss, BASELINE) for n, loss in enumerate(losses))
        rank = dataclasses.replace(fake_rank(config, 0), evals=evals)
        return texts(plots.plot_loss(dataclasses.replace(fake_result(steps=40), ranks=(rank,))))

    config = ModelTrainingConfig(steps=40)
    assert "0.50 after step 20, 0.60 at the end" in of(1.0, 0.5, 0.55, 0.6)
    assert "0.50 is below the baseline" in of(1.0, 0.7, 0.6, 0.5)
    assert "0.52 is below the baseline" in of(1.0, 0.5, 0.51, 0.52), "it wavers, no more"


def test_missing_socket_counters_are_said_and_not_drawn_as_zero():
    result = with_traffic(fake_result(world_size=2), sent_bytes=None, received_bytes=None)
    picture = plots.plot_traffic(result)
    assert "not measured" in texts(picture) and len(picture.axes[0].patches) == 2 * 2
    assert "not measured" in str(plots.table_traffic(result))
    plots.plot_comparison([result]).png(50)


def test_gradients_that_vanish_or_overflow_are_counted_in_the_title():
    for bad in (0.0, float("nan"), float("inf")):
        assert "1 of 7 layers" in texts(plots.plot_layer_norms(with_norms(fake_result(steps=3), "blocks.1", bad)))


def test_a_run_that_still_trains_can_be_drawn_at_any_moment():
    config = ModelTrainingConfig(steps=5)
    predicted = tuple(view_of(fake_result(world_size=2)).predicted)
    for num_steps in range(3):
        steps = tuple(fake_step(config, step) for step in range(num_steps))
        picture = plots.plot_run(plots.RunView(config, steps, predicted=predicted))
        picture.png(50)
        assert f"{num_steps} of 5 steps" in texts(picture)


def test_one_rank_sends_nothing_and_the_plot_says_so():
    result = with_traffic(fake_result(strategy="single", world_size=1), sent_bytes=0, predicted_bytes=0, theory_bytes=0)
    assert "sends nothing" in texts(plots.plot_traffic(result))


def test_a_plot_of_something_else_is_refused_in_words():
    with pytest.raises(TypeError, match="RunResult that launch.config. returns, not ModelTrainingConfig"):
        plots.plot_run(ModelTrainingConfig())


def test_kept_runs_are_named_and_equal_names_are_numbered():
    shown = texts(plots.plot_comparison([fake_result(), fake_result(), fake_result(strategy="ddp")]))
    assert all(name in shown for name in ("zero1 x 4, tiny, bf16", "zero1 x 4, tiny, bf16 (2)", "ddp x 4, tiny, bf16"))
    assert "mine" in texts(plots.plot_comparison({"mine": fake_result(steps=2)}))


@pytest.mark.parametrize("table", TABLES)
def test_every_table_reads_aligned_as_text_and_labelled_as_html(table):
    shown = table(fake_result(steps=4))
    assert len({len(line) for line in str(shown).splitlines()[1:]}) == 1  # every line ends in the last column
    page = shown._repr_html_()
    assert page.count('<th scope="col"') == len(shown.columns) and page.count("<tr>") == len(shown.rows) + 1


def test_the_table_of_memory_states_the_difference_in_bytes():
    assert all("+1,234 B" in row for row in plots.table_memory(fake_result(world_size=2)).rows)


def test_a_narrow_page_parts_no_number_from_its_unit():
    page = plots.table_memory(fake_result(world_size=2))._repr_html_()
    breakable = re.sub(r'<span style="white-space:nowrap">[^<]*</span>', "", page)
    assert re.search(r"\d [KMG]iB", page) and not re.search(r"\d [KMG]iB|rank \d", breakable)


def test_names_in_html_tables_are_escaped():
    assert "<b>" not in plots.table_comparison({"<b>": fake_result(steps=2)})._repr_html_()


def test_a_described_run_names_every_rank_and_its_speed():
    text = plots.describe_run(fake_result(world_size=3, batch_size=33))
    assert "33.3 steps a second" in text and all(text.count(f"rank {rank}") == 2 for rank in range(3))


def test_traffic_of_every_rank_has_three_bars():
    result = fake_result(world_size=2)
    heights = sorted(bar.get_height() for bar in plots.plot_traffic(result).axes[0].patches)
    record: TrafficRecord = fake_rank(result.config, 0).traffic
    expected = 2 * [record.theory_bytes, record.predicted_bytes, record.sent_bytes]
    assert [height * 2**20 for height in heights] == pytest.approx(sorted(expected))


SHARDED = [("zero1", 3), ("zero2", 4), ("zero3", 3), ("fsdp", 4), ("fsdp", 3), ("hsdp", 4), ("ddp", 3), ("single", 1)]


@pytest.mark.parametrize(("strategy", "world_size"), SHARDED)
def test_the_slices_of_a_shard_map_cover_every_element_once(strategy, world_size):
    config = ModelTrainingConfig(strategy=strategy, world_size=world_size, batch_size=12)
    for parameter in config.model.parameters():
        own = sorted((s.start, s.stop) for s in slices(config) if s.parameter == parameter)
        assert [start for start, _ in own] == [0, *(stop for _, stop in own[:-1])]
        assert own[-1][1] == parameter.num_elements


@pytest.mark.parametrize(("strategy", "world_size"), SHARDED)
def test_a_rank_owns_as_many_elements_as_its_optimizer_has_bytes_for(strategy, world_size):
    config = ModelTrainingConfig(strategy=strategy, world_size=world_size, batch_size=12)
    rows = plots.table_shard_map(config).rows
    for rank in range(world_size):
        owned = sum(int(row[1 + rank].replace(",", "")) for row in rows)
        padding = state_bytes(config, rank)["optimizer"] - 8 * owned  # AdamW keeps two fp32 numbers an element
        assert 0 <= padding <= (8 * world_size * 2 * len(config.model.parameters()) if "zero" in strategy else 0)


def test_a_shard_map_says_what_is_cut_and_what_stays_whole():
    def title(**fields):
        return texts(plots.plot_shard_map(ModelTrainingConfig(world_size=4, **fields)))

    assert "zero2 cuts optimizer, master weights, gradients in 4; parameters stay whole" in title(strategy="zero2")
    assert "zero1 cuts optimizer, master weights in 4; gradients and parameters stay" in title(strategy="zero1")
    assert "fsdp cuts optimizer, gradients, parameters in 4" in title(strategy="fsdp", use_mixed_precision=False)
    assert "hsdp cuts" in title(strategy="hsdp") and "in 2; no rank holds a whole layer" in title(strategy="hsdp")
    assert "rank 0, 2" in title(strategy="hsdp") and "nothing is cut" in title(strategy="ddp")
