"""The strategy lab in hands that do things in a wrong order, type what they like, and meet disks that are full."""

import json
import os
from pathlib import Path

import pytest
from fake_lab import PATIENCE_SECONDS, FakeRun, draw_at_once, look_at, look_at_compare, run_to_end, settle
from fake_runs import fake_result

from labs.config import ConfigError, ModelTrainingConfig
from labs.plots import plot_comparison, plot_loss
from labs.plots.style import Picture, run_style
from labs.records import RunResult
from labs.widgets.strategy_lab import StrategyLab


@pytest.fixture
def fake():
    return FakeRun()


@pytest.fixture
def lab(fake, monkeypatch):
    draw_at_once(monkeypatch)
    lab = StrategyLab(ModelTrainingConfig(strategy="ddp", world_size=2, steps=6, model="tiny"), start=fake.start)
    yield lab
    lab.close()


def test_a_click_that_was_under_way_when_the_choice_became_impossible_does_nothing(lab, fake, tmp_path):
    lab.export.file_name.value = str(tmp_path / "run.json")
    lab.controls.world_size.value = 3
    lab._run_clicked()
    lab.export._save()
    assert not fake.started.is_set() and not (tmp_path / "run.json").exists() and lab.run_button.disabled is not False


@pytest.mark.parametrize("page", ["Memory", "Wire", "Shards", "Loss", "Norms", "Timeline"])
def test_a_page_shows_no_other_choice_than_the_one_that_cannot_run(lab, page):
    look_at(lab, page)
    look_at(lab, "Memory" if page == "Wire" else "Wire")
    lab.controls.world_size.value = 3
    assert look_at(lab, page) == b"" and "cannot run" in lab.pages.pages[page].words.value
    lab.controls.batch_size.value = 33
    settle(lab)
    assert "cannot run" not in lab.pages.pages[page].words.value


def test_the_page_on_top_does_not_keep_the_picture_of_a_choice_that_could_run(lab):
    assert look_at(lab, "Memory") != b""
    lab.controls.world_size.value = 3
    settle(lab)
    assert look_at(lab, "Memory") == b""
    assert look_at_largest(lab) == b"" and "cannot run" in lab.largest.page.words.value


def look_at_largest(lab):
    lab.tabs.selected_index = lab.tabs.titles.index("Largest")
    settle(lab)
    return lab.largest.page.image.value


def test_an_answer_to_another_question_is_neither_shown_nor_run(lab, fake):
    assert look_at_largest(lab) != b""
    lab._background.do = lambda *given, **more: None  # drawing has not come to it yet
    lab.largest.cap_mib.value = 1.0
    assert lab.largest.run_button.disabled
    lab.largest.run_button.click()
    assert not fake.started.is_set()
    lab.tabs.selected_index = 0
    lab.controls.strategy.value = "fsdp"
    lab.tabs.selected_index = lab.tabs.titles.index("Largest")
    assert lab.largest.page.image.value == b"" and lab.largest.run_button.disabled


def test_a_run_whose_picture_cannot_be_drawn_leaves_the_lab_ready_for_the_next(lab, fake, monkeypatch):
    monkeypatch.setattr("labs.widgets.strategy_lab.plot_run", lambda run: 1 / 0)
    run_to_end(lab, fake)
    assert "ZeroDivisionError" in lab.error.value and len(lab.results) == 1
    assert not lab.run_button.disabled and lab.cancel_button.disabled


