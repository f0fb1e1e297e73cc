# SPDX-License-Identifier: Apache-2.0
"""Facts about an installed TensorFlow, found without importing it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .errors import SimcudaError
from .installed import folder_of

NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class Release:
    """What a release that the front is written for opens by name, the runtime first, and what its
    XLA is told: with nothing computed there is nothing to choose between by its time, and a graph
    of commands is refused. It also looks for `bin/ptxas` in the folder of the build."""

    sonames: tuple[str, ...]
    xla: tuple[str, ...] = ()


RELEASES = {
    "2.14.1": Release((
        "libcudart.so.11.0", "libcuda.so.1", "libcublas.so.11", "libcublasLt.so.11",
        "libcudnn.so.8", "libcufft.so.10", "libcusolver.so.11", "libcusparse.so.11",
    )),
    "2.21.0": Release((
        "libcudart.so.12", "libcuda.so.1", "libcublas.so.12", "libcublasLt.so.12",
        "libcudnn.so.9", "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12", NVML,
    ), ("--xla_gpu_autotune_level=0", "--xla_gpu_enable_command_buffer=")),
}  # fmt: skip
REQUIREMENT = " or ".join(f"tensorflow=={version}" for version in RELEASES)
HEADERS = ("cuda_runtime_api.h", "cuda.h", "crt/host_defines.h")
# The names that TensorFlow looks up in these libraries are texts in its own.
_LOADER = ("libtensorflow_framework_official.so.2", "libtensorflow_framework.so.2")
LIBRARIES = ("cublas", "cudnn", "cufft", "cusolver", "cusparse")
_NAME = re.compile(rf"(?:{'|'.join(LIBRARIES)})(?:Lt)?[A-Z]\w*".encode())


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
    def includes(self) -> list[Path]:
        """The folders of the CUDA headers, which the wheel has."""
        folders = [self.path / "include/third_party/gpus/cuda/include"]
        if NVML in self.sonames:
            folders.append(self.path / "include/external/cuda_nvml/include")
        return folders

    @property
    def headers(self) -> tuple[str, ...]:
        """Of them, those that the device is compiled against."""
        return (*HEADERS, "nvml.h") if NVML in self.sonames else HEADERS

    @property
    def loader(self) -> Path:
        """The library that opens CUDA's; the official one, where an overlay lies before it."""
        return next(self.path / name for name in _LOADER if (self.path / name).is_file())

    @property
    def kernels(self) -> Path:
        """A library that an overlay leaves as it is."""
        return self.path / "libtensorflow_cc.so.2"

    def names(self) -> set[str]:
        """The functions of libraries beside the runtime and the driver that it may look up."""
        texts = self.loader.read_bytes().split(b"\0")
        return {text.decode() for text in texts if _NAME.fullmatch(text)}


def _of_distribution(path: Path) -> str:
    """The version that is installed at `path`, whose headers do not say it."""
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
            f"{' and '.join(RELEASES)} alone; install {REQUIREMENT}"
        )
    if not re.search(r"'is_cuda_build'\W+True", about):
        raise SimcudaError(
            f"the TensorFlow at {path} is not built for CUDA; install {REQUIREMENT} "
            "instead of tensorflow-cpu"
        )
    return TensorFlow(path.resolve(), version)
