# SPDX-License-Identifier: Apache-2.0
"""Threads. Each program runs in a process of its own, so that a deadlock is a test that fails."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB

MODES = [m for m in lms_device.device.modes if m in ("lazy", "late-write", "device")]
# One stream with lazy work and streams of their own with late writes are in the default tier.
ORDERS = [
    pytest.param(
        own_stream,
        mode,
        id=f"{'own-streams' if own_stream else 'one-stream'}-{mode}",
        marks=() if own_stream and mode == "late-write" else pytest.mark.slow,
    )
    for own_stream in (False, True)
    for mode in MODES
]

WORK = """
import sys, threading, time, torch
import torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
sys.setswitchinterval(1e-4)
CUDA_ON_ITS_OWN_STREAM = {own_stream}

def work(seed, device, rounds):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*(m for i in range(4) for m in (nn.Linear(128, 128), nn.Tanh())))
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=g) * 0.1
    net = net.to(device)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    kept = [torch.full((20000,), float(seed * 100 + i)).to(device) for i in range(12)]
    if device == "cuda":  # none is over before all hold theirs
        all_hold.wait(timeout=300)
    out = []
    for r in range(rounds):
        x = torch.randn(64, 128, generator=g).to(device)
        optimiser.zero_grad()
        loss = net(x).square().mean() + kept[r % 12][:5].mean()
        loss.backward()
        optimiser.step()
        kept[r % 12].add_(1)
        out.append(loss.item())
    return out, [p.detach().cpu() for p in net.parameters()], [k.cpu() for k in kept]

def thread(seed, rounds, results):
    try:
        if CUDA_ON_ITS_OWN_STREAM:
            with torch.cuda.stream(torch.cuda.Stream()):
                results[seed] = work(seed, "cuda", rounds)
        else:
            results[seed] = work(seed, "cuda", rounds)
    except BaseException as error:
        results[seed] = error

def same(a, b):
    if isinstance(b, BaseException):
        raise b
    return a[0] == b[0] and all(torch.equal(x, y) for i in (1, 2) for x, y in zip(a[i], b[i]))

def run(meanwhile, rounds=25, count=8):
    _lock = torch.optim.Adam  # imported before the threads start
    expected = [work(s, "cpu", rounds) for s in range(count)]
    torch.ones(1, device="cuda")
    global all_hold
    all_hold = threading.Barrier(count)
    results = {{}}
    threads = [threading.Thread(target=thread, args=(s, rounds, results)) for s in range(count)]
    for t in threads:
        t.start()
    steps = 0
    while any(t.is_alive() for t in threads):
        meanwhile(steps)
        steps += 1
    for t in threads:
        t.join()
    assert all(same(expected[s], results[s]) for s in range(count))
    return steps
"""

SWITCHING = """
def meanwhile(step):
    torch.cuda.lms.enable(min_size=0)
    for _ in range(3):
        torch.cuda.lms.reclaim()
    torch.cuda.lms.disable()
steps = run(meanwhile, rounds=40)
stats = torch.cuda.lms.stats()
assert stats["reclaimed"] > 50 and steps > 5, (steps, stats["reclaimed"])
assert stats["pinned.all.current"] == 0 and stats["lms.on_host"] == 0
print("equal after", steps, "switches,", stats["reclaimed"], "evictions")
"""

PRESSURE = """
torch.cuda.lms.enable(min_size=0)
steps = run(lambda step: time.sleep(0.001), rounds=15)
stats = torch.cuda.lms.stats()
assert stats["reclaimed"] > 50, stats["reclaimed"]
assert stats["pinned.all.current"] == 0
print("equal after", stats["reclaimed"], "evictions")
"""

OBSERVED = """
torch.cuda.lms.enable(min_size=0)
x = torch.ones(1000, device="cuda")
def meanwhile(step):
    torch.cuda.lms.reclaim()
    torch.cuda.memory_summary(); torch.cuda.memory_snapshot()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.lms.enable(host_limit=0, min_size=step % 3 * 1000)
    torch.cuda.empty_cache()
    with torch.cuda.lms.pin(x):
        torch.cuda.lms.exclude(x)
    torch.cuda.lms.include(x)
    library = torch.library.Library("lms_threads", "DEF")
    library.define("op(Tensor(a!) x) -> ()")
    library.impl("op", lambda x: print(end="", file=None) or x.add_(1) is None, "CUDA")
    torch.ops.lms_threads.op.default
    library._destroy()
