# SPDX-License-Identifier: Apache-2.0
"""What scripts for IBM's Large Model Support rely on: names, when a setting acts, statistics."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lms_device import MIB
from lms_tensors import block

NAMES = {
    "get_enabled_lms": [], "get_limit_lms": [], "get_size_lms": [], "reclaim_inactive": [],
    "set_enabled_lms": ["enable"], "set_limit_lms": ["limit"], "set_size_lms": ["size"],
    **{name: ["device"] for name in (
        "memory_active", "max_memory_active", "reset_max_memory_active", "memory_reclaimed",
        "reset_memory_reclaimed", "alloc_distribution", "reset_alloc_distribution",
    )},
}  # fmt: skip
OFF = "Large Model Support: off (never enabled)"
LATER = "Large Model Support: on as soon as CUDA is initialised"


# ---- names


@pytest.mark.parametrize("module", [torch.cuda, torch.cuda.memory], ids=["cuda", "memory"])
def test_names_and_parameters(module: Any) -> None:
    found = {name: [*inspect.signature(getattr(module, name)).parameters] for name in NAMES}
    assert found == NAMES
    assert all(getattr(module, name) is getattr(torch.cuda, name) for name in NAMES)


def test_arguments_by_name(device: Any) -> None:
    cuda = torch.cuda.memory
    cuda.set_limit_lms(limit=6 * MIB)
    cuda.set_size_lms(size=2000)
    cuda.set_enabled_lms(enable=True)
    assert (cuda.get_enabled_lms(), cuda.get_limit_lms(), cuda.get_size_lms()) == (
        True, 6 * MIB, 2000,
    )  # fmt: skip
    cuda.set_enabled_lms(enable=False)
    assert not cuda.get_enabled_lms()


def test_only_a_bool_turns_it_on(device: Any) -> None:
    for wrong in ("False", 1, None):
        with pytest.raises(TypeError, match="set_enabled_lms takes True or False, got"):
            torch.cuda.set_enabled_lms(wrong)
    assert not torch.cuda.get_enabled_lms()


def test_integers_of_numpy(device: Any) -> None:
    import numpy

    torch.cuda.set_limit_lms(numpy.int64(7 * MIB))
    assert torch.cuda.get_limit_lms() == 7 * MIB


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "coming-from-ibm.md"
STATISTICS = DOCS / "statistics.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the project's docs")
def test_the_page() -> None:
    """It has a row for each name, and what it says is there is there."""
    text = PAGE.read_text().partition("## TensorFlow")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    named = {found for row in rows for found in re.findall(r"`(\w+)\(", row[0])}
    assert named - {"memory_summary"} == {*NAMES}  # which is PyTorch's
    keys = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    stats = torch.cuda.lms.stats()
    for function in ("memory_active", "max_memory_active", "memory_reclaimed"):
        assert keys[f"`{function}(device)`"].strip("`") in stats, function
    for name in re.findall(r"`torch\.cuda\.([\w.]+)", text):
        found: Any = torch.cuda
        for part in name.split("."):
            found = getattr(found, part)


# ---- of v1.1 to v1.3


def test_functions_of_before_memory_stats(lms: Any) -> None:
    cuda, x = torch.cuda, block(3)
    cuda.reset_max_memory_active()
    assert cuda.memory_active() == 0
    with lms.pin(x):
        assert cuda.memory_active() == cuda.max_memory_active() == 3 * MIB
    assert (cuda.memory_active(), cuda.max_memory_active()) == (0, 3 * MIB)
    cuda.reset_max_memory_active(device="cuda:0")
    assert cuda.max_memory_active() == 0
    before = cuda.memory_reclaimed()
    lms.reclaim()
    stats = cuda.memory_stats()
    assert cuda.memory_reclaimed(0) == stats["reclaimed_bytes"] == before + 3 * MIB
    assert cuda.alloc_distribution() == {
        name.partition(".")[2]: n for name, n in stats.items() if name.startswith("alloc_dist")
    }
    assert len(cuda.alloc_distribution()) == 6 and sum(cuda.alloc_distribution().values()) > 0
    cuda.reset_memory_reclaimed()
    assert cuda.memory_reclaimed() == 0
    y = block(3)
    assert sum(cuda.alloc_distribution().values()) > 0
    cuda.reset_alloc_distribution()
    assert sum(cuda.alloc_distribution().values()) == 0
    del x, y


def test_a_segment_beyond_the_soft_limit_is_a_new_segment(lms: Any) -> None:
    """IBM's v1.1 to v1.3 had a name of its own for it."""
    torch.cuda.empty_cache()
    x = block(24)
    torch.cuda.set_limit_lms(25 * MIB)
    with lms.pin(x):
        before = torch.cuda.alloc_distribution()
        y = block(24)
    assert torch.cuda.alloc_distribution() == {**before, "cudamalloc": before["cudamalloc"] + 1}
    del x, y


