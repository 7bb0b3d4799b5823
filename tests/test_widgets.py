"""The strategy lab without a browser: clicks, records and ends are played by the test, most of them without ranks."""

import threading
import time

import pytest
from fake_lab import PATIENCE_SECONDS, FakeRun, draw_at_once, look_at, look_at_compare, run_to_end, settle
from fake_runs import fake_result

from labs.config import STRATEGIES, ConfigError, ModelTrainingConfig
from labs.spec import ModelSpec
from labs.widgets import cells
from labs.widgets.background import Background
from labs.widgets.controls import STRATEGIES as EXPLAINED
from labs.widgets.export_page import code_for, commands_for, needed_fields
from labs.widgets.strategy_lab import StrategyLab, strategy_lab


@pytest.fixture(autouse=True)
def pictures_drawn_at_once(monkeypatch, request):
    """Drawing is tested in test_plots.py; only the test with real ranks draws here too."""
    if "real_run" not in request.node.name:
        draw_at_once(monkeypatch)


@pytest.fixture
def fake():
    return FakeRun()


@pytest.fixture
def lab(fake):
    config = ModelTrainingConfig(strategy="ddp", world_size=2, steps=6, model="tiny")
    lab = StrategyLab(config, start=fake.start)
    yield lab
    lab.close()


def test_the_controls_describe_the_config_that_they_were_given():
    given = ModelTrainingConfig(
        strategy="zero2", world_size=4, batch_size=64, gradient_accumulation_steps=4, learning_rate=3.3e-4, steps=17,
        use_mixed_precision=False, max_grad_norm=None, offload=True, activation_checkpointing=True, weight_decay=0.3,
        model=ModelSpec(num_layers=3), seed=5,
    )  # fmt: skip
    assert StrategyLab(given).config == given


def test_every_strategy_is_offered_and_explained():
    assert tuple(EXPLAINED) == STRATEGIES


def test_every_control_has_a_label(lab):
    assert all(control.description for control in lab.controls.all.values())
    assert len(lab.controls.all) == 11


def test_a_choice_that_cannot_run_shows_its_sentence_and_disables_run(lab):
    lab.controls.world_size.value = 3
    with pytest.raises(ConfigError) as problem:
        _ = lab.config
    assert str(problem.value) in lab.verdict.value and "try batch_size=33" in lab.verdict.value
    assert lab.run_button.disabled and lab.export.save_button.disabled
    lab.controls.batch_size.value = 33
    assert not lab.run_button.disabled and not lab.export.save_button.disabled


def test_steps_below_the_warm_up_shorten_it_as_a_config_does(lab):
    lab.controls.steps.value = 3
    assert lab.config == ModelTrainingConfig(strategy="ddp", world_size=2, steps=3, model="tiny")


def test_predicted_bytes_stand_there_before_the_run(lab):
    lab.controls.mixed_precision.value = False
    # fp32 Adam holds 4 + 4 + 8 bytes a parameter; the tiny model has 220,544 parameters.
    assert lab.config.model.num_parameters == 220_544
    assert "Each rank will hold 3.37 MiB of states" in lab.verdict.value
    assert all(bytes(look_at(lab, page)).startswith(b"\x89PNG") for page in ("Memory", "Wire", "Shards"))
    for page in ("Loss", "Norms", "Timeline"):
        assert look_at(lab, page) == b"" and lab.pages.pages[page].words.value


def test_a_run_is_followed_live_and_kept(lab, fake):
    settle(lab)
    before = lab.pages.pages["Loss"].image.value
    lab.run_button.click()
    assert lab.page == "Loss"  # which grows; before, it is empty
    assert lab.run_button.disabled and not lab.cancel_button.disabled
    assert fake.started.wait(PATIENCE_SECONDS) and fake.config == lab.config
    fake.emit(4)
    assert lab._background.wait_until_idle(PATIENCE_SECONDS)
    assert lab.progress.value == 4 and lab.progress.max == 6
    assert "step 4 of 6" in lab.status.value and lab.pages.pages["Loss"].image.value != before
    result = fake_result(strategy="ddp", world_size=2, steps=6)
    fake.end(result)
    settle(lab)
    assert lab.results == {"ddp x 2, tiny, bf16": result}
    assert lab.progress.value == 6 and lab.progress.bar_style == "success"
    assert not lab.run_button.disabled and lab.cancel_button.disabled
    look_at(lab, "Memory")
    assert "Bytes held, predicted / measured" in lab.pages.pages["Memory"].table.value