steps = run(meanwhile, rounds=15)
assert torch.cuda.lms.stats()["reclaimed"] > 20
assert (x.cpu() == 1).all()
print("equal after", steps, "observations")
"""


@pytest.mark.parametrize(("own_stream", "mode"), ORDERS)
def test_switching_in_mid_run(program: Any, own_stream: bool, mode: str) -> None:
    """Enabled and disabled again and again while eight threads train."""
    out = program(WORK.format(own_stream=own_stream) + SWITCHING, memory=256 * MIB, mode=mode)
    assert "equal after" in out


@pytest.mark.parametrize(("own_stream", "mode"), ORDERS)
def test_eight_threads_that_do_not_fit(program: Any, own_stream: bool, mode: str) -> None:
    """Eight streams hold a small-pool segment each; a storage returns to the pool of its stream."""
    memory = (40 if own_stream else 12) * MIB
    code = WORK.replace("20000,", "100000,") if own_stream else WORK
    out = program(code.format(own_stream=own_stream) + PRESSURE, memory=memory, mode=mode)
    assert "equal after" in out


def test_everything_else_at_the_same_time(program: Any) -> None:
    """Statistics, snapshots, settings, pins and new operators, while eight threads train."""
    out = program(WORK.format(own_stream=True) + OBSERVED, memory=256 * MIB, mode="lazy")
    assert "equal after" in out


def test_the_first_enable_in_mid_run(program: Any) -> None:
    """Eight threads are inside operators when the boundary is installed."""
    code = """
        def meanwhile(step):
            if step == 0:
                torch.cuda.lms.enable(min_size=0)
            torch.cuda.lms.reclaim()
        steps = run(meanwhile, rounds=60)
        assert torch.cuda.lms.stats()["reclaimed"] > 20
        print("equal after", steps)
    """
    import textwrap

    code = WORK.format(own_stream=False) + textwrap.dedent(code)
    assert "equal after" in program(code, memory=256 * MIB)


def test_what_another_thread_is_making_is_left_alone(program: Any) -> None:
    """When it is first enabled it looks for what the program has made."""
    out = program(
        """
        import threading, torch
        import torch.profiler

        begun, go_on = threading.Event(), threading.Event()
        failures = []

        def items():
            yield 1
            begun.set()
            go_on.wait()

        def make():
            try:
                assert tuple(items()) == (1,)
            except SystemError as error:  # somebody else holds the tuple
                failures.append(error)

        thread = threading.Thread(target=make)

        class Looked(type):  # its hash is asked for when an instance of its classes is looked at
            def __hash__(self):
                if begun.is_set():
                    go_on.set()
                    thread.join()
                return id(self)

        class Kind(metaclass=Looked):
            pass

        seen = Kind()
        torch.ones(1, device="cuda")
        thread.start()
        begun.wait()
        torch.cuda.lms.enable()
        go_on.set()
        thread.join()
        print("failures:", failures)
        """
    )
    assert "failures: []" in out


def test_operators_that_each_fit(program: Any) -> None:
    """Two of them do not fit together: each waits for its turn, and none runs out of memory."""
    out = program(
        """
        import sys, threading, torch
        sys.setswitchinterval(1e-4)
        torch.cuda.lms.enable(min_size=0)
        OPS = (torch.sort, lambda x: x * 2 + 1, lambda x: torch.cat([x, x]))

        def work(seed):
            with torch.cuda.stream(torch.cuda.Stream()):
                stores = [torch.full((1 << 17,), float(seed + i), device="cuda") for i in range(3)]
                for i in range(120):
                    OPS[i % 3](stores[i % 3])
                assert all(bool((x == seed + i).all()) for i, x in enumerate(stores))
                done.append(seed)

        done = []
        threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 2
        assert torch.cuda.lms.stats()["pinned.all.current"] == 0
        print("none was short")
        """,
        memory=4 * MIB,
        mode="lazy",
    )
    assert "none was short" in out


def test_what_is_taken_is_not_merged_with_what_another_thread_frees(program: Any) -> None:
    """The place that was made for one thread, beside pieces that others free."""
    out = program(
        """
        import resource, sys, threading, torch
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, -1))  # broken lists have no end
        sys.setswitchinterval(1e-5)
        torch.cuda.lms.enable(min_size=3 << 20)
        stores = [torch.full((3 << 18,), float(i), device="cuda") for i in range(8)]
        over = threading.Event()

        def use():
            for _ in range(100):
                for x in stores:
                    x.add_(1)
            over.set()

        def free():  # smaller than what moves
            while not over.is_set():
                torch.empty(2 << 20, dtype=torch.uint8, device="cuda")

        threads = [threading.Thread(target=act) for act in (use, free, free)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(bool((x == i + 100).all()) for i, x in enumerate(stores))
        assert torch.cuda.lms.stats()["lms.paged_in"] > 100
        print("each has its own")
        """,
        memory=20 * MIB,
        timeout=100,
    )
    assert "each has its own" in out


FILL = "torch.arange(10 << 18, device='cuda', dtype=torch.float32)"
GROWS = "torch.arange(10 << 18, out=torch.ones(3, device='cuda'))"


# Another thread's operator has `x` pinned for a second. What argv[1] asks for does not fit beside
# it; then argv[2] holds.
BESIDE_A_PIN = """
    import sys, threading, time, torch
    library = torch.library.Library("lms_slow", "DEF")
    library.define("slow(Tensor x) -> ()")
    inside = threading.Event()

    def slow(x):
        inside.set()
        time.sleep(1)

    library.impl("slow", slow, "CUDA")
    torch.cuda.lms.enable(min_size=0)
    x, y = (torch.full((10 << 18,), float(i), device="cuda") for i in range(2))
    thread = threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))
    thread.start()
    inside.wait()
    asked = eval(sys.argv[1])
    assert eval(sys.argv[2])
    thread.join()
    print("waited")
    """


@pytest.mark.parametrize(
    ("operator", "memory"),
    [("y.add(1)", 24 * MIB), ("y.add_(1)", 16 * MIB), (FILL, 16 * MIB), (GROWS, 16 * MIB)],
    ids=["repeatable", "in-place", "blank-result", "kernel"],
)
def test_an_operator_waits_for_the_pins_of_another_thread(
    program: Any, operator: str, memory: int
) -> None:
    """One that is written in Python keeps what it uses for as long as it runs. Of one that writes
    what there is the entry waits, and the kernel where it asks for memory."""
    out = program(
        BESIDE_A_PIN,
        operator,
        "float(asked[2]) == 2",
        memory=memory,
    )
    assert "waited" in out


@pytest.mark.parametrize(
    "ask",
    [
        "y.data_ptr()",
        "torch.cuda.lms.pin(y).__enter__()",
        "torch.cuda.lms.exclude(y)",
        "y.untyped_storage()[:4]",
        "y.untyped_storage().cpu()",
    ],
    ids=["pointer", "pin", "exclude", "slice", "storage"],
)
def test_what_is_to_stay_waits_for_the_pins_of_another_thread(program: Any, ask: str) -> None:
    """As an operator does."""
    out = program(
        BESIDE_A_PIN,
        ask,
        "thread.join() or float(y[2]) == 1",
        memory=16 * MIB,
    )
    assert "waited" in out


@pytest.mark.parametrize("hold", ["launch", "torch.cuda.lms.pin"])
@pytest.mark.parametrize(
    "ask",
    ["y.add_(1)", "y.untyped_storage().fill_(0)", "pin(y)", "y + 1"],
    ids=["in-place", "storage", "pin", "repeatable"],
)
def test_what_another_thread_pins_is_waited_for(program: Any, hold: str, ask: str) -> None:
    """A launch's operands, and what a program pins, until it lets go."""
    out = program(
        """
        import contextlib, sys, threading, time, torch

        @contextlib.contextmanager
        def launch(tensor):
            pins = torch.cuda.lms.library.Hold()
            try:
                yield pins.take([tensor])
            finally:
                pins.release()

        def pin(tensor):
            with torch.cuda.lms.pin(tensor):
                pass

        def hold(tensor):
            with eval(sys.argv[1])(tensor):
                inside.set()
                time.sleep(0.5)

        torch.cuda.lms.enable(min_size=0)
        x, y = (torch.full((10 << 18,), float(i), device="cuda") for i in range(2))
        inside = threading.Event()
        thread = threading.Thread(target=hold, args=(x,))
        thread.start()
        inside.wait()
        eval(sys.argv[2])
        thread.join()
        print("waited")
        """,
        hold,
        ask,
        memory=24 * MIB if "+" in ask else 16 * MIB,
    )
    assert "waited" in out


