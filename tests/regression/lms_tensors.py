# SPDX-License-Identifier: Apache-2.0
"""Tensors as the tests make them, and what the engine says of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lms_device import MIB
from torch.utils._pytree import tree_map_only


def block(mib: float = 1, value: float = 1.0) -> torch.Tensor:
    """On the device, all of it `value`."""
    return torch.full((int(mib * MIB) // 4,), float(value), device="cuda")


def ramp(start: float, n: int = MIB // 4) -> torch.Tensor:
    """On the host, every element another."""
    return torch.arange(n, dtype=torch.float32) + start


def on_host(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.lms.on_host(tensor))


def evict(tensor: torch.Tensor) -> None:
    assert torch.ops.lms.evict(tensor)
    assert on_host(tensor)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.cpu().view(torch.uint8).numpy())


@contextlib.contextmanager
def operators(namespace: str) -> Iterator[torch.library.Library]:
    """A library whose operators are gone afterwards. Those of one that is only dropped leave their
    names in torch.ops, and torch.compile fails on them in whatever test comes next."""
    made = torch.library.Library(namespace, "DEF")
    try:
        yield made
    finally:
        if hasattr(made, "_destroy"):  # not before PyTorch 2.0
            made._destroy()


class Wrapper(torch.Tensor):
    """Holds its values in `inner`, and does not say so."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_map_only(cls, lambda wrapper: wrapper.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, function(*given[0], **given[1]))


class Flattened(Wrapper):
    """Says where it holds its values."""

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors: Any, context: Any, size: Any, stride: Any) -> Any:
        return Flattened(tensors["inner"])


def page_in(tensor: torch.Tensor) -> None:
    """Queue the copy in, and no kernel that would make it run, as for a launch of Triton's."""
    pins = torch.cuda.lms.library.Hold()
    pins.take([tensor])
    pins.release()
