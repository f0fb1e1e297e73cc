# SPDX-License-Identifier: Apache-2.0
"""The operator boundary in upstream's complete build: CMake, on trees with what each version has.
An overlay asks nothing of it, and no complete build is made here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "lms/pytorch/csrc"
# By version: what upstream's build calls the libraries, where its headers of operators are, in the
# tree or made by the build, and a file that tells the version.
ATEN = "aten/src/ATen"
MADE = [f"build/{ATEN}/Functions.h", f"build/{ATEN}/core/TensorMethods.h"]
KEPT = [f"build/{ATEN}/Functions.h", f"{ATEN}/core/TensorMethods.h"]
VIRTUAL = [f"{ATEN}/core/Type.h", f"build/{ATEN}/TypeExtendedInterface.h",
           f"{ATEN}/native/native_functions.yaml"]  # fmt: skip
FORMAT, ID = "c10/core/MemoryFormat.h", "c10/core/TensorTypeId.h"
TREES = {
    "2.6": (["torch_cpu", "c10_cuda", "torch::cudart"], [], ["torch/library.h"]),
    "1.5": (["torch_cpu", "c10_cuda", "torch::cudart"], MADE, [FORMAT]),
    "1.4": (["torch", "c10_cuda", "torch::cudart"], MADE, [FORMAT, ID]),
    "1.2": (["torch", "c10_cuda", "torch::cudart"], KEPT, [FORMAT, ID]),
    "1.1": (["torch", "caffe2", "c10_cuda", "caffe2::cudart"], VIRTUAL, [ID]),
}
PROJECT = """
cmake_minimum_required(VERSION 3.10)
project(Torch CXX)
set(TORCH_ROOT "${{CMAKE_SOURCE_DIR}}")
set(TORCH_SRC_DIR "${{CMAKE_SOURCE_DIR}}/torch")
set(TORCH_INSTALL_LIB_DIR lib)
set(PYTHON_EXECUTABLE /bin/cp)
add_custom_target(ATEN_CPU_FILES_GEN_TARGET)
add_subdirectory(torch/csrc/lms)
foreach(name {names})
  string(REPLACE "::" "_" target ${{name}})
  add_library(${{target}} SHARED of_torch.cpp)
  if(NOT target STREQUAL name)
    add_library(${{name}} ALIAS ${{target}})
  endif()
endforeach()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
@pytest.mark.parametrize("version", TREES)
def test_the_boundary_is_linked_with_what_a_version_has(version: str, tmp_path: Path) -> None:
    names, headers, tells = TREES[version]
    files = {*headers, *tells, "of_torch.cpp", "tools/lms/signatures.py"}
    sources = [*CSRC.glob("*.cpp"), *(CSRC.parent / "compat").glob("*.cpp")]
    files |= {f"torch/csrc/lms/{file.relative_to(CSRC.parent)}".replace("lms/csrc/", "lms/")
              for file in sources}  # fmt: skip
    for name in files:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    shutil.copy(CSRC / "CMakeLists.txt", tmp_path / "torch/csrc/lms")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(names=" ".join(names)))
    build = tmp_path / "build"
    subprocess.run(
        ["cmake", "-S", tmp_path, "-B", build, "-G", "Unix Makefiles"],
        check=True, capture_output=True,
    )  # fmt: skip
    made = build / "torch/csrc/lms/CMakeFiles/torch_lms.dir"
    linked = (made / "link.txt").read_text()
    assert "-ltorch" not in linked and "-lcaffe2" not in linked  # all are libraries of the build
    for name in names:
        assert f"lib{name.replace('::', '_')}.so" in linked
    rules = (made / "build.make").read_text()
    given = [f"{tmp_path}/{header}" for header in headers]
    assert (not headers) == ("signatures.py" not in rules)
    assert " ".join(given) in rules
