# SPDX-License-Identifier: Apache-2.0
"""What a build is kept in, and what becomes of one that was killed."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import pytest

from simcuda import SimcudaError, builder, statics, stubs


def make(work: Path, say: builder.Progress) -> None:
    (work / builder.MANIFEST).write_text(json.dumps({"key": "k", "preload": []}))


def key() -> str:
    return "k"


def test_a_build_is_of_one_state_of_the_sources(tmp_path: Path) -> None:
    keys = ["before", "after"]
    with pytest.raises(SimcudaError, match=r"its sources were changed meanwhile; run the command"):
        builder._kept(tmp_path / "mine", lambda: keys.pop(0), make, None)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.lock"]


def test_what_a_killed_build_has_left_goes_with_the_next(tmp_path: Path) -> None:
    left, other = tmp_path / ".mine-x1y2", tmp_path / ".another-x1y2"
    for folder in (left, other):
        (folder / "objects").mkdir(parents=True)
    assert builder._kept(tmp_path / "mine", key, make, None).path == tmp_path / "mine"
    assert not left.exists() and other.exists()
    assert not list(tmp_path.glob(".mine-*"))


@pytest.mark.parametrize("folder", ["/dev/null/cache", "/proc/cache"])
def test_a_folder_that_cannot_be_written_is_told(folder: str) -> None:
    with pytest.raises(SimcudaError, match=rf"built in {folder} because of .*; name another"):
        builder._kept(Path(folder, "mine"), key, make, None)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def full(work: Path, say: builder.Progress) -> None:
        Path("/dev/full").write_text("x" * 100)

    with pytest.raises(SimcudaError, match="because of No space left on device"):
        builder._kept(tmp_path / "mine", key, full, None)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.lock"]


def library(folder: Path, name: str, source: str, *options: str) -> Path:
    path = folder / name
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", *options, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.mark.parametrize("named", [False, True])
def test_functions_of_a_library_that_is_not_named_are_in_the_one_that_brings_it(
    tmp_path: Path, named: bool
) -> None:
    """Where torch is loaded by itself, nothing but what it names is looked for."""
    libraries = ["libcublas.so.11", *(["libcublasLt.so.11"] if named else [])]
    cuda, torch = tmp_path / "cuda", tmp_path / "torch"
    cuda.mkdir()
    torch.mkdir()
    for name in libraries:
        library(cuda, name, "", f"-Wl,-soname,{name}")
    source = """
        int cublasCreate_v2(void), cublasLtMatmul(void);
        int use(void) { return cublasCreate_v2() + cublasLtMatmul(); }
    """
    options = [f"-L{cuda}", "-Wl,--no-as-needed", *(f"-l:{name}" for name in libraries)]
    library(torch, "libuser.so", source, *options)
    found = {made.soname: sorted(made.functions) for made in stubs.needed_libraries(torch)}
    if named:
        expected = {
            "libcublas.so.11": ["cublasCreate_v2"],
            "libcublasLt.so.11": ["cublasLtMatmul"],
        }
    else:
        expected = {"libcublas.so.11": ["cublasCreate_v2", "cublasLtMatmul"]}
    assert found == expected


def test_a_runtime_within_a_library_jumps_into_the_simulated_one(tmp_path: Path) -> None:
    own = """
        static __attribute__((noinline)) int cudaGetDevice(int* d) { *d = 7; return *d * 3 + 1; }
        static __attribute__((noinline)) int cudaOwn(int* d) { *d = 5; return *d + 1; }
        int device(void) { int d; cudaGetDevice(&d); return d; }
        int other(void) { int d; cudaOwn(&d); return d; }
    """
    user = ctypes.CDLL(str(library(tmp_path, "libtorch_python.so", own, "-O0")))
    simulated = "int cudaGetDevice(int* d) { *d = 2; return 0; }"
    runtime = ctypes.CDLL(str(library(tmp_path, "libcudart.so", simulated)))
    assert (user.device(), user.other()) == (7, 5)
    assert statics.redirect_torch(tmp_path, runtime) == 1
    assert (user.device(), user.other()) == (2, 5)


def test_a_function_too_short_for_a_jump_is_told(tmp_path: Path) -> None:
    short = '__attribute__((visibility("default"))) int cudaGetDevice(int* d) { return 0; }'
    loaded = ctypes.CDLL(str(library(tmp_path, "libc10_cuda.so", short, "-O1")))
    with pytest.raises(SimcudaError, match=r"its cudaGetDevice has \d+ bytes, and a jump needs 13"):
        statics.redirect_torch(tmp_path, loaded)


def program(folder: Path, text: str, *sources: str) -> subprocess.CompletedProcess[str]:
    """What a program says that is linked to these sources of the runtime."""
    file = folder / "program.cpp"
    file.write_text(text)
    runtime = builder.SOURCES / "runtime"
    parts = [file, *(runtime / source for source in sources)]
    command = ["g++", "-std=c++20", "-I", runtime, *parts, "-ldl", "-o", folder / "program"]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "program"], capture_output=True, text=True, check=True)


def test_a_function_that_no_library_shows_has_a_name(tmp_path: Path) -> None:
    """That of a launch whose kernel was registered with another runtime."""
    done = program(
        tmp_path,
        """
        #include <cstdio>
        #include <symbols.h>
        static int hidden(int one) { return one + 1; }
        int main() {
          static int variable;
          const char* none = simcuda::symbol_at(&variable);
          const char* nothing = simcuda::symbol_at(nullptr);
          puts(simcuda::symbol_at(reinterpret_cast<void*>(&hidden)));
          puts(none || nothing ? "named" : "not named");
        }
        """,
        "symbols.cpp",
    )
    assert done.stdout.split("\n")[:2] == ["_ZL6hiddeni", "not named"]


def test_a_negation_of_known_values_is_computed(tmp_path: Path) -> None:
    """The evaluator is one of TensorFlow 2.2. Where the input is not known, nothing is."""
    done = program(
        tmp_path,
        """
        #include <cstdio>
        #include <shapes.h>
        int main() {
          simcuda::Values values;
          char in[3] = {1, 0, 1}, out[3], device[1], got[3] = {9, 9, 9};
          const char* name = "_ZN5Eigen8internal15EigenMetaKernelIx_S0_21scalar_boolean_not_opIbEE";
          const char* words[8] = {out, nullptr, device, device, in, nullptr, device, nullptr};
          int count = 3;
          void* arguments[] = {words, &count};
          const bool unknown = simcuda::compute_known(name, arguments, values);
          values.put(in, in, 3);
          const bool known = simcuda::compute_known(name, arguments, values);
          values.get(got, out, 3);
          const bool other = simcuda::compute_known("_Z3addPf", arguments, values);
          printf("%d %d %d %d%d%d", unknown, known, other, got[0], got[1], got[2]);
        }
        """,
        "shapes.cpp",
        "values.cpp",
    )
    assert done.stdout == "0 1 0 010"
