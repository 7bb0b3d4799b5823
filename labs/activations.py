"""Bytes that autograd keeps of one micro-batch for the backward pass, term by term. No torch.

A layer keeps what its backward formula reads: a linear its input, a norm its input and two numbers a row, GELU its
input, attention its queries, keys, values, output and one number a query and head. An addition keeps nothing. A tensor
that two layers keep is held once. With b samples, s tokens each, hidden size h, a heads and e bytes an element, a GPT
block keeps b s h e x 16 + b s e x 4 + b s a x 4 bytes: no s**2 term, because torch's attention is the flash kernel.

A Llama block is counted in the same way but never measured here: an estimate.

Source: the terms are those of Korthikanti et al. 2022 (arXiv 2205.05198), without dropout, and counted for this model.
"""

from __future__ import annotations

from labs.config import ModelTrainingConfig
from labs.spec import ModelSpec, head_size
from labs.widths import FP32_BYTES

INT64_BYTES = 8
# What selective checkpointing computes again: everything but the results of matrix products and of attention.
CHEAP = ("norm outputs", "norm statistics", "GELU outputs", "SiLU outputs", "gated products", "attention scores")


def activation_bytes(config: ModelTrainingConfig) -> int:
    """Predict the bytes that one rank keeps between the forward and the backward pass of one micro-batch.

    Parameters and buffers are not counted. With activation checkpointing a block keeps its input alone; while its
    backward runs, the rest of that one block comes back for a moment.
    """
    return sum(activation_terms(config).values())


def activation_terms(config: ModelTrainingConfig) -> dict[str, int]:
    """Return {what is kept: bytes} for one micro-batch; the terms of the blocks are summed over blocks."""
    width = 2 if config.use_mixed_precision else FP32_BYTES
    checkpointing = "full" if config.activation_checkpointing else "none"
    return kept_terms(config.model, config.micro_batch_size, width, checkpointing)


def kept_terms(
    spec: ModelSpec, samples: int, width: int, checkpointing: str = "none", keeps_scores: bool = False
) -> dict[str, int]:
    """Return {what is kept: bytes} of `samples` samples in elements of `width` bytes.

    checkpointing: "none", "selective" (CHEAP is computed again) or "full" (a block keeps its input alone).
    """
    kept = block_terms(spec, samples, width, keeps_scores)
    if checkpointing == "full":
        kept = {"block inputs": kept["block inputs"]}
    if checkpointing == "selective":
        kept = {name: size for name, size in kept.items() if name not in CHEAP}
    kept = {name: spec.num_layers * size for name, size in kept.items()}
    return {**_inputs(spec, samples, width), **kept, **_head(spec, _rows(spec, samples), width)}


def block_terms(spec: ModelSpec, samples: int, width: int, keeps_scores: bool = False) -> dict[str, int]:
    """Return {what one block keeps without checkpointing: bytes}.

    `keeps_scores` adds what attention without the flash kernel keeps: 5 bytes a pair of tokens and head, which is the
    softmax, its dropout mask and the product of the two. Source: Korthikanti et al. 2022, section 4.1.
    """
    kept = {"gpt": _gpt_block, "mlp": _mlp_block, "llama": _llama_block}[spec.kind](spec, _rows(spec, samples), width)
    if keeps_scores and spec.kind != "mlp":
        kept["attention scores"] = 5 * samples * spec.num_heads * spec.context**2
    return kept


def korthikanti_layer_bytes(seq: int, batch: int, hidden: int, heads: int, recomputed: str = "none") -> float:
    """Bytes that one layer of a GPT keeps in 16 bits with dropout and without flash attention, by the paper's formula.

    recomputed: "none" s b h (34 + 5 a s / h); "selective", the attention scores, 34 s b h; "full" 2 s b h.
    Source: Korthikanti et al. 2022 (arXiv 2205.05198), equation 1, section 5 and table 2.
    """
    scores = 5 * heads * seq / hidden
    return seq * batch * hidden * {"none": 34 + scores, "selective": 34, "full": 2}[recomputed]


def _rows(spec: ModelSpec, samples: int) -> int:
    return samples if spec.kind == "mlp" else samples * spec.context


def _gpt_block(spec: ModelSpec, rows: int, width: int) -> dict[str, int]:
    tensor = rows * spec.hidden_size * width  # [batch, seq, hidden]
    norms = 2 if spec.norm else 0
    return {
        "block inputs": tensor,
        "sums after attention": tensor,
        "norm outputs": norms * tensor,  # without norms the linears keep the inputs, which are counted above
        "norm statistics": norms * 2 * rows * width,  # mean and 1/std of every row
        "queries, keys, values": 3 * tensor,
        "attention outputs": tensor,
        "attention log-sums": rows * spec.num_heads * FP32_BYTES,
        "GELU inputs": 4 * tensor,
        "GELU outputs": 4 * tensor,
    }


def _mlp_block(spec: ModelSpec, rows: int, width: int) -> dict[str, int]:
    tensor = rows * spec.hidden_size * width  # [batch, hidden]
    norms = 1 if spec.norm else 0
    return {
        "block inputs": tensor,
        "norm outputs": norms * tensor,
        "norm statistics": norms * 2 * rows * width,
        "GELU inputs": tensor,
    }


def _llama_block(spec: ModelSpec, rows: int, width: int) -> dict[str, int]:
    """Keys and values are narrower than queries; of many experts each token keeps those that it visits."""
    shape, tensor = spec.llama, rows * spec.hidden_size * width
    queries, keys = (rows * heads * head_size(spec) * width for heads in (spec.num_heads, shape.num_kv_heads))
    inner = rows * shape.experts_per_token * shape.intermediate_size * width
    experts = shape.num_experts > 1
    return {
        "block inputs": tensor,
        "sums after attention": tensor,
        "norm outputs": 2 * tensor,
        "norm statistics": 2 * rows * FP32_BYTES,  # RMSNorm: 1/rms of every row
        "queries, keys, values": queries + 2 * keys,
        "attention outputs": queries,
        "attention log-sums": rows * spec.num_heads * FP32_BYTES,
        "gates": inner,
        "SiLU outputs": inner,
        "ups": inner,
        "gated products": inner,
        "routed inputs and outputs": experts * 2 * shape.experts_per_token * tensor,
        "router weights": experts * rows * shape.num_experts * FP32_BYTES,
    }


def _inputs(spec: ModelSpec, samples: int, width: int) -> dict[str, int]:
    """Tokens are a view of a window [batch, context + 1], targets a copy; rows of a table are scaled first."""
    if spec.kind == "mlp":
        return {"scaled rows": samples * spec.num_features * width}
    return {"tokens": samples * (spec.context + 1) * INT64_BYTES, "positions": spec.context * INT64_BYTES}


def _head(spec: ModelSpec, rows: int, width: int) -> dict[str, int]:
    """The last block's output, the final norm, and the cross-entropy, which is fp32 always."""
    tensor = rows * spec.hidden_size * width
    norms = 1 if spec.kind != "mlp" and spec.norm else 0
    classes = spec.num_classes if spec.kind == "mlp" else spec.vocab_size
    return {
        "last block's output": tensor,
        "final norm": norms * (tensor + 2 * rows * width),
        "log-probabilities": rows * classes * FP32_BYTES,
        "targets": rows * INT64_BYTES,
        "sum of target weights": FP32_BYTES,
    }