def test_who_has_waited_in_vain_does_not_wait_anew(program: Any) -> None:
    """An operator that lacks memory for its result, beside one that does not end: for ten seconds,
    and not for ten more when it runs for the last time."""
    out = program(
        """
        import threading, time, torch
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> ()")
        inside, over = threading.Event(), threading.Event()
        library.impl("slow", lambda x: print(inside.set() or over.wait()), "CUDA")
        torch.cuda.lms.enable(min_size=0)
        x, y = (torch.full((10 << 18,), float(i), device="cuda") for i in range(2))
        thread = threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))
        thread.start()
        inside.wait()
        began = time.monotonic()
        try:
            y + 1
        except torch.OutOfMemoryError:
            print("waited in vain, for long" if time.monotonic() - began > 17 else "waited in vain")
        over.set()
        thread.join()
        """,
        memory=24 * MIB,
    )
    assert "waited in vain\n" in out


def test_an_operator_waits_for_what_another_makes(program: Any) -> None:
    """One that has no operand holds memory all the same, once it has made some."""
    out = program(
        """
        import threading, time, torch
        library = torch.library.Library("lms_slow", "DEF")
        library.define("make(int n, *, Device device) -> Tensor")
        inside = threading.Event()

        def make(n, device):
            made = torch.empty(n, device=device)
            inside.set()
            time.sleep(1)
            return made.fill_(1).sum()

        library.impl("make", make, "CompositeExplicitAutograd")
        torch.cuda.lms.enable(min_size=0)
        x = torch.full((10 << 18,), 1.0, device="cuda")
        made = []
        device = torch.device("cuda")
        work = lambda: made.append(torch.ops.lms_slow.make(10 << 18, device=device))
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        total = x + 1  # does not fit beside what the other one makes
        assert float(total[0]) == 2
        thread.join()
        assert float(made[0]) == 10 << 18
        print("waited")
        """,
        memory=24 * MIB,
    )
    assert "waited" in out


def test_of_two_that_wait_in_their_kernels_one_fails(program: Any) -> None:
    """Neither runs again, and neither ends: one gives up, and the other one finds what it had."""
    out = program(
        """
        import threading, time, torch, warnings
        warnings.simplefilter("ignore")
        torch.cuda.lms.enable(min_size=0)
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> ()")
        library.impl("slow", lambda x: time.sleep(1), "CUDA")
        results = [torch.full((16 << 18,), float(i), device="cuda") for i in range(2)]
        x = torch.ones(24 << 18, device="cuda")
        torch.cuda.synchronize()
        ends = []

        def grow(i):
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    torch.arange(32 << 18, out=results[i])
                ends.append("fits")
            except torch.cuda.OutOfMemoryError:
                ends.append("fails")
            assert results[i].numel() in (16 << 18, 32 << 18)

        threads = [threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))]
        threads[0].start()
        time.sleep(0.3)
        start = time.monotonic()
        threads += [threading.Thread(target=grow, args=(i,)) for i in range(2)]
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 8, time.monotonic() - start
        print(sorted(ends))
        """,
        memory=64 * MIB,
        mode="lazy",
    )
    assert "'fits'" in out


GROWTHS = {
    "kernel": "made = torch.ones(60 << 18, device='cuda')",
    "operand": "made = [t.add_(0) for t in kept]",
    "pointer": "made = [t.data_ptr() for t in kept[:1]]",
    "reclaim": "torch.cuda.lms.reclaim()",
}


# Comes first among the process's libraries: host memory takes as long to come as it is told to.
SLOW = """
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static unsigned delay;
void slow_down(unsigned microseconds) { delay = microseconds; }
int madvise(void* memory, size_t bytes, int advice) {
  if (advice == MADV_DONTFORK && delay > 0) usleep(delay);
  return syscall(SYS_madvise, memory, bytes, advice);
}
"""


@pytest.fixture(scope="module")
def slow_host_memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW)
    library = str(folder / "slow.so")
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", str(folder / "slow.c"), "-o", library],
        check=True,
    )
    return library


