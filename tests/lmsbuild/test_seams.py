# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's versions spell differently is spelled in lms/pytorch/compat alone, in Python in
versions.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PYTORCH = Path(__file__).parents[2] / "lms/pytorch"
COMPAT = PYTORCH / "compat"
PATCHES = Path(__file__).parents[2] / "patches/pytorch"
# By seam: what only its implementations may name.
SPELLINGS = {
    "allocator": (
        "CUDACachingAllocator::getMemoryFraction", "is_expandable",
        "CUDACachingAllocator::getDeviceStats",
    ),
    "collectives": (),
    "cuda": (
        "CUDAGraphsC10Utils", "CUDAOutOfMemoryError", "StreamCaptureMode(", "cudaStreamIsCapturing",
    ),
    "definitions": ("TORCH_LIBRARY", "RegisterOperators"),
    "random": ("get_offset(", "set_offset(", "get_state(", "philox_offset_per_thread("),
    "silence": ("WarningHandler",),
    "storage": (
        "_mutable_data_ptr_no_checks", "set_data_ptr_noswap", "weak_intrusive_ptr", "reclaim_copy",
        "is_cow_data_ptr", "release_data_and_set_meta_custom_data_ptr_error_msg_",
        "clear_data_ptr_access_error", "combined_refcount_",
    ),
    "tensors": (
        "SparseCsrTensorImpl", "has_backend(", "isStorage(", "unsafe_storage(", "toTuple",
        "is_non_overlapping_and_dense",
    ),
    "write_barrier": ("cow_deleter", "COWDeleterContext", "materializer("),
    "interception": (
        "OperatorHandle", "DispatchKey", "Dispatcher", "redispatchBoxed", "OperatorKernel",
    ),
}  # fmt: skip


def code(file: Path) -> str:
    return re.sub(r"//[^\n]*", "", file.read_text())


def implementations(seam: str) -> list[Path]:
    return sorted(COMPAT.glob(f"{seam}_*"))


# What the hook of a tag implements, because nothing in the tree has it.
OF_HOOKS = {
    "allocator_torch1.h": ["memory_fraction"],
    "allocator_torch1_3.h": ["reserved_bytes", "allocated_bytes"],
}
# Their contracts are names that c10 has of itself, or templates, which stand in a comment.
UNDECLARED = {"collectives", "cuda", "definitions"}
# How often implementations.h chooses one, if not for PyTorch 2, for 1.13 and once for all before.
# Before 1.13 nothing needs to be silent; of how ops are intercepted, sources tell.
CHOICES = {
    "allocator": 7, "cuda": 7, "definitions": 4, "interception": 0, "random": 4, "silence": 2,
    "tensors": 7,
}  # fmt: skip


def chosen(seam: str) -> list[Path]:
    """What implementations.h chooses from; where it does not, the sources that there are."""
    lines = (COMPAT / "implementations.h").read_text()
    names = re.findall(rf"^#define LMS_\w+ <\S+/compat/({seam}_\w+\.h)>$", lines, re.MULTILINE)
    sources = [file for file in implementations(seam) if file.suffix == ".cpp"]
    return [COMPAT / name for name in dict.fromkeys(names)] or sources


def with_included(file: Path) -> str:
    parts = re.findall(r"#include <\S+/compat/(\w+_\w+\.h)>", code(file))
    return code(file) + "".join(with_included(COMPAT / part) for part in parts)


@pytest.mark.parametrize("seam", SPELLINGS)
def test_a_seam_is_a_contract_and_its_implementations(seam: str) -> None:
    contract = COMPAT / f"{seam}.h"
    text = contract.read_text()
    assert re.search(r"^// Seam: ", text, re.MULTILINE) and len(text.splitlines()) < 60
    assert "#if" not in text
    names = re.findall(r"\b(\w+)\([^;{}]*\)(?: noexcept)?;", code(contract))
    assert (seam in UNDECLARED) != bool(names)
    lines = (COMPAT / "implementations.h").read_text()
    times = len(re.findall(rf"^#define LMS_{seam.upper()}(?:_BY)? <", lines, re.MULTILINE))
    assert times == CHOICES.get(seam, 3)
    assert len(chosen(seam)) >= (1 if seam in UNDECLARED else 2)
    for file in chosen(seam):
        done = with_included(file)
        missing = [name for name in names if f" {name}(" not in done]
        assert missing == OF_HOOKS.get(file.name, [])


def test_every_implementation_is_chosen_or_part_of_one() -> None:
    all_chosen = [file for seam in SPELLINGS for file in chosen(seam)]
    used = "".join(with_included(file) for file in all_chosen)
    spare = {file for seam in SPELLINGS for file in implementations(seam)} - {*all_chosen}
    assert spare and all(f"/{file.name}>" in used for file in spare)


@pytest.mark.parametrize("seam", SPELLINGS)
def test_nothing_else_knows_how_it_is_done(seam: str) -> None:
    files = [*PYTORCH.glob("c10/*"), *PYTORCH.glob("csrc/*"), *COMPAT.glob("*.h")]
    files += [*(PYTORCH.parent / "plugin/csrc").glob("*")]
    assert len(files) > 25
    for file in {*files} - {*implementations(seam)}:
        found = [word for word in SPELLINGS[seam] if word in code(file)]
        assert not found, f"{file.name} names {found}: only compat/{seam}_* may"


def test_a_pointer_is_read_at_a_glance_or_under_the_lock() -> None:
    """The engine's lock is held in all of Backend, where the plug-in adopts a storage, and where
    the allocator asks whether what it is told of is out."""
    accessors = r"(?:\w*data_ptr\w*|device)"
    reads = re.compile(rf"\bpointer_of\(|\bstorage\w*(?:\(\))?(?:->|\.){accessors}\(")
    files = [*PYTORCH.glob("c10/*"), *PYTORCH.glob("csrc/*")]
    files += [*(PYTORCH.parent / "plugin/csrc").glob("*")]
    found = {file.name: len(reads.findall(code(file))) for file in files}
    locked = {"Allocator.cpp": 1, "Reclaim.cpp": 1}
    assert {name: n for name, n in found.items() if n and name != "Backend.cpp"} == locked


def test_in_python_one_file_asks_what_a_version_has() -> None:
    asked = re.compile(r"(?:has|get)attr\(torch\b|except ImportError|__version__")
    found = {
        file.name
        for file in (PYTORCH / "python/lms").glob("*.py")
        if asked.search(file.read_text())
    }
    assert found == {"versions.py"}


@pytest.mark.parametrize(
    "hook", sorted(PATCHES.glob("v*/*-Build-the-Large-Model-Support-runtime.patch")), ids=str
)
def test_the_complete_build_compiles_and_installs_all_of_the_runtime(hook: Path) -> None:
    """CMake stops at a file that is listed and is not there; an overlay does not ask it."""
    (runtime,) = (PATCHES / "runtime").glob("*.patch")
    made = set(re.findall(r"^\+\+\+ b/c10/cuda/(lms/\S+)$", runtime.read_text(), re.MULTILINE))
    added = hook.read_text()
    assert set(re.findall(r"^\+ +(lms/\S+\.(?:cpp|h))$", added, re.MULTILINE)) == made
    headers = r"""^\+ +["']include/c10/cuda/(lms/\S*)\*\.h["'],$"""
    installed = set(re.findall(headers, added, re.MULTILINE))
    assert installed == {f"{Path(name).parent}/" for name in made if name.endswith(".h")}
