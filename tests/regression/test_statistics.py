# SPDX-License-Identifier: Apache-2.0
"""IBM's names, settings, and statistics that agree with the device."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import forks
import lms_device
import pytest
import torch
from lms_device import MIB
from lms_tensors import block

import simcuda

COUNTERS = {
    f"{kind}.{pool}.{counter}"
    for kind in ("pinned", "pinned_bytes")
    for pool in ("all", "large_pool", "small_pool")
    for counter in ("current", "peak", "allocated", "freed")
}
TOTALS = {"reclaimed", "reclaimed_bytes"}
ROUTES = {
    f"alloc_distribution.{route}"
    for route in (
        "freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all",
        "cudamalloc_retry",
    )
}  # fmt: skip
IBM = COUNTERS | TOTALS | ROUTES


def test_never_enabled(program: Any) -> None:
    """All keys are there, at zero; nothing is loaded; the rest of the statistics is the stock's."""
    out = program(
        f"""
        import torch
        ibm = {sorted(IBM)!r}
        assert not torch.cuda.get_enabled_lms() and not torch.cuda.lms.is_enabled()
        assert torch.cuda.memory_stats() == {{}}  # CUDA is not initialised, as in the stock torch
        torch.ones(1000, device="cuda")
        stats = torch.cuda.memory_stats()
        assert all(stats[name] == 0 for name in stats if name.startswith("lms."))
        moved = [name for name in ibm if not name.startswith(("pinned", "alloc_distribution"))]
        assert len(moved) == 2 and all(stats[name] == 0 for name in moved)
        assert "Pinned" not in torch.cuda.memory_summary()
        assert torch.cuda.lms.summary() == "Large Model Support: off (never enabled)"
        torch.cuda.reset_peak_memory_stats(); torch.cuda.reset_accumulated_memory_stats()
        torch.cuda.reclaim_inactive(); torch.cuda.lms.disable()
        assert torch.cuda.lms.reclaim() == 0
        libraries = open("/proc/self/maps").read()
        assert "libtorch_lms" not in libraries
        print("fine")
        """
    )
    assert "fine" in out


def test_the_keys_are_always_the_same(program: Any) -> None:
    """At zero while there is no device to ask, so that who writes them down need not care."""
    out = program(
        """
        import os, torch
        stats = torch.cuda.lms.stats
        keys = stats().keys()
        assert "lms.paged_out_bytes" in keys and not any(stats().values())
        torch.cuda.lms.enable()
        assert not torch.cuda.is_initialized()
        assert stats().keys() == keys and not any(stats().values())
        torch.ones(1, device="cuda")
        assert stats().keys() == keys and stats()["lms.enabled"] == 1
        if os.fork() == 0:
            assert stats().keys() == keys and not any(stats().values())
            print("the same", flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
        """,
        fresh=True,
    )
    assert "the same" in out


def test_the_keys_are_a_superset_of_ibms(lms: Any) -> None:
    before = set(torch.cuda.memory_stats())
    assert before >= IBM
    assert before >= {
        "allocated_bytes.all.current",
        "num_ooms",
        "lms.enabled",
        "lms.paged_out_bytes",
    }
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["pinned_bytes"]["all"].keys() == {"current", "peak", "allocated", "freed"}


DOCS = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"


@pytest.mark.skipif(not DOCS.is_file(), reason="needs the project's docs")
def test_every_statistic_is_defined(lms: Any) -> None:
    section = DOCS.read_text().partition("## PyTorch")[2].partition("\n## ")[0]
    defined = {name for text in re.findall(r"^\| (.*?) \|", section, re.M)
               for name in re.findall(r"`([\w.*]+)`", text)}  # fmt: skip
    named = {re.sub(r"(all|large_pool|small_pool)\.", "POOL.", name) for name in lms.stats()}
    named = {re.sub(r"pinned_bytes\..*", "pinned_bytes.POOL.*", name) for name in named}
    named = {name.replace("pinned.POOL.freed", ".freed") for name in named}
    assert defined == named


def test_ibm_names(device: Any) -> None:
    cuda = torch.cuda
    assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (0, MIB)
    cuda.set_limit_lms(5 * MIB)
    cuda.set_size_lms(1000)
    cuda.set_enabled_lms(True)
    assert cuda.get_enabled_lms() is True
    assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (5 * MIB, 1000)
    stats = cuda.memory_stats()
    assert (stats["lms.soft_limit"], stats["lms.min_size"]) == (5 * MIB, 1000)
    cuda.set_limit_lms(7 * MIB)  # while it is on
    assert cuda.memory_stats()["lms.soft_limit"] == 7 * MIB
    x = block()
    cuda.reclaim_inactive()
    assert torch.ops.lms.on_host(x)
    cuda.set_enabled_lms(False)
    assert cuda.get_enabled_lms() is False
    assert not torch.ops.lms.on_host(x)