def test_functions_of_before_memory_stats_and_of_cuda(program: Any) -> None:
    out = program(
        """
        import torch
        cuda = torch.cuda
        assert cuda.memory_active() == cuda.max_memory_active() == cuda.memory_reclaimed() == 0
        assert not any(cuda.alloc_distribution().values())
        cuda.reset_max_memory_active(); cuda.reset_memory_reclaimed()
        cuda.reset_alloc_distribution()
        assert not cuda.is_initialized()
        x = torch.ones(1 << 19, device="cuda")
        assert cuda.memory_active() == cuda.memory_allocated() > 0  # never enabled
        del x
        assert cuda.max_memory_active() > 0
        cuda.reset_max_memory_active()
        assert cuda.max_memory_active() == 0
        print("fine")
        """
    )
    assert "fine" in out


# ---- a setter stores


@pytest.mark.parametrize(
    ("statement", "env"),
    [
        ("torch.cuda.set_enabled_lms(True); torch.cuda.set_size_lms(0)", {}),
        ("torch.cuda.lms.enable(min_size=0)", {}),
        ("", {"PYTORCH_LMS": "min_size=0"}),
    ],
    ids=["ibm", "enable", "environment"],
)
def test_a_setter_stores(program: Any, statement: str, env: dict[str, str]) -> None:
    """CUDA is not initialised by it, so that children may be forked, and those may use CUDA."""
    code = f"""
        import multiprocessing, sys, torch
        {statement}

        def trains_what_does_not_fit():
            assert torch.cuda.lms.is_enabled() and not torch.cuda.is_initialized()
            kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(40)]
            assert all((x == i).all().item() for i, x in enumerate(kept))
            assert torch.cuda.lms.summary().splitlines()[0] == "Large Model Support: on"
            assert torch.cuda.lms.stats()["lms.paged_out_bytes"] > 0

        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i):
                assert not torch.cuda.is_initialized()
                return torch.full((2,), float(i))

        if __name__ == "__main__":
            assert torch.cuda.get_enabled_lms() and torch.cuda.get_size_lms() == 0
            assert not torch.cuda.is_initialized()
            assert torch.cuda.lms.summary().splitlines()[0] == {LATER!r}
            child = multiprocessing.get_context("fork").Process(target=trains_what_does_not_fit)
            child.start(); child.join()
            assert child.exitcode == 0
            loader = torch.utils.data.DataLoader(
                Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
            assert torch.cat([*loader]).sum() == 56
            assert not torch.cuda.is_initialized()
            trains_what_does_not_fit()
            print("fine")
    """
    out = program(code, memory=24 * MIB, env=env)
    assert "fine" in out
    assert out.count("PYTORCH_LMS: Large Model Support is on") == (2 if env else 0)


def test_the_program_has_the_last_word(program: Any) -> None:
    """Before CUDA is initialised, as after it."""
    out = program(
        f"""
        import torch
        assert torch.cuda.lms.is_enabled() and torch.cuda.lms.settings()["host_limit"] == 64 << 20
        torch.cuda.lms.enable(host_limit="32MiB")
        torch.cuda.set_enabled_lms(False)
        assert torch.cuda.lms.summary() == {OFF!r}
        torch.ones(3, device="cuda")
        assert not torch.cuda.lms.is_enabled() and torch.cuda.lms.summary() == {OFF!r}
        torch.cuda.set_enabled_lms(True)
        assert torch.cuda.lms.stats()["lms.host.limit"] == 32 << 20
        print("fine")
        """,
        env={"PYTORCH_LMS": "host_limit=64MiB"},
    )
    assert "fine" in out and "Large Model Support is on" not in out


