# SPDX-License-Identifier: Apache-2.0
"""What programs use beside plain training. Each test is a row of the table in docs/simcuda.md."""

from __future__ import annotations

import copy
import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, Run

import simcuda

pytestmark = pytest.mark.engine
device = simcuda.device


def small_net(torch: Any) -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def train(torch: Any, model: Any, optimizer: Any, place: str, steps: int = 3) -> list[Any]:
    """The model's parameters after the steps, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=generator).to(place)).pow(2).mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast(torch: Any, mode: str, dtype: str) -> None:
    def run(place: str) -> list[Any]:
        model = small_net(torch).to(place)
        scaler = torch.amp.GradScaler(place)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).to(place)
        for _ in range(2):
            optimizer.zero_grad()
            # The set of operators that autocast casts differs between devices: state it.
            with torch.autocast(place, dtype=getattr(torch, dtype)):
                hidden = torch.nn.functional.linear(x, model[0].weight, model[0].bias)
            assert hidden.dtype == getattr(torch, dtype)
            scaler.scale(model[1:](hidden.float()).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.detach().cpu() for p in model.parameters()]

    assert all(map(torch.equal, run("cpu"), run("cuda")))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(torch: Any, mode: str, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def run(place: str) -> list[Any]:
        model = torch.nn.Sequential(small_net(torch), torch.nn.Dropout(0.3)).to(place)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).to(place)
        x.requires_grad_()
        torch.manual_seed(5)
        checkpoint(model, x, use_reentrant=reentrant).pow(2).sum().backward()
        return [p.grad.cpu() for p in model.parameters()] + [x.grad.cpu()]

    assert all(map(torch.equal, run("cpu"), run("cuda")))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "foreach") for name in ("SGD", "Adam", "AdamW", "Adagrad")),
        *((name, "fused") for name in ("SGD", "Adam", "AdamW")),  # there is no other for CUDA
    ],
)
def test_optimisers(torch: Any, mode: str, name: str, kind: str) -> None:
    def run(place: str) -> list[Any]:
        model = small_net(torch).to(place)
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), 0.01, **options, **{kind: True})
        return train(torch, model, optimizer, place)

    assert all(map(torch.equal, run("cpu"), run("cuda")))


def test_gradient_clipping(torch: Any, mode: str) -> None:
    def run(place: str) -> list[Any]:
        model = small_net(torch).to(place)
        model(torch.ones(2, 16, device=place)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        return [norm.cpu()] + [p.grad.cpu() for p in model.parameters()]

    assert all(map(torch.equal, run("cpu"), run("cuda")))


EXPANDABLE = """
    import simcuda, torch
    blocks = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]
    assert any(s["is_expandable"] for s in torch.cuda.memory_snapshot())
    del blocks[::2]
    blocks.append(torch.full((1 << 20,), 50.0, device="cuda"))
    got = [int(b[7]) for b in blocks]
    assert 40 << 20 <= simcuda.device.used <= 64 << 20, simcuda.device.used
    try:
        keep = [torch.empty(1 << 20, device="cuda") for _ in range(12)]
        print("no end")
    except torch.OutOfMemoryError:
        print(got)
    keep = None
    del blocks
    torch.cuda.empty_cache()
    print(simcuda.device.used)
"""


def test_expandable_segments(run: Run) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = run(EXPANDABLE, "--memory", "64M", "--mode", "lazy", env=env)
    assert done.stdout == "[1, 3, 5, 7, 9, 11, 50]\n0\n", done.stderr


def test_async_allocator(run: Run) -> None:
    code = """
        import simcuda, torch
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        x = torch.ones(1 << 20, device="cuda")
        print(float((x * 2).sum()), simcuda.device.used >= 4 << 20)
    """
    env = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert run(code, env=env).stdout == "2097152.0 True\n"


def test_record_stream(torch: Any, mode: str) -> None:
    side = torch.cuda.Stream()
    x = torch.arange(1000.0).cuda()
    torch.cuda.synchronize()
    host = torch.empty(1000).pin_memory()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000)
        host.copy_(x, non_blocking=True)
    x.record_stream(side)
    pointer = x.data_ptr()
    del x
    y = torch.full((1000,), -1.0, device="cuda")
    if mode in ("lazy", "late-write"):
        assert y.data_ptr() != pointer  # the copy is pending, so the block is not free yet
    side.synchronize()
    assert torch.equal(host, torch.arange(1000.0))


def test_memory_pool(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((8 * MIB,), 3, dtype=torch.uint8, device="cuda")
    outside = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    pools = [tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()]
    assert sorted(set(pools)) == [(0, 0), tuple(pool.id)]
    assert int(inside.sum(dtype=torch.int64)) == 3 * 8 * MIB
    del inside, pool, outside
    torch.cuda.empty_cache()
    assert device.used == 0


PLUGGABLE = """
    import sys, torch
    allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "get", "put")
    torch.cuda.memory.change_current_allocator(allocator)
    x = torch.arange(100.0).cuda()
    print((x + x)[5].item())