def test_settings_are_read_back(device: Any) -> None:
    lms = torch.cuda.lms
    lms.enable(device_limit="40MiB", host_limit="1.5G", min_size=4096)
    want = {
        "enabled": True,
        "device_limit": 40 * MIB,
        "soft_limit": 0,
        "host_limit": 1536 * MIB,
        "min_size": 4096,
        "chaos": False,
    }
    assert lms.settings() == want
    lms.enable(min_size="8k")
    assert lms.settings() == {**want, "min_size": 8192}
    stats = lms.stats()
    assert stats["lms.device_limit"] == 40 * MIB
    assert stats["lms.host.limit"] == 1536 * MIB
    lms.disable()
    assert lms.settings() == {**want, "min_size": 8192, "enabled": False}


def test_host_memory_has_a_limit_unless_one_is_set(program: Any) -> None:
    """A share of the machine's memory for each process; the summary says of what."""
    out = program(
        """
        import os, torch
        lms = torch.cuda.lms
        lms.enable()
        assert lms.settings()["host_limit"] is None
        assert "host a share of the memory" in lms.summary()
        torch.ones(1, device="cuda")
        limit = lms.settings()["host_limit"]
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0 < limit <= 3 * machine // 16 and limit == lms.stats()["lms.host.limit"]
        assert "(3/4 of the " in lms.summary() and ", among 4 processes)" in lms.summary()
        lms.enable(host_limit="1GiB")
        assert "host 1.0 GiB, " in lms.summary()
        lms.enable(host_limit=0)
        assert "host none, " in lms.summary()
        print("fine")
        """,
        env={"LOCAL_WORLD_SIZE": "4"},
    )
    assert "fine" in out


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"device_limit": -1}, ValueError, "device_limit cannot be negative"),
        ({"host_limit": "many"}, ValueError, "host_limit must be bytes or a size"),
        ({"min_size": 1.5}, TypeError, "min_size must be a number of bytes or a string"),
        ({"min_size": True}, TypeError, "min_size must be"),
        ({"device_limit": "12 XB"}, ValueError, "device_limit must be bytes"),
        ({"min_size": 5, "host_limit": 1 << 63}, ValueError, "host_limit must be less than 8 EiB"),
        ({"device_limit": "8388608T"}, ValueError, "device_limit must be less than 8 EiB"),
        ({"min_size": "9" * 400}, ValueError, "min_size must be less than 8 EiB"),
    ],
)
def test_bad_settings(device: Any, arguments: Any, error: Any, text: str) -> None:
    before = torch.cuda.lms.settings()
    with pytest.raises(error, match=text):
        torch.cuda.lms.enable(**arguments)
    assert torch.cuda.lms.settings() == before


def test_the_largest_settings(device: Any) -> None:
    largest = (1 << 63) - 1
    torch.cuda.lms.enable(device_limit=largest, host_limit=largest, min_size=largest)
    kept = torch.ones(1000, device="cuda")
    assert torch.cuda.lms.reclaim() == kept.untyped_storage().nbytes()
    assert torch.cuda.lms.stats()["lms.host.limit"] == largest
    assert "8388608.0 TiB" in torch.cuda.lms.summary()


def test_settings_that_cannot_be_made_true_stay(device: Any, monkeypatch: Any) -> None:
    lms = torch.cuda.lms
    lms.enable(min_size=5)
    lms.disable()
    before = lms.settings()

    class RefusedError(RuntimeError):
        pass

    def refuse(enabled: bool, patience: float) -> None:
        raise RefusedError

    with monkeypatch.context() as patch:
        patch.setattr(lms.library.ops(), "set_enabled", refuse)
        with pytest.raises(RefusedError):
            lms.enable(device_limit=10 * MIB, min_size=7)
    assert lms.settings() == before
    assert lms.stats()["lms.min_size"] == 5 and lms.stats()["lms.device_limit"] == 0
    lms.enable()
    assert lms.settings() == {**before, "enabled": True}