def test_a_finished_run_stays_on_the_screen_while_the_next_is_chosen(lab, fake):
    run_to_end(lab, fake)
    shown = look_at(lab, "Shards")
    lab.controls.strategy.value = "zero3"
    settle(lab)
    assert lab.pages.pages["Shards"].image.value == shown
    lab.shown.control.value = lab.shown.control.options[0]
    settle(lab)
    assert lab.pages.pages["Shards"].image.value != shown


def test_cancel_ends_the_run_and_says_how_far_it_came(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.emit(2)
    lab.cancel_button.click()
    assert fake.cancelled.wait(PATIENCE_SECONDS) and lab.cancel_button.disabled
    fake.end(RuntimeError("the run was cancelled"), "cancelled")
    settle(lab)
    assert "cancelled after 2 of 6 steps" in lab.status.value and lab.error.value == "" and not lab.results
    assert not lab.run_button.disabled


def test_cancel_reaches_a_run_that_is_only_about_to_start(fake):
    gate = threading.Event()

    def slow_start(config, on_record, on_end):
        assert gate.wait(PATIENCE_SECONDS)
        return fake.start(config, on_record, on_end)

    lab = StrategyLab(ModelTrainingConfig(steps=6), start=slow_start)
    lab.run_button.click()
    lab.cancel_button.click()
    gate.set()
    assert fake.cancelled.wait(PATIENCE_SECONDS)
    lab.close()


def test_a_failed_run_shows_the_text_of_its_error_in_place(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.end(RuntimeError("rank 1 of 2 failed\n<cell 3>, line 4"), "failed")
    settle(lab)
    assert "rank 1 of 2 failed\n&lt;cell 3&gt;, line 4" in lab.error.value
    assert "failed after 0 of 6 steps" in lab.status.value and lab.progress.bar_style == "danger"
    run_to_end(lab, fake)
    assert lab.error.value == "" and len(lab.results) == 1


def test_a_start_that_raises_is_shown_and_the_lab_goes_on():
    def refuse(config, on_record, on_end):
        raise OSError("no processes left")

    lab = StrategyLab(ModelTrainingConfig(steps=6), start=refuse)
    lab.run_button.click()
    settle(lab)
    assert "no processes left" in lab.error.value and not lab.run_button.disabled
    lab.close()


def test_a_second_click_on_run_starts_nothing(lab, fake):
    starts = []
    lab._start = lambda *args, **kwargs: starts.append(1) or fake.start(*args, **kwargs)
    lab.run_button.click()
    lab._run_clicked()  # a click that was under way when the button was disabled
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.end(fake_result(strategy="ddp", world_size=2, steps=6))
    settle(lab)
    assert len(starts) == 1


def test_kept_runs_can_be_renamed_hidden_and_removed(lab, fake):
    run_to_end(lab, fake)
    run_to_end(lab, fake)
    first, second = lab.compare.kept.rows
    assert list(lab.results) == ["ddp x 2, tiny, bf16", "ddp x 2, tiny, bf16 (2)"]
    first.name.value = "mine"
    second.name.value = "mine"
    assert list(lab.results) == ["mine", "mine (2)"]
    second.name.value = "  "
    assert list(lab.results) == ["mine", "mine (2)"]
    first.overlay.value = False
    look_at_compare(lab)
    assert list(lab.compare.kept.overlaid) == ["mine (2)"] and "mine (2)" in lab.compare.table.value
    assert lab.shown.control.options[1:] == lab.export.what.options[1:] == ("mine", "mine (2)")
    second.remove_button.click()
    first.remove_button.click()
    settle(lab)
    assert not lab.results and lab.compare.image.value == b""


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"strategy": "single"},
        {"strategy": "zero3", "world_size": 4, "steps": 5, "offload": True},
        {"strategy": "fsdp", "steps": 100, "warmup_steps": 3, "max_grad_norm": None, "model": "base"},
        {"model": ModelSpec(num_layers=2, tied_embedding=False)},
        {"data": "digits"},
        {"data": "wine", "model": ModelSpec(kind="mlp", num_features=13, num_classes=3, num_layers=7)},
    ],
)
def test_the_code_that_is_shown_builds_the_same_config(fields):
    config = ModelTrainingConfig(**fields)
    lines = code_for(config).splitlines()
    names: dict = {}
    exec("\n".join(lines[:-2]), names)  # without launch and plot
    assert names["config"] == config
    assert lines[-2:] == ["result = launch(config)", "plot_run(result)"]


