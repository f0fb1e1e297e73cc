# SPDX-License-Identifier: Apache-2.0
"""TorchScript's fusion for GPUs, off while tensors may move. The simulated device has no code
generator: what would be fused runs as its operators do, and its graph says what was fused."""

from __future__ import annotations

import functools
import gc
import io
import signal
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    before = torch._C._jit_texpr_set_fallback_allowed(True)
    yield
    torch._C._jit_texpr_set_fallback_allowed(before)


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * y + 1) * 2 - y).relu()


def function() -> Any:
    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * y + 1) * 2 - y).relu()

    return torch.jit.script(compute)


def loaded() -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Net()), file)
    file.seek(0)
    return torch.jit.load(file)


# PyTorch 1.13 has a second one, nvFuser, to which all goes by default.
NVFUSER = not hasattr(torch, "compile")
GROUPS = ("TensorExprGroup", "CudaFusionGroup")
KINDS = {"function": function, "method": lambda: torch.jit.script(Net()), "loaded": loaded}


def block(value: float) -> torch.Tensor:
    return torch.full((MIB // 4,), value, device="cuda")


def fuses(compiled: Any) -> bool:
    """Whether it comes to run a fused group."""
    x, y = block(3), block(2)
    for _ in range(3):
        assert (compiled(x, y) == 12).all().item()
    return has_group()


def has_group() -> bool:
    graph = str(torch.jit.last_executed_optimized_graph())
    return any(group in graph for group in GROUPS)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fused_while_it_is_on(device: Any, kind: str) -> None:
    compiled = KINDS[kind]()
    assert fuses(compiled)
    for _ in range(2):
        torch.cuda.lms.enable(min_size=0)
        assert not fuses(compiled) and not fuses(function())
        torch.cuda.lms.disable()
        assert fuses(function())


def test_what_was_fused_in_autocast(device: Any) -> None:
    compiled = function()
    states = [(cpu, gpu) for cpu in (False, True) for gpu in (False, True)]

    def fused() -> list[bool]:
        found = []
        for cpu, gpu in states:
            with torch.autocast("cpu", enabled=cpu), torch.autocast("cuda", enabled=gpu):
                found.append(fuses(compiled))
        return found

    assert all(fused())
    torch.cuda.lms.enable(min_size=0)
    assert not any(fused())


@pytest.mark.parametrize("executor", [False, True], ids=["legacy", "simple"])
def test_executors_without_profiling(program: Any, executor: bool) -> None:
    """They have no cache to flush. The legacy one asks at each run whether to fuse."""
    out = program(
        f"""
        import torch
        torch._C._jit_set_profiling_executor({executor})
        torch._C._jit_set_profiling_mode(False)

        @torch.jit.script
        def compute(x, y):
            return ((x * y + 1) * 2 - y).relu()

        compute(torch.ones(4), torch.ones(4))
        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        x, y = (torch.full((1 << 18,), value, device="cuda") for value in (3.0, 2.0))
        for _ in range(3):
            assert (compute(x, y) == 12).all().item()
            torch.cuda.lms.reclaim()
        print("right", torch.cuda.lms.is_enabled())
        """
    )
    assert "right True" in out


def test_compiled_in_little_memory(lms: Any, device: Any) -> None:
    compiled = function()
    device.limit(12 * MIB)
    many = [block(i) for i in range(16)]
    for x, y in zip(many, reversed(many), strict=True):
        assert torch.equal(compiled(x, y), Net()(x, y))
    assert lms.stats()["lms.paged_out_bytes"] > 0


def test_what_the_program_asks_for_meanwhile(device: Any) -> None:
    for wanted in (False, True):
        torch.cuda.lms.enable()
        with torch.jit.fuser("fuser1"):  # puts back what it finds
            assert not fuses(function())
        torch._C._jit_override_can_fuse_on_gpu(wanted)
        if NVFUSER:
            assert torch._C._jit_set_nvfuser_enabled(wanted) is not wanted
            assert torch._C._jit_nvfuser_enabled() is wanted
        assert torch._C._jit_can_fuse_on_gpu() == wanted and not fuses(function())
        torch.cuda.lms.disable()
        assert torch._C._jit_can_fuse_on_gpu() == fuses(function()) == wanted


def test_it_is_as_before_when_enabling_fails(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch.ops.lms, name)

        def set_enabled(self, *args: Any) -> None:
            assert not fuses(function())
            raise RuntimeError("refused")

    torch.cuda.lms.api.load()
    monkeypatch.setattr(torch.cuda.lms.library, "ops", Refusing)
    with pytest.raises(RuntimeError, match="refused"):
        torch.cuda.lms.enable()
    assert fuses(function())


def test_a_graph_captured_while_it_is_off(lms: Any, device: Any) -> None:
    """A replay follows the pointers of its inputs, and only an operator's are seen."""
    compiled, x, y = function(), block(3), block(2)
    lms.disable()
    assert fuses(compiled)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x, y)
    assert not has_group()
    lms.enable()
    assert torch.ops.lms.exposed(x) and torch.ops.lms.exposed(y)
    lms.reclaim()
    graph.replay()
    assert (out == 12).all().item()
    lms.disable()
    assert fuses(function())


@pytest.mark.parametrize("kind", ["function", "loaded"])
def test_what_other_threads_may_be_running_is_refused(device: Any, kind: str) -> None:
    """To free it under them would crash, and to leave it would use addresses that tensors left."""
    lms, over = torch.cuda.lms, threading.Event()
    other = threading.Thread(target=over.wait, name="the other", daemon=True)
    lms.enable()  # nothing is left fused by other tests
    lms.disable()
    other.start()
    compiled = KINDS[kind]()
    with torch.autocast("cpu"):
        assert fuses(compiled)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=r"cannot be enabled .*fused.* alive \(the other\)"):
        lms.enable()
    with pytest.raises(RuntimeError, match=r"cannot be captured .*the other"):
        graph.capture_begin()
    assert not lms.is_enabled() and not lms.settings()["enabled"] and fuses(compiled)
    over.set()
    other.join()
    lms.enable()
    with torch.autocast("cpu"):
        assert not fuses(compiled)


