# SPDX-License-Identifier: Apache-2.0
"""Facts about an installed TensorFlow, found without importing it."""

from __future__ import annotations

import mmap
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .errors import SimcudaError
from .installed import folder_of

NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class Release:
    """What a release that the front is written for opens by name, the runtime first, and what its
    XLA is told: with nothing computed there is nothing to choose between by its time, and a graph
    of commands is refused. The newest looks for `bin/ptxas` in the folder of the build, too. `cuda`
    is the number of the version where the wheel has none of its headers: those of 11.8 stand in."""

    sonames: tuple[str, ...]
    xla: tuple[str, ...] = ()
    cuda: int | None = None


_CUDA_10 = Release((
    "libcudart.so.10.1", "libcuda.so.1", "libcublas.so.10", "libcudnn.so.7", "libcufft.so.10",
    "libcurand.so.10", "libcusolver.so.10", "libcusparse.so.10",
), cuda=10010)  # fmt: skip

RELEASES = {
    "2.1.0": _CUDA_10,
    "2.2.0": _CUDA_10,
    "2.14.1": Release((
        "libcudart.so.11.0", "libcuda.so.1", "libcublas.so.11", "libcublasLt.so.11",
        "libcudnn.so.8", "libcufft.so.10", "libcusolver.so.11", "libcusparse.so.11",
    ), ("--xla_gpu_graph_level=0",)),
    "2.21.0": Release((
        "libcudart.so.12", "libcuda.so.1", "libcublas.so.12", "libcublasLt.so.12",
        "libcudnn.so.9", "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12", NVML,
    ), (
        "--xla_gpu_cuda_data_dir={build}", "--xla_gpu_autotune_level=0",
        "--xla_gpu_enable_command_buffer=",
    )),
}  # fmt: skip
REQUIREMENT = " or ".join(f"tensorflow=={version}" for version in RELEASES)
HEADERS = ("cuda_runtime_api.h", "cuda.h", "crt/host_defines.h")
HEADER_WHEELS = ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-cuda-nvcc-cu11==11.8.89")
# The names that TensorFlow looks up in these libraries are texts in its own.
_LOADER = ("libtensorflow_framework_official.so.2", "libtensorflow_framework.so.2")
_KERNELS = ("libtensorflow_cc.so.2", "python/_pywrap_tensorflow_internal.so")
LIBRARIES = ("cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse")
_NAME = re.compile(rb"\0(cu(?:blas|dnn|fft|rand|solver|sparse)(?:Lt)?[A-Z]\w*)(?=\0)")


@dataclass(frozen=True)
class TensorFlow:
    """`path` is the folder of the package."""

    path: Path
    version: str

    @property
    def sonames(self) -> tuple[str, ...]:
        return RELEASES[self.version].sonames

    @property
    def xla(self) -> tuple[str, ...]:
        return RELEASES[self.version].xla

    @property
    def cuda(self) -> int | None:
        """The number of the CUDA that the wheel is for, where it has none of its headers."""
        return RELEASES[self.version].cuda

    def includes(self, given: list[Path]) -> list[Path]:
        """The folders of the CUDA headers: the wheel's, where it has some, else `given` or those of
        installed wheels. Raises SimcudaError where one that the device needs is in none."""
        folders, remedy = [self.path / "include/third_party/gpus/cuda/include"], f"{self} again"
        if self.cuda:
            installed = Path(sysconfig.get_path("purelib")).glob("nvidia/*/include")
            folders = given or sorted(installed)
            remedy = f"{' '.join(HEADER_WHEELS)}, or name their folders with SIMCUDA_CUDA_INCLUDE"
        elif NVML in self.sonames:
            folders.append(self.path / "include/external/cuda_nvml/include")
        needed = (*HEADERS, "nvml.h") if NVML in self.sonames else HEADERS
        missing = [h for h in needed if not any((folder / h).is_file() for folder in folders)]
        if missing:
            where = ", ".join(map(str, folders)) or "any installed wheel"
            raise SimcudaError(
                f"the CUDA headers {', '.join(missing)} are not in {where}; install {remedy}"
            )
        return folders

    def __str__(self) -> str:
        return f"tensorflow=={self.version}"

    @property
    def loader(self) -> Path:
        """The library that opens CUDA's; the official one, where an overlay lies before it."""
        return next(self.path / name for name in _LOADER if (self.path / name).is_file())

    @property
    def kernels(self) -> Path:
        """A library that an overlay leaves as it is."""
        return next(self.path / name for name in _KERNELS if (self.path / name).is_file())

    def names(self) -> set[str]:
        """The functions of libraries beside the runtime and the driver that it may look up."""
        found: set[str] = set()
        # Where the wheel has no headers, each library has a loader of what itself calls.
        for library in (self.loader, self.kernels) if self.cuda else (self.loader,):
            with library.open("rb") as file:
                text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found |= {name.decode() for name in _NAME.findall(text)}
        return found


def _of_distribution(path: Path) -> str:
    """The version that is installed at `path`, whose headers do not say it."""
    from importlib import metadata  # no Python that is older than 3.8 has it

    for found in metadata.distributions(path=[str(path.parent)]):
        if found.name == "tensorflow":
            return found.version.partition("+")[0]
    return "of no known version"


def find_tensorflow(path: Path | None = None) -> TensorFlow | None:
    """The TensorFlow at `path`, else the one that would be imported; None if there is none.

    Raises SimcudaError for one that the device has no front for.
    """
    path = path or folder_of("tensorflow")
    if path is None:
        return None
    if (path.parent / "tensorflow_core").is_dir():  # what 2.1 imports as tensorflow
        path = path.parent / "tensorflow_core"
    try:
        header = (path / "include/tensorflow/core/public/version.h").read_text()
        about = (path / "python/platform/build_info.py").read_text()
    except OSError as error:
        raise SimcudaError(f"no TensorFlow at {path}: it has no {error.filename}") from None
    version = ".".join(re.findall(r"#define TF_(?:MAJOR|MINOR|PATCH)_VERSION (\d+)", header))
    version = version or _of_distribution(path)
    if version not in RELEASES:
        raise SimcudaError(
            f"the TensorFlow at {path} is {version}, and the dry device is written for "
            f"{', '.join(RELEASES)} alone; install {REQUIREMENT}"
        )
    if not re.search(r"is_cuda_build\W+True", about):
        raise SimcudaError(
            f"the TensorFlow at {path} is not built for CUDA; install {REQUIREMENT} "
            "instead of tensorflow-cpu"
        )
    return TensorFlow(path.resolve(), version)