@pytest.mark.parametrize("what", GROWTHS)
def test_host_memory_comes_under_no_lock(program: Any, slow_host_memory: str, what: str) -> None:
    """Operators of other threads go on while a thread waits for it."""
    out = program(
        """
        import ctypes, sys, threading, time, torch
        torch.cuda.lms.enable(min_size=0)
        small = torch.ones(1000, device="cuda")
        kept = [torch.full((60 << 18,), float(i), device="cuda") for i in range(2)]
        assert torch.cuda.lms.stats()["lms.host.reserved_bytes"] < 80 << 20  # one is out
        ctypes.CDLL(None).slow_down(5_000_000)
        ended = []

        def work():
            begun.set()
            exec(sys.argv[1])
            ended.append(time.monotonic())

        begun = threading.Event()
        thread = threading.Thread(target=work)
        start = time.monotonic()
        thread.start()
        begun.wait()
        longest, count = 0.0, 0
        while thread.is_alive():
            before = time.monotonic()
            small.add_(1)
            longest, count = max(longest, time.monotonic() - before), count + 1
            time.sleep(0.01)
        assert ended and ended[0] - start > 4.9, (ended, start)
        assert longest < 2.5 and count > 20, (longest, count)
        print("went on")
        """,
        GROWTHS[what],
        memory=116 * MIB,
        env={"LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {slow_host_memory}".strip()},
        fresh=True,
    )
    assert "went on" in out


@pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="this PyTorch has no MemPool")
def test_a_memory_pool_is_used_within_a_reclaim(program: Any, slow_host_memory: str) -> None:
    """Nothing may move from then on, nor be given back."""
    out = program(
        """
        import ctypes, threading, time, torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((60 << 18,), float(i), device="cuda") for i in range(2)]
        said = []

        def work():
            try:
                said.append(torch.ones(60 << 18, device="cuda"))
            except torch.OutOfMemoryError:
                said.append("short")

        ctypes.CDLL(None).slow_down(3_000_000)
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(1)
        assert not said
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            thread.join()
        ctypes.CDLL(None).slow_down(0)
        work()
        print(said[0], said[1].sum().item() == 60 << 18, [t[0].item() for t in kept])
        """,
        memory=116 * MIB,
        env={"LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {slow_host_memory}".strip()},
        fresh=True,
    )
    assert "short True [0.0, 1.0]" in out


STANDSTILL = """
import contextlib, os, threading, time, torch
torch.cuda.lms.enable(min_size=0)
kept = [torch.full((10 << 18,), float(i), device="cuda") for i in range(6)]  # of 48 MiB

def meanwhile(still, operator):
    for i in 0, 1:  # they leave, and the rest fills the device
        torch.ops.lms.evict(kept[i])
    for t in kept[2:]:
        t.add_(0)
    torch.cuda.synchronize()
    ends, over = [], threading.Event()

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                ends.append((operator(), over.is_set()))
        except torch.cuda.OutOfMemoryError as error:
            ends.append((str(error), over.is_set()))

    thread = threading.Thread(target=work)
    with still:
        thread.start()
        time.sleep(0.5)
        over.set()
    thread.join()
    torch.cuda.synchronize()
    (result, waited), = ends
    assert isinstance(result, torch.Tensor), result
    assert waited or "LMS_DEBUG" in os.environ  # in chaos mode there is room for it
    return float(result.cpu().double().mean())
"""


@pytest.mark.parametrize("mode", (*lms_device.device.modes, "chaos"))
def test_an_operator_waits_for_the_end_of_a_capture(program: Any, mode: str) -> None:
    """Nothing moves while another thread captures a graph."""
    out = program(
        STANDSTILL
        + """
x = torch.ones(8, device="cuda")
torch.cuda.lms.exclude(x)

@contextlib.contextmanager
def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x + 1
        yield
    graph.replay()
    assert y.tolist() == [2] * 8

print(meanwhile(capture(), lambda: torch.cat(kept[:2])))
print(meanwhile(capture(), lambda: kept[1].add_(1)))
print(meanwhile(capture(), lambda: torch.full((12 << 18,), 3.0, device="cuda")))
print(meanwhile(capture(), lambda: torch.full((12 << 18,), 4.0, out=torch.ones(3, device="cuda"))))
print(all((t == (2 if i == 1 else i)).all().item() for i, t in enumerate(kept)))
""",
        memory=48 * MIB,
        mode="lazy" if mode == "chaos" else mode,
        env={"LMS_DEBUG": "chaos"} if mode == "chaos" else None,
    )
    assert "0.5\n2.0\n3.0\n4.0\nTrue\n" in out


@pytest.mark.parametrize("mode", lms_device.device.modes)
def test_an_operator_waits_for_a_capture_on_the_stream_of_its_operand(
    program: Any, mode: str
) -> None:
    """There is room in the pool of the stream, but nothing comes in while that is captured."""
    out = program(
        """
import threading, time
import torch
from lms_tensors import evict
torch.cuda.lms.enable(min_size=0)
home, other = torch.cuda.Stream(), torch.cuda.Stream()
with torch.cuda.stream(home):
    x = torch.ones(200_000, device="cuda")
counted = torch.zeros(100, device="cuda")
torch.cuda.lms.exclude(counted)
torch.cuda.synchronize()
evict(x)
said = []

def use():
    try:
        with torch.cuda.stream(other):
            x.add_(1)
        said.append("right")
    except RuntimeError as error:
        said.append(str(error))

thread = threading.Thread(target=use)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=home, capture_error_mode="thread_local"):
    counted.add_(1)
    thread.start()
    time.sleep(0.5)
thread.join()
graph.replay()
torch.cuda.synchronize()
print(said, x.unique().tolist(), counted.unique().tolist())
""",
        memory=64 * MIB,
        mode=mode,
    )
    assert "['right'] [2.0] [1.0]" in out


@pytest.mark.parametrize("mode", lms_device.device.modes)
def test_what_comes_in_breaks_no_capture_of_another_thread(program: Any, mode: str) -> None:
    """It needs a segment, which CUDA gives nobody while a thread captures as PyTorch does unless it
    is told otherwise; without Large Model Support the operator would allocate nothing."""
    out = program(
        """
import threading
import torch
from lms_tensors import evict
torch.cuda.lms.enable(min_size=0)
own = torch.cuda.Stream()
with torch.cuda.stream(own):
    x = torch.ones(8 << 20, device="cuda")
counted = torch.zeros(100, device="cuda")
torch.cuda.lms.exclude(counted)
torch.cuda.synchronize()
evict(x)

def use():
    with torch.cuda.stream(own):
        x.add_(1)

thread = threading.Thread(target=use)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    counted.add_(1)
    thread.start()
    thread.join()
graph.replay()
torch.cuda.synchronize()
print(x.unique().tolist(), counted.unique().tolist())
""",
        memory=64 * MIB,
        mode=mode,
    )
    assert "[2.0] [1.0]" in out


