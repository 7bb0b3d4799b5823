"""Laws of the pictures of lesson 04: norms over depth, number lines, the loss scale, a run that is watched."""

import math

import numpy as np
import pytest
import torch

from labs.config import ModelTrainingConfig
from labs.plots.depth import _apart, plot_depth, table_depth
from labs.plots.loss_scale import plot_loss_scale, table_loss_scale
from labs.plots.number_lines import FORMATS, plot_number_lines, table_number_lines
from labs.spec import ModelSpec
from labs.widgets.live_heat_map import live_heat_map

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def texts(picture) -> list[str]:
    return [t.get_text() for t in picture.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_lines_over_depth_are_the_norms_and_end_where_no_logarithm_is():
    norms = {"vanishing": [0.0, 1e-3, 1.0], "exploding": [math.inf, 1e3, 1.0], "level": [2.0, 2.0, 2.0]}
    picture = plot_depth(norms)
    assert picture.png(40).startswith(b"\x89PNG")
    drawn = {line.get_label(): line.get_ydata() for line in picture.axes[0].lines if line.get_label() in norms}
    assert np.array_equal(drawn["level"], norms["level"])
    assert np.isnan(drawn["vanishing"][0]) and np.array_equal(drawn["vanishing"][1:], [1e-3, 1.0])
    assert {"first layer 0, last 1", "first layer inf, last 1"} <= set(texts(picture))
    assert [row[-1] for row in table_depth(norms).rows] == ["-", "-", "1"]


def test_norms_of_which_none_can_be_drawn_are_said_in_words():
    assert "no norm is finite and above zero" in texts(plot_depth({"dead": [0.0, math.nan]}))
    with pytest.raises(ValueError, match="at least one"):
        plot_depth({})


@pytest.mark.parametrize("wishes", [[1.0, 1.0, 1.0], [0.0, 0.1, 3.0], [3.0, 3.0, 0.0], [1.5]])
def test_names_of_lines_keep_their_distance_and_order_inside_the_picture(wishes):
    placed = _apart(wishes, 0.4, 3.0)
    ordered = sorted(placed)
    assert all(b - a >= 0.4 - 1e-9 for a, b in zip(ordered, ordered[1:], strict=False))
    assert 0 <= ordered[0] and ordered[-1] <= 3.0
    assert [placed[i] for i in sorted(range(len(wishes)), key=wishes.__getitem__)] == ordered


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_number_lines_have_the_ends_and_steps_that_torch_has(form):
    info = torch.finfo(TORCH[form.name])
    assert form.largest == info.max
    assert 2.0**form.smallest_normal_exponent == info.smallest_normal
    assert 2.0**-form.mantissa_bits == info.eps
    smallest = torch.tensor(2.0**form.smallest_exponent, dtype=torch.float64).to(TORCH[form.name])
    assert smallest > 0 and (smallest / 2) == 0


def test_numbers_drawn_above_one_are_those_that_the_format_has():
    axes = plot_number_lines().axes[1]
    drawn = [np.array([segment[0][0] for segment in lines.get_segments()]) for lines in axes.collections]
    for name, numbers in zip(("fp16", "bf16"), drawn, strict=True):
        dtype = TORCH[name]
        between = torch.unique(torch.linspace(1, 1 + 1 / 16, 5001).to(dtype)).double().numpy()
        assert np.array_equal(numbers, between)


def test_zeros_are_counted_beside_the_values_on_a_number_line():
    picture = plot_number_lines({"gradients": [0.0, 0.0, 0.0, 1e-6]})
    assert picture.png(40).startswith(b"\x89PNG")
    assert "gradients (measured; 75% are 0)" in texts(picture)
    assert [row[0] for row in table_number_lines().rows] == [form.name for form in FORMATS]


def test_a_loss_scale_shows_every_skipped_step():
    scales, is_finite = [8, 4, 2, 2, 4, 2], [False, False, True, True, False, True]
    picture = plot_loss_scale(scales, is_finite)
    assert "3 of 6 steps overflow and are skipped" in texts(picture)
    marks = next(line for line in picture.axes[0].lines if line.get_marker() == "X")
    assert list(marks.get_xdata()) == [1, 2, 5] and list(marks.get_ydata()) == [8, 4, 4]
    rows = [("1", "8", "overflow"), ("2", "4", "overflow"), ("3 to 4", "2", "clean"), ("5", "4", "overflow")]
    assert table_loss_scale(scales, is_finite).rows == (*rows, ("6", "2", "clean"))
    with pytest.raises(ValueError, match="one scale and one answer a step"):
        plot_loss_scale([1.0], [])


def test_a_watched_run_returns_its_result_and_leaves_picture_and_numbers(monkeypatch):
    shown = []
    monkeypatch.setattr("labs.widgets.static_view.StaticView.display", lambda view: shown.append(view))
    monkeypatch.setattr("labs.widgets.static_view.StaticView.update", lambda view, *parts: shown.append(parts))
    spec = ModelSpec(kind="mlp", num_layers=3, hidden_size=8)
    config = ModelTrainingConfig(data="digits", model=spec, batch_size=4, steps=3, use_mixed_precision=False)
    run = live_heat_map(config, "Three steps")
    assert len(run.steps) == config.steps
    picture, words = shown[-1]
    assert "Three steps" in texts(picture) and f"{run.grad_norms[-1]:.3g}" in words
    look, status, image, numbers = shown[0]._widget.children
    assert "labs-screen" in shown[0]._widget._dom_classes and 'data-jp-theme-light="false"' in look.value
    assert image.tooltip == "Three steps"
    assert "3 of 3 steps under ddp" in status.value and words[:9] in numbers.value
    assert bytes(image.value).startswith(b"\x89PNG")


def test_a_watched_run_that_fails_raises_its_error():
    spec = ModelSpec(kind="mlp", num_layers=1, hidden_size=8, num_features=30, num_classes=2)
    config = ModelTrainingConfig(data="breast_cancer", model=spec, batch_size=4, steps=2)
    broken = config.model_copy(update={"model": spec.model_copy(update={"num_features": 5})})
    with pytest.raises(Exception, match="failed"):
        live_heat_map(broken)