def named_by_autograd() -> None:
    """In a hook, which runs in a thread that lives on and was not started by Python."""
    x = torch.ones(1, device="cuda", requires_grad=True)
    named = []
    x.register_hook(lambda grad: named.append(threading.current_thread()))
    (x * 2).sum().backward()
    assert named[0] in threading.enumerate() and named[0] is not threading.current_thread()


def watched_by_tqdm() -> None:
    pytest.importorskip("tqdm").tqdm(range(1))
    assert any("tqdm" in type(thread).__module__ for thread in threading.enumerate())


@pytest.mark.parametrize("begin", [named_by_autograd, watched_by_tqdm])
def test_a_thread_that_runs_no_function_does_not_matter(device: Any, begin: Any) -> None:
    """It lives as long as the process."""
    lms = torch.cuda.lms
    begin()
    compiled = function()
    assert fuses(compiled)
    lms.enable()
    assert not fuses(compiled)


def test_what_another_thread_holds_ends_with_it(device: Any) -> None:
    """Though it was looked at meanwhile, and nobody collects garbage."""
    begun, over, held = threading.Event(), threading.Event(), []

    def work() -> None:
        tensor = block(1)
        held.append(weakref.ref(tensor))
        begun.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    gc.disable()
    try:
        torch.cuda.lms.enable()
        over.set()
        thread.join()
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.skipif(
    lms_device.torch_version() < (2, 0), reason="before PyTorch 2 there is no way past modes"
)
def test_a_mode_of_functions_is_asked_nothing(program: Any) -> None:
    """It might call anything, as what turns it on while it is being turned on."""
    program(
        """
import torch
from torch.overrides import TorchFunctionMode

class Watch(TorchFunctionMode):
    seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        Watch.seen += [str(function)] if "lms" in str(function) else []
        return function(*args, **(kwargs or {}))

x = torch.ones(1 << 20, device="cuda")
torch.cuda.set_enabled_lms(True)
torch.cuda.set_enabled_lms(False)
with Watch():
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_enabled_lms(False)
    torch.cuda.set_enabled_lms(True)
assert not Watch.seen and (x + 1 == 2).all().item()
""",
        timeout=60,
    )


def test_a_finalizer_that_switches_while_it_is_switched(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run one anywhere, also in the thread that turns fusion off."""
    switched = []

    class Switches:
        def __del__(self) -> None:
            torch.cuda.lms.enable()
            torch.cuda.lms.disable()
            switched.append(True)

    garbage = [Switches()]

    def turn(native: Any, on: bool) -> None:
        garbage.clear()
        native(on)

    torch.cuda.lms.enable()
    torch.cuda.lms.disable()
    for fuser in torch.cuda.lms.fusion._fusers:  # known by now
        monkeypatch.setattr(fuser, "turn", functools.partial(turn, fuser.turn))

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        torch.cuda.lms.enable()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert switched
