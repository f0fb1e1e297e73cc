# SPDX-License-Identifier: Apache-2.0
"""PyTorch 2's names, in which the suites are written, for those of 1.13 that lack them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    weights = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        seen = torch.ones_like(weights, dtype=torch.bool).tril()
        weights = weights.masked_fill(~seen, -math.inf)
    return weights.softmax(-1) @ value


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def name() -> None:
    """Add what is missing."""
    if hasattr(torch, "compile"):
        return
    names: list[tuple[Any, str, Any]] = [
        (torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError),
        (torch.Tensor, "untyped_storage", torch.Tensor._storage),  # type: ignore[attr-defined]
        (torch.Tensor, "nbytes", property(_bytes)),
        (functional, "scaled_dot_product_attention", _attention),
        (torch.amp, "GradScaler", lambda _device, **words: torch.cuda.amp.GradScaler(**words)),
    ]
    for where, what, value in names:
        if not hasattr(where, what):
            setattr(where, what, value)
