# SPDX-License-Identifier: Apache-2.0
"""Launches of Triton's kernels, by themselves and by inductor: pinned while they take pointers.

A simulated device has no code generator, so that the kernel here is a Python function. What calls
it is inductor's own class, or one in the place of Triton's, found by the same name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_extension import set_bytes
from lms_tensors import block, bytes_of

MODES = lms_device.device.modes


def kernel(target: torch.Tensor, source: torch.Tensor, value: int) -> str:
    """As a launcher does: takes all pointers, and starts something that uses them."""
    pointers = [t.data_ptr() for t in (target, source)]
    for each in (target, source):
        assert not torch.ops.lms.evict(each), "it moved while its pointer was in use"
    assert torch.ops.lms.reclaim_inactive(0) == 0
    for pointer, each in zip(pointers, (target, source), strict=True):
        assert not torch.ops.lms.on_host(each)
        set_bytes(pointer, value, each.nbytes)
    return "launched"


def inductor() -> Any:
    """`run` of the class that launches every kernel of inductor, around `kernel`."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    class Tuner(CachingAutotuner):
        def __init__(self) -> None:  # the code generator is what is missing
            self.launchers = [self.launcher]
            self.inductor_meta: dict[str, Any] = {}
            self.triton_meta: dict[str, Any] = {}
            self.fn = SimpleNamespace(__name__="kernel", arg_names=[])
            self.device_props = SimpleNamespace(type="cuda", index=0)
            self._plugins: list[Any] = []

        def __getattr__(self, name: str) -> None:
            return None  # nothing tuned, dumped or profiled

        @staticmethod
        def launcher(*args: Any, stream: int, **kwargs: Any) -> str:
            return kernel(*args)

    Tuner.launcher.store_cubin = False  # type: ignore[attr-defined]
    Tuner.launcher.cache_hash = "0"  # type: ignore[attr-defined]
    Tuner.launcher.config = SimpleNamespace(  # type: ignore[attr-defined]
        found_by_coordesc=True, found_by_combo_autotune=True
    )
    tuner = Tuner()
    grid = {"grid": None} if "grid" in inspect.signature(CachingAutotuner.run).parameters else {}
    return lambda *args: tuner.run(*args, stream=0, **grid)


class JITFunction:
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return kernel(*args)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch, lms: Any) -> Any:
    """`kernel[grid](...)` of a module that is imported after the first enable."""

    class Loader:
        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, module: ModuleType) -> None:
            module.JITFunction = type("JITFunction", (JITFunction,), dict(JITFunction.__dict__))

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name in ("triton", "triton.runtime", "triton.runtime.jit"):
                return ModuleSpec(name, Loader(), is_package=name != "triton.runtime.jit")
            return None

    for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    jit = importlib.import_module("triton.runtime.jit")
    yield lambda *args: jit.JITFunction().run(*args, grid=(1,), warmup=False)
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        sys.modules.pop(name, None)


@pytest.fixture(params=["inductor", "triton"])
def launch(request: pytest.FixtureRequest, lms: Any) -> Any:
    return inductor() if request.param == "inductor" else request.getfixturevalue("triton")


@pytest.mark.parametrize("mode", MODES)
def test_pinned_for_the_launch(lms: Any, device: Any, launch: Any, mode: str) -> None:
    x, y = block(1, 2), block(1, 3)
    lms.reclaim()
    device.mode(mode)
    assert launch(x, y, 7) == "launched"
    assert not torch.ops.lms.exposed(x) and lms.stats()["pinned.all.current"] == 0
    filler = [block(1, 9) for _ in range(2)]
    assert torch.ops.lms.evict(x) and torch.ops.lms.evict(y)
    filler += [block(1, 8) for _ in range(2)]
    assert bytes_of(x) == bytes_of(y) == b"\7" * MIB
    assert [f[0].item() for f in filler] == [9, 9, 8, 8]


def test_a_launch_while_some_are_still_out(lms: Any, device: Any, launch: Any) -> None:
    """Turned off, but not all are back: what a launch uses could still make way."""
    device.limit(16 * MIB)
    kept = [block(4, i) for i in range(6)]
    lms.disable()
    x, y = [x for x in kept if torch.ops.lms.on_host(x)][:2]
    kept.clear()
    assert launch(x, y, 7) == "launched"
    assert not torch.ops.lms.exposed(x) and not torch.ops.lms.exposed(y)
    assert bytes_of(x) == bytes_of(y) == b"\7" * (4 * MIB)