def test_nothing_else_initialises_cuda(program: Any) -> None:
    out = program(
        """
        import torch
        lms, cpu = torch.cuda.lms, torch.ones(3)
        lms.exclude(cpu); lms.include(torch.nn.Linear(2, 2)); lms.release_pointer(cpu)
        with lms.pin(cpu):
            pass
        torch.cuda.set_limit_lms(5); torch.cuda.reclaim_inactive(); lms.disable()
        assert lms.stats()["pinned.all.current"] == 0
        lms.reset_peak_stats(); lms.reset_accumulated_stats(); lms.settings(); lms.summary()
        assert not torch.cuda.is_initialized()
        print("fine")
        """
    )
    assert "fine" in out


def test_what_cannot_be_done_is_said_when_cuda_is_initialised(program: Any) -> None:
    code = """
        import torch
        torch.cuda.set_enabled_lms(True)
        torch.ones(3)
        print("so far")
        torch.ones(3, device="cuda")
    """
    out = program(code, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, fails=True)
    assert "so far" in out and "Large Model Support cannot be enabled" in out
    assert "set_enabled_lms(True)" in out  # where it was asked for
    out = program(code, env={"PYTORCH_LMS": "yes"}, fails=True)
    assert "so far" in out and "PYTORCH_LMS takes 1, 0, or" in out
    # Where it was asked for, and not who imported torch: the message is the last line.
    assert out.splitlines()[-1].startswith("ValueError: PYTORCH_LMS takes 1, 0, or")
    assert "import torch" not in out
    out = program(code.replace("torch.cuda.set_enabled_lms(True)", ""), fails=True,
                  env={"PYTORCH_LMS": "1", "LMS_DEBUG": "mayhem"})  # fmt: skip
    assert out.splitlines()[-1] == "ValueError: LMS_DEBUG knows the mode 'chaos', got 'mayhem'"


# ---- limits


