# SPDX-License-Identifier: Apache-2.0
"""DDP, FSDP and collectives over gloo, on a device that is too small for what they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lms_device import MIB

HEADER = """
    import gc, os, sys, traceback, torch, torch.distributed as dist

    def start(rank, store, world=2):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)

    def finish(text):
        dist.barrier()
        dist.destroy_process_group()
        os.write(1, text.encode() + b"\\n")  # whole, beside the other's
"""

IN_FLIGHT = """
    def quiet_group():
        # Of 1.13's, one of the program's own tells nobody of the end of its works.
        class Quiet(dist.ProcessGroup):
            def allreduce(self, tensors, options):
                return dist._Work()

        return Quiet(0, 1)

    def child(rank, store):
        start(rank, store)
        torch.cuda.lms.enable(min_size=0)
        x = torch.full((1 << 18,), float(rank + 1), device="cuda")
        gathered = torch.zeros(2 << 18, device="cuda")
        starts = {
            "all_reduce": lambda: dist.all_reduce(x, async_op=True),
            "broadcast": lambda: dist.broadcast(x, 0, async_op=True),
            "all_gather": lambda: dist.all_gather_into_tensor(gathered, x, async_op=True),
            # Of gloo's, this one tells of its end only who waits for it.
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, gathered, async_op=True),
        }
        if not hasattr(torch, "compile"):  # whose gloo has neither of the last two
            del starts["reduce_scatter"]
            quiet = quiet_group()
            into = [*gathered.chunk(2)]
            starts["all_gather"] = lambda: dist.all_gather(into, x, async_op=True)
        for name, start_one in starts.items():
            used = [x] if name in ("all_reduce", "broadcast") else [x, gathered]
            if rank == 1:
                torch.cuda.lms.reclaim()
            dist.barrier()
            if rank == 0:
                work = start_one()  # cannot end before the other begins, which is told to below
                assert not any(torch.ops.lms.evict(t) for t in used), name + " moved in flight"
                assert torch.cuda.lms.stats()["pinned.all.current"] >= len(used), name
                dist.send(torch.zeros(1), 1)
            else:
                dist.recv(torch.zeros(1), 0)
                work = start_one()
            work.wait()
            torch.cuda.synchronize()
            for _ in range(500):  # the thread that ran it lets go a moment later
                if torch.cuda.lms.stats()["pinned.all.current"] == 0:
                    break
                time.sleep(0.01)
            assert not any(torch.ops.lms.exposed(t) for t in used), name + " holds on"
            assert all(torch.ops.lms.evict(t) for t in used), name + " holds on"
        scattered = "reduce_scatter" in starts
        assert (x == (6 if scattered else 3)).all().item() and (gathered == 3).all().item()
        used = [x, gathered] if scattered else [x]
        if scattered:
            dist.reduce_scatter_tensor(x, gathered, async_op=True)  # nobody can wait for it
        else:
            dist.ProcessGroup.allreduce(quiet, used, dist.AllreduceOptions())
        dist.all_reduce(torch.zeros(1, device="cuda"))
        assert all(torch.ops.lms.exposed(t) for t in used)
        dist.barrier()
        os.write(1, b"done\\n")
        # An orderly end waits, with the interpreter, for the thread that ran the last collective,
        # which may want the interpreter to let go of its tensors.
        os._exit(0)
