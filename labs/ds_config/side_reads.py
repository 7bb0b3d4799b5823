"""The rest of a config, as DeepSpeed 0.19.8 reads it: settings and blocks that decide no bytes. No torch.

Each function looks at one of them and raises Refusal where DeepSpeed stops, or leaves that to pydantic.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from labs.ds_config import side_blocks as side
from labs.ds_config.keys import MODELS
from labs.ds_config.reading import Reading
from labs.ds_config.refusals import Refusal, object_at, of_validation, shown

DATA_TYPES = ("fp32", "fp16", "bf16")
AUTOCAST = {f"{torch}{name}" for torch in ("", "torch.") for name in ("float16", "float32", "bfloat16", "int8")}
AUTOCAST |= {"fp16", "half", "fp32", "float", "bf16"}


def data_type(key: str, default: str | None) -> Callable:
    def check(found: Reading) -> None:
        value = found.config.get(key, default)
        if value is not None and not (isinstance(value, str) and value.lower() in DATA_TYPES):
            raise Refusal(key, f"{key} is {shown(value)}", "it must be fp32, fp16 or bf16", "write one of the three")

    return check


def allreduce_op(found: Reading) -> None:
    value = found.config.get("gradient_allreduce_op", "mean")
    if not (isinstance(value, str) and value.lower() in ("mean", "sum")):
        key = "gradient_allreduce_op"
        raise Refusal(key, f"{key} is {shown(value)}", "it must be mean or sum", "leave it out; mean is the default")


def block(key: str) -> Callable:
    def check(found: Reading) -> None:
        if key in found.config:
            MODELS[key](**object_at(found.config, key))

    return check


def monitors(found: Reading) -> None:
    try:
        side.Monitors(**{name: found.config.get(name, {}) for name in ("tensorboard", "wandb", "csv_monitor", "comet")})
    except ValidationError as error:
        found.refusals += of_validation("", error)


def torch_autocast(found: Reading) -> None:
    block = object_at(found.config, "torch_autocast")
    if "dtype" in block and not (isinstance(block["dtype"], str) and block["dtype"] in AUTOCAST):
        what = f"torch_autocast.dtype is {shown(block['dtype'])}"
        raise Refusal("torch_autocast.dtype", what, "it is no data type", 'write "bfloat16" or "float16"')
    modules = block.get("lower_precision_safe_modules", [])
    if not isinstance(modules, list | str | dict) or not all(isinstance(name, str) for name in modules):
        key = "torch_autocast.lower_precision_safe_modules"
        raise Refusal(key, f"{key} is {shown(modules)}", "it must be a list of names", "write full names of classes")


def optimizer(found: Reading) -> None:
    optimizer = object_at(found.config, "optimizer")
    name = optimizer.get("type")
    if name is not None and not isinstance(name, str):
        raise Refusal("optimizer.type", f"optimizer.type is {shown(name)}", "it must be a name", 'write "AdamW"')
    params = optimizer.get("params") if name is not None else None
    if params is not None and not isinstance(params, dict):
        what = f"optimizer.params is {shown(params)}"
        raise Refusal("optimizer.params", what, "DeepSpeed reads an object here", 'write {"lr": 1e-4}')
    if params and "max_grad_norm" in params:
        params["max_grad_norm"] > 0  # noqa: B015  DeepSpeed compares, and fails on what is no number


def wall_clock_breakdown(found: Reading) -> None:
    profiled = object_at(found.config, "flops_profiler").get("enabled", False)
    found.config.get("wall_clock_breakdown", False) | profiled


def autotuning(found: Reading) -> None:
    block = object_at(found.config, "autotuning")
    for key, default in (("results_dir", "autotuning_results"), ("exps_dir", "autotuning_exps")):
        if not block.get(key, default):
            raise Refusal(f"autotuning.{key}", f"autotuning.{key} is empty", "it names a folder", "leave it out")
    if block.get("model_info") is not None:
        object_at(block, "autotuning.model_info")


def data_efficiency(found: Reading) -> None:
    block = object_at(found.config, "data_efficiency")
    sampling = object_at(block, "data_efficiency.data_sampling")
    curriculum = object_at(sampling, "data_efficiency.data_sampling.curriculum_learning")
    if curriculum.get("enabled", False) and "curriculum_metrics" not in curriculum:
        key = "data_efficiency.data_sampling.curriculum_learning"
        raise Refusal(key, f"{key} is enabled without curriculum_metrics", "it needs them", "give curriculum_metrics")
    batching = object_at(sampling, "data_efficiency.data_sampling.dynamic_batching")
    for key in ("min_batch_size", "max_batch_size", *(["max_tokens"] if batching.get("enabled", False) else [])):
        if key in batching or key == "max_tokens":
            int(batching[key])
    routing = object_at(block, "data_efficiency.data_routing")
    object_at(routing, "data_efficiency.data_routing.random_ltd")


def checkpoint(found: Reading) -> None:
    block = object_at(found.config, "checkpoint")
    _one_of("checkpoint.tag_validation", block.get("tag_validation", "WARN"), ("WARN", "IGNORE", "FAIL"))
    if object_at(block, "checkpoint.parallel_write").get("pipeline_stage", False) not in (True, False):
        key = "checkpoint.parallel_write.pipeline_stage"
        raise Refusal(key, f"{key} is not true or false", "it is a switch", "write true or false")
    if block.get("writer") is not None:
        writer = object_at(block, "checkpoint.writer")
        for key, names in (("type", ("MOCK", "PYTHON", "FAST")), ("data_parallel", ("REPLICA", "SOCKET", "MACHINE"))):
            if writer.get(key) is not None:
                _one_of(f"checkpoint.writer.{key}", writer[key], names)


def _one_of(key: str, value, names: tuple[str, ...]) -> None:
    if not (isinstance(value, str) and value.upper() in names):
        raise Refusal(key, f"{key} is {shown(value)}", f"it must be one of {', '.join(names)}", f"write {names[0]}")


def data_types(found: Reading) -> None:
    names = object_at(found.config, "data_types").get("keep_in_fp32_modules", "auto")
    if names != "auto" and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        key = "data_types.keep_in_fp32_modules"
        raise Refusal(key, f"{key} is {shown(names)}", "it is a list of names", 'write a list, or "auto"')


def aio(found: Reading) -> None:
    if found.config.get("aio") is not None and object_at(found.config, "aio").get("use_gds", False):
        if found.accelerator != "cuda":
            why = f"GPUDirect storage needs CUDA, and this machine has {found.accelerator}"
            raise Refusal("aio.use_gds", "aio.use_gds is true", why, "leave it out here; a machine with CUDA takes it")


def timers(found: Reading) -> None:
    value = found.config.get("timers", {})
    if isinstance(value, list | str) and "throughput" not in value:
        return  # DeepSpeed asks only whether "throughput" is in it
    try:
        side.ThroughputTimer(**object_at(object_at(found.config, "timers"), "timers.throughput"))
    except ValidationError as error:
        found.refusals += of_validation("timers.throughput", error)


def expert_parallel(found: Reading) -> None:
    if found.config.get("expert_parallel"):
        if object_at(found.config, "expert_parallel").get("load_balance_coeff") is not None:
            key = "expert_parallel.load_balance_coeff"
            raise Refusal(key, f"{key} is given", "DeepSpeed does not support it", "leave it out")


def vocabulary(found: Reading) -> None:
    size = found.config.get("vocabulary_size")
    if size:
        size % 8