def test_without_a_limit_the_device_is_filled_first(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    assert torch.cuda.get_limit_lms() == 0
    kept = [block(2, i) for i in range(18)]
    assert lms.stats()["lms.paged_out_bytes"] == 0
    kept += [block(2, i) for i in range(18, 30)]
    assert lms.stats()["lms.paged_out_bytes"] > 0
    assert all((x == i).all().item() for i, x in enumerate(kept))


def test_reclaim_inactive_is_of_the_current_device(program: Any, sim: Any) -> None:
    out = program(
        """
        import torch
        cuda = torch.cuda
        cuda.set_enabled_lms(True)
        x = [torch.full((1 << 18,), float(i), device=f"cuda:{i}") for i in range(2)]
        cuda.set_device(1)
        cuda.reclaim_inactive()
        assert [torch.ops.lms.on_host(t) for t in x] == [False, True]
        print("fine")
        """,
        env={"SIMCUDA_DEVICES": "2"},
    )
    assert "fine" in out


def test_host_memory_comes_in_segments_that_are_kept(lms: Any) -> None:
    torch.ops.lms.trim_host()
    start = lms.stats()["lms.host.reserved_bytes"]
    assert lms.stats()["lms.host.limit"] == 0
    x = block()
    lms.reclaim()
    reserved = lms.stats()["lms.host.reserved_bytes"]
    assert reserved - start == 64 * MIB
    del x
    y = block(3)
    lms.reclaim()
    s = lms.stats()
    assert s["lms.host.reserved_bytes"] == reserved <= s["lms.host.reserved_bytes_peak"]
    del y


def test_each_process_has_its_own(program: Any) -> None:
    """Switch, limits and host memory."""
    out = program(
        """
        import multiprocessing, torch
        lms = torch.cuda.lms

        def child():
            assert not lms.is_enabled() and lms.settings()["host_limit"] is None
            lms.enable(min_size=0)
            x = torch.ones(1 << 18, device="cuda")
            assert lms.stats()["lms.host.used_bytes"] == 0
            print("fine")

        if __name__ == "__main__":
            lms.enable(host_limit="32MiB", min_size=0)
            x = torch.ones(1 << 18, device="cuda")
            lms.reclaim()
            assert lms.stats()["lms.host.used_bytes"] == 1 << 20
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start(); process.join()
            assert process.exitcode == 0
        """
    )
    assert "fine" in out


# ---- what IBM's own test of v1.5.0 asks, in all of its 20 assertions

IBM_KEYS = {
    "allocated": "allocated_bytes.all.current", "pinned": "pinned_bytes.all.current",
    "reserved": "reserved_bytes.all.current", "reclaimed": "reclaimed_bytes",
    "cudamalloc": "alloc_distribution.cudamalloc", "freelist": "alloc_distribution.freelist",
    "reclaim_one": "alloc_distribution.reclaim_one",
}  # fmt: skip


def numbers() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {name: stats[key] for name, key in IBM_KEYS.items()}


def changed(before: dict[str, int], after: dict[str, int]) -> dict[str, str]:
    return {
        name: "same" if after[name] == value else "more" if after[name] > value else "less"
        for name, value in before.items()
    }


def large() -> torch.Tensor:
    """40 MiB."""
    return torch.empty(10, 1024, 1024, device="cuda").normal_()


def two_small_and_a_large() -> list[torch.Tensor]:
    return [torch.empty(size, device="cuda").normal_() for size in (32, 128)] + [large()]


def test_what_is_idle_is_pinned_only_while_it_is_off(device: Any) -> None:
    kept = two_small_and_a_large()
    off = numbers()
    assert off["pinned"] == off["allocated"]
    del kept
    torch.cuda.empty_cache()
    torch.cuda.set_enabled_lms(True)
    kept = two_small_and_a_large()
    on = numbers()
    assert on["pinned"] < on["allocated"]
    del kept


@pytest.mark.parametrize(
    ("limit", "grows"),
    [
        pytest.param(80, ("reclaimed", "reclaim_one"), id="low"),
        pytest.param(1024, ("allocated", "cudamalloc"), id="high"),
    ],
)
def test_ibms_limit(device: Any, limit: int, grows: tuple[str, ...]) -> None:
    """82 MiB are asked for."""
    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(limit * MIB)
    kept = two_small_and_a_large()
    before = numbers()
    kept.append(large())
    have = changed(before, numbers())
    for name in ("allocated", "reclaimed", "cudamalloc", "reclaim_one"):
        assert have[name] == ("more" if name in grows else "same"), name
    del kept


def test_ibms_way_out_and_in(device: Any) -> None:
    torch.cuda.set_enabled_lms(True)
    kept = two_small_and_a_large()
    sums = [x.sum().item() for x in kept]
    there = numbers()
    torch.cuda.reclaim_inactive()
    out = numbers()
    have = changed(there, out)
    assert have["reclaimed"] == "more" and have["allocated"] == "less"
    assert have["pinned"] == have["reserved"] == "same"
    assert [x.sum().item() for x in kept] == sums
    back = numbers()
    have = changed(there, back)
    assert have["pinned"] == have["reserved"] == have["allocated"] == "same"
    have = changed(out, back)
    assert have["freelist"] == "more" and have["cudamalloc"] == "same"
    del kept


# ---- statistics


def test_while_it_is_off_everything_is_pinned(program: Any) -> None:
    out = program(
        """
        import torch
        cuda = torch.cuda

        def check():
            s = cuda.memory_stats()
            for pool in ("all", "large_pool", "small_pool"):
                for counter in ("current", "peak", "allocated", "freed"):
                    for ours, torchs in (("pinned", "allocation"),
                                         ("pinned_bytes", "allocated_bytes")):
                        name = f"{pool}.{counter}"
                        assert s[f"{ours}.{name}"] == s[f"{torchs}.{name}"], (ours, name)
            return s

        kept = [torch.ones(1 << 19, device="cuda"), torch.ones(100, device="cuda")]
        never = check()
        assert never["pinned_bytes.all.current"] >= (2 << 20) + 400
        assert never["pinned.large_pool.current"] == never["pinned.small_pool.current"] == 1
        cuda.set_enabled_lms(True)
        s = cuda.memory_stats()
        assert s["pinned_bytes.all.current"] == 0 < s["allocated_bytes.all.current"]
        cuda.set_enabled_lms(False)
        check()
        cuda.reset_peak_memory_stats(); cuda.reset_accumulated_memory_stats()
        s = check()
        assert s["pinned.all.allocated"] == 0
        print("fine")
        """
    )
    assert "fine" in out


PINNED = "`pinned.*` and `pinned_bytes.*`, also `allocated` and `freed`, jump when"


@pytest.mark.skipif(not STATISTICS.is_file(), reason="needs the project's docs")
def test_switching_is_a_jump_in_what_is_pinned(program: Any) -> None:
    """Totals, too: the allocator's while it is off, the engine's while it is on."""
    assert PINNED in STATISTICS.read_text()
    out = program(
        """
        import torch
        cuda = torch.cuda
        NAMES = [f"{kind}.all.{n}" for kind in ("pinned", "pinned_bytes")
                 for n in ("current", "peak", "allocated", "freed")]

        def read():
            s = cuda.memory_stats()
            return [s[name] for name in NAMES]

        x = [torch.ones(1000, device="cuda") for _ in range(50)]
        off = read()
        assert off[0] == off[2] == 50
        cuda.set_enabled_lms(True)
        assert read() == [0] * 8  # the engine's: less than before
        x[0].add_(x[1])
        on = read()
        assert (on[0], on[2], on[3]) == (0, 2, 2) and on[6] == 8000
        cuda.set_enabled_lms(False)
        assert read() == off
        del x[0]
        cuda.set_enabled_lms(True)
        assert read() == on
        print("fine")
        """
    )
    assert "fine" in out


DISTRIBUTION = """
    import torch
    cuda = torch.cuda

    def routes():
        s = cuda.memory_stats()
        return {n.partition(".")[2]: v for n, v in s.items() if n.startswith("alloc_dist") and v}

    def block(mib): return torch.empty(mib << 18, device="cuda")
"""


def test_allocations_are_counted_while_it_is_off(program: Any) -> None:
    out = program(
        DISTRIBUTION
        + """
    x = [block(20), block(30)]  # segments of their own
    assert routes() == {"cudamalloc": 2}, routes()
    del x[0]
    x.append(block(20))  # what was cached
    assert routes() == {"cudamalloc": 2, "freelist": 1}, routes()
    cuda.set_enabled_lms(True)  # it loads the library
    assert routes() == {"cudamalloc": 2, "freelist": 1}, routes()
    x.append(block(30))
    cuda.set_enabled_lms(False)
    del x[-1]
    x.append(block(30))
    x.append(block(40))
    assert routes() == {"cudamalloc": 4, "freelist": 2}, routes()
    cuda.reset_accumulated_memory_stats()
    assert routes() == {}, routes()
    del x[-1]
    x.append(block(40))
    assert routes() == {"freelist": 1}, routes()
    print("fine")
    """,
        memory=256 * MIB,
    )
    assert "fine" in out


def test_counts_of_allocations_start_anew_before_the_first_enable(program: Any) -> None:
    out = program(
        DISTRIBUTION
        + """
    x = block(20)
    assert routes() == {"cudamalloc": 1}, routes()
    cuda.lms.reset_accumulated_stats()
    assert routes() == {}
    assert cuda.lms.versions.device_allocations(cuda.memory_stats()) == 1
    y = block(20)
    assert routes() == {"cudamalloc": 1}, routes()
    cuda.set_enabled_lms(True)
    assert routes() == {"cudamalloc": 1}, routes()
    cuda.reset_accumulated_memory_stats()
    assert routes() == {}, routes()
    print("fine")
    """,
        memory=256 * MIB,
    )
    assert "fine" in out


@pytest.mark.native  # the plug-in sees no retry of the allocator behind it
@pytest.mark.parametrize("first", ["", "cuda.set_enabled_lms(True); cuda.set_enabled_lms(False)"])
def test_a_retry_is_counted_while_it_is_off(program: Any, first: str) -> None:
    out = program(
        DISTRIBUTION
        + f"""
    torch.empty(0, device="cuda")
    {first}
    x = block(30)
    del x
    y = block(44)  # fits only when the cached 30 MiB are given back
    assert routes() == {{"cudamalloc": 1, "cudamalloc_retry": 1}}, routes()
    print("fine")
    """,
        memory=64 * MIB,
    )
    assert "fine" in out


def test_the_docstring_has_the_keys() -> None:
    doc = torch.cuda.memory_stats.__doc__ or ""
    for key in (
        '"pinned.{all,large_pool,small_pool}.{current,peak,allocated,freed}"',
        '"pinned_bytes.{all,large_pool,small_pool}.{current,peak,allocated,freed}"',
        '"reclaimed"', '"reclaimed_bytes"', '"alloc_distribution.', "cudamalloc_retry",
    ):  # fmt: skip
        assert key in doc
    assert doc.index("pinned_bytes") < doc.index("Args:")  # a section of Google's style
    for name in ("large_pool", "num_ooms", "device (torch.device or int, optional)"):
        assert name in doc  # PyTorch's own is all there


def titles(table: str) -> list[str]:
    return [line.split("|")[1].strip() for line in table.splitlines() if line.count("|") > 2]


def test_memory_summary_has_ibms_rows(lms: Any) -> None:
    x = block(3)
    lms.reclaim()
    table = torch.cuda.memory_summary()
    rows = titles(table)
    for row in ("Pinned memory", "Pinned allocs"):
        at = rows.index(row)
        assert rows[at + 1 : at + 3] == ["from large pool", "from small pool"]
    for name in (
        "Reclaimed memory:   3072 KiB", "Reclaimed blocks:       1", "Freelist allocs:",
        "CUDA allocs:", "Reclaim allocs:", "Reclaim fragments allocs:", "Reclaim all allocs:",
        "CUDA retry allocs:",
    ):  # fmt: skip
        assert name in table
    short = torch.cuda.memory_summary(abbreviated=True)
    assert "Pinned memory" in short and len(short) < len(table)
    del x


def test_every_line_is_as_wide_as_pytorchs(lms: Any) -> None:
    x = block(3)
    lms.reclaim()
    assert {len(line) for line in torch.cuda.memory_summary().splitlines()} == {77}
    del x


@pytest.mark.parametrize("value", [0, 1, 999_999, 10**7, 10**12, 2**40 + 5, 10**17, 2**62])
def test_no_row_overflows(lms: Any, monkeypatch: Any, value: int) -> None:
    """Ours are as wide as PyTorch's, and their columns are PyTorch's columns."""
    names = lms.stats()
    monkeypatch.setattr(torch.cuda.lms.report, "stats", lambda _=None: dict.fromkeys(names, value))
    for abbreviated in (False, True):
        table = torch.cuda.memory_summary(abbreviated=abbreviated)
        lines = table.splitlines()
        assert {len(line) for line in lines} == {77}
        assert all(line[0] == line[-1] == "|" for line in lines)
        cells = [line for line in lines if line.count("|") == 6]
        assert len({tuple(i for i, c in enumerate(line) if c == "|") for line in cells}) == 1
        pairs = [line for line in lines if line.count(":") == 2 and line.count("|") == 3]
        assert len({line.index("|", 1) for line in pairs[1:]}) == 1 and len(pairs) == 5
        assert table.endswith("=|\n")


def test_summary_says_which_limits_hold(device: Any) -> None:
    torch.cuda.lms.enable(device_limit="40MiB")
    text = torch.cuda.lms.summary()
    assert "limits: device 40.0 MiB, host none" in text
    assert "soft limit (set_limit_lms): none" in text
    torch.cuda.set_limit_lms(6 * MIB)
    assert "soft limit (set_limit_lms): 6.0 MiB" in torch.cuda.lms.summary()
