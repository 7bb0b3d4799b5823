"""The published estimates: the ZeRO paper's tables, DeepSpeed's printed figures, the formula for activations."""

from itertools import product

import pytest

from labs.activations import block_terms, korthikanti_layer_bytes
from labs.config import ConfigError
from labs.ds_estimator import deepspeed_estimate, paper_states_bytes
from labs.footprint import Scenario, footprint
from labs.records import STATES
from labs.spec import ModelSpec
from labs.units import GB, GiB

# arXiv 1910.02054, table 1, in GB: by parameters, then ranks: stage 1, 2, 3.
ZERO_TABLE_1 = {
    7.5e9: {1: (120, 120, 120), 4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88)}
    | {256: (30.4, 15.4, 0.47), 1024: (30.1, 15.1, 0.12)},
    128e9: {1: (2048, 2048, 2048), 4: (896, 704, 512), 16: (608, 368, 128), 64: (536, 284, 32)}
    | {256: (518, 263, 8), 1024: (513, 257, 2)},
    1e12: {1: (16000, 16000, 16000), 4: (7000, 5500, 4000), 16: (4750, 2875, 1000), 64: (4187, 2218, 250)}
    | {256: (4046, 2054, 62.5), 1024: (4011, 2013, 15.6)},
}
# Table 2: model parallelism, and the largest model [parameters] of 64 data-parallel ranks with 32 GB each.
ZERO_TABLE_2 = {
    1: (2e9, 7.6e9, 14.4e9, 128e9),
    2: (4e9, 15.2e9, 28.8e9, 256e9),
    4: (8e9, 30.4e9, 57.6e9, 0.5e12),
    8: (16e9, 60.8e9, 115.2e9, 1e12),
    16: (32e9, 121.6e9, 230.4e9, 2e12),
}


@pytest.mark.parametrize("num_parameters", ZERO_TABLE_1)
def test_the_zero_papers_table_1_is_reproduced(num_parameters):
    for world, printed in ZERO_TABLE_1[num_parameters].items():
        for stage, gigabytes in enumerate(printed, start=1):
            computed = paper_states_bytes(num_parameters, stage, world) / GB
            last_digit = 0.005 if gigabytes < 1 else 0  # 0.12 is printed for 0.117
            assert computed == pytest.approx(gigabytes, rel=0.01, abs=last_digit)


def test_the_zero_papers_figure_1_is_reproduced():
    computed = [paper_states_bytes(7.5e9, stage, 64) / GB for stage in range(4)]
    assert computed == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.014)  # 1.9 is printed for 1.875


