# SPDX-License-Identifier: Apache-2.0
"""Tensors that hold their values in others: what is said of one is said of these."""

from __future__ import annotations

from typing import Any

import lms_device
import pytest
import torch
from lms_tensors import Flattened, Wrapper, on_host


@pytest.mark.parametrize("wrap", [Flattened, lambda x: Flattened(Flattened(x))])
def test_the_inner_tensor_is_meant(lms: Any, wrap: Any) -> None:
    inner = torch.ones(1 << 16, device="cuda")
    wrapper = wrap(inner)
    lms.exclude(wrapper)
    lms.reclaim()
    assert not on_host(inner)
    lms.include(wrapper)
    lms.reclaim()
    assert on_host(inner)
    with lms.pin(wrapper):
        assert not on_host(inner)
        lms.reclaim()
        assert not on_host(inner)
    inner.data_ptr()
    lms.release_pointer(wrapper)
    lms.reclaim()
    assert on_host(inner)


def test_a_parameter_of_a_module(lms: Any) -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Flattened(torch.ones(1 << 16, device="cuda")))
    lms.exclude(module)
    lms.reclaim()
    assert not on_host(module.weight.inner)


def test_what_cannot_be_reached_is_refused(lms: Any) -> None:
    wrapper = Wrapper(torch.ones(1 << 16, device="cuda"))
    with pytest.raises(TypeError, match="the memory of a Wrapper cannot be reached"):
        lms.exclude(wrapper)
    with pytest.raises(TypeError, match="name these tensors"), lms.pin(wrapper):
        pass


def test_other_subclasses_have_memory(lms: Any) -> None:
    class Named(torch.Tensor):
        pass

    x = torch.ones(1 << 16, device="cuda").as_subclass(Named)
    lms.exclude(x)
    lms.reclaim()
    assert not on_host(x)


def test_what_is_refused_is_not_excluded(lms: Any) -> None:
    wrapper = Wrapper(torch.ones(1 << 16, device="cuda"))
    for _ in range(2):
        with pytest.raises(TypeError, match="cannot be reached"):
            lms.exclude(wrapper)
        assert not torch.ops.lms.excluded(wrapper)


def test_a_module_is_excluded_as_a_whole_or_not(lms: Any) -> None:
    module = torch.nn.Module()
    for name in ("before", "kept"):
        module.register_buffer(name, torch.ones(8, device="cuda"))
    module.register_buffer("refused", Wrapper(torch.ones(8, device="cuda")))
    lms.exclude(module.kept)
    with pytest.raises(TypeError, match="cannot be reached"):
        lms.exclude(module)
    assert not torch.ops.lms.excluded(module.before)
    assert torch.ops.lms.excluded(module.kept)


def test_what_was_freed_holds_nothing(lms: Any) -> None:
    """As FSDP frees parameters, which are modules' all the same."""
    module = torch.nn.Linear(64, 64).cuda()
    module.weight.untyped_storage().resize_(0)
    lms.exclude(module)
    lms.include(module)
    with lms.pin(module):
        pass


@pytest.mark.skipif(not hasattr(torch, "func"), reason="came with PyTorch 2")
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "functionalize"])
def test_levels_of_torch_func_are_reached_through(lms: Any, transform: str) -> None:
    inside = []

    def square(x: torch.Tensor) -> torch.Tensor:
        lms.exclude(x)
        inside.append(torch.cuda.lms.stats()["lms.excluded"])
        lms.include(x)
        with lms.pin(x):
            inside.append(torch.cuda.lms.stats()["pinned.all.current"])
            return (x * x).sum()

    x = torch.ones(4, 1 << 16, device="cuda")
    transformed = getattr(torch.func, transform)
    transformed(square, (x,), (x,)) if transform == "jvp" else transformed(square)(x)
    assert inside == [1, 1]
    assert torch.cuda.lms.stats()["pinned.all.current"] == 0


@pytest.mark.skipif(
    lms_device.torch_version() < (2, 0), reason="modes see other operators before PyTorch 2"
)
def test_modes_see_nothing_of_it(lms: Any) -> None:
    """Nor does one that makes all tensors fakes take its place."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(1 << 16, device="cuda")
    storage = x.untyped_storage()
    for mode in Watch(), FakeTensorMode():
        with mode:
            lms.exclude(x)
            lms.include(x)
            with lms.pin(x):
                pass
            assert storage.data_ptr() != 0
            storage.resize_(storage.nbytes())
            lms.release_pointer(x)
            lms.reclaim()
    assert not seen


@pytest.mark.skipif(
    lms_device.torch_version() < (2, 0), reason="modes see other operators before PyTorch 2"
)
def test_functions_are_seen_as_without_it(lms: Any) -> None:
    """Where a pointer is asked for, by modes and by classes of tensors."""
    from torch.overrides import TorchFunctionMode
    from torch.utils.dlpack import to_dlpack

    seen: list[Any] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Watched(torch.Tensor):
        device = "anywhere"  # type: ignore[assignment]

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(1 << 16, device="cuda")
    watched = x.as_subclass(Watched)
    with Watch():
        x.data_ptr()
        x.untyped_storage()[3]
    watched.data_ptr()
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.func.vmap(lambda part: part * bool(part.data_ptr()))(x)
    lms.release_pointer(x)
    assert [getattr(function, "__name__", "") for function in seen] == [
        "data_ptr",
        "untyped_storage",
        "data_ptr",
    ]
    assert lms.stats()["lms.exposed"] == 0
    to_dlpack(watched)
    assert lms.stats()["lms.exposed"] == 1