def test_nothing_comes_in_from_elsewhere_while_a_capture_begins(program: Any) -> None:
    """The stream that it comes from may be the one, and would be waited for."""
    out = program(
        """
import threading, time
import torch
from lms_tensors import evict, on_host
torch.cuda.lms.enable(min_size=0)
home, other = torch.cuda.Stream(), torch.cuda.Stream()
with torch.cuda.stream(home):
    x = torch.ones(200_000, device="cuda")
with torch.cuda.stream(other):
    y = torch.ones(200_000, device="cuda")
torch.cuda.synchronize()
evict(x), evict(y)

def use():
    with torch.cuda.stream(other):
        y.add_(1)
        x.add_(1)

thread = threading.Thread(target=use)
capture = torch.ops.lms.begin_capture()
thread.start()
time.sleep(0.5)
print(on_host(x), on_host(y))
torch.ops.lms.capture_begun(capture)
torch.ops.lms.end_capture(capture)
thread.join()
torch.cuda.synchronize()
print(x.unique().tolist(), y.unique().tolist())
"""
    )
    assert "True False\n[2.0] [2.0]" in out


@pytest.mark.parametrize("mode", lms_device.device.modes)
def test_a_capture_beside_a_thread_that_moves_is_its_own(program: Any, mode: str) -> None:
    """What moves when it begins does not come to wait for the stream that is captured."""
    out = program(
        """
import sys, threading
import torch
torch.cuda.lms.enable(min_size=0)
stream, over = torch.cuda.Stream(), threading.Event()
with torch.cuda.stream(stream):
    moved = [torch.full((200_000,), float(i), device="cuda") for i in range(6)]
counted = torch.zeros(100, device="cuda")
torch.cuda.lms.exclude(counted)

def move():
    while not over.is_set():
        torch.cuda.lms.reclaim()

thread = threading.Thread(target=move)
sys.setswitchinterval(1e-5)
thread.start()
try:
    for _ in range(100):
        with torch.cuda.stream(stream):
            for x in moved:
                x.add_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            counted.add_(1)
        graph.replay()
finally:
    over.set()
    thread.join()
torch.cuda.synchronize()
print(counted.unique().tolist(), [x.unique().tolist() for x in moved])
""",
        memory=64 * MIB,
        mode=mode,
    )
    assert f"[100.0] {[[100.0 + i] for i in range(6)]}" in out


@pytest.mark.parametrize("mode", (*lms_device.device.modes, "chaos"))
def test_an_operator_waits_for_the_end_of_a_pools_use(program: Any, mode: str) -> None:
    """Nothing moves while another thread uses a pool of its own; who uses one waits for nobody."""
    out = program(
        STANDSTILL
        + """
def use():
    return torch.cuda.use_mem_pool(torch.cuda.MemPool())

print(meanwhile(use(), lambda: torch.cat(kept[:2])))
print(meanwhile(use(), lambda: kept[1].add_(1)))
print(meanwhile(use(), lambda: torch.full((12 << 18,), 3.0, device="cuda")))
print(all((t == (2 if i == 1 else i)).all().item() for i, t in enumerate(kept)))
start = time.monotonic()
with use():
    try:
        torch.ones(50 << 18, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print(time.monotonic() - start < 5)
""",
        memory=48 * MIB,
        mode="lazy" if mode == "chaos" else mode,
        env={"LMS_DEBUG": "chaos"} if mode == "chaos" else None,
    )
    assert "0.5\n2.0\n3.0\nTrue\nTrue\n" in out


def test_the_allocators_counters_beside_threads(program: Any) -> None:
    """Sums are those of their parts, nothing is negative, and nothing is left in the end, however
    many blocks a page-in has looked at meanwhile."""
    out = program(
        """
        import gc, threading, time, torch
        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        stop = threading.Event()
        NAMES = ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                 "reserved_bytes", "active_bytes", "inactive_split_bytes")
        if "requested_bytes.all.current" in torch.cuda.memory_stats():  # 1.13 does not count them
            NAMES += ("requested_bytes",)

        def work(seed):
            with torch.cuda.stream(torch.cuda.Stream()):
                kept = [torch.full((2 << 18,), float(i), device="cuda") for i in range(8)]
                rounds = 0
                while not stop.is_set():
                    rounds += 1
                    kept[rounds * 5 % 8].add_(0)
                    torch.ones((1 + rounds % 3) << 18, device="cuda")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        try:  # else the threads go on after an error, and with them the process
            end = time.monotonic() + 3
            looks, moved = 0, False
            while time.monotonic() < end:
                looks += 1
                if looks % 20 == 0:
                    torch.cuda.reset_accumulated_memory_stats()
                    torch.cuda.reset_peak_memory_stats()
                stats = torch.cuda.memory_stats()
                moved = moved or stats["lms.paged_in"] > 0  # since they were reset
                for name in NAMES:
                    for what in ("current", "allocated", "freed"):
                        parts = [stats[f"{name}.{pool}_pool.{what}"] for pool in ("small", "large")]
                        assert min(parts) >= 0 and sum(parts) == stats[f"{name}.all.{what}"], stats
                    assert stats[f"{name}.all.peak"] >= stats[f"{name}.all.current"], stats
        finally:
            stop.set()
        for thread in threads:
            thread.join()
        torch.cuda.lms.disable()
        gc.collect()
        torch.cuda.empty_cache()
        stats = torch.cuda.memory_stats()
        assert not any(stats[f"{name}.all.current"] for name in NAMES), stats
        print("counted", moved)
        """,
        memory=40 * MIB,
        mode="lazy",
    )
    assert "counted True" in out


