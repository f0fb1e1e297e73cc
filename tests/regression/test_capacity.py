# SPDX-License-Identifier: Apache-2.0
"""What fits in some device memory fits in more: how operands lie must not decide.

PyTorch's allocator takes 20 MiB for the first tensor of 1 to 10 MiB. On a device of about that size
what an operator uses is easily spread over segments whose rest is of no use to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import lms_device
import pytest
import torch
import torch.nn.functional as F
from lms_device import MIB
from lms_models import GPT, UNet3d
from torch import Tensor, nn


def cuda(*shape: int) -> Tensor:
    return torch.randn(*shape).cuda()


def step(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    optimiser = torch.optim.Adam(net.parameters())
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimiser.step()
    return [loss.detach(), *net.parameters()]


def dcgan() -> list[Tensor]:
    generator = nn.Sequential(nn.ConvTranspose2d(64, 128, 4, 1, 0), nn.BatchNorm2d(128), nn.ReLU())
    for a, b in ((128, 64), (64, 32), (32, 16)):
        generator.extend([nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU(True)])
    generator.extend([nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()])
    critic = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, True))
    for a, b in ((16, 32), (32, 64)):
        critic.extend([nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)])
    critic.append(nn.Conv2d(64, 2, 8))
    both = (generator.cuda(), critic.cuda())
    optimisers = [torch.optim.Adam(net.parameters()) for net in both]
    wrong, right = (torch.full((64,), answer, device="cuda") for answer in (0, 1))
    losses = []
    fake = generator(cuda(64, 64, 1, 1))
    for x, y in ((cuda(64, 3, 64, 64), right), (fake.detach(), wrong), (fake, right)):
        losses.append(F.cross_entropy(critic(x).flatten(1), y))
        losses[-1].backward()
    for optimiser in optimisers:
        optimiser.step()
    return [loss.detach() for loss in losses] + [p for net in both for p in net.parameters()]


def unet() -> list[Tensor]:
    y = torch.randint(0, 4, (1, 56, 56, 56)).cuda()
    return step(UNet3d(8, 1).cuda(), cuda(1, 1, 56, 56, 56), y)


def gpt() -> list[Tensor]:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt, self.drop = GPT(256, 2, 2048), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.gpt(x)).flatten(0, 1)

    x = torch.randint(0, 2048, (8, 64)).cuda()
    return step(Flat().cuda(), x, x.roll(-1, 1).flatten())


def fourier() -> list[Tensor]:
    weight = cuda(1 << 18).requires_grad_()
    signals = [cuda(4, 1 << 18)]
    for _ in range(4):
        spectrum = torch.fft.rfft(signals[-1]) * torch.fft.rfft(weight)
        signals.append(torch.fft.irfft(spectrum, n=1 << 18).tanh())
    loss = torch.stack([signal.square().mean() for signal in signals]).sum()
    loss.backward()
    return [loss.detach(), weight.grad if weight.grad is not None else loss]


def sorts() -> list[Tensor]:
    """Operators whose results and temporaries are several times as large as their operand."""
    rows = [cuda(size << 18) for size in (3, 7, 5, 2, 6)]
    for i in range(10):
        order = torch.sort(rows[i % 5])
        rows[i % 5] = order.values.flip(0) + order.indices.float().mean()
        rows[(i + 1) % 5].mul_(0.9)
    return rows


def sums() -> list[Tensor]:
    """Operators with a large operand and small results."""
    return [cuda(size << 18).sum() for size in (3, 7)]


def pieces() -> list[Tensor]:
    """An operator with one operand of the pool for large ones, which needs little of a segment, and
    others of the pool for small ones, two of which have just room in one."""
    large, a, b = cuda((1 << 18) + 128), cuda(1 << 18), cuda(1 << 18)
    return [torch.addcmul(large[: 1 << 18], a, b)]


PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {
    "dcgan": dcgan,
    "unet": unet,
    "gpt": gpt,
    "fourier": fourier,
    "sorts": sorts,
    "sums": sums,
    "pieces": pieces,
}
# In MiB: in the default tier those that each failed once although a smaller one did not. A dry
# device also counts what a sort takes for itself, so that it needs more.
FEW = {
    "dcgan": (16, 20, 22, 40),
    "sorts": (34, 40, 70, 80),
    "sums": (14, 20, 21, 24),
    "pieces": (14, 21, 22, 23, 24),
}
ALL = (*range(12, 48, 1), *range(48, 100, 6))
CASES = [
    *(
        pytest.param(name, few, id=f"{name}-few", marks=[pytest.mark.slow] * (i % 2))
        for i, (name, few) in enumerate(FEW.items())
    ),
    *(pytest.param(name, ALL, id=f"{name}-all", marks=pytest.mark.slow) for name in PROGRAMS),
]
# From the least on that each trains in where everything leaves after every operator.
IN_CHAOS = {
    "dcgan": (14,),
    "unet": (32, 36),
    "gpt": (12,),
    "fourier": (18, 20, 22),
    "sorts": (40, 80),
    "sums": (10, 20),
    "pieces": (6, 22),
}
if lms_device.is_plugin():  # whose smallest segment for more than 1 MiB has 10 MiB
    IN_CHAOS |= {"dcgan": (24,), "unet": (34, 36), "gpt": (20,), "fourier": (20, 22)}
    IN_CHAOS |= {"sums": (12, 20), "pieces": (14, 22)}
if not hasattr(torch, "compile"):  # what comes in lies elsewhere in PyTorch 1.13's segments
    IN_CHAOS["unet"] = (34, 36)
CHAOS_CASES = [
    *(
        # The workspaces of its products, which a dry device has, too, outlive the test.
        pytest.param(name, few, id=f"{name}-few", marks=[pytest.mark.values] * (name == "gpt"))
        for name, few in IN_CHAOS.items()
    ),
    *(
        pytest.param(
            name,
            tuple(capacity for capacity in ALL if capacity >= few[0]),
            id=f"{name}-all",
            marks=[pytest.mark.slow, pytest.mark.values],
        )
        for name, few in IN_CHAOS.items()
    ),
]


def run(
    program: Callable[[], list[Tensor]], capacity: int, chaos: bool = False
) -> list[Tensor] | None:
    """The results in host memory. None if it ran out of memory."""
    torch.manual_seed(0)
    lms_device.device.limit(capacity * MIB)
    torch.cuda.lms.enable(min_size=0)
    torch.cuda.lms.api.load().set_chaos(chaos)
    try:
        return [tensor.detach().cpu() for tensor in program()]
    except torch.OutOfMemoryError:
        return None
    finally:
        lms_device.reset()


@pytest.mark.parametrize(("name", "capacities"), CASES)
def test_what_fits_in_less_fits(device: Any, name: str, capacities: tuple[int, ...]) -> None:
    expected = run(PROGRAMS[name], 1000)
    assert expected is not None
    least = None
    for capacity in capacities:
        results = run(PROGRAMS[name], capacity)
        if results is None:
            assert least is None, f"it fits in {least} MiB and not in {capacity} MiB"
            continue
        least = least or capacity
        for got, want in zip(results, expected, strict=True):
            assert torch.equal(got, want), f"other bytes in {capacity} MiB"
    assert least is not None and least < capacities[-1]


@pytest.mark.parametrize(("name", "capacities"), CHAOS_CASES)
def test_what_trains_in_chaos_mode_trains(
    device: Any, name: str, capacities: tuple[int, ...]
) -> None:
    """There only what the operator uses is on the device; else the rest makes way when it must."""
    for capacity in capacities:
        expected = run(PROGRAMS[name], capacity, chaos=True)
        if expected is None:
            assert lms_device.is_dry, f"{capacity} MiB are enough, or were"
            continue
        results = run(PROGRAMS[name], capacity)
        assert results is not None, f"{capacity} MiB are enough in chaos mode only"
        for got, want in zip(results, expected, strict=True):
            assert torch.equal(got, want), f"other bytes in {capacity} MiB"


def test_random_numbers_are_not_skipped(device: Any) -> None:
    """An operator that has taken some before it finds no room does not take others then."""

    def draw() -> list[Tensor]:
        idle = [torch.full((size << 18,), 1.0, device="cuda") for size in (3, 7, 5, 2, 6)]
        taken = [torch.multinomial(row[: 1 << 18], 9) for row in idle]
        return [*taken, torch.rand(8, device="cuda")]

    expected = run(draw, 1000)
    found = [run(draw, capacity) for capacity in range(8, 40)]
    assert expected is not None and found[-1] is not None
    fits = [results is not None for results in found]
    assert fits == sorted(fits)  # and once it fits, it fits in more
    for results in found:
        if results is not None:
            assert all(map(torch.equal, results, expected))


def test_what_fills_begins_again_with_its_operands_side_by_side(device: Any) -> None:
    """They lie apart in a segment of 20 MiB, each with as much room behind it, and the result,
    which is given empty, needs twice that. Waiting in the kernel is no help: nobody else runs."""
    device.limit(24 * MIB)
    torch.cuda.lms.enable(min_size=0)
    try:
        x, gap, y, end = (torch.full((5 << 18,), float(i), device="cuda") for i in range(4))
        del gap, end
        made = torch.cat([x, y], out=torch.empty(0, device="cuda"))
        expected = torch.tensor([0.0, 2.0]).repeat_interleave(5 << 18)
        assert lms_device.is_dry or torch.equal(made.cpu(), expected)
    finally:
        lms_device.reset()


def test_a_copy_begins_again_with_its_operand_alone(device: Any) -> None:
    """It lies in the midst of a segment, and what is copied from the host and is not laid out as it
    is goes by way of as much memory again."""
    device.limit(24 * MIB)
    torch.cuda.lms.enable(min_size=0)
    try:
        first, x, last = (torch.full((n << 18,), 1.0, device="cuda") for n in (5, 9, 5))
        values = torch.arange(9 << 18, dtype=torch.float32).view(9, 1 << 18)
        x.view(1 << 18, 9).t().copy_(values)
        assert lms_device.is_dry or torch.equal(x.cpu(), values.t().reshape(-1))
        for idle in first, last:
            assert lms_device.is_dry or torch.all(idle.cpu() == 1)
    finally:
        lms_device.reset()


def test_shortage_in_a_kernel_of_pythons(device: Any) -> None:
    """It is not run again, so its error is the one for the user."""
    device.limit(28 * MIB)
    torch.cuda.lms.enable(min_size=0)
    try:
        x = torch.ones(7 << 18, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="could not make room"):
            torch.ops.prims.convert_element_type(x.expand(4, 7 << 18), torch.float64)
    finally:
        lms_device.reset()


@cache
def grow() -> Any:
    """An operator of the program's own, which cannot run again, and makes a small tensor."""

    def kernel(x: Tensor) -> None:
        x.add_(torch.cat([x, x])[: len(x)])

    library = torch.library.Library("lms_capacity", "DEF")
    library.define("grow(Tensor(a!) x) -> ()")
    library.impl("grow", kernel, "CUDA")
    return library, torch.ops.lms_capacity.grow


