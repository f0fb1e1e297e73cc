# SPDX-License-Identifier: Apache-2.0
"""Tensors that hold their values in others: what is said of one is said of these."""

from __future__ import annotations

from typing import Any

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