@pytest.mark.parametrize("parts", ZERO_TABLE_2)
def test_the_models_of_the_zero_papers_table_2_fill_a_device(parts):
    for stage, num_parameters in enumerate(ZERO_TABLE_2[parts]):
        rounding = 0.025 if num_parameters >= 0.5e12 else 0.01  # "0.5T" is printed for 512 B
        assert paper_states_bytes(num_parameters / parts, stage, 64) == pytest.approx(32 * GB, rel=rounding)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_our_engines_hold_the_papers_bytes_but_for_padding(stage):
    """At stage 2 and 3 the gradients are those of the own part; stage 1 keeps no more of them once they are reduced."""
    scenario = Scenario(model="llama-3-8b", strategy=f"zero{stage}", world_size=8)
    held = footprint(scenario).states
    states = sum(held[state] for state in STATES[:4]) + (2 * 8_030_261_248 * 7 // 8 if stage == 1 else 0)
    assert states == pytest.approx(paper_states_bytes(8_030_261_248, stage, 8), rel=0.01)


# The sources print the models as 2851M and 2783M parameters; the largest layer is vocabulary x hidden size.
T5_3B, T5_3B_LAYER = 2_851_000_000, 32_128 * 1024
T0_3B, T0_3B_LAYER = 2_783_000_000, 32_128 * 2048
# Printed figures in "GB" (GiB): optimizer offloaded, parameters offloaded, zero.Init: host, GPU.
# Sources: DeepSpeed docs/code-docs/source/memory.rst (8 GPUs); transformers docs/source/en/deepspeed.md (1 GPU).
PRINTED_3 = [
    (T5_3B, T5_3B_LAYER, 8, (True, True, True), (71.71, 0.12)),
    (T5_3B, T5_3B_LAYER, 8, (True, True, False), (127.48, 0.12)),
    (T5_3B, T5_3B_LAYER, 8, (True, False, True), (63.74, 0.79)),
    (T5_3B, T5_3B_LAYER, 8, (True, False, False), (127.48, 0.79)),
    (T5_3B, T5_3B_LAYER, 8, (False, False, True), (1.47, 6.10)),
    (T5_3B, T5_3B_LAYER, 8, (False, False, False), (127.48, 6.10)),
    (T0_3B, T0_3B_LAYER, 1, (True, True, True), (70.00, 0.25)),
    (T0_3B, T0_3B_LAYER, 1, (True, True, False), (70.00, 0.25)),
    (T0_3B, T0_3B_LAYER, 1, (True, False, True), (62.23, 5.43)),
    (T0_3B, T0_3B_LAYER, 1, (True, False, False), (62.23, 5.43)),
    (T0_3B, T0_3B_LAYER, 1, (False, False, True), (0.37, 46.91)),
    (T0_3B, T0_3B_LAYER, 1, (False, False, False), (15.56, 46.91)),
]
# Stage 2, parameters, GPUs, offload: host, GPU. memory.rst (GPU as printed since its formula changed); DeepSpeed#3770.
PRINTED_2 = [
    (T5_3B, 8, True, (127.48, 5.31)),
    (T5_3B, 8, False, (127.48, 11.28)),
    (6_650_000_000, 2, True, (148.66, 12.39)),
]


@pytest.mark.parametrize("num_parameters, layer, gpus, options, printed", PRINTED_3)
def test_deepspeeds_printed_estimates_of_stage_3_are_repeated(num_parameters, layer, gpus, options, printed):
    optimizer, parameters, zero_init = options
    found = deepspeed_estimate(
        num_parameters,
        3,
        largest_layer_parameters=layer,
        gpus_per_node=gpus,
        offload_optimizer=optimizer,
        offload_parameters=parameters,
        zero_init=zero_init,
    )
    assert (found.host_bytes / GiB, found.gpu_bytes / GiB) == pytest.approx(printed, rel=0.001, abs=0.006)


@pytest.mark.parametrize("num_parameters, gpus, offload, printed", PRINTED_2)
def test_deepspeeds_printed_estimates_of_stage_2_are_repeated(num_parameters, gpus, offload, printed):
    found = deepspeed_estimate(num_parameters, 2, gpus_per_node=gpus, offload_optimizer=offload)
    assert (found.host_bytes / GiB, found.gpu_bytes / GiB) == pytest.approx(printed, rel=0.001, abs=0.006)


def test_the_estimator_is_the_one_that_deepspeed_ships():
    from labs.strategies.deepspeed import deepspeed

    zero = deepspeed.runtime.zero
    for gpus, nodes, offload, parameters, zero_init in product((1, 8), (1, 2), *[(False, True)] * 3):
        theirs = zero.stage3.estimate_zero3_model_states_mem_needs(
            T5_3B, T5_3B_LAYER, gpus, nodes, offload, parameters, zero_init
        )
        ours = deepspeed_estimate(
            T5_3B,
            3,
            largest_layer_parameters=T5_3B_LAYER,
            gpus_per_node=gpus,
            num_nodes=nodes,
            offload_optimizer=offload,
            offload_parameters=parameters,
            zero_init=zero_init,
        )
        assert (ours.host_bytes, ours.gpu_bytes) == pytest.approx(theirs[:2], abs=1)
        theirs = zero.stage_1_and_2.estimate_zero2_model_states_mem_needs(T5_3B, gpus, nodes, offload)
        ours = deepspeed_estimate(T5_3B, 2, gpus_per_node=gpus, num_nodes=nodes, offload_optimizer=offload)
        assert (ours.host_bytes, ours.gpu_bytes) == theirs


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: paper_states_bytes(1e9, 4, 8), "stage 4 does not exist; try 0"),
        (lambda: paper_states_bytes(1e9, 1, 0), "world_size 0 is too small"),
        (lambda: deepspeed_estimate(10**9, 1), "no estimator for stage 1; try 2 or 3"),
    ],
)
def test_an_estimate_that_nobody_made_is_refused(call, sentence):
    with pytest.raises(ConfigError, match=sentence):
        call()


def test_the_korthikanti_formula_gives_the_ratios_that_the_paper_prints():
    """5 a s / h is 80 for GPT-3 and 64 for MT-NLG: section 4.1."""
    for hidden, heads, printed in ((12288, 96, 80), (20480, 128, 64)):
        one = korthikanti_layer_bytes(2048, 1, hidden, heads, "selective") / 34
        assert korthikanti_layer_bytes(2048, 1, hidden, heads) == pytest.approx(one * (34 + printed))
        assert korthikanti_layer_bytes(2048, 1, hidden, heads, "full") == 2 * one


def test_our_count_of_a_gpt_block_is_the_papers_formula_without_dropout():
    """The paper's 34 holds two masks and no log-sums: ours is 32, and 8 + 4 heads bytes a token beside it."""
    spec = ModelSpec.from_name("gpt2-xl")
    ours = sum(block_terms(spec, 4, 2, keeps_scores=True).values())
    papers = korthikanti_layer_bytes(1024, 4, 1600, 25)
    masks = 2 * 1024 * 4 * 1600
    assert ours == papers - masks + 1024 * 4 * (8 + 4 * 25)


def test_a_llama_block_keeps_these_tensors():
    """By hand: 16-bit tensors of 4096, 1024 and 14336 a token; then fp32 statistics of two norms and 32 heads."""
    spec = ModelSpec.from_name("llama-3-8b", context=16)
    tensors = 4 * 4096 + (4096 + 2 * 1024) + 4096 + 4 * 14336  # input, sum, two norms; q, k, v; attention; feed-forward
    assert sum(block_terms(spec, 2, 2).values()) == 2 * 16 * (2 * tensors + 2 * 4 + 32 * 4)
