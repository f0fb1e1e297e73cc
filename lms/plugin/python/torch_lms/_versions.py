# SPDX-License-Identifier: Apache-2.0
"""Which PyTorch this build is for, and which have been tested."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch_lms._built_for import ABI, BUILT_FOR, CUDA
from torch_lms._tested import TESTED

FORCE = "TORCH_LMS_FORCE"


def minor(version: str) -> tuple[int, int]:
    """(2, 6) of "2.6.0+cu124"."""
    major, rest = version.split(".")[:2]
    return int(major), int(rest)


def _nearest(version: str) -> str:
    at = minor(version)
    return min(TESTED, key=lambda v: (abs(minor(v)[0] - at[0]), abs(minor(v)[1] - at[1]), v))


def check(version: str, cuda: str | None, abi: bool, environment: Mapping[str, str]) -> None:
    """Raises ImportError unless this build and its tests are for this PyTorch, which was built for
    CUDA `cuda` (X.Y, None for none) with (`abi`) or without the C++11 ABI."""
    if environment.get(FORCE, "") not in ("", "0"):
        return
    if minor(version) != minor(BUILT_FOR):
        release = version.partition("+")[0]
        raise ImportError(
            f"torch_lms cannot be used because it was built for PyTorch {BUILT_FOR} and this is "
            f"{version}; install the build for this version (`lmsbuild plugin {release}`; the "
            f"nearest tested one is {_nearest(version)}), or set {FORCE}=1 to try"
        )
    if ((cuda or "none").split(".")[0], abi) != (CUDA.split(".")[0], ABI):
        raise ImportError(
            f"torch_lms cannot be used because it was built for {_flavour(CUDA, ABI)} and this "
            f"PyTorch for {_flavour(cuda, abi)}; install the PyTorch of PyPI, or build torch_lms "
            f"from its sdist with `pip install --no-build-isolation`"
        )
    if minor(version) not in [minor(tested) for tested in TESTED]:
        raise ImportError(
            f"torch_lms cannot be used because it was not tested with PyTorch {version}; the "
            f"nearest tested version is {_nearest(version)}; set {FORCE}=1 to use it all the same"
        )


def _flavour(cuda: str | None, abi: bool) -> str:
    return f"CUDA {cuda or 'none'} {'with' if abi else 'without'} the C++11 ABI"


def library() -> str:
    return str(Path(__file__).with_name("libtorch_lms.so"))
