"""What DeepSpeed 0.19.8 lays out in memory and sends for ZeRO-1, 2 and 3, by arithmetic. No torch."""

from __future__ import annotations

from collections.abc import Iterable


def bucket_elements(sizes: Iterable[int]) -> int:
    """Size the gradient bucket [elements]: a quarter of the model, but never less than its largest parameter.

    DeepSpeed's own default of 5e8 elements would hold any model of this course whole, and ZeRO-3 allocates it in full.
    """
    sizes = list(sizes)
    return max(max(sizes), -(-sum(sizes) // 4))