def test_what_others_free_while_a_page_in_looks_is_counted(program: Any) -> None:
    """Of blocks that are looked at and given back nothing is counted, and of others everything."""
    out = program(
        """
        import threading, time, torch
        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((2 << 18,), float(i), device="cuda") for i in range(24)]
        take, give = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
        first = take(1024)  # and with it a segment of the small pool, which only these use
        before = torch.cuda.memory_stats()
        stop, taken = threading.Event(), [0, 0]

        def work(i):
            stream = torch.cuda.Stream().cuda_stream
            while not stop.is_set():
                give(take(1024, stream=stream))
                taken[i] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 3
        rounds = 0
        while time.monotonic() < end:
            made = [torch.ones(2 << 18, device="cuda") for _ in range(8)]  # some of these leave
            del made  # and each that comes in has blocks to look at
            for i in range(8):
                kept[(rounds + i) % 24].add_(0)
            rounds += 8
        stop.set()
        for thread in threads:
            thread.join()
        after = torch.cuda.memory_stats()
        assert after["lms.paged_in"] > before["lms.paged_in"] + 20, after["lms.paged_in"]
        for what in ("allocated", "freed"):
            name = f"allocation.small_pool.{what}"
            print(after[name] - before[name] - sum(taken))
        """,
        memory=40 * MIB,
        mode="lazy",
    )
    assert out.split() == ["0", "0"]


def test_who_holds_the_interpreter_does_not_wait(program: Any) -> None:
    """Another thread's operator may need it to come to its end."""
    out = program(
        """
        import ctypes, pathlib, threading, time, torch
        core = ctypes.PyDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> ()")
        inside, over = threading.Event(), threading.Event()

        def slow(x):
            inside.set()
            over.wait()

        library.impl("slow", slow, "CUDA")
        torch.cuda.lms.enable(min_size=0)
        x, y = (torch.full((10 << 18,), float(i), device="cuda") for i in range(2))
        thread = threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))
        thread.start()
        inside.wait()
        operand, result = ctypes.c_void_p(y._cdata), ctypes.c_void_p()
        start = time.monotonic()
        failed = core.aoti_torch_clone(ctypes.byref(operand), ctypes.byref(result))
        over.set()
        thread.join()
        assert failed and time.monotonic() - start < 9
        print("did not wait")
        """,
        memory=24 * MIB,
    )
    assert "did not wait" in out


def test_a_running_operator_without_pins_is_waited_for(program: Any) -> None:
    """An operator that began before the switch takes its time; what it uses must not move."""
    out = program(
        """
        import ctypes, threading, time, torch
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> Tensor")
        inside, moved = threading.Event(), []

        def slow(x):
            inside.set()
            for _ in range(100):
                moved.append(torch.ops.lms.on_host(x))
                time.sleep(0.005)
            return x + 1

        library.impl("slow", slow, "CompositeExplicitAutograd")
        x = torch.full((1000,), 5.0, device="cuda")
        torch.cuda.lms.enable(min_size=0)
        torch.ops.lms_slow.slow.default
        x.add_(0)
        torch.cuda.lms.disable()
        result = []
        thread = threading.Thread(target=lambda: result.append(torch.ops.lms_slow.slow(x)))
        thread.start()
        inside.wait()
        torch.cuda.lms.enable()
        torch.cuda.lms.reclaim()
        thread.join()
        assert not any(moved), "moved under a running operator"
        assert (result[0].cpu() == 6).all()
        print("waited")
        """
    )
    assert "waited" in out


def test_a_running_operator_that_waits_for_who_enables(program: Any) -> None:
    """Neither would ever end: enabling fails, all is as before, and it can be tried again."""
    out = program(
        """
        import threading, torch
        lms = torch.cuda.lms
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> ()")
        inside, enabled = threading.Event(), threading.Event()

        def slow(x):
            inside.set()
            enabled.wait()

        library.impl("slow", slow, "CUDA")
        x = torch.full((1000,), 5.0, device="cuda")
        lms.enable(min_size=7)
        torch.ops.lms_slow.slow.default
        x.add_(0)
        lms.disable()
        before = lms.settings()
        lms.api.PATIENCE = 1.0
        thread = threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))
        thread.start()
        inside.wait()
        try:
            lms.enable(min_size=0)
        except RuntimeError as error:
            print("refused:", error)
        assert lms.settings() == before and not torch.ops.lms.active()
        enabled.set()
        thread.join()
        lms.enable(min_size=0)
        assert lms.reclaim() and (x == 5).all()
        """,
        timeout=60,
    )
    assert "still run in other threads after 1 seconds; enable it before they begin" in out


def test_switched_by_two_threads_at_once(program: Any) -> None:
    """What is said to be wanted, and what the engine does, agree when all have come back."""
    out = program(
        """
        import random, threading, time, torch
        lms = torch.cuda.lms
        x = torch.ones(1000, device="cuda")
        lms.enable(min_size=0)

        def late(function):  # as under load
            return lambda *args: (time.sleep(random.random() / 500), function(*args))

        for name in ("set_enabled", "set_min_size"):
            setattr(torch.ops.lms, name, late(getattr(torch.ops.lms, name)))
        for turn in range(100):
            start = threading.Barrier(4)

            def switch(on):
                start.wait()
                lms.enable(min_size=on) if on else lms.disable()

            threads = [threading.Thread(target=switch, args=(i % 3,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert lms.is_enabled() == torch.ops.lms.enabled(), turn
            assert lms.settings()["min_size"] == lms.stats()["lms.min_size"], turn
        print("agree")
        """
    )
    assert "agree" in out


