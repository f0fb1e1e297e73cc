# SPDX-License-Identifier: Apache-2.0
"""PyTorch 1.1 to 1.5, for CUDA 9 and 10, on the device, with a Python that they are for: memory,
streams and copies, and no kernels. The overlay is taken where `lmsbuild wheel` has made one, else
the official wheel. `python -m pytest tests/simcuda/test_old_torch.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
from pythons import interpreter

from simcuda import torchinfo

TOOLS = Path(torchinfo.__file__).resolve().parents[1]
WORK = Path(os.environ.get("LMSBUILD_WORK") or TOOLS.parent / "work")
PYTHONS = {
    "1.5.0": "3.8", "1.4.0": "3.8",
    "1.3.1": "3.7", "1.3.0": "3.7", "1.2.0": "3.7", "1.1.0": "3.7",
}  # fmt: skip

NO_OVERLAY = "needs the overlay, which `lmsbuild wheel v{} --python {}` makes"
PRELUDE = """
import json
import torch
import simcuda
device = simcuda.device

def say(**facts):
    print(json.dumps(facts))

def same(tensors):
    return all(torch.equal(t.cpu(), ramp + i) for i, t in enumerate(tensors))

ramp = torch.arange(1 << 18, dtype=torch.float32)  # of 1 MiB
"""
Run = Callable[..., Any]

pytestmark = [pytest.mark.net, pytest.mark.slow]


def hard_limit(version: str) -> bool:
    """Whether IBM's limit was, which it was from 1.4 on."""
    return version >= "1.4"