def in_an_operator(x: Tensor) -> list[Tensor]:
    for _ in range(2):
        grow()[1](x[: 90 << 10])
    return []


def beside(keep: Callable[[Tensor], Any]) -> Callable[[Tensor], list[Tensor]]:
    def use(x: Tensor) -> list[Tensor]:
        kept = keep(x)
        small = [torch.full((90 << 11,), float(i), device="cuda") for i in range(20)]
        for i in range(20):
            small[i] = small[i] * small[(i + 1) % 20]
        assert kept is not None
        return small

    return use


STAY = {
    "exposed": beside(lambda x: x.data_ptr()),  # as it is once Large Model Support is on
    "excluded": beside(lambda x: torch.cuda.lms.exclude(x) or x),
    "in an operator": in_an_operator,
}


@pytest.mark.skipif(
    lms_device.torch_version() < (1, 13),
    reason="there a small request has segments of its own alone",
)
@pytest.mark.parametrize("how", STAY)
def test_what_stays_leaves_the_rest_of_its_segment(device: Any, how: str) -> None:
    """2 MiB that stay lie in a segment of 20, and small tensors find no room for one of 2."""

    def stay() -> list[Tensor]:
        x = torch.ones(1 << 19, device="cuda")
        return [*STAY[how](x), x]

    expected = run(stay, 1000)
    # The plug-in can have no segment of 2 MiB for what stays: PyTorch's least is of 10.
    least = 12 if lms_device.is_plugin() else 6
    found = [run(stay, capacity) for capacity in range(least, 28)]
    assert expected is not None
    for results in found:
        assert results is not None
        assert lms_device.is_dry or all(map(torch.equal, results, expected))


