# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's versions spell differently is spelled in lms/pytorch/compat alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PYTORCH = Path(__file__).parents[2] / "lms/pytorch"
COMPAT = PYTORCH / "compat"
# By seam: what only its implementations may name.
SPELLINGS = {
    "storage": (
        "_mutable_data_ptr_no_checks", "set_data_ptr_noswap", "weak_intrusive_ptr", "reclaim_copy",
        "is_cow_data_ptr", "release_data_and_set_meta_custom_data_ptr_error_msg_",
        "clear_data_ptr_access_error", "combined_refcount_",
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


@pytest.mark.parametrize("seam", SPELLINGS)
def test_a_seam_is_a_contract_and_its_implementation(seam: str) -> None:
    contract = COMPAT / f"{seam}.h"
    text = contract.read_text()
    assert re.search(r"^// Seam: ", text, re.MULTILINE) and len(text.splitlines()) < 60
    assert "#if" not in text and len(implementations(seam)) == 1
    names = re.findall(r"\b(\w+)\([^;{}]*\)(?: noexcept)?;", code(contract))
    done = "".join(code(file) for file in implementations(seam))
    assert names and not [name for name in names if f" {name}(" not in done]


@pytest.mark.parametrize("seam", SPELLINGS)
def test_nothing_else_knows_how_it_is_done(seam: str) -> None:
    files = [*PYTORCH.glob("c10/*"), *PYTORCH.glob("csrc/*"), *COMPAT.glob("*.h")]
    files += [*(PYTORCH.parent / "plugin/csrc").glob("*")]
    assert len(files) > 25
    for file in {*files} - {*implementations(seam)}:
        found = [word for word in SPELLINGS[seam] if word in code(file)]
        assert not found, f"{file.name} names {found}: only compat/{seam}_* may"


def test_the_complete_build_compiles_and_installs_all_of_the_runtime() -> None:
    """CMake stops at a file that is listed and is not there; an overlay does not ask it."""
    patches = Path(__file__).parents[2] / "patches/pytorch"
    (runtime,) = (patches / "runtime").glob("*.patch")
    made = set(re.findall(r"^\+\+\+ b/c10/cuda/(lms/\S+)$", runtime.read_text(), re.MULTILINE))
    hook = (patches / "v2.6.0/0003-Build-the-Large-Model-Support-runtime.patch").read_text()
    assert set(re.findall(r"^\+ +(lms/\S+\.(?:cpp|h))$", hook, re.MULTILINE)) == made
    installed = set(re.findall(r'^\+ +"include/c10/cuda/(lms/\S*)\*\.h",$', hook, re.MULTILINE))
    assert installed == {f"{Path(name).parent}/" for name in made if name.endswith(".h")}
