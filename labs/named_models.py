"""Published models by name, each with its source, and models read from a Hugging Face config.json. No torch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labs.errors import ConfigError
from labs.spec import PRESETS, LlamaShape, ModelSpec


@dataclass(frozen=True)
class NamedModel:
    """A published model; `source` says where its shape is published: a page with its config.json, and the paper."""

    spec: ModelSpec
    source: str


def find(name: str, **changes) -> ModelSpec:
    """Return a preset or a published model by name, with single fields changed.

    Raises ConfigError for an unknown name, listing the known ones, the nearest first.
    """
    if name in PRESETS:
        return ModelSpec(**{**PRESETS[name], **changes})
    if name in NAMED_MODELS:
        spec = NAMED_MODELS[name].spec
        return spec.replace(**changes) if changes else spec
    known = [*PRESETS, *NAMED_MODELS]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    listed = ", ".join([*near, *(other for other in known if other not in near)])
    raise ConfigError(f"model {name!r} is not known; the known names are {listed}")


def _gpt2(num_layers: int, hidden_size: int, num_heads: int, name: str) -> NamedModel:
    spec = ModelSpec(
        num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads, context=1024, vocab_size=50257
    )
    return NamedModel(spec, f"huggingface.co/openai-community/{name}, config.json; Radford et al. 2019")


def _llama(sizes: tuple[int, int, int, int, int], *, vocab_size: int, context: int, source: str, **shape) -> NamedModel:
    """Describe an untied Llama; sizes are layers, hidden size, query heads, key/value heads, feed-forward width."""
    num_layers, hidden_size, num_heads, num_kv_heads, intermediate_size = sizes
    spec = ModelSpec(
        kind="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        context=context,
        vocab_size=vocab_size,
        tied_embedding=False,
        llama=LlamaShape(intermediate_size=intermediate_size, num_kv_heads=num_kv_heads, **shape),
    )
    return NamedModel(spec, source)


def _llama2(name: str, *sizes: int) -> NamedModel:
    source = f"huggingface.co/meta-llama/{name}, config.json; arXiv 2307.09288"
    return _llama(sizes, vocab_size=32000, context=4096, source=source)


def _llama3(name: str, context: int, *sizes: int) -> NamedModel:
    source = f"huggingface.co/meta-llama/{name}, config.json; arXiv 2407.21783, table 3"
    return _llama(sizes, vocab_size=128256, context=context, source=source)


def _qwen2_5(name: str, vocab_size: int, *sizes: int) -> NamedModel:
    source = f"huggingface.co/Qwen/{name}, config.json; arXiv 2412.15115"
    return _llama(sizes, vocab_size=vocab_size, context=131072, source=source, qkv_bias=True)


NAMED_MODELS: dict[str, NamedModel] = {
    "gpt2": _gpt2(12, 768, 12, "gpt2"),
    "gpt2-medium": _gpt2(24, 1024, 16, "gpt2-medium"),
    "gpt2-large": _gpt2(36, 1280, 20, "gpt2-large"),
    "gpt2-xl": _gpt2(48, 1600, 25, "gpt2-xl"),
    "llama-2-7b": _llama2("Llama-2-7b-hf", 32, 4096, 32, 32, 11008),
    "llama-2-13b": _llama2("Llama-2-13b-hf", 40, 5120, 40, 40, 13824),
    "llama-2-70b": _llama2("Llama-2-70b-hf", 80, 8192, 64, 8, 28672),
    "llama-3-8b": _llama3("Meta-Llama-3-8B", 8192, 32, 4096, 32, 8, 14336),
    "llama-3-70b": _llama3("Meta-Llama-3-70B", 8192, 80, 8192, 64, 8, 28672),
    "llama-3.1-8b": _llama3("Llama-3.1-8B", 131072, 32, 4096, 32, 8, 14336),
    "llama-3.1-70b": _llama3("Llama-3.1-70B", 131072, 80, 8192, 64, 8, 28672),
    "llama-3.1-405b": _llama3("Llama-3.1-405B", 131072, 126, 16384, 128, 8, 53248),
    "mistral-7b": _llama(
        (32, 4096, 32, 8, 14336),
        vocab_size=32000,
        context=32768,
        source="huggingface.co/mistralai/Mistral-7B-v0.1, config.json; arXiv 2310.06825",
    ),
    "mixtral-8x7b": _llama(
        (32, 4096, 32, 8, 14336),
        vocab_size=32000,
        context=32768,
        source="huggingface.co/mistralai/Mixtral-8x7B-v0.1, config.json; arXiv 2401.04088",
        num_experts=8,
        experts_per_token=2,
    ),
    "qwen2.5-7b": _qwen2_5("Qwen2.5-7B", 152064, 28, 3584, 28, 4, 18944),
    "qwen2.5-32b": _qwen2_5("Qwen2.5-32B", 152064, 64, 5120, 40, 8, 27648),
}


def from_hf_config(path) -> ModelSpec:
    """Read the shape of a model from a Hugging Face config.json, or from the folder that holds one.

    What the file leaves out takes the value that transformers gives it.
    Raises ConfigError for a file that cannot be read, a model_type that is not known, or a size that is missing.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} cannot be read as JSON ({problem}); give the path of a config.json") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} holds a {type(fields).__name__}, not an object of fields; give a config.json")
    kind = fields.get("model_type")
    if kind not in _READERS:
        raise ConfigError(
            f"{path} describes a model of type {kind!r}, which is not known; the known types are {', '.join(_READERS)}"
        )
    try:
        return _READERS[kind](fields)
    except KeyError as missing:
        raise ConfigError(f"{path} has no field {missing}, which a model of type {kind!r} needs") from None
    except TypeError as problem:
        raise ConfigError(f"{path} has a field that is not a number where one is needed ({problem})") from None


