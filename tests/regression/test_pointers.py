# SPDX-License-Identifier: Apache-2.0
"""Pointers that leave PyTorch: what they point to stays; writes through them are not lost."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import io
from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_extension import set_bytes
from lms_tensors import block, bytes_of, on_host, operators, ramp
from torch import nn

MODES = lms_device.device.modes


TAKERS = {
    "data_ptr": lambda x: x.data_ptr(),
    "view": lambda x: x[7:].data_ptr() - 28,
    "parameter": lambda x: nn.Parameter(x).data_ptr(),
    "storage": lambda x: x.untyped_storage().data_ptr(),
    "typed_storage": lambda x: x.storage()._data_ptr(),
    "array_interface": lambda x: x.__cuda_array_interface__["data"][0],
    "dlpack": lambda x: torch.from_dlpack(x.__dlpack__()).data_ptr(),
    "to_dlpack": lambda x: torch.utils.dlpack.from_dlpack(
        torch.utils.dlpack.to_dlpack(x)
    ).data_ptr(),
    "from_dlpack": lambda x: torch.from_dlpack(x).data_ptr(),
    "capsule": lambda x: capsule_pointer(torch.to_dlpack(x)),
}


def capsule_pointer(capsule: Any) -> int:
    """DLManagedTensor starts with the data pointer."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(ctypes.c_void_p.from_address(get(capsule, b"dltensor")).value or 0)


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("out", [True, False], ids=["on-host", "resident"])
def test_a_pointer_handed_out(lms: Any, taker: str, out: bool) -> None:
    x = block()
    x.sum()
    if out:
        lms.reclaim()
        assert on_host(x)
    pointer = TAKERS[taker](x)
    assert not on_host(x) and torch.ops.lms.exposed(x)
    assert lms.reclaim() == 0 and not torch.ops.lms.evict(x)
    snapshot = torch.cuda.memory_snapshot()
    assert any(s["address"] <= pointer < s["address"] + s["total_size"] for s in snapshot)
    set_bytes(pointer, 3, x.nbytes)
    assert bytes_of(x) == b"\3" * x.nbytes
    assert lms.stats()["lms.exposed"] == 1
    lms.release_pointer(x)
    assert lms.reclaim() == MIB
    assert bytes_of(x) == b"\3" * x.nbytes


# Each a comparison of two tensors' memory: whether it is the same.
COMPARES = {
    "equal": lambda x, y: x.data_ptr() == y.data_ptr(),
    "storages": lambda x, y: x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr(),
    "typed storages": lambda x, y: x.storage()._data_ptr() == y.storage()._data_ptr(),
    "parts": lambda x, y: x[:1].data_ptr() == y.view(-1)[0].data_ptr(),
    "not unequal": lambda x, y: (x.data_ptr() != y.data_ptr()) is False,
}


@pytest.mark.parametrize("how", COMPARES)
def test_a_pointer_that_is_compared_holds_nothing(lms: Any, how: str) -> None:
    """Whatever asks for it: what is compared nobody keeps."""
    compare, x, y = COMPARES[how], block(), block()
    for _ in range(2):
        assert compare(x, x.detach()) and compare(x, x) and not compare(x, y)
        assert not torch.ops.lms.exposed(x) and not torch.ops.lms.exposed(y)
        lms.reclaim()
        assert on_host(x) and on_host(y)


def test_a_pointer_that_is_ordered_is_one(lms: Any) -> None:
    """The least is found by comparing, and then followed."""
    x, y = block(), block()
    first = lambda: x if x.data_ptr() < y.data_ptr() else y  # noqa: E731
    lowest = first()
    assert torch.ops.lms.exposed(x) and torch.ops.lms.exposed(y) and first() is lowest


@pytest.mark.parametrize("out", [True, False], ids=["on-host", "resident"])
def test_a_pointer_whose_alignment_is_asked_holds_nothing(lms: Any, out: bool) -> None:
    """Wherever the storage is later, it is as aligned."""
    x, factor = block(), 2
    if out:
        lms.reclaim()
    of_part = lambda first: x[first:].data_ptr() % 512  # noqa: E731
    assert [of_part(first) for first in (0, 1, 127, 128)] == [0, 4, 508, 0]
    assert (lambda: x[3:].data_ptr() % (8 * factor) == 12)()
    assert (lambda: x.untyped_storage().data_ptr() % 16 == 0)()
    assert not torch.ops.lms.exposed(x) and on_host(x) == out


def test_a_pointer_whose_remainder_tells_where_it_is_is_one(lms: Any) -> None:
    x = block()
    lms.reclaim()
    page = x.data_ptr() % 4096
    assert torch.ops.lms.exposed(x)
    pointer = x.data_ptr()
    assert page == pointer % 4096
    lms.release_pointer(x)
    address = x.data_ptr() % (1 << 64)
    assert torch.ops.lms.exposed(x)
    pointer = x.data_ptr()
    assert address == pointer