def test_what_fails_after_the_library_was_loaded_is_begun_anew(program: Any) -> None:
    """Nothing of it may be missing later: not what holds the pointers that Python takes."""
    out = program(
        """
        import os, torch
        x = torch.full((1 << 18,), 2.0, device="cuda")
        os.environ["LMS_DEBUG"] = "foo"
        for _ in range(2):
            try:
                torch.cuda.lms.enable(min_size=0)
            except ValueError as error:
                assert "LMS_DEBUG knows the mode 'chaos', got 'foo'" in str(error)
                assert not torch.cuda.lms.is_enabled() and not torch.ops.lms.enabled()
            else:
                raise SystemExit("it is on")
        del os.environ["LMS_DEBUG"]
        torch.cuda.lms.enable(min_size=0)
        x.data_ptr()
        assert torch.ops.lms.exposed(x), "nothing holds the pointer"
        assert torch.cuda.lms.reclaim() == 0
        print("held")
        """
    )
    assert "held" in out


def test_bad_targets(lms: Any) -> None:
    for function in (lms.exclude, lms.include):
        with pytest.raises(TypeError, match="expected a tensor or a module, got list"):
            function([1])
    with pytest.raises(TypeError, match="expected a tensor or a module"), lms.pin("x"):
        pass
    with pytest.raises((RuntimeError, AssertionError), match="device"):
        lms.stats(99)
    cpu = torch.ones(3)
    lms.exclude(cpu)  # nothing to do for what is not on the device
    with lms.pin(cpu):
        pass


def from_environment() -> None:
    """As when torch is imported, and CUDA initialised."""
    torch.cuda.lms.environment.read()
    torch.cuda.lms.environment.act()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("device_limit=8GiB,host=3", "PYTORCH_LMS takes 1, 0, or device_limit="),
        ("yes", "PYTORCH_LMS takes"),
        ("host_limit=lots", "host_limit in PYTORCH_LMS must be bytes or a size"),
    ],
)
def test_bad_environment(device: Any, monkeypatch: Any, value: str, text: str) -> None:
    monkeypatch.setenv("PYTORCH_LMS", value)
    with pytest.raises(ValueError, match=text):
        from_environment()
    assert not torch.cuda.lms.is_enabled()


def test_bad_debug_mode(device: Any) -> None:
    with pytest.raises(ValueError, match="LMS_DEBUG knows the mode 'chaos', got 'mayhem'"):
        torch.cuda.lms.api.parse_debug("chaos,mayhem")


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("1", True),
        ("on", True),
        ("0", False),
        ("", False),
        ("device_limit=32MiB,min_size=1k", True),
    ],
)
def test_environment(device: Any, monkeypatch: Any, capfd: Any, value: str, on: bool) -> None:
    monkeypatch.setenv("PYTORCH_LMS", value)
    from_environment()
    assert torch.cuda.lms.is_enabled() == on
    assert ("Large Model Support is on" in capfd.readouterr().err) == on
    if "=" in value:
        settings = torch.cuda.lms.settings()
        assert (settings["device_limit"], settings["min_size"]) == (32 * MIB, 1024)


def test_the_line_says_what_holds(device: Any, monkeypatch: Any, capfd: Any) -> None:
    """The program may have set others before CUDA was initialised."""
    monkeypatch.setenv("PYTORCH_LMS", "device_limit=32MiB,min_size=1k")
    torch.cuda.lms.environment.read()
    torch.cuda.lms.enable(device_limit="64MiB")
    torch.cuda.lms.environment.act()
    assert "is on, device_limit 64.0 MiB, min_size 1.0 KiB" in capfd.readouterr().err


@pytest.mark.values
def test_the_environment_alone_trains_what_does_not_fit(program: Any) -> None:
    code = """
        import torch
        chaos = torch.cuda.lms.settings()["chaos"]  # before there is a device
        kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(100)]
        assert all((x == i).all().item() for i, x in enumerate(kept))
        assert torch.cuda.lms.settings()["chaos"] == chaos
        print("all there", chaos)
    """
    assert "out of memory" in program(code, memory=24 * MIB, fails=True)
    assert "all there False" in program(code, memory=24 * MIB, env={"PYTORCH_LMS": "min_size=0"})
    out = program(code, memory=24 * MIB, env={"PYTORCH_LMS": "min_size=0", "LMS_DEBUG": "chaos"})
    assert "all there True" in out and "Large Model Support is on" in out


