"""The blocks and keys of labs/ are those of the installed DeepSpeed: names, types, limits, defaults."""

import pytest
from live_ds_config import READER, Recording, accept

from labs.ds_config import blocks as ds_blocks
from labs.ds_config import keys as ds_keys
from labs.ds_config import side_blocks as ds_side_blocks
from labs.ds_config.reader import REMOVED, REMOVED_ZERO

live = accept({"train_batch_size": 1, "comms_logger": {}, "weight_quantization": {}, "zero_optimization": {
    "offload_param": {}, "offload_optimizer": {}, "zenflow": {}}})  # fmt: skip

PAIRS = {
    ds_blocks.Zero: live.zero_config,
    ds_blocks.OffloadParam: live.zero_config.offload_param,
    ds_blocks.OffloadOptimizer: live.zero_config.offload_optimizer,
    ds_blocks.ZenFlow: live.zero_config.zenflow,
    ds_blocks.LeafModule: live.zero_config.leaf_module,
    ds_blocks.FP16: live.float16_config,
    ds_blocks.BF16: live.bfloat16_config,
    ds_side_blocks.CommsLogger: live.comms_config.comms_logger,
    ds_side_blocks.Monitors: live.monitor_config,
    ds_side_blocks.TensorBoard: live.monitor_config.tensorboard,
    ds_side_blocks.Wandb: live.monitor_config.wandb,
    ds_side_blocks.Comet: live.monitor_config.comet,
    ds_side_blocks.HybridEngine: live.hybrid_engine,
    ds_side_blocks.WeightQuantization: live.weight_quantization_config,
    ds_side_blocks.Compile: live.compile_config,
    ds_side_blocks.ThroughputTimer: live.timers_config,
    ds_side_blocks.TensorParallel: live.tensor_parallel_config,
    ds_side_blocks.TPSize: live.tensor_parallel_config.tensor_parallel,
}


def fields(model):
    return {name: (field.alias, default_of(field), sorted(map(repr, field.metadata)))
            for name, field in model.model_fields.items() if name != "dtype"}  # fmt: skip


def default_of(field):
    value = field.get_default(call_default_factory=True)
    return value.model_dump() if hasattr(value, "model_dump") else getattr(value, "value", value)


@pytest.mark.parametrize("block", PAIRS, ids=lambda block: block.__name__)
def test_a_block_has_the_keys_limits_and_defaults_of_deepspeeds_own(block):
    assert fields(block) == fields(type(PAIRS[block]))


def test_csv_monitor_has_the_keys_of_tensorboard():
    assert fields(ds_side_blocks.TensorBoard) == fields(type(live.monitor_config.csv_monitor))


def test_the_old_names_are_those_that_deepspeed_calls_deprecated():
    old = {name for name, field in type(live.zero_config).model_fields.items()
           if (field.json_schema_extra or {}).get("deprecated")}  # fmt: skip
    assert old == set(ds_blocks.DEPRECATED)


def test_the_removed_keys_are_those_that_deepspeed_refuses_by_name():
    assert set(REMOVED) == set(READER._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert set(REMOVED_ZERO) == set(READER._REMOVED_ZERO_CONFIG_KEYS)


@pytest.fixture(scope="module")
def asked():
    """The keys that DeepSpeed asks for, by block, while it reads a config in which all blocks are there."""
    blocks = {block: {} for block in ds_keys.READ}
    blocks |= {"optimizer": {"type": "Adam"}, "scheduler": {"type": "x"}, "torch_autocast": {"dtype": "fp16"}}
    config = Recording({"train_batch_size": 1, **blocks})
    accept(config)
    return config


def test_the_top_level_keys_are_those_that_deepspeed_asks_for(asked):
    read_elsewhere = {"data_parallel_size", "sequence_parallel_size"}  # by deepspeed.initialize
    assert asked.asked - set(REMOVED) - {"sequence_parallel_size"} == ds_keys.TOP_LEVEL - read_elsewhere


@pytest.mark.parametrize("block", ds_keys.READ)
def test_the_keys_of_a_block_are_those_that_deepspeed_asks_for(block, asked):
    assert asked.get(block).asked == set(ds_keys.READ[block].split())