@pytest.fixture(scope="module", params=PYTHONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def overlay(version: str) -> list[Path]:
    """That of Large Model Support, if it is there."""
    return sorted(
        (WORK / f"pytorch-v{version}" / "wheels").glob(
            f"torch-*-cp{PYTHONS[version].replace('.', '')}-*.whl"
        )
    )


@pytest.fixture(scope="module")
def run(version: str, overlay: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program on a device of 32 MiB; what it says last."""
    folder = tmp_path_factory.mktemp("old")
    python = folder / "env/bin/python"
    subprocess.run([interpreter(PYTHONS[version]), "-m", "venv", folder / "env"], check=True)
    headers = torchinfo.Torch(folder, version, "10.2").header_wheels
    torch = str(overlay[-1]) if overlay else f"torch=={version}"
    wheels = [torch, "numpy<1.20", "future", *headers]
    subprocess.run([python, "-m", "pip", "install", "-q", *wheels], check=True)

    def run(code: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA_")}
        program = folder / "program.py"
        program.write_text(PRELUDE + code)
        done = subprocess.run(
            [python, "-m", "simcuda", "--memory", "32M", "--order", "report", program],
            env={**kept, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "RACE" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_memory_and_copies(run: Run) -> None:
    said = run(
        """
side = torch.cuda.Stream()
there = [(ramp + i).cuda() for i in range(8)]
with torch.cuda.stream(side):
    pinned = ramp.pin_memory()
    there.append((pinned + 8).cuda(non_blocking=True))
    side.synchronize()
used = torch.cuda.memory_allocated()
equal = same(there)
del there
torch.cuda.empty_cache()
say(used=used, equal=equal, name=torch.cuda.get_device_name(0), left=device.used)
"""
    )
    assert said == {
        "used": 9 << 20, "equal": True, "name": "simcuda: simulated CUDA device", "left": 0,
    }  # fmt: skip


def test_more_than_the_device_is_out_of_memory(run: Run) -> None:
    said = run(
        """
there = []
try:
    for i in range(100):
        there.append((ramp + i).cuda())
except RuntimeError as error:
    say(error=str(error), fit=len(there))
"""
    )
    assert said["error"].startswith("CUDA out of memory") and 20 <= said["fit"] <= 32


def test_a_kernel_is_refused_by_name(run: Run) -> None:
    said = run(
        """
try:
    ramp.cuda() + ramp.cuda()
except RuntimeError as error:
    say(error=str(error))
"""
    )
    assert "the simulated device refuses: kernel launch" in said["error"]
    assert "add_kernel" in said["error"]


def test_storages_leave_and_come_back(run: Run, overlay: list[Path], version: str) -> None:
    """Three times the device."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
early = [(ramp + i).cuda() for i in range(4)]
torch.cuda.lms.enable(min_size=0)
equal = same(early)
left = torch.cuda.lms.reclaim()
used = torch.cuda.memory_allocated()
equal = equal and same(early)
many = [(ramp + i).cuda() for i in range(96)]
moved = torch.cuda.memory_reclaimed()
again = same(many) and same(many)
pointer = many[0].data_ptr()
held = torch.cuda.lms.reclaim() and many[0].data_ptr() == pointer
torch.cuda.lms.release_pointer(many[0])
del many[9:]
torch.cuda.lms.disable()
say(left=left, used=used, equal=equal, moved=moved, again=again, held=held, off=same(many))
"""
    )
    assert said.pop("moved") >= 60 << 20
    assert said == {
        "left": 4 << 20, "used": 0, "equal": True, "again": True, "held": True, "off": True,
    }  # fmt: skip


def test_a_storage_is_copied_to_one_of_the_host(
    run: Run, overlay: list[Path], version: str
) -> None:
    """Whose class is another, and whose copy is no operator's."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
def copied(tensor):
    torch.cuda.lms.reclaim()
    return torch.FloatStorage(tensor.numel()).copy_(tensor.storage())

def moved(tensor):
    torch.cuda.lms.reclaim()
    return tensor.storage().cpu()

torch.cuda.lms.enable(min_size=0)
there = [(ramp + i).cuda() for i in range(4)]
say(equal=[same(map(torch.FloatTensor, map(to_host, there))) for to_host in (copied, moved)])
"""
    )
    assert said == {"equal": [True, True]}


def test_ibms_names(run: Run, overlay: list[Path], version: str) -> None:
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
cuda = torch.cuda
missing = [name for name in cuda.lms.ibm.__all__ if not hasattr(cuda, name)]
before = [cuda.memory_active(), sum(cuda.alloc_distribution().values())]
kept = ramp.cuda()
off = cuda.memory_active(), cuda.max_memory_active()
cuda.set_enabled_lms(True)
on = cuda.memory_active()
there = [(ramp + i).cuda() for i in range(64)]
made = cuda.alloc_distribution()
moved = cuda.memory_reclaimed()
cuda.reset_max_memory_active()
cuda.reset_memory_reclaimed()
after = [cuda.max_memory_active(), cuda.memory_reclaimed(), sum(cuda.alloc_distribution().values())]
say(missing=missing, before=before, off=off, on=on, made=sum(made.values()), moved=moved,
    reclaims=made["reclaim_one"] + made["reclaim_fragments"] + made["reclaim_all"], after=after,
    routes=sorted(made))
"""
    )
    assert said.pop("made") >= 64 and said.pop("reclaims") > 0 and said.pop("moved") >= 32 << 20
    others = (
        {"cudamalloc_retry"}
        if hard_limit(version)
        else {"cudamalloc_over_limit", "cudamalloc_purge"}
    )
    routes = {"freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all"}
    assert said == {
        "missing": [], "before": [0, 0], "off": [1 << 20] * 2, "on": 0, "after": [0] * 3,
        "routes": sorted(routes | others),
    }  # fmt: skip


# What IBM's test calls large, of a device of 32 MiB.
LARGE = """
large = torch.arange(3 << 20, dtype=torch.float32)  # of 12 MiB
cuda = torch.cuda

def three():
    return [x.cuda() for x in (ramp[:32], ramp[:128], large)]

def numbers():
    held = cuda.memory_reserved() if hasattr(cuda, "memory_reserved") else cuda.memory_cached()
    stats, routes = cuda.lms.stats(), cuda.alloc_distribution()
    return {"allocated": cuda.memory_allocated(), "reserved": held,
            "pinned": stats["pinned_bytes.all.current"], "reclaimed": stats["reclaimed_bytes"],
            **{name: routes[name] for name in ("freelist", "cudamalloc", "reclaim_one")}}

def changed(before, after):
    return {name: "same" if after[name] == n else "more" if after[name] > n else "less"
            for name, n in before.items()}
"""


def test_ibms_own_test(run: Run, overlay: list[Path], version: str) -> None:
    """With copies for its kernels. Up to 1.3 its low limit was 0."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        LARGE
        + f"""
kept = three()
off = numbers()
del kept
cuda.empty_cache()
default = cuda.get_limit_lms()
cuda.set_enabled_lms(True)
kept = three()
on = numbers()

def limited(limit):
    global kept
    del kept
    cuda.empty_cache()
    cuda.set_limit_lms(limit)
    kept = three()
    before = numbers()
    kept.append(large.cuda())
    return changed(before, numbers())

low, high = limited({24 << 20 if hard_limit(version) else 0}), limited(1 << 30)
cuda.set_limit_lms(default)
del kept
cuda.empty_cache()
kept = three()
before = numbers()
cuda.reclaim_inactive()
out = numbers()
equal = all(torch.equal(x.cpu(), large[:x.numel()]) for x in kept)
say(default=default, off=off["pinned"] == off["allocated"], on=on["pinned"] < on["allocated"],
    low=low, high=high, out=changed(before, out), equal=equal, back=changed(out, numbers()),
    whole=numbers()["allocated"] == before["allocated"])
"""
    )
    assert all(said.pop(name) for name in ("off", "on", "equal", "whole"))
    same = dict.fromkeys(("allocated", "reclaimed", "cudamalloc", "reclaim_one"), "same")
    for limit, grows in (
        ("low", ("reclaimed", "reclaim_one")), ("high", ("allocated", "cudamalloc")),
    ):  # fmt: skip
        found = said.pop(limit)
        assert {name: found[name] for name in same} == same | dict.fromkeys(grows, "more"), limit
    out, back = said.pop("out"), said.pop("back")
    assert said == {"default": 0}
    assert (out["reclaimed"], out["allocated"]) == ("more", "less")
    assert out["pinned"] == out["reserved"] == "same"
    assert back["pinned"] == back["reserved"] == back["cudamalloc"] == "same"
    assert back["allocated"] == back["freelist"] == "more"


def test_a_limit_is_what_ibms_was(run: Run, overlay: list[Path], version: str) -> None:
    """Hard in 1.4 and 1.5, where 0 leaves a twentieth; before, soft, and 0 is a limit."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        LARGE
        + """
import warnings

def fits(count):
    try:
        kept = [large.cuda() for _ in range(count)]
        with torch.cuda.lms.pin(*kept):
            return True
    except RuntimeError as error:
        assert "out of memory" in str(error)
        return False

default = cuda.lms.settings()
cuda.set_enabled_lms(True)
before_cuda = cuda.lms.settings()
kept = ramp.cuda()
on = cuda.lms.settings()
many = [(ramp + i).cuda() for i in range(16)]
fresh = cuda.alloc_distribution()
del many, kept
cuda.empty_cache()
cuda.set_limit_lms(20 << 20)
fit = fits(1), fits(2)
beyond = cuda.alloc_distribution().get("cudamalloc_over_limit")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    cuda.set_size_lms(5)
    size = cuda.get_size_lms()
cuda.set_limit_lms(0)
again = cuda.get_limit_lms(), cuda.lms.settings()["device_limit"] >> 20
cuda.lms.enable(device_limit=16 << 20)
cuda.set_enabled_lms(True)
cuda.set_limit_lms(0)
say(soft=[s["soft_limit"] for s in (default, before_cuda, on)], fit=fit, size=size,
    hard=[s["device_limit"] >> 20 for s in (default, before_cuda, on)], beyond=beyond,
    told=[str(w.category.__name__) for w in told], min_size=cuda.lms.settings()["min_size"],
    fresh=fresh["cudamalloc"], again=again, kept=cuda.lms.settings()["device_limit"] >> 20)
"""
    )
    fresh, beyond = said.pop("fresh"), said.pop("beyond")
    if hard_limit(version):
        share = int(32 * 0.95)
        assert fresh > 0 and beyond is None
        assert said == {
            "soft": [0] * 3, "hard": [0, 0, share], "fit": [True, False], "again": [0, share],
            "size": 0, "told": ["DeprecationWarning"] * 2, "min_size": 1 << 20, "kept": 16,
        }  # fmt: skip
    else:
        assert fresh == 0 and beyond > 0
        assert said == {
            "soft": [0, 1, 1], "hard": [0] * 3, "fit": [True, True], "again": [0, 0],
            "size": 5, "told": [], "min_size": 5, "kept": 16,
        }  # fmt: skip