def test_a_closed_lab_keeps_nobody_waiting_for_its_run(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    lab.close()
    assert fake.cancelled.is_set() and lab.wait(PATIENCE_SECONDS)


def test_news_that_come_after_cancel_do_not_take_its_word_back(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    lab.cancel_button.click()
    fake.emit(3)
    assert lab._background.wait_until_idle(PATIENCE_SECONDS)
    assert lab.status.value == "cancelling" and lab.progress.value == 3


def test_a_cancel_that_comes_too_late_leaves_a_run_like_any_other(lab, fake):
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    lab.cancel_button.click()
    fake.end(fake_result(strategy="ddp", world_size=2, steps=6))
    settle(lab)
    assert "done in" in lab.status.value and lab.progress.bar_style == "success" and len(lab.results) == 1


def test_a_run_that_stopped_early_says_so_and_promises_no_timeline(fake, monkeypatch):
    draw_at_once(monkeypatch)
    whole = fake_result(strategy="ddp", world_size=2, steps=60, eval_every=2, early_stopping_patience=2)
    lab = StrategyLab(whole.config, start=fake.start)
    ranks = [type(rank)(**{**vars(rank), "steps": rank.steps[:6], "evals": rank.evals[:3]}) for rank in whole.ranks]
    lab.run_button.click()
    assert fake.started.wait(PATIENCE_SECONDS)
    fake.end(RunResult(whole.config, tuple(ranks), 0.4))
    settle(lab)
    assert "it ended after step 6 of 60: no better validation loss in 2 evaluations" in lab.status.value
    look_at(lab, "Timeline")
    assert "ended after step 6, before step 59" in lab.pages.pages["Timeline"].words.value
    lab.close()


def test_a_field_without_a_control_is_named_where_it_stands_in_the_way():
    config = ModelTrainingConfig(world_size=2, steps=60, eval_every=10, early_stopping_patience=2, warmup_steps=20)
    lab = StrategyLab(config)
    lab.controls.steps.value = 25
    with pytest.raises(ConfigError, match=r"early_stopping_patience.*no control here; change the config in the cell"):
        _ = lab.config
    lab.controls.steps.value = 15
    with pytest.raises(ConfigError, match=r"warmup_steps: no control here"):
        _ = lab.config
    lab.controls.steps.value = 60
    lab.controls.world_size.value = 3
    with pytest.raises(ConfigError, match="try batch_size=33$"):
        _ = lab.config
    lab.close()


def test_a_config_beyond_the_ends_of_the_controls_is_kept():
    given = ModelTrainingConfig(strategy="fsdp", world_size=16, batch_size=8192, steps=20_000, max_grad_norm=2e6)
    assert StrategyLab(given).config == given


# Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["the choice above", "the choice above, predicted", "the latest run"])
def test_no_run_takes_the_name_of_something_else_that_can_be_shown(lab, fake, word):
    run_to_end(lab, fake)
    (row,) = lab.compare.kept.rows
    row.name.value = word
    assert list(lab.results) == [f"{word} (2)"]
    lab.export.what.value = "the choice above"
    lab.controls.strategy.value = "zero3"
    assert lab.export.chosen == lab.config


def test_a_run_that_is_renamed_stays_where_it_is_shown(lab, fake):
    run_to_end(lab, fake)
    run_to_end(lab, fake)
    first, _ = lab.results
    lab.shown.control.value = lab.export.what.value = first
    lab.compare.kept.rows[0].name.value = "mine"
    assert lab.shown.control.value == lab.export.what.value == "mine"


@pytest.mark.parametrize("name", ["$5 a run", r"$\frac$", "_hidden", "a_b_c", "50 % $", "<b>&", "läuft"])
def test_a_name_that_somebody_types_is_drawn_as_it_is(name):
    runs = {name: fake_result(strategy="ddp"), "other": fake_result(strategy="fsdp")}
    picture = plot_loss(runs)
    assert picture.png().startswith(b"\x89PNG") and plot_comparison(runs).png().startswith(b"\x89PNG")
    (legend,) = [axes.get_legend() for axes in picture.axes]
    assert [text.get_text().replace("\\$", "$").strip() for text in legend.get_texts()] == [name, "other"]


def test_no_two_of_many_runs_look_alike():
    looks = {tuple(map(str, run_style(index).values())) for index in range(49)}
    assert len(looks) == 49


def test_a_lost_number_is_not_left_out_of_the_distance_of_losses():
    good, bad = fake_result(strategy="ddp"), fake_result(strategy="fsdp", learning_rate=1.0)
    steps = tuple(type(step)(**{**vars(step), "loss": float("nan")}) for step in bad.steps)
    lost = RunResult(bad.config, tuple(type(rank)(**{**vars(rank), "steps": steps}) for rank in bad.ranks), 0.4)
    assert plot_loss([good, lost]).words.startswith("1 of 2 runs")


# Pictures in words --------------------------------------------------------------------------------------------------


def test_a_picture_is_told_to_those_who_do_not_see_it(lab, fake):
    look_at(lab, "Memory")
    assert lab.pages.pages["Memory"].image.tooltip == "What is to be seen"
    run_to_end(lab, fake)
    look_at_compare(lab)
    assert lab.compare.image.tooltip == "What is to be seen"
    lab.compare.kept.rows[0].remove_button.click()
    settle(lab)
    assert lab.compare.image.tooltip is None


def test_a_plot_is_told_by_its_titles_in_the_notebook_and_in_a_page_made_of_it():
    picture = plot_loss(fake_result(strategy="ddp"))
    png, told = picture._repr_png_()
    assert png.startswith(b"\x89PNG") and told == {"alt": picture.words}
    assert picture.words.startswith("Validation loss") and "baseline" in picture.words
    assert isinstance(picture, Picture) and "ddp on 2 ranks" in plot_run_words()


def plot_run_words():
    from labs.plots import plot_run

    return plot_run(fake_result(strategy="ddp", world_size=2)).words


# Files ------------------------------------------------------------------------------------------------------------


def test_saving_twice_replaces_a_run_and_nothing_else(lab, tmp_path):
    path = tmp_path / "run.json"
    lab.export.file_name.value = str(path)
    lab.export.save_button.click()
    lab.controls.strategy.value = "zero3"
    lab.export.save_button.click()
    assert "replaced" in lab.export.message.value and json.loads(path.read_text())["strategy"] == "zero3"
    for precious in ('{"cells": []}', "words", "", "[1]", '{"config": 5}', "\udcff"):
        path.write_bytes(precious.encode(errors="surrogateescape"))
        lab.export.save_button.click()
        assert path.read_bytes() == precious.encode(errors="surrogateescape")
        assert "left alone" in lab.export.message.value


def test_a_folder_and_a_place_that_is_not_there_are_refused_in_words(lab, tmp_path):
    for name in (tmp_path, tmp_path / "missing" / "run.json", tmp_path / ("x" * 300)):
        lab.export.file_name.value = str(name)
        lab.export.save_button.click()
        assert "could not be written" in lab.export.message.value and "another file name" in lab.export.message.value


@pytest.mark.parametrize("kept", [False, True])
def test_a_full_disk_leaves_the_file_that_was_there(lab, fake, tmp_path, monkeypatch, kept):
    run_to_end(lab, fake)
    path = tmp_path / "run.json"
    lab.export.file_name.value = str(path)
    lab.export.what.value = lab.export.what.options[kept]
    lab.export.save_button.click()
    before, write = path.read_text(), Path.write_text

    def half(self, text, *given, **more):
        write(self, text[: len(text) // 2], *given, **more)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", half)
    lab.controls.steps.value = 9
    lab.export.save_button.click()
    assert "No space left on device" in lab.export.message.value
    assert path.read_text() == before and os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"steps": 5}', "[" * 100_000, "\x00"])
def test_a_file_that_holds_no_run_is_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ConfigError, match="x.json"):
        RunResult.load(tmp_path / "x.json")