def test_segments_are_no_larger_than_operands(device: Any) -> None:
    """Two of 2 MiB, for each of which PyTorch asks for 20, and one of less, of three streams: none
    has room in a segment that is another's."""

    def three() -> list[Tensor]:
        made = []
        for size in (1 << 19, 1 << 19, 1 << 10):
            with torch.cuda.stream(torch.cuda.Stream() if made else torch.cuda.current_stream()):
                made.append(torch.full((size,), float(len(made)), device="cuda"))
            torch.cuda.synchronize()
        return [torch.stack([each[:10] for each in made]), *made]

    expected = run(three, 1000)
    assert expected is not None
    least = (24,) if lms_device.is_plugin() else (10, 22, 23)  # the plug-in's least has 10
    for capacity in (*least, 25, 40):
        results = run(three, capacity)
        assert results is not None, f"{capacity} MiB are enough"
        assert lms_device.is_dry or all(map(torch.equal, results, expected))


@pytest.mark.skipif(
    lms_device.torch_version() < (1, 13),
    reason="there a small request has segments of its own alone",
)
def test_memory_of_no_tensor_has_the_rest_of_a_segment(device: Any) -> None:
    """It is asked for once, by no operator that might be tried again."""
    device.limit(21 * MIB)
    torch.cuda.lms.enable(min_size=0)
    try:
        x = torch.ones(1 << 19, device="cuda")
        x.data_ptr()
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(90 << 13))
    finally:
        lms_device.reset()