def test_operators_bring_in_what_they_use(run: Run, overlay: list[Path], version: str) -> None:
    """Whatever table their kernels are in, which the device then refuses."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
one, two = ((ramp + i).reshape(512, 512).cuda() for i in range(2))
nn = torch.nn.functional
CALLS = {
    "add": lambda: one + two,
    "add_": lambda: one.add_(two),
    "mul": lambda: one.mul(2),
    "tanh": lambda: torch.tanh(one),
    "gt": lambda: two > 1,
    "cat": lambda: torch.cat([one, two]),
    "sum": lambda: one.sum(),
    "relu_": lambda: torch.relu_(one),
    "log_softmax": lambda: nn.log_softmax(one, 1),
    "max_pool2d": lambda: nn.max_pool2d(one[None, None], 2),
    "dropout": lambda: nn.dropout(one, 0.5, True),
    "mm": lambda: one.mm(two),
    "clone": lambda: one.clone(),
    "unsqueeze": lambda: one.unsqueeze(0),
}

def paged_in(call):
    torch.cuda.lms.reclaim()
    before = torch.cuda.lms.stats()["lms.paged_in_bytes"]
    try:
        call()
    except RuntimeError:
        pass
    return (torch.cuda.lms.stats()["lms.paged_in_bytes"] - before) >> 20

torch.cuda.lms.enable(min_size=0)
paged_in(CALLS["add"])  # known from now on
say(**{name: paged_in(call) for name, call in CALLS.items()})
"""
    )
    both = {"add", "add_", "cat", "mm"}
    assert said == {name: 2 if name in both else 1 for name in said} | {"unsqueeze": 0}
    assert len(said) == 14