class Around:
    """Has a pointer of another's: it is kept while the one before it waits to be compared."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    @property
    def address(self) -> int:
        return self.tensor.data_ptr()


def test_a_pointer_that_is_compared_with_one_that_was_kept(lms: Any) -> None:
    x, y, z = block(), block(), block()
    pointer = x.untyped_storage().data_ptr()
    compares = lambda t: (  # noqa: E731
        t.data_ptr() == pointer,
        pointer == t.data_ptr(),
        t.untyped_storage().data_ptr() != pointer,
    )
    lms.reclaim()
    assert compares(x) == compares(x.detach()) == (True, True, False)
    assert compares(y) == (False, False, True)
    assert torch.ops.lms.exposed(x) and not torch.ops.lms.exposed(y) and on_host(y)

    pinned = lambda: torch._C._TensorBase.data_ptr(z) == z.data_ptr()  # noqa: E731
    with lms.pin(z):
        assert pinned()
    around = Around(z)
    same = lambda: (z.data_ptr() == around.data_ptr(), z.data_ptr() == around.address)  # noqa: E731
    assert same() == (True, True) and torch.ops.lms.exposed(z)
    others = lambda: (x.data_ptr() == around.data_ptr(), x.data_ptr() == "x")  # noqa: E731
    assert others() == (False, False)


def test_a_pointer_that_is_compared_with_one_of_shared_memory(lms: Any) -> None:
    x = block()
    same = lambda t: (x.data_ptr() == t.data_ptr(), t.data_ptr() == x.data_ptr())  # noqa: E731
    assert same(torch._lazy_clone(x)) == (False, False)  # until one is written
    assert same(torch.from_dlpack(x.__dlpack__())) == (True, True)


def test_what_stands_for_a_pointer_is_of_one_storage_for_good(lms: Any) -> None:
    """Who compares may keep it for longer: of weights that have been moved to another device."""
    seen = []
    for i in range(3000):
        storage = torch.empty(1 + i % 7, device="cuda").untyped_storage()
        seen.append(torch.ops.lms.identity.default(storage))
        assert torch.ops.lms.identity.default(storage) == seen[-1] < 1 << 63
    assert len(set(seen)) == len(seen)


def test_a_pointer_of_nothing_that_is_compared(lms: Any) -> None:
    x = block()
    assert torch.ops.lms.evict(x)  # something is known of the device's copies
    part = x[1:]
    no_memory = lambda t: t.untyped_storage().data_ptr() == 0  # noqa: E731
    assert not no_memory(x)
    wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, x.shape, device="cuda")
    assert (lambda: wrapper.data_ptr() == 0)()
    undispatched = torch._C._DisableTorchDispatch()  # as its class may do it, until this goes
    torch.ops.lms.expose(wrapper)
    assert not torch.ops.lms.exposed(wrapper)
    del undispatched
    for take in (no_memory, lambda t: [t.untyped_storage().data_ptr()]):
        with pytest.raises(RuntimeError, match="storage"):  # as without
            take(wrapper)
    x.untyped_storage().resize_(0)
    assert no_memory(x) and no_memory(torch.empty(0, device="cuda"))
    assert (lambda: part.data_ptr() == 4)()


class Wrapper(torch.Tensor):
    """Has no memory of its own."""

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f)


class Asked(torch.Tensor):
    """Is asked what is done to it."""

    asked: list[str]

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f.__name__ == "data_ptr":
            args[0].asked.append(f.__name__)
        return super().__torch_function__(f, types, args, kwargs or {})


def test_whoever_is_asked_before_a_pointer_is_compared(lms: Any) -> None:
    x = block().as_subclass(Asked)
    x.asked = []
    assert (lambda: x.data_ptr() == x.data_ptr())() and len(x.asked) == 2


def test_a_trace_that_compares_pointers(lms: Any) -> None:
    x = block()
    traced = torch.jit.trace(lambda t: t + 1 if t.data_ptr() == t[:].data_ptr() else t, (x,))
    assert torch.equal(traced(x).cpu(), x.cpu() + 1) and "lms" not in str(traced.graph)


def partly_out() -> list[torch.Tensor]:
    """Large Model Support off, and 24 MiB on a device of 16: some are still in host memory."""
    lms_device.device.limit(16 * MIB)
    kept = [block(4, i) for i in range(6)]
    torch.cuda.lms.disable()
    assert not torch.ops.lms.enabled() and any(on_host(x) for x in kept)
    return kept


@pytest.mark.parametrize("taker", TAKERS)
def test_a_pointer_taken_while_some_are_still_out(lms: Any, taker: str) -> None:
    """Turned off, operators still bring in, and move out, as pointers must know."""
    kept = partly_out()
    i, x = next((i, x) for i, x in enumerate(kept) if on_host(x))
    pointer = TAKERS[taker](x)
    assert not on_host(x) and torch.ops.lms.exposed(x)
    assert all((x == i).all().item() for i, x in enumerate(kept))  # each comes in
    assert torch._C._TensorBase.data_ptr(x) == pointer and (x == i).all().item()


def test_a_storage_method_while_some_are_still_out(lms: Any) -> None:
    torch.ops.lms.set_chaos(True)  # what is out has no pointer that could be followed
    i, x = next((i, x) for i, x in enumerate(partly_out()) if on_host(x))
    x.untyped_storage().resize_(x.nbytes // 2)
    assert (x.resize_(MIB // 2) == i).all().item()


@pytest.mark.values
def test_a_storage_method_during_which_it_is_turned_on(lms: Any, tmp_path: Path) -> None:
    """What reads a file takes a pointer, and gives it to an operator later."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class TurnsOn(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f is torch.ops.aten.copy_.default:
                lms.enable(min_size=0)
                lms.reclaim()
            return f(*args, **(kwargs or {}))

    x, y = ramp(5).cuda(), torch.zeros(MIB // 4, device="cuda")
    with Path(tmp_path / "storage").open("wb") as file:
        x.untyped_storage()._write_file(file, True, True, 4)
    lms.disable()
    with TurnsOn(), Path(tmp_path / "storage").open("rb") as file:
        y.untyped_storage()._set_from_file(file, 0, True, 4)
    assert torch.equal(y.cpu(), ramp(5))


@pytest.mark.parametrize("taker", TAKERS)
def test_a_pointer_taken_while_it_is_off(lms: Any, taker: str) -> None:
    """It is still there when Large Model Support is on again."""
    lms.disable()
    x = block()
    pointer = TAKERS[taker](x)
    lms.enable()
    x.sum()
    assert lms.reclaim() == 0 and not on_host(x)
    set_bytes(pointer, 3, x.nbytes)
    assert bytes_of(x) == b"\3" * x.nbytes
    lms.release_pointer(x)
    assert lms.reclaim() == MIB


def test_an_alias_made_before_the_first_enable(program: Any) -> None:
    out = program(
        """
        import torch
        x, y = (torch.full((1 << 18,), float(i), device="cuda") for i in (1, 2))
        alias, gone = torch.from_dlpack(x), torch.utils.dlpack.to_dlpack(y.clone())
        del gone
        torch.cuda.lms.enable(min_size=0)
        x.sum(), y.sum()
        assert torch.cuda.lms.reclaim() == y.nbytes, "the alias has lost its memory"
        filler = torch.full((1 << 18,), -5.0, device="cuda")
        assert (alias == 1).all() and (y == 2).all()
        print("held")
        """
    )
    assert "held" in out


def test_a_part_of_a_storage_is_an_alias(lms: Any) -> None:
    """A slice has the pointer of its storage for its life, which nothing tells the end of."""
    x = block()
    lms.reclaim()
    part = x.untyped_storage()[0:4096]
    assert lms.reclaim() == 0 and torch.ops.lms.exposed(x)
    filler = [block(1, -5) for _ in range(4)]
    part.fill_(3)
    assert bytes_of(x) == b"\3" * 4096 + bytes_of(torch.ones(MIB // 4))[4096:]
    assert all((f == -5).all().item() for f in filler)
    y = block()
    lms.reclaim()
    assert y.untyped_storage()[3] == 63  # one byte of it is no alias
    assert not torch.ops.lms.exposed(y)


def test_a_write_through_a_pointer_after_a_read(lms: Any) -> None:
    """An exposed storage has no copy that a write could make stale."""
    x = block()
    lms.reclaim()
    pointer = x.data_ptr()
    x.sum()
    set_bytes(pointer, 5, x.nbytes)
    lms.release_pointer(x)
    lms.reclaim()
    assert on_host(x)
    assert bytes_of(x) == b"\5" * x.nbytes


def test_exposure_ends_with_the_storage(lms: Any) -> None:
    x = block()
    x.data_ptr()
    del x
    assert lms.stats()["lms.exposed"] == 0
    y = block()  # very likely at the same address
    assert not torch.ops.lms.exposed(y)
    assert lms.reclaim() == MIB


IDENTITY_ONLY = {
    "save": lambda x: torch.save({"a": x, "b": x[3:]}, io.BytesIO()),
    "deepcopy": lambda x: copy.deepcopy([x, x[3:]]),
    "copy": copy.copy,
    "repr": repr,
    "hash": hash,
    "equality": lambda x: (x == x, x is x, x.is_set_to(x)),
    "metadata": lambda x: (x.shape, x.stride(), x.is_contiguous(), x.nbytes, x.untyped_storage()),
    "state_dict": lambda x: nn.ParameterList([x]).state_dict(),
    "pickle": lambda x: x.__reduce_ex__(2),
    "numpy": lambda x: x.cpu().numpy(),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", IDENTITY_ONLY)
def test_what_only_compares_pointers_does_not_hold_the_tensor(lms: Any, use: str) -> None:
    x = block()
    lms.reclaim()
    IDENTITY_ONLY[use](x)
    assert not torch.ops.lms.exposed(x)
    lms.reclaim()
    assert on_host(x)


def test_a_recurrent_network_is_not_held(lms: Any) -> None:
    net = nn.LSTM(8, 8).cuda()
    net.flatten_parameters()
    assert not any(torch.ops.lms.exposed(p) for p in net.parameters())


def test_saving_while_storages_change_places(lms: Any) -> None:
    """It compares pointers to find what has two types; another thread may evict meanwhile."""
    x = torch.full((1 << 18,), 1.5, device="cuda")
    y = torch.full((1 << 18,), 7, dtype=torch.int32, device="cuda")

    def where(tensor: torch.Tensor) -> int:
        pointer = tensor.data_ptr()
        lms.release_pointer(tensor)
        return pointer

    class Exchange:
        def __reduce__(self) -> Any:
            assert torch.ops.lms.evict(x)
            y.add_(1)
            places.append(where(y))
            return list, ()

    assert torch.ops.lms.evict(y)
    others = []  # in all places of that size, for one that comes in to have no choice
    while True:
        reserved = torch.cuda.memory_reserved()
        others.append(torch.empty(1 << 18, device="cuda"))
        if torch.cuda.memory_reserved() > reserved:
            others.pop()
            torch.cuda.empty_cache()
            break
    places = [where(x)]
    for legacy in (False, True):
        file = io.BytesIO()
        torch.save([x, Exchange(), y, x[5:]], file, _use_new_zipfile_serialization=not legacy)
        file.seek(0)
        have = torch.load(file, weights_only=False)
        assert (have[0] == 1.5).all() and (have[2] == y).all()
        assert have[3].untyped_storage()._cdata == have[0].untyped_storage()._cdata
        assert torch.ops.lms.evict(y)
        x.add_(0)
    assert len(set(places)) == 1, "y never came to where x was"


def test_saving_reads_nothing_back_and_loads_equal(lms: Any) -> None:
    """torch.save of what is on the host, and of more than the device holds."""
    lms_device.device.limit(40 * MIB)
    kept = [block(4, i) for i in range(20)]  # 80 MiB
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    again = torch.load(file, map_location="cuda")
    del kept
    assert [float(t[-1].item()) for t in again] == [float(i) for i in range(20)]
    assert sum(on_host(t) for t in again) >= 10
    file.seek(0)
    assert [float(t[0]) for t in torch.load(file, map_location="cpu")] == list(range(20))


def test_a_model_larger_than_the_device(lms: Any) -> None:
    lms_device.device.limit(40 * MIB)
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(20))).cuda()  # 80 MiB
    want = [p.cpu() for p in net.parameters()]
    twin = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    for p in net.parameters():
        p.data.zero_()
    file.seek(0)
    net.load_state_dict(torch.load(file, map_location="cuda"))
    for have in (net, twin):
        assert all(torch.equal(p.cpu(), w) for p, w in zip(have.parameters(), want, strict=False))


def test_sharing_with_another_process(program: Any) -> None:
    out = program(
        """
        import torch, torch.multiprocessing as mp

        def child(queue, answers):
            x = queue.get()
            answers.put(float(x.sum()))
            x.fill_(3)
            torch.cuda.synchronize()
            answers.put("written")
            queue.get()

        if __name__ == "__main__":
            mp.set_start_method("spawn")
            queue, answers = mp.Queue(), mp.Queue()
            process = mp.Process(target=child, args=(queue, answers))
            process.start()
            torch.cuda.lms.enable(min_size=0)
            x = torch.full((1 << 18,), 2.0, device="cuda")
            torch.cuda.lms.reclaim()
            assert torch.ops.lms.on_host(x)
            queue.put(x)
            assert answers.get(timeout=300) == 2.0 * (1 << 18)
            assert answers.get(timeout=300) == "written"
            assert torch.cuda.lms.reclaim() == 0, "shared memory moved"
            print("shared", float(x.sum()) / (1 << 18))
            queue.put(None)
            process.join()
        """
    )
    assert "shared 3.0" in out


# ---- extensions


@pytest.mark.parametrize("mode", MODES)
def test_a_write_that_no_operator_saw(lms: Any, device: Any, extension: Any, mode: str) -> None:
    """The write barrier: the host copy, kept because the storage was only read, is not used."""
    x = block()
    lms.reclaim()
    x.sum()
    device.mode(mode)
    assert extension.fill(x, 7) == ""
    moved = lms.stats()["lms.paged_out_bytes"]
    assert torch.ops.lms.evict(x)
    assert lms.stats()["lms.paged_out_bytes"] == moved + MIB
    assert lms.stats()["lms.silent_writes"] == 1
    assert bytes_of(x) == b"\7" * x.nbytes


@pytest.mark.parametrize("mode", MODES)
def test_a_write_to_the_host_buffer(lms: Any, device: Any, extension: Any, mode: str) -> None:
    """A paged-out storage points at host memory that the device can address."""
    x = block()
    device.mode(mode)
    lms.reclaim()
    assert extension.fill(x, 9) == ""
    assert bytes_of(x) == b"\x09" * x.nbytes
    y = block(value=2)
    lms.reclaim()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        z = block(value=3)
    torch.cuda.synchronize()
    lms.reclaim()
    assert extension.fill(z, 4) == ""  # on another stream than its home
    z.view(torch.uint8).add_(1)
    assert bytes_of(z) == b"\5" * z.nbytes
    assert bytes_of(y) == bytes_of(torch.full_like(y, 2))


def test_reading_does_not_count_as_writing(lms: Any, extension: Any, device: Any) -> None:
    x = block()
    lms.reclaim()
    x.sum()
    pointer, error = extension.pointer(x)
    assert error == "" and pointer
    before = device.counters()["d2h_bytes"]
    assert torch.ops.lms.evict(x)
    assert device.counters()["d2h_bytes"] == before
    assert lms.stats()["lms.silent_writes"] == 0


def test_pinned_for_an_extension(lms: Any, extension: Any) -> None:
    x = block()
    lms.reclaim()
    with lms.pin(x):
        pointer, _ = extension.pointer(x)
        lms.reclaim()
        assert extension.pointer(x)[0] == pointer
        set_bytes(pointer, 8, x.nbytes)
        assert extension.fill(x, 8) == ""
    lms.reclaim()
    assert bytes_of(x) == b"\x08" * x.nbytes


def test_chaos_catches_an_extension(device: Any, extension: Any) -> None:
    torch.cuda.lms.api.load().set_chaos(True)
    torch.cuda.lms.enable(min_size=0)
    x = block()
    for error in (extension.fill(x, 1), extension.pointer(x)[1]):
        assert "LMS_DEBUG=chaos" in error
        assert "must hold the tensor with torch.cuda.lms.pin() first" in error
    assert (x.cpu() == 1).all()
    with torch.cuda.lms.pin(x):
        assert extension.fill(x, 6) == ""
    assert bytes_of(x) == b"\6" * x.nbytes
    assert extension.fill(x, 1) != ""


def test_chaos_cannot_be_switched_with_tensors_out(lms: Any) -> None:
    x = block()
    lms.reclaim()
    with pytest.raises(RuntimeError, match="disable Large Model Support first"):
        torch.ops.lms.set_chaos(True)
    assert (x.cpu() == 1).all()
    lms.disable()
    torch.ops.lms.set_chaos(True)
    lms.enable()
    assert lms.settings()["chaos"] is True
    assert "chaos mode" in lms.summary()


# ---- what moves, and what need not


def moved(function: Any) -> tuple[int, int]:
    """Bytes that went out and came in, as the device counts them."""
    before = lms_device.device.counters()
    keep = function()
    torch.cuda.synchronize()
    after = lms_device.device.counters()
    del keep
    return tuple(after[k] - before[k] for k in ("d2h_bytes", "h2d_bytes"))  # type: ignore[return-value]


def test_a_clean_eviction_moves_nothing(lms: Any) -> None:
    x = block()
    assert moved(lms.reclaim) == (MIB, 0)
    assert moved(lambda: x + 1)[1] == MIB
    lms.reclaim()
    for _ in range(3):
        assert moved(lambda: x * 2)[1] == MIB
        assert moved(lambda: torch.ops.lms.evict(x)) == (0, 0)
    assert on_host(x)
    assert lms.stats()["lms.clean_bytes"] >= 3 * MIB
    assert (x.cpu() == 1).all()


WRITERS = {
    "add_": lambda x: x.add_(1),
    "view": lambda x: x[5:6].fill_(9),
    "out": lambda x: torch.mul(torch.ones_like(x), 3, out=x),
    "copy_": lambda x: x.copy_(torch.full_like(x, 4)),
    "setitem": lambda x: x.__setitem__(slice(0, 3), 7),
    "foreach": lambda x: torch._foreach_add_([x], 5),
    "index_put_": lambda x: x.index_put_((torch.tensor([2], device="cuda"),), x[:1] * 8),
    "random": lambda x: x.normal_(),
    "zero_": lambda x: x.zero_(),
    "optimiser": lambda x: step(x),
    "batch_norm": lambda x: normalise(x),
    "custom": lambda x: torch.ops.lms_pointers.raw(x),
    "resize": lambda x: x.resize_(x.numel() - 5).add_(1),
    "data": lambda x: x.data.mul_(2),
    "detach": lambda x: x.detach().neg_(),
}


def step(x: torch.Tensor) -> None:
    x.requires_grad_()
    x.grad = torch.ones_like(x)
    torch.optim.Adam([x], fused=True).step()
    x.requires_grad_(False)


def normalise(x: torch.Tensor) -> None:
    mean = x[:4]
    nn.functional.batch_norm(
        torch.randn(8, 4, device="cuda"), mean, torch.ones_like(mean), training=True
    )


_LIBRARY = torch.library.Library("lms_pointers", "DEF")
_LIBRARY.define("raw(Tensor x) -> ()")  # writes, says nothing, and asks no other operator to


@torch.library.impl(_LIBRARY, "raw", "CUDA")
def raw(x: torch.Tensor) -> None:
    set_bytes(torch._C._TensorBase.data_ptr(x), 6, x.nbytes)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_makes_the_copy_stale(lms: Any, writer: str) -> None:
    """Read after a page-in (a copy is kept), then written, then moved out and in again."""
    x = block(value=2)
    lms.reclaim()
    x.sum()
    WRITERS[writer](x)
    want = bytes_of(x)
    assert want != bytes_of(torch.full((x.numel(),), 2.0))
    assert torch.ops.lms.evict(x)
    assert bytes_of(x) == want


def test_what_reads_running_statistics_keeps_their_copy(lms: Any) -> None:
    """The backward pass of what writes them: it is made of reads, and can begin again."""
    mean = block(value=2)
    lms.reclaim()
    mean.sum()
    few = torch.ones(4, device="cuda")
    x, given = torch.randn(8, 4, device="cuda"), torch.ones(8, 4, device="cuda")
    torch.ops.aten.native_batch_norm_backward(
        given, x, few, mean[:4], few, few, few, True, 1e-5, [True, True, True]
    )
    before = lms.stats()["lms.clean_evictions"]
    assert torch.ops.lms.evict(mean)
    assert lms.stats()["lms.clean_evictions"] == before + 1


def test_overwriting_what_is_out_brings_nothing_in(lms: Any) -> None:
    x, y, source = block(), block(), block(value=5)
    lms.reclaim()
    assert moved(lambda: x.zero_()) == (0, 0)
    source.add_(0)
    assert moved(lambda: y.copy_(source)) == (0, 0)
    assert lms.stats()["lms.overwrites"] == 2
    assert (x.cpu() == 0).all() and (y.cpu() == 5).all()
    lms.reclaim()
    assert moved(lambda: x[1:].zero_())[1] == MIB  # the rest is needed
    lms.reclaim()
    with pytest.raises(RuntimeError):
        y.copy_(source[:6].view(3, 2))
    assert (y.cpu() == 5).all()


PARTS = {
    "begin": lambda x: x[: len(x) // 2].zero_(),
    "end": lambda x: x[1:].zero_(),
    "steps": lambda x: x[::2].zero_(),
    "overlapping": lambda x: x.as_strided((2, len(x) // 2), (1, 1)).zero_(),
    "copied": lambda x: x[3:9].copy_(torch.full((6,), 7.0)),
    "refused": lambda x: refused(x),
}


def refused(x: torch.Tensor) -> None:
    source = torch.full((3, 2), 7.0, device=x.device)
    with pytest.raises(RuntimeError):
        x.copy_(source)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_not_overwritten_is_brought_in(lms: Any, part: str) -> None:
    x, mirror = torch.arange(MIB // 4, dtype=torch.float32).cuda(), torch.arange(MIB / 4)
    lms.reclaim()
    block(value=-1)  # leaves this value in the block that x comes into
    PARTS[part](x)
    PARTS[part](mirror)
    assert torch.equal(x.cpu(), mirror)


# Each fails beyond the op boundary and before it writes.
FAILING = {
    "shape": lambda x: x.copy_(torch.full((3, 2), 7.0, device="cuda")),
    "meta": lambda x: x.copy_(torch.zeros(len(x), device="meta")),
    "sparse": lambda x: x.copy_(torch.zeros(len(x), device="cuda").to_sparse()),
    "quantised": lambda x: x.copy_(
        torch.quantize_per_tensor(torch.ones(3, 2), 1.0, 0, torch.qint8)
    ),
}
if hasattr(torch.Tensor, "rename"):  # named tensors have gone in 2.15
    FAILING["names"] = lambda x: x.rename("A").copy_(
        torch.zeros(len(x), device="cuda", names=("B",))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", FAILING)
def test_an_overwrite_that_fails_keeps_the_target(
    lms: Any, device: Any, way: str, mode: str
) -> None:
    x, want = torch.arange(MIB // 4, dtype=torch.float32).cuda(), torch.arange(MIB / 4)
    device.mode(mode)
    lms.reclaim()
    block(value=-1)  # leaves this value in the block that x comes into
    with pytest.raises((RuntimeError, NotImplementedError)):
        FAILING[way](x)
    assert torch.equal(x.cpu(), want)
    lms.reclaim()
    assert torch.equal(x.cpu(), want)


def test_an_overwrite_whose_copy_fails_keeps_the_target(lms: Any, sim: Any) -> None:
    x, source = torch.arange(MIB // 4, dtype=torch.float32).cuda(), torch.zeros(MIB // 4)
    lms.reclaim()
    block(value=-1)
    sim.fail_next_copies(1)
    with pytest.raises(RuntimeError):
        x.copy_(source)
    assert torch.equal(x.cpu(), torch.arange(MIB / 4))


@pytest.mark.parametrize("before", ["shared", "none"])
def test_a_block_that_an_operator_makes_is_pinned(lms: Any, before: str) -> None:
    """The operator has its pointer, though the storage had no block of its own when it began."""
    moved = []

    def fill(x: torch.Tensor) -> None:
        if before == "none":
            x.untyped_storage().resize_(MIB)
        else:
            x.zero_()
        moved.append(torch.ops.lms.evict(x))
        x.fill_(3)

    with torch.library._scoped_library("lms_fill", "DEF") as library:
        library.define("fill(Tensor(a!) x) -> ()")
        library.impl("fill", fill, "CompositeExplicitAutograd")
        x = block(1, 7)
        if before == "none":
            x.untyped_storage().resize_(0)
        other = torch._lazy_clone(x) if before == "shared" else None
        torch.ops.lms_fill.fill(x)
    assert moved == [False]
    assert torch.ops.lms.evict(x)
    assert (x == 3).all().item() and (other is None or (other == 7).all().item())


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_composite_operator_of_an_extension(lms: Any, context: Any) -> None:
    """Its kernel runs in the place of autograd's, and may follow the pointers of its operands."""
    moved = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        moved.append(on_host(x) or torch.ops.lms.evict(x))
        y = x + x
        moved.append(torch.ops.lms.evict(y))
        return y

    with operators(f"lms_{context.__name__}") as library, context():
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", twice, "CompositeImplicitAutograd")
        run = getattr(torch.ops, f"lms_{context.__name__}").twice
        x = block(1, 7).requires_grad_(context is torch.enable_grad)
        for _ in range(2):
            lms.reclaim()
            y = run(x)
        assert moved == [False] * 4 and torch.ops.lms.evict(y)
        assert (y == 14).all().item()
        if y.requires_grad:
            y.sum().backward()
            assert (x.grad == 2).all().item()
        assert (run(torch.ones(3)) == 2).all().item()


def test_a_composite_operator_that_launches_a_kernel(lms: Any) -> None:
    """`nanmean(out=)` calls no operator for its result. The simulated device refuses to compute
    what is none, by when its operands are there."""
    x, result = block(4), torch.ones(1 << 10, device="cuda")
    for each in (x, result):
        assert torch.ops.lms.evict(each)
    with contextlib.suppress(RuntimeError):
        torch.nanmean(x.view(1 << 10, -1), dim=1, out=result)
    assert not on_host(x) and not on_host(result)


def test_a_storage_that_dies_on_the_host(lms: Any, device: Any) -> None:
    x = block(8)
    lms.reclaim()
    assert lms.stats()["lms.host.used_bytes"] == 8 * MIB
    assert moved(lambda: None) == (0, 0)
    before = device.counters()
    del x
    torch.cuda.synchronize()
    assert lms.stats()["lms.host.used_bytes"] == 0
    after = device.counters()
    assert after["h2d_bytes"] == before["h2d_bytes"]


def test_disabling_brings_everything_back(lms: Any, device: Any) -> None:
    kept = [block(2, i) for i in range(10)]
    lms.reclaim()
    lms.disable()
    assert not any(on_host(t) for t in kept)
    assert all((t.cpu() == i).all() for i, t in enumerate(kept))
    assert moved(lambda: kept[0] + 1)[0] == 0


def test_disabling_with_more_out_than_fits(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    kept = [block(2, i) for i in range(40)]
    lms.disable()
    assert sum(on_host(t) for t in kept) >= 20
    assert all((t.cpu() == i).all() for i, t in enumerate(kept))  # still in turns
    kept = kept[:10]
    torch.cuda.synchronize()
    assert all((t.cpu() == i).all() for i, t in enumerate(kept))
    assert not any(on_host(t) for t in kept)


@pytest.mark.parametrize("typed", [False, True])
def test_a_list_of_a_storage_brings_it_in_once(lms: Any, device: Any, typed: bool) -> None:
    x = torch.arange(3000, dtype=torch.uint8, device="cuda")
    storage = x.storage() if typed else x.untyped_storage()
    torch.ops.lms.set_chaos(True)
    try:
        lms.reclaim()
        before = lms.stats()["lms.paged_in_bytes"]
        assert storage.tolist() == [i % 256 for i in range(3000)]
        assert lms.stats()["lms.paged_in_bytes"] - before <= 4 * 3000
    finally:
        lms.disable()
        torch.ops.lms.set_chaos(False)


def test_a_profiler_in_chaos_mode(program: Any) -> None:
    """It looks at pointers, and nothing may be thrown from within it."""
    out = program(
        """
        import torch
        from torch.profiler import profile
        torch.cuda.lms.enable(min_size=0)
        model = torch.nn.Linear(64, 64).cuda()
        x = torch.ones(4, 64, device="cuda")
        with profile(with_stack=True, record_shapes=True, profile_memory=True) as run:
            for _ in range(2):
                model(x).sum().backward()
        assert len(run.events()) > 0
        assert torch.ops.lms.on_host(x)
        try:
            torch.cuda.lms.pointers._raw_pointer(x)
        except RuntimeError as error:
            assert "LMS_DEBUG=chaos" in str(error)
            print("refused again")
        """,
        env={"LMS_DEBUG": "chaos"},
    )
    assert "refused again" in out and "Exception in RecordFunction" not in out


@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_execution_trace_observer_in_chaos_mode(
    program: Any, tmp_path: Path, first: bool
) -> None:
    """It notes the pointers of operands and results, on every thread."""
    out = program(
        f"""
        import json, torch
        from torch.profiler import ExecutionTraceObserver
        torch.cuda.init()
        observer = ExecutionTraceObserver()
        observer.register_callback({str(tmp_path / "trace.json")!r})
        if {first}:
            observer.start()
        torch.cuda.lms.enable(min_size=0)
        if not {first}:
            observer.start()
        model = torch.nn.Linear(64, 64).cuda()
        x = torch.ones(4, 64, device="cuda")
        model(x).sum().backward()
        assert torch.ops.lms.on_host(x)
        observer.stop()
        observer.unregister_callback()
        assert len(json.load(open({str(tmp_path / "trace.json")!r}))["nodes"]) > 20
        try:
            torch.cuda.lms.pointers._raw_pointer(x)
        except RuntimeError as error:
            print("refused again")
        """,
        env={"LMS_DEBUG": "chaos"},
    )
    assert "refused again" in out and "Exception in RecordFunction" not in out


def test_an_iterator_of_a_storage_sees_what_is_written(lms: Any) -> None:
    x = torch.zeros(8, dtype=torch.uint8, device="cuda")
    for storage in (x.untyped_storage(), x.storage()):
        x.zero_()
        elements = iter(storage)
        assert int(next(elements)) == 0
        x.fill_(3)
        assert [int(element) for element in elements] == [3] * 7
    assert lms.stats()["pinned.all.current"] == 0


def test_a_profiler_that_runs_already(program: Any) -> None:
    """Large Model Support is first enabled within it."""
    out = program(
        """
        import torch
        from torch.profiler import profile
        torch.cuda.init()
        with profile(record_shapes=True):
            torch.cuda.lms.enable(min_size=0)
            x = torch.ones(64, device="cuda")
            assert float((x + 1).sum()) == 128 and torch.ops.lms.on_host(x)
        try:
            torch.cuda.lms.pointers._raw_pointer(x)
        except RuntimeError as error:
            assert "LMS_DEBUG=chaos" in str(error)
            print("refused again")
        """,
        env={"LMS_DEBUG": "chaos"},
    )
    assert "refused again" in out and "Exception in RecordFunction" not in out


def test_dlpack_is_not_exchanged_past_python(lms: Any) -> None:
    """By a table of functions in C, since PyTorch 2.10: of their pointers nobody hears."""
    assert not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