def test_pins_are_counted(lms: Any) -> None:
    x = block(2)
    small = torch.ones(100, device="cuda")
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    with lms.pin(x, small):
        s = torch.cuda.memory_stats()
        assert s["pinned.all.current"] == 2
        assert s["pinned.large_pool.current"] == s["pinned.small_pool.current"] == 1
        assert s["pinned_bytes.large_pool.current"] == 2 * MIB
        assert s["pinned_bytes.small_pool.current"] == 400
        assert s["pinned_bytes.all.current"] == 2 * MIB + 400
    s = torch.cuda.memory_stats()
    assert s["pinned.all.current"] == s["pinned_bytes.all.current"] == 0
    assert s["pinned.all.peak"] == s["pinned.all.allocated"] == s["pinned.all.freed"] == 2
    assert s["pinned_bytes.all.peak"] == 2 * MIB + 400
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_stats()["pinned_bytes.all.peak"] == 0
    torch.cuda.reset_accumulated_memory_stats()
    s = torch.cuda.memory_stats()
    assert s["pinned.all.allocated"] == s["pinned.all.freed"] == 0
    x.add_(small[0])
    s = torch.cuda.memory_stats()
    assert s["pinned.all.allocated"] == s["pinned.all.freed"] == 2


def test_what_is_left_over_is_looked_for_among_the_frozen(lms: Any) -> None:
    """A failed test's tensors, frozen in a cycle, would else fail each test after it."""
    cycle: list[Any] = [block(1)]
    cycle.append(cycle)
    lms.reclaim()
    gc.freeze()
    del cycle
    assert lms_device.leftovers() == {}


def test_moves_are_counted_as_the_device_counts_them(lms: Any, device: Any) -> None:
    x, y = block(2), block(3)
    before = device.counters()
    assert lms.reclaim() == 5 * MIB
    s = lms.stats()
    assert (s["reclaimed"], s["reclaimed_bytes"]) == (2, 5 * MIB)
    assert (s["lms.paged_out"], s["lms.paged_out_bytes"]) == (2, 5 * MIB)
    assert (s["lms.on_host"], s["lms.on_host_bytes"]) == (2, 5 * MIB)
    assert s["lms.host.used_bytes"] == 5 * MIB
    x + 1
    s = lms.stats()
    assert (s["lms.paged_in"], s["lms.paged_in_bytes"], s["lms.on_host"]) == (1, 2 * MIB, 1)
    after = device.counters()
    assert after["d2h_bytes"] - before["d2h_bytes"] == 5 * MIB
    assert after["h2d_bytes"] - before["h2d_bytes"] == 2 * MIB
    del x, y
    s = lms.stats()
    assert (s["lms.tracked"], s["lms.host.used_bytes"]) == (0, 0)
    lms.reset_accumulated_stats()
    assert all(lms.stats()[name] == 0 for name in TOTALS | ROUTES)


def test_memory_goes_down_as_tensors_leave(lms: Any) -> None:
    x = block(4)
    before = torch.cuda.memory_allocated()
    lms.reclaim()
    assert torch.cuda.memory_allocated() == before - 4 * MIB
    x.add_(1)
    assert torch.cuda.memory_allocated() == before


def test_summary(lms: Any) -> None:
    x = block(3)
    lms.reclaim()
    text = torch.cuda.memory_summary()
    for line in (
        "Large Model Support: on", "limits: device none, host none, minimum size 0 B",
        "copied: 3.0 MiB out in 1", "now: 3.0 MiB on the host",
    ):  # fmt: skip
        assert line in text
    lms.disable()
    assert "Large Model Support: off" in torch.cuda.memory_summary()
    assert "Pinned memory" in torch.cuda.memory_summary(abbreviated=True)
    del x


def test_summary_of_what_no_operator_has_brought_in(lms: Any) -> None:
    x = torch.ones(1 << 20, device="cuda")
    lms.reset_accumulated_stats()
    for _ in range(2):
        lms.reclaim()
        with lms.pin(x):
            pass
    assert lms.stats()["lms.paged_in_bytes"] == 8 * MIB
    assert "operators used 0 B, less than was brought in, which pins" in lms.summary()


THRASHING = """
import warnings, torch
lms = torch.cuda.lms
lms.enable(device_limit="4MiB", min_size=0)
weights = [torch.ones(1 << 16, device="cuda") for _ in range(64)]
lms.reset_accumulated_stats()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3 * 4096 // 64):
        for weight in weights:
            {use}
stats = lms.stats()
texts = [str(each.message) for each in said]
"""


def test_thrashing_is_warned_of_once(program: Any) -> None:
    out = program(
        THRASHING.format(use="weight.sum()")
        + """
(text,) = texts
assert "operators use on GPU 0 before each use" in text, text
assert "0.25 MiB, for aten::sum. What helps: less memory for each step" in text, text
assert stats["lms.used"] == 3 * 4096 and stats["lms.used_bytes"] == 3 << 30, stats
share = stats["lms.paged_in_bytes"] / stats["lms.used_bytes"]
assert share > 2 / 3, share
assert f"operators used 3.0 GiB, of which {share:.0%} had to be" in lms.summary()
print("fine")
"""
    )
    assert "fine" in out