def test_a_model_trains_beyond_memory(run: Run, overlay: list[Path], version: str) -> None:
    """Through autograd, with layers that compute on the host, as the device has no kernels: of 24
    weights, gradients and activations of 1 MiB each. The losses are the CPU's in every bit."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, weight):
        ctx.save_for_backward(given, weight)
        return given.cpu().mm(weight.cpu()).tanh().to(given.device)

    @staticmethod
    def backward(ctx, gradient):
        where = gradient.device
        given, weight = (saved.cpu() for saved in ctx.saved_tensors)
        change = gradient.cpu() * (1 - given.mm(weight).tanh() ** 2)
        return change.mm(weight.t()).to(where), given.t().mm(change).to(where)

def train(where):
    torch.manual_seed(0)
    weights = [(torch.randn(512, 512) / 16).to(where).requires_grad_() for _ in range(24)]
    given = torch.randn(512, 512).to(where)
    losses = []
    for _ in range(3):
        now = given
        for weight in weights:
            now = Layer.apply(now, weight)
        loss = (now.cpu() ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        for weight in weights:
            weight.data.copy_(weight.detach().cpu() - weight.grad.cpu())
            weight.grad = None
    return losses

def without():
    try:
        train("cuda")
    except RuntimeError as error:
        return str(error)

error = without()
torch.cuda.lms.enable(min_size=0)
there, want = train("cuda"), train("cpu")
say(error=error, equal=there == want, falls=want[0] > want[1] > want[2] > 0,
    moved=torch.cuda.memory_reclaimed() >> 20)
"""
    )
    assert said["error"].startswith("CUDA out of memory") and said["moved"] > 100
    assert said["equal"] and said["falls"]


def test_a_child_of_a_fork_waits_for_no_thread(run: Run, overlay: list[Path], version: str) -> None:
    """Another thread is nearly always within the caching allocator when it is forked."""
    if not overlay:
        pytest.skip(NO_OVERLAY.format(version, PYTHONS[version]))
    said = run(
        """
torch.cuda.lms.enable(min_size=0)
kept = [ramp.cuda() for _ in range(4)]
"""
        + forks.BESIDE_THREADS
        + "say(statuses=statuses)\n"
    )
    assert said["statuses"] == [0] * 100