"""
ALLOCATOR = """
#include <cstdio>
#include <sys/types.h>
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
extern "C" void* get(ssize_t size, int, void*) {
  void* p = nullptr;
  fprintf(stderr, "get %zd\\n", size);
  cudaMalloc(&p, size);
  return p;
}
extern "C" void put(void* p, ssize_t, int, void*) { cudaFree(p); }
"""


def test_pluggable_allocator(run: Run, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    source, library = tmp_path / "allocator.cpp", tmp_path / "allocator.so"
    source.write_text(ALLOCATOR)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", source, "-o", library], check=True)
    done = run(PLUGGABLE, arguments=(str(library),))
    assert done.stdout == "10.0\n" and "get 400" in done.stderr, done.stderr


DISTRIBUTED = """
    import os, sys, torch, torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    def run(rank, kind, place):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
        net = net.to(place)
        if kind == "ddp":
            model = DistributedDataParallel(net, bucket_cap_mb=0.001)
        else:
            model = FullyShardedDataParallel(net, device_id=torch.device(place))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 16, generator=data).to(place)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def child(rank, kind, store):
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
        places = ["cpu", "cuda"] if kind == "ddp" else ["cuda"]
        results = [run(rank, kind, place) for place in places]
        assert all(r == results[0] for r in results), results
        assert results[0][0] != results[0][-1]
        x = torch.full((1000,), float(rank + 1)).cuda()
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 1000
        dist.barrier()
        dist.destroy_process_group()
        os.write(1, b"equal\\n")  # whole, beside the other's

    if __name__ == "__main__":
        torch.multiprocessing.spawn(child, (sys.argv[1], sys.argv[2]), nprocs=2)
"""


# The suite of each release trains in two processes as well, with LMS.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_with_gloo(run: Run, tmp_path: Path, kind: str) -> None:
    options = ("--mode", "lazy", "--devices", "2")
    done = run(DISTRIBUTED, *options, arguments=(kind, str(tmp_path / "store")))
    assert done.stdout.split() == ["equal", "equal"], done.stderr[-3000:]


@pytest.fixture
def compiled(torch: Any) -> Iterator[Any]:
    import torch._dynamo

    gc.collect()
    gc.freeze()  # as conftest does for torch: there is much to look at
    yield torch.compile
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(torch: Any, compiled: Any, backend: str) -> None:
    """The graphs of Dynamo and of AOTAutograd, run by operators."""
    plain = small_net(torch).cuda()
    fast = compiled(copy.deepcopy(plain), backend=backend)
    runs = [
        train(torch, model, torch.optim.SGD(model.parameters(), 0.1), "cuda")
        for model in (plain, fast)
    ]
    assert all(map(torch.equal, *runs))


def test_compile_with_inductor_is_refused(torch: Any, compiled: Any) -> None:
    """Its kernels are Triton's: no machine without a GPU has anything to run them on."""
    with pytest.raises(Exception, match=r"(?i)triton"):
        compiled(lambda x: x.sin().cos(), backend="inductor")(torch.ones(4, device="cuda"))


def test_dlpack(torch: Any) -> None:
    x = torch.arange(4.0).cuda()
    y = torch.from_dlpack(x)
    y.add_(1)
    assert y.data_ptr() == x.data_ptr() and x.tolist() == [1.0, 2.0, 3.0, 4.0]