def test_what_was_made_while_it_was_off_dies_while_it_is_looked_at(program: Any) -> None:
    out = program(
        """
        import random, sys, threading, time, torch
        sys.setswitchinterval(1e-5)
        kept = torch.zeros(1 << 18, device="cuda")
        over = threading.Event()

        def come_and_go(seed):
            chance = random.Random(seed)
            while not over.is_set():
                made = [torch.empty(200, device="cuda") for _ in range(500)]
                time.sleep(chance.random() * 0.003)
                while made:
                    made.pop()

        threads = [threading.Thread(target=come_and_go, args=(i,), daemon=True) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            torch.cuda.lms.enable(min_size=0)
            torch.cuda.lms.reclaim()
            kept.add_(1)
            torch.cuda.lms.disable()
        over.set()
        for thread in threads:
            thread.join()
        assert (kept == 200).all()
        print("known, or gone")
        """,
        memory=256 * MIB,
    )
    assert "known, or gone" in out


@pytest.mark.parametrize("who", ["reads", "forks"])
def test_a_storages_python_object_dies_beside_who_has_the_interpreter(
    program: Any, who: str
) -> None:
    """With its last reference, which may be the engine's, goes the object, which takes the GIL."""
    out = program(
        """
        import os, threading, time, torch
        lms, over = torch.cuda.lms, threading.Event()
        lms.enable(min_size=0)
        kept = torch.zeros(1000, device="cuda")

        def make():
            for i in range(20):
                x = kept + i if FORKS else torch.empty(1000, device="cuda")
                x.untyped_storage()

        def beside():
            while not over.is_set():
                make() if FORKS else lms.stats()

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        rounds, until = 0, time.monotonic() + 4
        while time.monotonic() < until:
            if FORKS:
                child = os.fork()
                os._exit(0) if child == 0 else os.waitpid(child, 0)
            else:
                make()
                kept.untyped_storage().fill_(rounds % 100)
            rounds += 1
        over.set()
        thread.join()
        print("ended", rounds)
        """.replace("FORKS", str(who == "forks")),
        timeout=60,
    )
    assert "ended" in out


def test_what_ends_with_a_storages_python_object_uses_the_engine(program: Any) -> None:
    """Nothing is half done when it runs, on or off."""
    out = program(
        """
        import torch, weakref
        lms, ended = torch.cuda.lms, []
        x = torch.ones(1000, device="cuda")

        def over(i):
            ended.append(i)
            some = [x + j for j in range(3)]
            lms.stats()
            assert [float(t[0]) for t in some] == [1, 2, 3]
            if i < 3000:
                make(3000 + i)

        def make(i):
            made = torch.empty(1000, device="cuda")  # its storage owns the object, and not Python
            weakref.finalize(made.untyped_storage(), over, i)

        lms.enable(min_size=0)
        for i in range(1500):
            make(i)
        lms.disable()
        for i in range(1500, 3000):
            make(i)
        lms.enable(min_size=0)
        lms.stats()
        lms.stats()
        assert sorted(ended) == list(range(6000)), len(ended)
        print("all ended")
        """,
    )
    assert "all ended" in out


@pytest.mark.skipif(not lms_device.is_plugin(), reason="their allocator itself says what is new")
def test_new_memory_that_another_thread_has_used_is_waited_for(program: Any) -> None:
    """It takes what is left of a segment before the thread that made it has said that it is new:
    a callback holds that up."""
    out = program(
        """
        import threading, torch, simcuda
        from torch.cuda._gpu_trace import register_callback_for_memory_allocation as register

        def mib(size):
            return torch.empty(size << 18, device="cuda")

        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        torch.ops.lms.set_unseen_kernels("none")
        simcuda.device.capacity = 24 << 20
        kept = [mib(5) for _ in range(6)]
        simcuda.device.capacity = 400 << 20
        x = torch.arange(5 << 18).float().cuda()
        assert torch.ops.lms.evict(x)
        torch.cuda.synchronize()
        del kept
        torch.cuda.empty_cache()
        simcuda.device.set_queries("strict")
        made, used, new = threading.Event(), threading.Event(), []

        def note(pointer):
            if threading.current_thread() is thread:
                made.set()
                used.wait(60)

        thread = threading.Thread(target=lambda: new.append(mib(5)))
        register(note)
        torch._C._activate_gpu_trace()
        thread.start()
        assert made.wait(60)
        mib(15).fill_(7)
        used.set()
        thread.join()
        x.add_(1)
        assert (x.cpu() == torch.arange(5 << 18) + 1).all()
        print("segments", len(torch.cuda.memory_snapshot()))
        """,
        memory=400 * MIB,
        mode="lazy",
        fresh=True,
    )
    assert "segments 1" in out


def test_a_recorder_runs_no_python_while_memory_is_looked_at(program: Any) -> None:
    """The interpreter may be another thread's, which waits for the statistics."""
    out = program(
        """
        import faulthandler, os, threading, time, torch, simcuda
        faulthandler.dump_traceback_later(60, exit=True)
        torch.cuda.lms.enable(min_size=0)
        simcuda.device.capacity = 24 << 20
        over = threading.Event()

        def work():
            while not over.is_set():
                blocks = [torch.empty(5 << 18, device="cuda") for _ in range(8)]
                for block in blocks:
                    torch.ops.lms.evict(block)
                del blocks, block
                for _ in range(8):
                    torch.empty(5 << 18, device="cuda")

        kept = [torch.empty(5 << 18, device="cuda") for _ in range(6)]
        simcuda.device.capacity = 400 << 20
        del kept
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory_stats()
        over.set()
        for thread in threads:
            thread.join()
        print("all ended")
        """,
        memory=400 * MIB,
        mode="lazy",
        fresh=True,
    )
    assert "all ended" in out


