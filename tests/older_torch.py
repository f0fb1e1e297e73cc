# SPDX-License-Identifier: Apache-2.0
"""PyTorch 2's names, in which the suites are written, for those of 1.13 that lack them; and what
Python 3.9, which 1.13 is the last for, has not."""

from __future__ import annotations

import builtins
import itertools
import math
import sys
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


class _Library(torch.library.Library):
    """With fragments, which it makes in C++ alone, and an end that can be called for."""

    def __init__(self, namespace: str, kind: str, dispatch_key: str = "") -> None:
        super().__init__(namespace, "IMPL" if kind == "FRAGMENT" else kind, dispatch_key)
        if kind == "FRAGMENT":
            place = (__file__, 0)
            self.m = torch._C._dispatch_library(kind, namespace, dispatch_key, *place)

    def _destroy(self) -> None:
        self.__del__()
        self._op_impls = set()


class _Zip(zip):  # type: ignore[type-arg]
    """With `strict`."""

    def __new__(cls, *given: Any, strict: bool = False) -> Any:
        if strict:
            given = tuple(map(list, given))
            if len(set(map(len, given))) > 1:
                raise ValueError(f"zip() was given {', '.join(str(len(each)) for each in given)}")
        return super().__new__(cls, *given)


def _record_memory_history(enabled: str | None = "all", **_: Any) -> None:
    _record(enabled is not None)


_record: Any = torch.cuda.memory._record_memory_history


def name() -> None:
    """Add what is missing, and let what is there take what PyTorch 2's takes."""
    if hasattr(torch, "compile"):
        return
    if sys.version_info < (3, 10):
        builtins.zip = _Zip  # type: ignore[misc]
        itertools.pairwise = lambda given: zip(given, given[1:], strict=False)  # noqa: RUF007
    names: list[tuple[Any, str, Any]] = [
        (torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError),
        (torch.Tensor, "untyped_storage", torch.Tensor._storage),  # type: ignore[attr-defined]
        (torch.Tensor, "nbytes", property(_bytes)),
        (torch.cuda.Stream, "stream_id", property(lambda stream: stream._cdata & ((1 << 48) - 1))),
        (torch.storage.TypedStorage, "_data_ptr", torch.storage.TypedStorage.data_ptr),
        (functional, "scaled_dot_product_attention", _attention),
        (torch.amp, "GradScaler", lambda _device, **words: torch.cuda.amp.GradScaler(**words)),
    ]
    for where, what, value in names:
        if not hasattr(where, what):
            setattr(where, what, value)
    torch.library.Library = _Library  # type: ignore[misc]
    torch.cuda.memory._record_memory_history = _record_memory_history