def test_swapping_that_pays_is_no_thrashing(program: Any) -> None:
    out = program(
        THRASHING.format(use="weight.add_(1).mul_(0.5).sum()")  # brought in for three uses
        + """
assert not texts, texts
assert stats["lms.paged_in"] > 4096, stats
print("fine")
"""
    )
    assert "fine" in out


def test_summary_in_a_child(program: Any) -> None:
    out = program(
        """
        import os, torch
        torch.cuda.lms.enable(min_size=0)
        x = torch.ones(1000, device="cuda")
        if os.fork() == 0:
            torch.cuda.lms.summary()
            print("child", flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
        """
    )
    assert "child" in out


def test_a_child_of_a_fork_asks_no_allocator(program: Any, sim: Any) -> None:
    """A thread of its parent is nearly always within the caching allocator at the fork."""
    out = program(
        """
import torch
torch.cuda.lms.enable(min_size=0)
x = torch.ones(1 << 17, device="cuda")
torch.cuda.lms.reclaim()
assert torch.cuda.lms.stats()["reclaimed"] == 1

class Kept:
    def clear(self):
        assert not any(torch.cuda.lms.stats().values())

kept = Kept()
"""
        + forks.BESIDE_THREADS
        + "print(statuses)"
    )
    assert str([0] * 100) in out


@pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="this PyTorch has no MemPool")
def test_what_cannot_leave_is_not_idle(lms: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 18, device="cuda")
    x.sum()
    assert lms.reclaim() == 0 and lms.stats()["lms.idle"] == 0
    y = torch.ones(1 << 18, device="cuda")
    assert lms.stats()["lms.idle"] == 1
    del y


def test_exclusion(lms: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
    x = block()
    lms.reclaim()
    assert all(torch.ops.lms.on_host(t) for t in (*net.parameters(), *net.buffers(), x))
    lms.exclude(net)  # brings them in
    lms.exclude(x[5:10])  # the whole storage
    lms.reclaim()
    assert not any(torch.ops.lms.on_host(t) for t in (*net.parameters(), *net.buffers(), x))
    assert lms.stats()["lms.excluded"] == 2 + 2 + 3 + 1
    lms.include(net)
    lms.include(x)
    lms.reclaim()
    assert all(torch.ops.lms.on_host(t) for t in (*net.parameters(), *net.buffers(), x))


def test_pin(lms: Any) -> None:
    x = block()
    lms.reclaim()
    with lms.pin(x):
        assert not torch.ops.lms.on_host(x)
        assert lms.reclaim() == 0
        with lms.pin(x):  # pins nest
            pass
        assert lms.reclaim() == 0
        assert not torch.ops.lms.evict(x)
    assert lms.reclaim() == MIB
    with pytest.raises(KeyError), lms.pin(x):
        raise KeyError
    assert lms.reclaim() == MIB


@pytest.mark.values
def test_pin_holds_the_storage_not_the_name(lms: Any) -> None:
    """What is unpinned in the end is what was pinned, whatever the tensor is by then."""
    x, y = block(value=1), block(value=2)
    with lms.pin(x):
        x.data = y
    assert lms.stats()["pinned.all.current"] == 0
    assert (x == 2).all().item()


@pytest.mark.values
def test_the_minimum_size(device: Any) -> None:
    device.limit(16 * MIB)
    torch.cuda.lms.enable(min_size=MIB // 2)
    large = [block(0.5, i) for i in range(40)]
    small = [torch.ones(1000, device="cuda") for _ in range(40)]
    assert sum(torch.ops.lms.on_host(t) for t in large) >= 8  # 20 MiB in 16
    assert not any(torch.ops.lms.on_host(t) for t in small)
    assert torch.cuda.lms.reclaim() > 0  # on demand, whatever the size
    assert all(torch.ops.lms.on_host(t) for t in small)
    assert [int(t[-1].item()) for t in large] == list(range(40))


def test_dead_storages_are_forgotten(lms: Any) -> None:
    for _ in range(2000):
        torch.ones(10, device="cuda") + 1
    assert lms.stats()["lms.tracked"] < 10
    x = [block(0.1) for _ in range(50)]
    lms.reclaim()
    assert lms.stats()["lms.host.used_bytes"] > 0
    del x
    assert lms.stats()["lms.host.used_bytes"] == 0


def test_host_memory_is_given_back(lms: Any, sim: Any) -> None:
    simcuda.empty_host_cache(torch)
    before = sim.host_used
    x = block(20)
    lms.reclaim()
    assert sim.host_used >= before + 20 * MIB
    del x
    torch.cuda.synchronize()
    torch.ops.lms.trim_host()
    assert sim.host_used == before