def _read_gpt2(fields: dict) -> ModelSpec:
    hidden = fields["n_embd"]
    if (fields.get("n_inner") or 4 * hidden) != 4 * hidden:
        raise ConfigError(
            f"n_inner {fields['n_inner']} is not 4 x n_embd {hidden}; only that shape of gpt2 is known here"
        )
    return ModelSpec(
        num_layers=fields["n_layer"],
        hidden_size=hidden,
        num_heads=fields["n_head"],
        context=fields.get("n_positions", 1024),
        vocab_size=fields["vocab_size"],
        tied_embedding=fields.get("tie_word_embeddings", True),
    )


def _read_llama(fields: dict, **shape) -> ModelSpec:
    """Read what the four types of this family share; `shape` holds what they do not."""
    num_heads = fields["num_attention_heads"]
    return ModelSpec(
        kind="llama",
        num_layers=fields["num_hidden_layers"],
        hidden_size=fields["hidden_size"],
        num_heads=num_heads,
        context=fields["max_position_embeddings"],
        vocab_size=fields["vocab_size"],
        tied_embedding=fields.get("tie_word_embeddings", False),
        llama=LlamaShape(
            intermediate_size=fields["intermediate_size"],
            num_kv_heads=fields.get("num_key_value_heads") or num_heads,
            head_size=fields.get("head_dim"),
            **shape,
        ),
    )


def _read_plain_llama(fields: dict) -> ModelSpec:
    bias = fields.get("attention_bias", False)
    return _read_llama(fields, qkv_bias=bias, proj_bias=bias, mlp_bias=fields.get("mlp_bias", False))


def _read_mixtral(fields: dict) -> ModelSpec:
    return _read_llama(fields, num_experts=fields["num_local_experts"], experts_per_token=fields["num_experts_per_tok"])


def _read_qwen2(fields: dict) -> ModelSpec:
    return _read_llama(fields, qkv_bias=True)


_READERS: dict[str, Callable[[dict], ModelSpec]] = {
    "gpt2": _read_gpt2,
    "llama": _read_plain_llama,
    "mistral": _read_llama,
    "mixtral": _read_mixtral,
    "qwen2": _read_qwen2,
}