def test_the_code_names_only_what_differs_from_the_defaults():
    assert set(needed_fields(ModelTrainingConfig(steps=7))) == {"strategy", "world_size", "steps"}


def test_an_exported_config_is_read_back_by_the_command_line(lab, tmp_path):
    from labs.train_command import build_parser, read_config

    lab.export.file_name.value = str(tmp_path / "run.json")
    lab.controls.learning_rate.value = 2e-4
    lab.export.save_button.click()
    assert "written" in lab.export.message.value
    assert read_config(build_parser().parse_args(["--config", str(tmp_path / "run.json")])) == lab.config
    lab.export.file_name.value = str(tmp_path / "missing" / "run.json")
    lab.export.save_button.click()
    assert "could not be written" in lab.export.message.value


def test_a_kept_run_is_exported_whole_and_read_back(lab, fake, tmp_path):
    from labs.records import RunResult
    from labs.train_command import build_parser, read_config

    run_to_end(lab, fake)
    lab.controls.strategy.value = "zero3"
    (name,) = lab.results
    lab.export.what.value = name
    lab.export.file_name.value = str(tmp_path / "kept.json")
    assert "strategy=&#x27;ddp&#x27;" in lab.export.code.value
    lab.export.save_button.click()
    assert RunResult.load(tmp_path / "kept.json") == lab.results[name]
    config = read_config(build_parser().parse_args(["--config", str(tmp_path / "kept.json")]))
    assert config == lab.results[name].config != lab.config


@pytest.mark.parametrize(
    ("strategy", "world_size", "machines"), [("fsdp", 4, [4, 2]), ("ddp", 3, [3]), ("single", 1, [1])]
)
def test_the_commands_start_as_many_processes_as_the_run_has_ranks(strategy, world_size, machines):
    config = ModelTrainingConfig(strategy=strategy, world_size=world_size, batch_size=12)
    lines = [line for line in commands_for(config, "my run.json").splitlines() if line.startswith("torchrun")]
    assert [int(line.split("--nproc-per-node ")[1].split()[0]) for line in lines] == machines
    assert all(line.endswith("-m labs train --config 'my run.json'") for line in lines)


def test_the_largest_model_is_run_and_its_bar_becomes_a_measurement(lab, fake):
    lab.controls.strategy.value = "fsdp"
    lab.tabs.selected_index = lab.tabs.titles.index("Largest")
    settle(lab)
    assert lab.largest.run_button.description == "Run fsdp: 10 layers"  # of 64: 4 MiB hold 520 K x 16 / 2 bytes
    lab.largest.run_button.click()
    assert lab.page == "Largest" and lab.config.model == ModelSpec.from_name("tiny", num_layers=10)
    assert fake.started.wait(PATIENCE_SECONDS) and fake.config == lab.config and lab.largest.run_button.disabled
    fake.end(fake_result(**lab.config.model_dump()))
    settle(lab)
    held = max(sum(state.measured_bytes for name, state in rank.memory.states.items() if name != "activations")
               for rank in lab.results["fsdp x 2, gpt 520 K, bf16"].ranks)  # fmt: skip
    assert f"measured {held:,}" in lab.largest.page.words.value and f"{held:,}" in lab.largest.page.table.value


def test_a_cap_that_nothing_fits_under_offers_no_run(lab):
    lab.tabs.selected_index = lab.tabs.titles.index("Largest")
    lab.largest.cap_mib.value = 0.1
    settle(lab)
    assert "not even one layer fits" in lab.largest.page.words.value and lab.largest.run_button.disabled


def test_numbers_shows_the_table_of_every_page_and_hides_it_again(lab):
    tables = [page.table for page in (*lab.pages.pages.values(), lab.largest.page)]
    lab.numbers.value = True
    assert all(table.layout.display == "" for table in tables)
    lab.numbers.value = False
    assert all(table.layout.display == "none" for table in tables)


