# SPDX-License-Identifier: Apache-2.0
"""Builds torch_lms for the PyTorch that is installed: `pip install --no-build-isolation`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError:
    sys.exit(
        "torch_lms cannot be built because torch cannot be imported here; install torch, then "
        "`pip install --no-build-isolation torch-lms`"
    )

HERE = Path(__file__).resolve().parent
FLAGS = json.loads((HERE / "flags.json").read_text())
MAJOR, MINOR = torch.__version__.split(".")[:2]


def cuda_folders() -> list[str]:
    """Where CUDA's headers are: a toolkit, or NVIDIA's wheels beside torch."""
    site = Path(torch.__file__).resolve().parents[1]
    places = [Path(name) for name in os.environ.get("CPATH", "").split(os.pathsep) if name]
    places += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    places += sorted(site.glob("nvidia/*/include"))
    found = [str(place) for place in places if place.is_dir()]
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        if not any((Path(place) / header).is_file() for place in found):
            cuda = (torch.version.cuda or "12").split(".")[0]
            wheels = (
                "nvidia-cuda-runtime nvidia-cuda-crt"
                if int(cuda) >= 13
                else f"nvidia-cuda-runtime-cu{cuda} nvidia-cuda-nvcc-cu{cuda}"
            )
            sys.exit(
                f"torch_lms cannot be built because {header} of CUDA {torch.version.cuda} is in "
                f"none of {', '.join(found) or 'the usual places'}; `pip install {wheels}`, or "
                "name the folders in CUDA_HOME or CPATH"
            )
    return found


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        out = Path(self.build_lib)
        (out / "torch_lms.pth").write_bytes((HERE / "torch_lms.pth").read_bytes())
        facts = {
            "BUILT_FOR": torch.__version__.partition("+")[0],
            "CUDA": torch.version.cuda or "none",
            "ABI": torch.compiled_with_cxx11_abi(),
        }
        text = "".join(f"{name} = {value!r}\n" for name, value in facts.items())
        (out / "torch_lms" / "_built_for.py").write_text(text)


class BuildWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]  # no Python C API in it


setup(
    name="torch-lms",
    version=f"{FLAGS['version']}+torch{MAJOR}.{MINOR}",
    description="Large Model Support for an unpatched PyTorch",
    license="Apache-2.0",
    python_requires=">=3.9",
    install_requires=[f"torch>={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}"],
    packages=["torch_lms", "torch_lms.lms"],
    py_modules=["_torch_lms_switch"],
    ext_modules=[
        CppExtension(
            "torch_lms.libtorch_lms",
            sorted(str(file.relative_to(HERE)) for file in HERE.glob("csrc/**/*.cpp")),
            include_dirs=[str(HERE / "csrc"), *cuda_folders()],
            libraries=["c10_cuda", "dl"],
            extra_compile_args=[
                *FLAGS["flags"],
                f"-std={FLAGS['standards'].get(f'{MAJOR}.{MINOR}', 'gnu++20')}",
            ],
            py_limited_api=True,
        )
    ],
    cmdclass={
        "bdist_wheel": BuildWheel,
        "build_py": BuildPackage,
        "build_ext": BuildExtension.with_options(no_python_abi_suffix=True),
    },
)
