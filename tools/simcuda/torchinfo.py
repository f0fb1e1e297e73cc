# SPDX-License-Identifier: Apache-2.0
"""Facts about an installed torch, found without importing it (it cannot be imported without CUDA
libraries, and importing it costs a second)."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .errors import SimcudaError
from .installed import folder_of

HEADERS = ("cuda_runtime_api.h", "cuda.h", "crt/host_defines.h", "nvml.h")
_HEADERS_IN = ("cuda-runtime", "cuda-nvcc", "nvml-dev")  # before CUDA 13


@dataclass(frozen=True)
class Torch:
    """`path` is the folder of the package; `cuda` is like ``12.4``."""

    path: Path
    version: str
    cuda: str

    @property
    def lib(self) -> Path:
        return self.path / "lib"

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])

    @property
    def computes(self) -> bool:
        """Whether there are kernels for it. Before 1.13 it has memory, streams and copies alone."""
        return self.cuda_major > 10

    @property
    def cudart(self) -> str:
        """The CUDA runtime's file name, which is the version of its symbols, too."""
        if self.cuda_major <= 10:
            return f"libcudart.so.{self.cuda}"
        return f"libcudart.so.{self.cuda_major}" + (".0" if self.cuda_major == 11 else "")

    @property
    def told(self) -> list[str]:
        """What the device is told of its CUDA, where no headers of that can be had."""
        major, minor = map(int, self.cuda.split(".")[:2])
        return [] if major > 10 else [f"-DSIMCUDA_CUDA_VERSION={1000 * major + 10 * minor}"]

    @property
    def headers(self) -> str:
        """The version of CUDA whose headers are taken."""
        return self.cuda if self.cuda_major > 10 else "11.7"

    @property
    def header_wheels(self) -> list[str]:
        """Requirements for the wheels with the CUDA headers of this torch."""
        if self.cuda_major <= 10:
            return [f"nvidia-{name}-cu11=={self.headers}.*" for name in _HEADERS_IN]
        if self.cuda_major < 13:
            suffix = f"-cu{self.cuda_major}"
            names = _HEADERS_IN
        else:
            suffix, names = "", ("cuda-runtime", "cuda-crt", "nvml-dev")
        return [f"nvidia-{name}{suffix}=={self.cuda}.*" for name in names]


def find_torch(path: Path | None = None) -> Torch | None:
    """The torch at `path`, else the one that ``import torch`` would take; None if there is none."""
    path = path or folder_of("torch")
    if path is None:
        return None
    try:
        text = (path / "version.py").read_text()
    except OSError:
        raise SimcudaError(f"no torch package at {path}: it has no version.py") from None
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda.*= '(\d+\.\d+)[^']*'", text, re.MULTILINE)  # 1.3 says 10.1.243
    if not version or not cuda:
        raise SimcudaError(
            f"the torch at {path} is not built for CUDA; install a wheel that is (+cuNNN)"
        )
    return Torch(path.resolve(), version[1], cuda[1])


def cuda_includes(torch: Torch, given: list[Path]) -> list[Path]:
    """The folders with the CUDA headers: `given`, else of the installed nvidia wheels."""
    folders = given or sorted(
        Path(sysconfig.get_path("purelib")).glob("nvidia/*/include")
    ) + sorted(torch.path.parent.glob("nvidia/*/include"))
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    missing = [h for h in HEADERS if not any((folder / h).is_file() for folder in folders)]
    if missing:
        raise SimcudaError(
            f"the CUDA headers {', '.join(missing)} were not found; install the wheels "
            f"{' '.join(torch.header_wheels)}, or name their folders with --cuda-include or "
            f"SIMCUDA_CUDA_INCLUDE"
        )
    header = next(f / "cuda_runtime_api.h" for f in folders if (f / "cuda_runtime_api.h").is_file())
    found = re.search(r"#define CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
    major = int(found[1]) // 1000 if found else 0
    if major != int(torch.headers.split(".")[0]):
        raise SimcudaError(
            f"{header} is of CUDA {major}, but torch {torch.version} needs CUDA {torch.headers}; "
            f"give the headers of that version"
        )
    return folders