def test_a_launch_that_fails_leaves_no_pin(lms: Any, launch: Any) -> None:
    x = block()
    with pytest.raises(AttributeError):
        launch(x, None, 7)
    assert lms.stats()["pinned.all.current"] == 0
    assert torch.ops.lms.evict(x)


def test_a_launch_that_does_not_fit_says_so(lms: Any, device: Any, launch: Any) -> None:
    device.limit(24 * MIB)
    x, y = block(8, 1), block(8, 2)
    more = [block(8, i) for i in range(3)]
    assert launch(x, y, 1) == "launched"
    assert bytes_of(x) == bytes_of(y) == b"\1" * (8 * MIB)
    assert all((t == i).all().item() for i, t in enumerate(more))
    device.limit(12 * MIB)
    lms.reclaim()
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        launch(x, y, 2)
    assert bytes_of(x) == b"\1" * (8 * MIB) and lms.stats()["pinned.all.current"] == 0


def test_alignment_is_compared_without_holding(lms: Any) -> None:
    from torch._inductor.utils import copy_misaligned_inputs

    x = block()
    lms.reclaim()
    copy_misaligned_inputs([x], [0])
    assert not torch.ops.lms.exposed(x)


@pytest.mark.skipif(not hasattr(torch.cuda, "jiterator"), reason="1.11 and before have none")
@pytest.mark.parametrize("outputs", (1, 2))
def test_a_jiterated_kernel_keeps_what_it_is_given_and_makes(program: Any, outputs: int) -> None:
    """It is compiled and launched by no operator, and makes its results itself."""
    out = program(
        """
        import sys
        import torch
        outputs = int(sys.argv[1])

        def launch(code, name, by_reference, count, tensors, values):
            made = [torch.empty_like(tensors[0]) for _ in range(count)]
            assert count == outputs and values == {"alpha": 3}
            print(*(on_host(t) or evict(t) for t in (*tensors, *made)))
            with torch.no_grad():
                for each in made:
                    torch.add(*tensors, alpha=values["alpha"], out=each)
            return tuple(made) if count > 1 else made[0]

        torch._C._cuda_jiterator_compile_and_launch_kernel = launch
        code = "template <typename T> T f(T x, T y, T alpha) { return x + alpha * y; }"
        if outputs == 1:
            function = torch.cuda.jiterator._create_jit_fn(code, alpha=3)
        else:
            code = "template <typename T> void f(T x, T y, T alpha, T& out, T& other) { }"
            make = torch.cuda.jiterator._create_multi_output_jit_fn
            function = make(code, num_outputs=outputs, alpha=3)
        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        evict, on_host = torch.ops.lms.evict, torch.ops.lms.on_host
        x, y = (torch.full((1 << 18,), float(i), device="cuda") for i in (1, 2))
        y.requires_grad_()  # no gradient goes through it
        for on in (True, False):
            torch.cuda.lms.reclaim()
            made = function(x, y)
            assert isinstance(made, torch.Tensor) if outputs == 1 else isinstance(made, tuple)
            made = [made] if outputs == 1 else made
            print([(t.mean().item(), t.requires_grad, evict(t)) for t in made])
            torch.cuda.lms.disable()
        """,
        str(outputs),
    )
    stays = " ".join(["False"] * (2 + outputs))
    first, results, again, off = out.splitlines()
    assert first == again == stays
    assert results == str([(7.0, False, True)] * outputs)
    assert off == str([(7.0, False, False)] * outputs)


@pytest.mark.skipif(not hasattr(torch.cuda, "jiterator"), reason="1.11 and before have none")
def test_enabling_begins_anew_after_a_failure(program: Any) -> None:
    """Of what came after the launches."""
    out = program(
        """
        import torch
        from torch.cuda.lms import profiling
        torch.cuda.init()
        install = profiling.install

        def fails():
            raise RuntimeError("cannot")

        profiling.install = fails
        try:
            torch.cuda.lms.enable()
        except RuntimeError as error:
            print(error)
        profiling.install = install
        torch.cuda.lms.enable()
        print(torch.cuda.lms.is_enabled())
        """
    )
    assert out == "cannot\nTrue\n"