"""

GROUPS = """
    from lms_extension import set_bytes
    from torch.cuda.lms import collectives
    from torch.distributed.distributed_c10d import ProcessGroup, _coalescing_manager
    from torch.testing._internal.distributed.fake_pg import FakeStore

    side = torch.cuda.Stream()
    begun = []  # pointers that the group was given

    class Later(dist.Work):
        def wait(self, timeout=None):
            torch.cuda.current_stream().wait_stream(side)
            return True

    # As NCCL's, which launches when the group ends, on a stream of its own.
    def end(self, device):
        if not begun:
            raise RuntimeError("nothing was begun")
        with torch.cuda.stream(side):
            for pointer in begun:
                set_bytes(pointer, 7, 1 << 20)
        begun.clear()
        return Later()

    ProcessGroup._start_coalescing = lambda self, device: None
    ProcessGroup._end_coalescing = end

    # A point-to-point operation of a group gives no work.
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("send_later(Tensor x) -> ()")
    library.impl("send_later", lambda x: None, "CUDA")

    def begin(x, quiet):
        torch.ops.c10d.send_later(x) if quiet else dist.broadcast(x, 0)
        begun.append(torch.cuda.lms.pointers._raw_pointer(x))

    def moved(tensors):
        return [torch.ops.lms.evict(t) for t in tensors]

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    world, place = dist.group.WORLD, torch.device("cuda")
    torch.cuda.lms.enable(min_size=0)
    for asynchronous in (False, True):
        tensors = [torch.full((1 << 18,), 1.0, device=place) for _ in range(2)]
        with _coalescing_manager(world, place, async_ops=asynchronous) as works:
            for quiet, x in enumerate(tensors):
                begin(x, quiet)
            side.wait_stream(torch.cuda.current_stream())
            assert moved(tensors) == [False, False], "moved before the launch"
        if asynchronous:
            assert moved(tensors) == [False, False], "moved before anybody waited"
            with torch.cuda.stream(torch.cuda.Stream()):
                works.wait()
        assert torch.cuda.lms.stats()["pinned.all.current"] == 0
        assert moved(tensors) == [True, True], "held for good"
        filler = [torch.full((1 << 18,), 9.0, device=place) for _ in range(2)]
        for x in tensors:
            assert bytes(x.cpu().view(torch.uint8).numpy()) == bytes([7]) * (1 << 20)

    # A group that has nothing but one within it: it launches that, and gives no work.
    inner = torch.full((1 << 18,), 1.0, device=place)
    ends = [Later(), None]
    with_none = collectives._ending(lambda self, device: ends.pop(0))
    for _ in range(2):
        world._start_coalescing(place)
    dist.broadcast(inner, 0)
    with_none(world, place)
    assert moved([inner]) == [False]
    with_none(world, place)
    assert moved([inner]) == [False], "moved in flight"

    # What ends a group may give something of its own, which nobody can ask.
    foreign = torch.full((1 << 18,), 1.0, device=place)
    world._start_coalescing(place)
    dist.broadcast(foreign, 0)
    assert collectives._ending(lambda self, device: "handle")(world, place) == "handle"
    assert moved([foreign]) == [False]

    try:  # what became of such a group nobody knows
        with _coalescing_manager(world, place):
            torch.ops.c10d.send_later(tensors[0])
    except RuntimeError:
        pass
    assert moved(tensors) == [False, True]
    print("done")
"""

TRAINING = """
    from torch.nn.parallel import DistributedDataParallel

    def train(rank, kind, place):
        torch.manual_seed(0)
        nn = torch.nn
        net = nn.Sequential(
            *(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8))
        ).to(place)
        if kind.startswith("ddp"):
            views = {"gradient_as_bucket_view": True} if kind == "ddp-views" else {}
            model = DistributedDataParallel(net, bucket_cap_mb=2, **views)
        elif kind == "fsdp":
            from torch.distributed.fsdp import FullyShardedDataParallel
            wrap = {"auto_wrap_policy": lambda module, recurse, **kw: recurse or
                    isinstance(module, nn.Sequential)}
            model = FullyShardedDataParallel(net, device_id=torch.device(place), **wrap)
        else:
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard
            mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda")  # not one of NCCL's
            for layer in net:
                fully_shard(layer, mesh=mesh)
            model = fully_shard(net, mesh=mesh)
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        data = torch.Generator().manual_seed(rank)
        losses, kept = [], []
        for i in range(3):
            optimiser.zero_grad()
            loss = model(torch.randn(64, 512, generator=data).to(place)).pow(2).mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            kept.append(torch.full((2 << 20,), float(i), device=place))  # 8 MiB
        assert all((t == i).all().item() for i, t in enumerate(kept))
        return losses

    def child(rank, kind, store):
        start(rank, store)
        import simcuda
        want = train(rank, kind, "cuda")
        peak = simcuda.device.peak
        torch.cuda.empty_cache()
        torch.cuda.lms.enable(min_size=0)
        simcuda.device.capacity = int(peak * float(sys.argv[3]))
        have = train(rank, kind, "cuda")
        assert have == want, (have, want)
        assert torch.cuda.lms.stats()["lms.paged_out_bytes"] > 0
        assert torch.cuda.lms.stats()["lms.exposed_bytes"] == 0, torch.cuda.lms.summary()
        finish("equal")