@pytest.mark.skipif(lms_device.torch_version() < (1, 13), reason="nothing traces the device")
@pytest.mark.skipif(lms_device.is_plugin(), reason="PyTorch's allocator tells of its segments")
def test_a_page_in_runs_no_callback_of_the_programs(program: Any) -> None:
    """It comes under the engine's lock, which a thread with the interpreter may wait for."""
    out = program(
        """
        import torch
        try:
            from torch.cuda._gpu_trace import register_callback_for_memory_allocation as register
            activate = torch._C._activate_gpu_trace
        except ImportError:  # before PyTorch 2.2
            from torch.utils._cuda_trace import (
                register_callback_for_cuda_memory_allocation as register,
            )
            activate = torch._C._activate_cuda_trace
        torch.cuda.lms.enable(min_size=0)
        x = torch.ones(1 << 20, device="cuda")
        told = []
        register(told.append)
        activate()
        torch.cuda.lms.reclaim()
        before = len(told)
        x.add_(1)
        assert torch.cuda.lms.stats()["lms.paged_in"] == 1
        print("told of", len(told) - before)
        """
    )
    assert "told of 0" in out


def test_a_look_while_another_thread_moves_it(program: Any) -> None:
    """Whether a storage is managed is asked without a lock, and must never be denied."""
    out = program(
        """
        import threading, time, torch
        torch.cuda.lms.enable(min_size=0)
        x = torch.full((1 << 10,), 5.0, device="cuda")
        storage, ops = x.untyped_storage(), torch.ops.lms
        identity, done = ops.identity.default, []
        want = identity(storage)

        def move():
            while not done:
                ops.evict(x), ops.page_in_if_free(x)
                x.sum(), ops.evict(x), x.sum()  # with the write barrier

        thread = threading.Thread(target=move, daemon=True)
        thread.start()
        looks, end = 0, time.monotonic() + 6
        while time.monotonic() < end:
            looks += 100
            wrong = [got for _ in range(100) if (got := identity(storage)) != want]
            assert not wrong, (looks, wrong)
        done.append(True)
        thread.join()
        print("managed in", looks, "looks")
        """
    )
    assert "managed in" in out


def test_a_storage_of_python_alone(program: Any) -> None:
    """Another reference keeps its object alive and takes the GIL, which its reader has, waiting."""
    out = program(
        """
        import sys, threading, time, torch
        sys.setswitchinterval(1e-5)
        torch.cuda.lms.enable(min_size=0)
        stores = [torch.full((1 << 18,), float(i), device="cuda") for i in range(24)]
        stores = [tensor.untyped_storage() for tensor in stores]  # nothing else holds them

        def evict():
            while not done:
                torch.cuda.lms.reclaim()
                kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(8)]
                assert all(bool((t == i).all()) for i, t in enumerate(kept))

        done = []
        threads = [threading.Thread(target=evict) for _ in range(3)]
        for thread in threads:
            thread.start()
        rounds, end = 0, time.monotonic() + 8
        while rounds < 20 or (rounds < 200 and time.monotonic() < end):
            for i, store in enumerate(stores):
                copy = torch.empty(0).set_(store.cpu(), 0, (1 << 18,))
                assert (copy == i).all(), (rounds, i)
            rounds += 1
        done.append(True)
        for thread in threads:
            thread.join()
        print("read", rounds)
        """,
        memory=40 * MIB,
        timeout=120,
    )
    assert "read" in out


def test_a_fork_and_a_loader(program: Any) -> None:
    """Workers of a DataLoader are forked while tensors are out; they do not touch the device."""
    out = program(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        x = torch.full((1 << 18,), 2.0, device="cuda")
        torch.cuda.lms.reclaim()
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, 8, num_workers=2, pin_memory=True)
        total = torch.zeros(8, device="cuda")
        for (batch,) in loader:
            total += batch.to("cuda", non_blocking=True) * x[:8]
            torch.cuda.lms.reclaim()
        assert float(total.sum()) == 2.0 * sum(range(64))
        print("loaded")
        """
    )
    assert "loaded" in out


TWO_DEVICES = {"SIMCUDA_DEVICES": "2"}


@pytest.mark.values
def test_what_an_operator_of_two_devices_uses_is_of_each(program: Any) -> None:
    """Also what was made before it was turned on, which that operator makes known."""
    code = """
        import torch
        x, y = torch.ones(1 << 19, device="cuda:0"), torch.zeros(1 << 19, device="cuda:1")
        torch.cuda.lms.enable(min_size=0)
        small = [torch.ones(1, device=device) for device in range(2)]  # both are known
        torch.cuda.lms.exclude(small[0]), torch.cuda.lms.exclude(small[1])
        y.copy_(x)
        for device, one in enumerate((x, y)):
            torch.cuda.lms.reclaim(device=device)
            assert torch.ops.lms.on_host(one)
            assert torch.cuda.lms.stats(device)["lms.on_host"] == 1
        print((x == 1).all().item(), (y == 1).all().item())
    """
    assert "True True" in program(code, env=TWO_DEVICES)


@pytest.mark.values
def test_a_thread_for_each_of_two_devices(program: Any) -> None:
    """With less memory than it uses, beside one that evicts everything of both."""
    code = """
        import threading
        import torch

        torch.cuda.lms.enable(min_size=0)
        wrong, over = [], threading.Event()

        def work(device):
            with torch.cuda.device(device):
                kept = [torch.full((1 << 20,), float(i), device="cuda") for i in range(8)]
                for step in range(1, 21):
                    for i, one in enumerate(kept):
                        one.add_(1)
                        if not (one * 2 == 2 * (i + step)).all():
                            wrong.append((device, step, i))

        def evict():
            while not over.wait(0.001):
                for device in range(2):
                    torch.cuda.lms.reclaim(device=device)

        threads = [threading.Thread(target=work, args=(device,)) for device in range(2)]
        evictor = threading.Thread(target=evict)
        for thread in (*threads, evictor):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        evictor.join()
        pinned = [torch.cuda.lms.stats(device)["pinned.all.current"] for device in range(2)]
        moved = [torch.cuda.lms.stats(device)["lms.paged_in"] > 8 for device in range(2)]
        print(wrong, pinned, moved)
    """
    assert "[] [0, 0] [True, True]" in program(code, memory=24 * MIB, env=TWO_DEVICES)
