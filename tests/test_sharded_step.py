"""A measured step of a sharded model: peaks and calls are those of a hand count, whatever the units are."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import labs
from labs.measure import PeakParameters
from labs.plots.live_parameters import plot_live, table_steps
from labs.plots.mesh import crossing_bytes, groups_of, plot_meshes, table_meshes
from labs.sharded_step import LiveTrace, measure_step
from labs.workload import build_model

SPEC = labs.ModelSpec(num_layers=3, hidden_size=16, num_heads=2, vocab_size=64, tied_embedding=False, context=8)
BLOCK = 4 * (12 * 16 * 16 + 13 * 16)
TABLES = 4 * (2 * 64 * 16)
SMALL = 4 * (8 * 16 + 2 * 16)  # positions and the last norm
WHOLE = 3 * BLOCK + TABLES + SMALL


def one_unit(model):
    fully_shard(model)


def blocks(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def parts(model):
    for unit in (model.token_embedding, model.head):
        fully_shard(unit)
    blocks(model)


def nothing(model):
    pass


def step(wrap, on_mesh=None):
    model = build_model(SPEC)
    if on_mesh:
        mesh = init_device_mesh("cpu", on_mesh, mesh_dim_names=("copies", "shards"))
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=mesh)
    else:
        wrap(model)
    torch.manual_seed(dist.get_rank())
    return measure_step(model, tuple(torch.randint(0, 64, (2, 2, 8))))


@pytest.fixture(scope="module")
def steps():
    return {wrap.__name__: labs.launch(step, wrap, world_size=2) for wrap in (nothing, one_unit, blocks, parts)}


def test_the_model_of_these_tests_has_the_bytes_counted_by_hand():
    assert 4 * SPEC.num_parameters == WHOLE and BLOCK > TABLES / 2


@pytest.mark.parametrize(
    ("name", "root", "unit"),
    [("one_unit", WHOLE, 0), ("blocks", TABLES + SMALL, BLOCK), ("parts", SMALL, BLOCK)],
)
def test_the_peak_is_shards_and_root_and_the_larger_of_root_and_two_units(steps, name, root, unit):
    for seen in steps[name]:
        assert seen.resting_bytes == WHOLE // 2
        assert seen.peak_bytes == WHOLE // 2 + root + max(root, 2 * unit)


def test_a_model_that_nobody_cuts_holds_itself_and_calls_nobody(steps):
    for seen in steps["nothing"]:
        assert {sample.live_bytes for sample in seen.live} == {WHOLE} and seen.calls == ()


def test_units_are_gathered_twice_and_the_root_once(steps):
    counts = {name: (seen[0].count("all_gather"), seen[0].count("reduce_scatter")) for name, seen in steps.items()}
    assert counts == {"nothing": (0, 0), "one_unit": (1, 1), "blocks": (7, 4), "parts": (11, 6)}
    assert steps["blocks"][0].sent_bytes("all_gather") == WHOLE + 3 * BLOCK
    assert all(set(seen.members) <= {(0, 1)} for runs in steps.values() for seen in runs)


def test_all_ways_to_cut_give_one_loss_and_keep_the_same_activations(steps):
    for rank in range(2):
        assert len({(runs[rank].loss, runs[rank].kept_bytes) for runs in steps.values()}) == 1


def test_a_trace_looks_where_the_meter_of_peaks_looks():
    model = build_model(SPEC)
    tokens = torch.randint(0, 64, (2, 2, 8))
    grown = []  # a list that grows: each look sees more
    looks = {}
    for kind in (PeakParameters, LiveTrace):
        grown.clear()

        def parameters():
            grown.append(torch.zeros(1))
            return grown

        with kind(model, parameters) as meter:
            model(*tokens).backward()
        looks[kind.__name__] = (len(grown), meter.peak_bytes)
    assert looks["PeakParameters"] == looks["LiveTrace"]
    assert len(meter.samples) == len(grown) and [s.pass_name for s in meter.samples][-1] == "backward"


def test_on_a_mesh_gathers_stay_in_a_row_and_copies_are_averaged_along_columns():
    runs = labs.launch(step, None, (2, 2), world_size=4)
    assert groups_of(runs, "all_gather") == groups_of(runs, "reduce_scatter") == {(0, 1), (2, 3)}
    assert groups_of(runs, "all_reduce") == {(0, 2), (1, 3)}
    assert crossing_bytes(runs[0], [[0, 1], [2, 3]]) == WHOLE // 2
    assert crossing_bytes(runs[0], [[0, 2], [1, 3]]) == 2 * WHOLE + 3 * BLOCK
    assert crossing_bytes(runs[0], [[0, 1, 2, 3]]) == 0
    table = table_meshes({"rows": runs}, [[0, 1], [2, 3]])
    assert table.rows[0][1] == "0-1 2-3"
    assert plot_meshes({"rows": runs}, [[0, 1], [2, 3]]).png(40).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one"):
        plot_meshes({}, [[0]])


def test_four_ranks_that_gather_together_are_a_ring_along_neighbours_and_no_two_pairs():
    runs = labs.launch(step, None, (1, 4), world_size=4)
    assert groups_of(runs, "all_gather") == {(0, 1, 2, 3)}
    lines = plot_meshes({"row": runs}, [[0, 1], [2, 3]]).axes[0].lines
    rings = [list(zip(*line.get_data(), strict=True)) for line in lines if len(line.get_xdata()) > 2]
    assert rings and all(len(set(ring)) == 4 and ring[0] == ring[-1] for ring in rings)
    for ring in rings:
        sides = [abs(x1 - x2) + abs(y1 - y2) for (x1, y1), (x2, y2) in pairwise(ring)]
        assert sides == [1, 1, 1, 1]  # ranks stand one apart; a diagonal would be 2


def test_the_picture_of_live_parameters_has_a_staircase_for_each_way_and_names_the_lowest(steps):
    shown = {name: runs[0] for name, runs in steps.items()}
    axes = plot_live(shown, WHOLE, budget_bytes=WHOLE).axes[0]
    drawn = [line for line in axes.lines if len(line.get_xdata()) == len(shown["parts"].live)]
    assert len(drawn) == len(shown)
    words = "\n".join(text.get_text() for text in axes.texts)
    assert "nothing keeps the least alive" in words and "the budget" in words
    assert [row[1] for row in table_steps(shown, WHOLE).rows] == ["0", "1", "7", "11"]
    with pytest.raises(ValueError, match="at least one"):
        plot_live({}, WHOLE)
