"""The keys that DeepSpeed 0.19.8 reads, block by block, and those that it has removed or renamed. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from labs.ds_config import side_blocks as side
from labs.ds_config.blocks import BF16, DEPRECATED, FP16, Block, OffloadOptimizer, OffloadParam, Zero

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SETTINGS = set(
    """managed_gradient_accumulation steps_per_print dump_state disable_python_gc disable_allgather
    communication_data_type seq_parallel_communication_data_type prescale_gradients gradient_predivide_factor
    gradient_allreduce_op gradient_clipping zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    wall_clock_breakdown memory_breakdown use_data_before_expert_parallelism dataloader_drop_last log_level
    datastates_ckpt vocabulary_size sequence_parallel_size data_parallel_size""".split()
)
# Blocks that are models: a key that they do not know is refused.
MODELS: dict[str, type[Block]] = {
    "zero_optimization": Zero,
    "zero_optimization.offload_param": OffloadParam,
    "zero_optimization.offload_optimizer": OffloadOptimizer,
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": BF16,
    "comms_logger": side.CommsLogger,
    "tensorboard": side.TensorBoard,
    "csv_monitor": side.TensorBoard,
    "wandb": side.Wandb,
    "comet": side.Comet,
    "hybrid_engine": side.HybridEngine,
    "weight_quantization": side.WeightQuantization,
    "compile": side.Compile,
    "tensor_parallel": side.TensorParallel,
    "timers.throughput": side.ThroughputTimer,
}
# Blocks that are read key by key: a key that they do not know is ignored without a word.
READ = {
    "optimizer": "type params legacy_fusion",
    "scheduler": "type params",
    "torch_autocast": "enabled dtype lower_precision_safe_modules",
    "aio": "block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds",
    "activation_checkpointing": "partition_activations number_checkpoints contiguous_memory_optimization"
    " synchronize_checkpoint_boundary profile cpu_checkpointing",
    "flops_profiler": "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file",
    "checkpoint": "tag_validation checkpoint_serialization writer load_universal use_node_local_storage parallel_write",
    "data_types": "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules",
    "data_efficiency": "enabled seed data_sampling data_routing",
    "timers": "throughput",
    "autotuning": "enabled fast results_dir exps_dir overwrite start_profile_step end_profile_step metric metric_path"
    " tuner_type tuner_early_stopping tuner_num_trials arg_mappings model_info model_info_path mp_size"
    " max_train_batch_size min_train_batch_size max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu"
    " num_tuning_micro_batch_sizes",
}
FREE = {"pipeline", "expert_parallel"}  # blocks with keys of other packages, which are not judged
TOP_LEVEL = {*BATCH, *SETTINGS, *FREE, *(block.partition(".")[0] for block in (*MODELS, *READ))}

REMOVED = {  # top-level key -> what to do instead; DeepSpeed refuses all of them
    "nebula": "use a checkpoint block, or leave it out",
    "compression_training": "compress after training, with another library",
    "amp": "use bf16, fp16 or torch_autocast",
    "quantize_training": "quantise after training, with another library",
    "sparse_gradients": "leave it out: torch.nn.Embedding(sparse=True) is reduced sparsely without it",
    "eigenvalue": "leave it out; it was a part of quantize_training",
    "sparse_attention": "use an attention kernel of your model's library",
    "elasticity": "set the three batch keys yourself",
    "graph_harvesting": "leave it out",
    "curriculum_learning": "move it to data_efficiency.data_sampling.curriculum_learning",
    "progressive_layer_drop": "leave it out",
}
REMOVED_ZERO = {
    "mics_shard_size": "use zero_hpz_partition_size, or leave it out",
    "mics_hierarchical_params_gather": "leave it out",
    "zeropp_loco_param": "leave it out: zero_quantized_gradients works without it",
}
# Old names of keys that are ignored today.
RENAMED = {
    "aio.thread_count": "intra_op_parallelism",
    "activation_checkpointing.partitioned_activations": "partition_activations",
}
COMMENTS = ("_", "//", "#", "comment")


def keys_of(block: str) -> list[str]:
    """List the keys that a block knows, by every name under which they may be written; "" is the top level."""
    if not block:
        return sorted(TOP_LEVEL)
    if block in MODELS:
        fields = MODELS[block].model_fields
        return [*fields, *(field.alias for field in fields.values() if field.alias)]
    return READ.get(block, "").split()


def known_blocks() -> Iterable[str]:
    """Name every block whose keys are known, the top level first."""
    return ("", *MODELS, *READ)


def homes_of(key: str, not_in: str) -> list[str]:
    """List the blocks, other than `not_in`, that know a key; the first is where it most likely belongs."""
    if key in ("enabled", "type", "device", "profile", "params", "dtype"):
        return []  # many blocks have them
    found = [block for block in known_blocks() if block != not_in and key in keys_of(block)]
    if {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"} <= set(found):
        return []  # both have it: which one is meant cannot be known
    return [block for block in found if block != "bfloat16"]


def nearest(key: str, block: str) -> str | None:
    """Return the known key of a block that is most like a misspelt one, old names left out."""
    known = [name for name in keys_of(block) if name not in DEPRECATED or name == "cpu_offload"]
    by_sound = {name.lower(): name for name in known}
    found = difflib.get_close_matches(key.lower(), by_sound, n=1, cutoff=0.75)
    return by_sound[found[0]] if found else None


def is_comment(key: str) -> bool:
    """Whether a key is written for people: `_comment`, `//`, `comment`."""
    return key.lower().startswith(COMMENTS)


def path_of(block: str, key: str) -> str:
    return f"{block}.{key}" if block else key
