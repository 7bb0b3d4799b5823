"""Configs for DeepSpeed, made for these tests, with what must be found in each; and any config, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from labs.ds_config.keys import BATCH, TOP_LEVEL, keys_of, known_blocks

MICRO = {"train_micro_batch_size_per_gpu": 2}
ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}


def zero(stage, **settings):
    return {**MICRO, **ADAM, "gradient_clipping": 0.5, "zero_optimization": {"stage": stage, **settings}}


CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/mnt/fast"}

# name -> config that does what it says: no error and no warning on 4 ranks
GOOD = {
    "the least": MICRO,
    "whole batch alone": {"train_batch_size": 12},
    "three numbers that agree": {"train_batch_size": 24, **MICRO, "gradient_accumulation_steps": 3},
    "two numbers of the batch": {"train_batch_size": 24, "gradient_accumulation_steps": 3},
    "bf16 and stage 1": {**zero(1), "bf16": {"enabled": True}},
    "fp16 with its scale": {**zero(2), "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12}},
    "stage 2 with buckets": zero(2, reduce_bucket_size=2e7, allgather_bucket_size=2e7, overlap_comm=True),
    "stage 2 offloaded": zero(2, offload_optimizer={**CPU, "pin_memory": False}),
    "stage 3 with its keys": zero(3, stage3_max_live_parameters=1e6, stage3_param_persistence_threshold=0),
    "stage 3 on NVMe": {**zero(3, offload_param=NVME, offload_optimizer=NVME), "aio": {"queue_depth": 16}},
    "a part offloaded": zero(3, offload_optimizer={**CPU, "ratio": 0.4}),
    "a second partition": zero(3, zero_hpz_partition_size=2, zero_quantized_weights=True),
    "an old name": zero(2, cpu_offload=True),
    "a comment": {**MICRO, "_comment": "for people"},
    "fp16 switched off beside bf16": {**zero(1), "bf16": {"enabled": True}, "fp16": {"enabled": False}},
    "zenflow": zero(2, offload_optimizer=CPU, zenflow={"topk_ratio": 0.2, "select_interval": "auto"}),
    "monitors": {**MICRO, "tensorboard": {"enabled": True, "output_path": "logs"}, "wandb": {"enabled": False}},
}

# name -> (config, level, key): what must be found on 4 ranks, the worst of it
FOUND = {
    "a product that does not fit": ({"train_batch_size": 20, **MICRO}, "error", "train_batch_size"),
    "too few samples": ({"train_batch_size": 3}, "error", "train_batch_size"),
    "no number of the batch": ({"gradient_accumulation_steps": 2}, "error", "train_batch_size"),
    "auto in the batch": ({"train_batch_size": "auto"}, "error", "train_batch_size"),
    "a batch of nothing": ({"train_micro_batch_size_per_gpu": 0}, "error", "train_micro_batch_size_per_gpu"),
    "a text for a number": ({"train_micro_batch_size_per_gpu": "4"}, "error", "train_micro_batch_size_per_gpu"),
    "two precisions": ({**MICRO, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, "error", "bf16.enabled"),
    "a loss scale in bf16": ({**MICRO, "bf16": {"enabled": True, "loss_scale": 0}}, "error", "bf16.loss_scale"),
    "a stage that is not there": (zero(5), "error", "zero_optimization.stage"),
    "a misspelt key of zero": (zero(3, stage3_max_live_paramters=1), "error",
                               "zero_optimization.stage3_max_live_paramters"),
    "false for a block": (zero(3, offload_param=False), "error", "zero_optimization.offload_param"),
    "a text for a block": (zero(2, offload_optimizer="cpu"), "error", "zero_optimization.offload_optimizer"),
    "a device that is not there": (zero(3, offload_param={"device": "disk"}), "error",
                                   "zero_optimization.offload_param.device"),
    "both names": (zero(2, cpu_offload=True, offload_optimizer=CPU), "error", "zero_optimization"),
    "a part at stage 2": (zero(2, offload_optimizer={**CPU, "ratio": 0.5}), "error", "zero_optimization"),
    "a removed block": ({**MICRO, "elasticity": {"enabled": False}}, "error", "elasticity"),
    "a removed key of zero": (zero(3, mics_shard_size=2), "error", "zero_optimization.mics_shard_size"),
    "a data type that is not there": ({**MICRO, "communication_data_type": "bfloat16"}, "error",
                                      "communication_data_type"),
    "the sum at stage 3": ({**zero(3), "gradient_allreduce_op": "sum"}, "error", "gradient_allreduce_op"),
    "GPUDirect without CUDA": ({**MICRO, "aio": {"use_gds": True}}, "error", "aio.use_gds"),
    "masters in bf16 at stage 0": ({**MICRO, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "error",
                                   "bf16.bf16_master_weights_and_grads"),
    "a misspelt block": ({**MICRO, "zero_optimisation": {"stage": 3}}, "warning", "zero_optimisation"),
    "a misspelt number": ({**MICRO, "gradient_acumulation_steps": 8}, "warning", "gradient_acumulation_steps"),
    "a key of stage 3 at the top": ({**zero(3), "stage3_max_live_parameters": 1e6}, "warning",
                                    "stage3_max_live_parameters"),
    "offload at the top": ({**zero(3), "offload_param": CPU}, "warning", "offload_param"),
    "a key of stage 3 at stage 2": (zero(2, stage3_prefetch_bucket_size=1e5), "warning",
                                    "zero_optimization.stage3_prefetch_bucket_size"),
    "parameters offloaded at stage 2": (zero(2, offload_param=CPU), "warning", "zero_optimization.offload_param"),
    "offload at stage 0": (zero(0, offload_optimizer=CPU), "warning", "zero_optimization.offload_optimizer"),
    "NVMe at stage 2": (zero(2, offload_optimizer=NVME), "warning", "zero_optimization.offload_optimizer"),
    "NVMe without a path": (zero(3, offload_param={"device": "nvme"}), "warning", "zero_optimization.offload_param"),
    "auto in zero": (zero(3, reduce_bucket_size="auto"), "warning", "zero_optimization.reduce_bucket_size"),
    "auto in bf16": ({**MICRO, "bf16": {"enabled": "auto"}}, "warning", "bf16.enabled"),
    "auto for clipping": ({**MICRO, "gradient_clipping": "auto"}, "warning", "gradient_clipping"),
    "auto in the optimizer": ({**MICRO, "optimizer": {"type": "Adam", "params": {"lr": "auto"}}}, "warning",
                              "optimizer.params.lr"),
    "clipping in the optimizer": ({**MICRO, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, "warning",
                                  "optimizer.params.max_grad_norm"),
    "a text for a switch": ({**MICRO, "prescale_gradients": "false"}, "warning", "prescale_gradients"),
    "an old key without effect": (zero(3, cpu_offload_use_pin_memory=True), "warning",
                                  "zero_optimization.cpu_offload_use_pin_memory"),
    "the oldest format": ({**MICRO, "zero_optimization": True}, "warning", "zero_optimization"),
    "a renamed key": ({**zero(3, offload_param=NVME), "aio": {"thread_count": 4}}, "warning", "aio.thread_count"),
    "two names of bf16": ({**MICRO, "bf16": {"enabled": True}, "bfloat16": {"enabled": False}}, "warning", "bfloat16"),
    "an untested optimizer": ({**zero(2), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, "warning",
                              "optimizer.type"),
    "an odd bucket": (zero(1, allgather_bucket_size=12345), "warning", "zero_optimization.allgather_bucket_size"),
    "a norm that is needed": (zero(1, compute_grad_norm=False), "warning", "zero_optimization.compute_grad_norm"),
    "groups that do not divide": (zero(3, zero_hpz_partition_size=3), "warning",
                                  "zero_optimization.zero_hpz_partition_size"),
}  # fmt: skip

AWKWARD = [
    None, True, False, 0, 1, 2, 3, -1, 0.5, 2.5, 1e9, 10**30, 10**4000, float("inf"), float("nan"), "auto", "true",
    "false", "cpu", "", "x", "2", "bf16", "sum", "AdamW", "throughput", "FAIL", [], ["a"], [1], {}, {"enabled": True},
    {"device": "cpu"}, {"throughput": {}}, {"max_grad_norm": "1"},
]  # fmt: skip
BLOCKS = sorted(block for block in known_blocks() if block and "." not in block)

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@st.composite
def blocks(draw, name):
    """A block with known keys, odd values, and now and then blocks inside it."""
    found = {}
    for key in draw(st.lists(st.sampled_from([*keys_of(name), "zzz"]), max_size=3)):
        inner = f"{name}.{key}"
        if inner in known_blocks() and draw(st.booleans()):
            found[key] = draw(blocks(inner))
        elif key == "stage":
            found[key] = draw(st.sampled_from([0, 1, 2, 3, "2", 4]))
        else:
            found[key] = draw(st.sampled_from(AWKWARD))
    return found


@st.composite
def configs(draw):
    """A config that is right but for a few places."""
    sizes = st.sampled_from([1, 2, 4, 8]) if draw(st.integers(0, 3)) else st.sampled_from(AWKWARD)
    found = {key: draw(sizes) for key in BATCH if draw(st.booleans())}
    for key in draw(st.lists(st.sampled_from(["zero_optimization", "fp16", "bf16", *BLOCKS]), max_size=3)):
        found[key] = draw(blocks(key))
    for key in draw(st.lists(st.sampled_from([*sorted(TOP_LEVEL - set(BATCH)), "nebula", "zzz"]), max_size=2)):
        found[key] = draw(st.sampled_from(AWKWARD))
    if not any(key in found for key in BATCH[:2]):
        found[BATCH[1]] = 1
    return found