def test_a_cancelled_run_can_be_looked_at_until_the_next_choice(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.emit(2)
    lab.cancel_button.click()
    fake.end(RuntimeError("the run was cancelled"), "cancelled")
    settle(lab)
    assert lab.shown.control.value == "the latest run" and look_at(lab, "Norms") != b""


def test_running_a_cell_again_ends_its_lab_and_no_other(monkeypatch, fake):
    monkeypatch.setattr(cells, "_labs", {})
    monkeypatch.setattr("labs.widgets.strategy_lab._start", fake.start)
    where = ("cell a", 1)
    monkeypatch.setattr(cells, "_current_cell", lambda: where)
    first, twin = (StrategyLab(ModelTrainingConfig(steps=6), start=fake.start) for _ in range(2))
    cells.replace_lab_of_cell(first)
    cells.replace_lab_of_cell(twin)  # a cell may show two
    where = ("cell b", 2)
    other = strategy_lab()
    first.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    assert not (first._is_closed or twin._is_closed or other._is_closed)
    where = ("cell a", 3)
    again = strategy_lab()
    assert fake.cancelled.is_set() and first._is_closed and twin._is_closed
    assert not other._is_closed and not again._is_closed
    other.close()
    again.close()


def test_two_labs_do_not_disturb_each_other():
    runs = [FakeRun(), FakeRun()]
    labs = [StrategyLab(ModelTrainingConfig(steps=6), start=run.start) for run in runs]
    for lab, run in zip(labs, runs, strict=True):
        lab.run_button.click()
        assert run.started.wait(PATIENCE_SECONDS)
    runs[0].emit(3)
    labs[0].cancel_button.click()
    assert runs[0].cancelled.is_set() and not runs[1].cancelled.is_set()
    assert labs[1]._background.wait_until_idle(PATIENCE_SECONDS) and labs[1].progress.value == 0
    for lab in labs:
        lab.close()


def test_a_drawing_that_fails_is_reported_and_the_lab_goes_on(lab, fake, monkeypatch):
    monkeypatch.setattr("labs.widgets.run_pages.plot_memory", lambda view: 1 / 0)
    lab.controls.steps.value = 7
    assert lab.wait(PATIENCE_SECONDS) and "ZeroDivisionError" in lab.error.value


def test_a_closed_lab_leaves_no_thread_behind(fake):
    lab = StrategyLab(ModelTrainingConfig(steps=6), start=fake.start)
    lab.close()
    assert lab._background.wait_until_idle(PATIENCE_SECONDS)
    lab.run_button.click()
    assert not fake.started.is_set()


def test_a_click_never_waits_for_drawing(lab, fake, monkeypatch):
    drawing, gate = threading.Event(), threading.Event()

    def slow_picture(view):
        drawing.set()
        assert gate.wait(PATIENCE_SECONDS)
        raise RuntimeError("drawn")

    settle(lab)
    monkeypatch.setattr("labs.widgets.run_pages.plot_memory", slow_picture)
    lab.controls.strategy.value = "fsdp"
    assert drawing.wait(PATIENCE_SECONDS)
    lab.controls.batch_size.value = 64
    lab.run_button.click()  # returns although the drawing stands still
    assert lab.config.batch_size == 64 and not lab.cancel_button.disabled
    gate.set()
    assert fake.started.wait(PATIENCE_SECONDS)


def test_background_runs_the_latest_job_of_a_name_and_reports_errors():
    done, errors, gate = [], [], threading.Event()
    background = Background(errors.append)
    background.do("first", lambda: gate.wait(PATIENCE_SECONDS))
    while background._jobs:
        time.sleep(0.001)  # until the thread has taken the job
    for number in range(5):
        background.do("picture", lambda number=number: done.append(number))
    background.do("broken", lambda: 1 / 0)
    gate.set()
    assert background.wait_until_idle(PATIENCE_SECONDS)
    assert done == [4] and "ZeroDivisionError" in errors[0]


def test_the_output_is_a_widget_view_with_words_that_never_change(monkeypatch, lab, fake):
    shown = []

    class Handle:
        def update(self, bundle, raw, metadata):
            assert metadata == {"image/png": {"alt": "What is to be seen"}}
            shown.append(bundle)

    monkeypatch.setattr("IPython.display.display", lambda bundle, **more: shown.append(bundle) or Handle())
    lab._ipython_display_()
    run_to_end(lab, fake)
    first, last = shown
    assert set(first) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert set(last) == set(first) | {"image/png"} and first["text/plain"] == last["text/plain"]


def test_a_real_run_on_two_ranks_fills_the_lab():
    lab = StrategyLab(ModelTrainingConfig(strategy="ddp", world_size=2, steps=3, batch_size=4))
    lab.run_button.click()
    assert lab.wait(120)
    assert lab.error.value == ""
    (result,) = lab.results.values()
    assert len(result.losses) == 3 and len(result.ranks) == 2 and "done in" in lab.status.value
    lab.close()