"""

MESH = """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    start(0, sys.argv[1], world=1)
    torch.cuda.lms.enable(min_size=0)
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda")
    inner = torch.full((1 << 18,), 3.0, device="cuda")
    x = DTensor.from_local(inner, mesh, [Replicate()])

    def leaves():
        torch.cuda.lms.reclaim()
        return torch.ops.lms.on_host(inner)

    torch.cuda.lms.exclude(x)
    assert not leaves()
    torch.cuda.lms.include(x)
    assert leaves()
    with torch.cuda.lms.pin(x):
        assert not leaves()
    assert leaves()
    assert (x + 1).to_local().sum().item() == 4 << 18
    finish("meant")
"""

BUCKETS = """
    from torch.nn.parallel import DistributedDataParallel

    start(0, sys.argv[2], world=1)

    def make():
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
        return DistributedDataParallel(net, gradient_as_bucket_view=sys.argv[3] == "views")

    def train(model):
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for i in range(3):
            optimiser.zero_grad(set_to_none=i == 1)
            model(torch.full((8, 64), float(i), device="cuda")).pow(2).mean().backward()
            optimiser.step()
        return [p.detach().cpu() for p in model.parameters()]

    want = train(make())
    gc.collect()
    model = make() if sys.argv[1] == "before" else None
    torch.cuda.lms.enable(min_size=0)
    model = model or make()
    have = train(model)
    assert all(map(torch.equal, have, want))
    assert torch.cuda.lms.stats()["lms.paged_out"] > 0

    def refuses():
        x = torch.ones(1000, device="cuda").add_(1)
        assert torch.ops.lms.on_host(x)
        try:
            return torch.cuda.lms.pointers._raw_pointer(x) and False
        except RuntimeError as error:
            return "LMS_DEBUG=chaos" in str(error)

    assert not refuses()
    del model, have
    gc.collect()
    assert refuses()
    finish("trained")
"""

MAIN = """
    def guarded(*arguments):
        try:
            child(*arguments)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # an orderly end waits for a collective that the other never joins

    if __name__ == "__main__":
        torch.multiprocessing.spawn(guarded, tuple(sys.argv[1:%d]), nprocs=2)
"""


@pytest.mark.parametrize("mode", ["immediate", pytest.param("lazy", marks=pytest.mark.slow)])
def test_a_collective_in_flight_stays(program: Any, tmp_path: Path, sim: Any, mode: str) -> None:
    code = HEADER + "    import time\n" + IN_FLIGHT + MAIN % 2
    out = program(code, str(tmp_path / "store"), memory=64 * MIB, mode=mode)
    assert out.splitlines().count("done") == 2, out  # beside what some versions warn of


@pytest.mark.parametrize(
    "kind",
    ["ddp", *(pytest.param(k, marks=pytest.mark.slow) for k in ("ddp-views", "fsdp", "fsdp2"))],
)
def test_training_that_does_not_fit(program: Any, tmp_path: Path, sim: Any, kind: str) -> None:
    code = HEADER + TRAINING + MAIN % 3
    out = program(code, kind, str(tmp_path / "store"), "0.6", memory=512 * MIB, mode="lazy")
    assert out.splitlines().count("equal") == 2, out


@pytest.mark.parametrize("made", ["before", "after"])
def test_gradients_that_are_parts_of_buckets(
    program: Any, tmp_path: Path, sim: Any, made: str
) -> None:
    """In chaos mode, which refuses looks at pointers: also those of a model made before."""
    out = program(
        HEADER + BUCKETS,
        made,
        str(tmp_path / "store"),
        "views",
        mode="lazy",
        env={"LMS_DEBUG": "chaos"},
    )
    assert "trained" in out


def test_gradients_that_are_no_parts_of_buckets(program: Any, tmp_path: Path, sim: Any) -> None:
    """As is the default: then the model makes sure that each is no part of its bucket."""
    store = str(tmp_path / "store")
    chaos = {"LMS_DEBUG": "chaos"}
    out = program(HEADER + BUCKETS, "after", store, "copies", mode="lazy", env=chaos)
    assert "trained" in out


@pytest.mark.parametrize("mode", ["lazy", pytest.param("late-write", marks=pytest.mark.slow)])
def test_a_group_of_collectives_stays(program: Any, sim: Any, mode: str) -> None:
    assert "done" in program(HEADER + GROUPS, mode=mode)


def test_of_a_distributed_tensor_the_inner_is_meant(program: Any, tmp_path: Path, sim: Any) -> None:
    """By exclude, include and pin."""
    pytest.importorskip("torch.distributed.tensor")
    assert "meant" in program(HEADER + MESH, str(tmp_path / "store"))
