"""Bytes that autograd keeps of one micro-batch for the backward pass, term by term. No torch.

A layer keeps what its backward formula reads: a linear its input, a norm its input and two numbers a row, GELU its
input, attention its queries, keys, values, output and one number a query and head. An addition keeps nothing. A tensor
that two layers keep is held once. With b samples, s tokens each, hidden size h, a heads and e bytes an element, a GPT
block keeps b s h e x 16 + b s e x 4 + b s a x 4 bytes: no s**2 term, because torch's attention is the flash kernel.

Source: the terms are those of Korthikanti et al. 2022 (arXiv 2205.05198), without dropout, and counted for this model.
"""

from __future__ import annotations

from labs.config import ModelTrainingConfig
from labs.spec import ModelSpec

INT64_BYTES = 8
FP32_BYTES = 4


def activation_bytes(config: ModelTrainingConfig) -> int:
    """Predict the bytes that one rank keeps between the forward and the backward pass of one micro-batch.

    Parameters and buffers are not counted. With activation checkpointing a block keeps its input alone; while its
    backward runs, the rest of that one block comes back for a moment.
    """
    return sum(activation_terms(config).values())


def activation_terms(config: ModelTrainingConfig) -> dict[str, int]:
    """Return {what is kept: bytes} for one micro-batch; the terms of the blocks are summed over blocks."""
    width = 2 if config.use_mixed_precision else FP32_BYTES
    spec, samples = config.model, config.micro_batch_size
    rows = samples * (spec.context if spec.kind == "gpt" else 1)
    block = _gpt_block if spec.kind == "gpt" else _mlp_block
    kept = {"block inputs": rows * spec.hidden_size * width}
    if not config.activation_checkpointing:
        kept = block(spec, rows, width)
    kept = {name: spec.num_layers * size for name, size in kept.items()}
    return {**_inputs(spec, samples, width), **kept, **_head(spec, rows, width)}


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


def _inputs(spec: ModelSpec, samples: int, width: int) -> dict[str, int]:
    """Tokens and targets are views of one window [batch, context + 1]; rows of a table are scaled first."""
    if spec.kind == "mlp":
        return {"scaled rows": samples * spec.num_features * width}
    return {"tokens": samples * (spec.context + 1) * INT64_BYTES, "positions": spec.context * INT64_BYTES}


def _head(spec: ModelSpec, rows: int, width: int) -> dict[str, int]:
    """The last block's output, the final norm, and the cross-entropy, which is fp32 always."""
    tensor = rows * spec.hidden_size * width
    norms = 1 if spec.kind == "gpt" and spec.norm else 0
    classes = spec.vocab_size if spec.kind == "gpt" else spec.num_classes
    return {
        "last block's output": tensor,
        "final norm": norms * (tensor + 2 * rows * width),
        "log-probabilities": rows * classes * FP32_BYTES,
        "targets": rows * INT64_BYTES,
        "sum of target weights": FP32_BYTES,
    }