@pytest.mark.skipif(
    lms_device.torch_version() < (1, 13),
    reason="there a small request has segments of its own alone",
)
def test_small_tensors_of_two_streams_share_what_there_is(device: Any) -> None:
    """Those of the one stream have room beside what stays in a segment of 20 MiB. They leave the
    segments of 2 MiB to those of the other, which have room nowhere else."""

    def stay() -> list[Tensor]:
        x, _ = torch.ones(6 << 18, device="cuda"), torch.ones(6 << 18, device="cuda")
        x.data_ptr()
        small = [torch.full((100 << 11,), float(i), device="cuda") for i in range(28)]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(20, 28):
                small[i] = torch.full((100 << 11,), float(i), device="cuda")
        torch.cuda.synchronize()
        return [torch.stack([part[:10] for part in small]), x]

    expected = run(stay, 1000)
    assert expected is not None
    # The plug-in borrows no less than a MiB at a time.
    for capacity in range(36 if lms_device.is_plugin() else 34, 52, 2):
        results = run(stay, capacity)
        assert results is not None, f"{capacity} MiB are enough"
        assert lms_device.is_dry or all(map(torch.equal, results, expected))


@pytest.mark.parametrize(
    "hold",
    [
        "held.enter_context(torch.cuda.lms.pin(a, b))",
        "held.callback(pins.release), pins.take([a, b])",
    ],
    ids=["pin", "launch"],
)
def test_what_is_pinned_together_comes_to_lie_side_by_side(program: Any, hold: str) -> None:
    """As the operands of an operator do: not the first where it leaves the second no room."""
    out = program(
        """
        import contextlib, sys, torch

        def made(mib, value):
            return torch.full((mib << 18,), float(value), device="cuda")

        torch.cuda.lms.enable()
        held, pins = contextlib.ExitStack(), torch.cuda.lms.library.Hold()
        old = [made(20, i) for i in range(5)]  # more than there is: something leaves
        del old
        for hold in ("torch.cat([a[:1], b[:1]])", sys.argv[1]):
            a, b = made(20, 7), made(30, 8)
            torch.cuda.lms.reclaim()
            torch.cuda.empty_cache()
            segment = made(60, 0)
            del segment
            parts = [made(20, i) for i in range(3)]  # lie in it side by side
            for i in (1, 0, 2):  # the middle has been idle for longest
                parts[i].add_(1)
                torch.empty(1, device="cuda").add_(1)
            torch.cuda.lms.reclaim()
            eval(hold)
        held.close()
        print("all have room:", [float(x[3]) for x in (a, b, *parts)])
        """,
        hold,
        memory=64 * MIB,
    )
    assert "all have room" in out and (lms_device.is_dry or "[7.0, 8.0, 1.0, 2.0, 3.0]" in out)


@pytest.mark.values
def test_results_of_expanded_tensors_are_made_in_parts(program: Any) -> None:
    """Their storages have hardly any bytes, while the results have many."""
    code = """
        import torch
        torch.cuda.lms.enable(min_size=0)
        one = [torch.full((1,), float(i), device="cuda").expand(4 << 20) for i in range(8)]
        made = torch._foreach_add(one, 1.0)
        print([x[7].item() for x in made] == [1.0 + i for i in range(8)])
    """
    assert "True" in program(code, memory=64 * MIB)


@pytest.mark.skipif(
    lms_device.torch_version() < (2, 6), reason="there nothing is copied on a write as yet"
)
@pytest.mark.values
def test_a_lazy_clone_that_finds_no_room_leaves_its_source_alone(program: Any) -> None:
    """c10 counts it as one less that shares the bytes before it finds that there is no room: a
    second try would write to the source. The process ends at once, as that count stays wrong."""
    code = """
        import os, sys
        import torch
        torch.cuda.lms.enable(min_size=0)
        def full(mib, value): return torch.full((mib << 18,), value, device="cuda")
        x, source, y = full(4, 0.0), full(6, 1.0), full(4, 0.0)
        written, z = full(2, 5.0), full(4, 0.0)
        clone = torch._lazy_clone(source)
        del x, y, z
        try:
            clone.view(3, -1).copy_(written)
        except torch.OutOfMemoryError as error:
            print("lazy clone" in str(error), (source == 1).all().item())
        sys.stdout.flush()
        os._exit(0)
    """
    assert "True True" in program(code, memory=22 * MIB, fresh=True)
