"""Laws of the heat map: every norm has its place and colour, and what no logarithm can show is marked."""

import dataclasses
import math

import numpy as np
import pytest
from fake_runs import fake_step
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.config import ModelTrainingConfig
from labs.plots import plot_heat_map, table_heat_map
from labs.plots.heat_map import _boxes, _every_nth, norm_range
from labs.records import StepRecord
from labs.spec import ModelSpec

DEEP = ModelTrainingConfig(model=ModelSpec(num_layers=48), steps=40)


def record(step: int, norms: dict[str, float]) -> StepRecord:
    return dataclasses.replace(fake_step(DEEP, step), layer_grad_norms=norms)


def texts(picture) -> list[str]:
    return [t.get_text() for t in picture.findobj(lambda artist: hasattr(artist, "get_text"))]


def deep_steps(num_steps: int = 40) -> list[StepRecord]:
    return [fake_step(DEEP, step, 0.8) for step in range(num_steps)]


@pytest.mark.parametrize(
    "norms",
    [[1.0], [0.0], [math.nan], [math.inf], [1e-45, 1e38], [1e-200, 1e200], [1, 0, math.nan, math.inf], [2.0] * 50],
)
@pytest.mark.parametrize("num_steps", [1, 3])
def test_any_norm_becomes_a_picture_and_a_table(norms, num_steps):
    steps = [record(step, {f"blocks.{i}": norm for i, norm in enumerate(norms)}) for step in range(num_steps)]
    picture = plot_heat_map(steps)
    assert picture.png(40).startswith(b"\x89PNG")
    expected = {mark for mark, found in _kinds(norms).items() if found}
    assert {text for text in texts(picture) if text.startswith("norm ")} == expected
    assert len(table_heat_map(steps).rows) == 2 + (len(norms) if len(norms) <= 16 else 13)


def _kinds(norms):
    return {
        "norm 0": any(n == 0 for n in norms),
        "norm inf": any(map(math.isinf, norms)),
        "norm nan": any(map(math.isnan, norms)),
    }


def test_colours_are_the_norms_of_each_layer_and_step():
    steps = deep_steps()
    (image,) = plot_heat_map(steps).axes[0].images
    expected = [[step.layer_grad_norms[layer] for step in steps] for layer in steps[0].layer_grad_norms]
    assert np.array_equal(image.get_array(), expected)
    assert (image.norm.vmin, image.norm.vmax) == (np.min(expected), np.max(expected))


def test_names_of_fifty_layers_do_not_overlap():
    for num_layers in (1, 17, 48, 64, 96):
        model = ModelSpec(num_layers=num_layers)
        picture = plot_heat_map([fake_step(DEEP.replace(model=model), 0)])
        picture.png(50)  # lays the labels out
        boxes = [label.get_window_extent() for label in picture.axes[0].get_yticklabels()]
        bottoms, tops = [box.y0 for box in boxes[:-1]], [box.y1 for box in boxes[1:]]
        assert all(bottom >= top for bottom, top in zip(bottoms, tops, strict=True)), num_layers
        assert picture.axes[0].get_yticklabels()[-1].get_text() == "final_norm"


def test_a_layer_that_is_missing_in_a_step_has_norm_zero_there():
    steps = [record(0, {"stem": 1.0}), record(1, {"stem": 1.0, "spare": 2.0})]
    assert "norm 0" in texts(plot_heat_map(steps))
    assert table_heat_map(steps).rows[1] == ("spare", "0", "2")


def test_the_title_names_what_went_wrong_in_the_last_step_unless_one_is_given():
    steps = [record(0, {"a": 1.0, "b": 1.0}), record(1, {"a": math.nan, "b": 0.0})]
    assert "Last step: 2 of 2 layers have norm nan or 0" in texts(plot_heat_map(steps))
    assert "Mine" in texts(plot_heat_map(steps, "Mine")) and table_heat_map(steps, "Mine").caption == "Mine"
    assert "Largest norm: b, 4 x a" in texts(plot_heat_map([record(0, {"a": 0.5, "b": 2.0})]))


def test_the_table_shows_the_worst_step():
    steps = [dataclasses.replace(record(i, {"a": 1.0}), grad_norm=norm) for i, norm in enumerate((1, 9, 1, 1, 1, 1, 2))]
    assert table_heat_map(steps).columns == ("layer", "step 1", "step 2", "step 4", "step 7")
    steps[5] = dataclasses.replace(steps[5], grad_norm=math.nan)
    assert table_heat_map(steps).columns == ("layer", "step 1", "step 4", "step 6", "step 7")


def test_two_maps_with_one_range_of_norms_have_one_colour_for_one_norm():
    low, high = [record(0, {"a": 0.01, "b": 0.0})], [record(0, {"a": 100.0, "b": math.inf})]
    both = norm_range(low, high)
    assert both == (0.01, 100.0) and norm_range([]) is None
    for steps in (low, high):
        (image,) = plot_heat_map(steps, norm_range=both).axes[0].images
        assert (image.norm.vmin, image.norm.vmax) == both


def test_columns_carry_the_numbers_of_their_steps_also_where_some_are_left_out():
    steps = [record(number, {"a": 1.0}) for number in (0, 10, 20, 30)]
    picture = plot_heat_map(steps)
    picture.png(40)
    assert {"1", "11", "21", "31"} <= {label.get_text() for label in picture.axes[0].get_xticklabels()}


def test_a_run_that_still_goes_leaves_room_for_its_steps():
    assert plot_heat_map(deep_steps(3), num_steps=40).axes[0].get_xlim() == (0.5, 40.5)
    assert plot_heat_map(deep_steps(3)).axes[0].get_xlim() == (0.5, 3.5)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=8))
def test_boxes_cover_every_marked_cell_once_and_no_other(rows):
    where = np.array(rows)
    covered = np.zeros(where.shape, dtype=int)
    for left, right, top, bottom in _boxes(where):
        covered[top:bottom, left:right] += 1
    assert np.array_equal(covered, where)


@given(st.integers(0, 300), st.integers(2, 60))
def test_chosen_rows_have_both_ends_and_are_not_too_many(count, most):
    shown = _every_nth(count, most)
    assert len(shown) <= most and shown == sorted(set(shown))
    assert not count or (shown[0], shown[-1]) == (0, count - 1)
