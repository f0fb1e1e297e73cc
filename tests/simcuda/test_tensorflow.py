# SPDX-License-Identifier: Apache-2.0
"""What Python does for TensorFlow's front. The device itself is tested in tests/tensorflow, with a
TensorFlow that is built for CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pythons import interpreter

from simcuda import Settings, SimcudaError, tfinfo
from simcuda.stubs import dry_library_source, ptxas_source
from simcuda.tfinfo import find_tensorflow

TOOLS = Path(tfinfo.__file__).resolve().parents[1]
DRY = {"dry": True, "profile": "a100-80gb-pcie4", "framework": "tensorflow"}
VERSION = """#define TF_MAJOR_VERSION 2
#define TF_MINOR_VERSION 14
#define TF_PATCH_VERSION 1
"""
BUILD = "build_info = collections.OrderedDict([('cuda_version', '11.8'), ('is_cuda_build', True)])"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"framework": "jax"}, "choose one of torch, tensorflow"),
        ({"framework": "tensorflow"}, "none of its kernels is simulated; give --dry and a profile"),
        ({**DRY, "profile": "a100"}, "there is no profile 'a100'; choose one of a100-80gb-pcie4"),
        (
            {**DRY, "assume": "nonzero=0.1"},
            "assume nonzero=0.1 cannot be used because it knows torch's",
        ),
        ({**DRY, "values": "error"}, "values error cannot be used because it knows torch's"),
        ({**DRY, "trace": "run.trace"}, "trace run.trace cannot be used because it knows torch's"),
    ],
)
def test_what_tensorflow_cannot_have_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SimcudaError, match=message):
        Settings.read(**settings)
    assert Settings.read(**DRY).framework == "tensorflow"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with what is looked at in a TensorFlow."""
    folder = tmp_path / "package"
    for name, text in (
        ("include/tensorflow/core/public/version.h", VERSION),
        ("python/platform/build_info.py", BUILD),
        ("libtensorflow_framework.so.2", "x\0cudnnCreate\0cublasSgemm_v2\0cuInit\0 cudnnX\0"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_an_installed_tensorflow_is_found(package: Path) -> None:
    found = find_tensorflow(package)
    assert found is not None and found.version == "2.14.1"
    assert found.xla == ("--xla_gpu_graph_level=0",)
    assert found.names() == {"cudnnCreate", "cublasSgemm_v2"}
    official = package / "libtensorflow_framework_official.so.2"
    official.write_text("")  # an overlay lies before it
    assert found.loader == official


def test_a_release_whose_headers_do_not_say_is_found_by_what_was_installed(package: Path) -> None:
    folder = package / "lib/tensorflow"
    for name in ("include", "python"):
        (package / name).rename(folder / name if folder.is_dir() else _made(folder) / name)
    (folder / "include/tensorflow/core/public/version.h").write_text("")
    with pytest.raises(SimcudaError, match="is of no known version"):
        find_tensorflow(folder)
    about = _made(package / "lib/tensorflow-2.21.0.dist-info") / "METADATA"
    about.write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n")
    found = find_tensorflow(folder)
    assert found is not None and found.sonames[0] == "libcudart.so.12"
    assert "--xla_gpu_autotune_level=0" in found.xla
    with pytest.raises(SimcudaError, match=r"headers .*nvml.h are not in"):
        found.includes([])


def old(package: Path, version: str) -> Path:
    """What 2.1 and 2.2 have instead, in the folder that each has it in."""
    folder = package.parent / ("tensorflow_core" if version == "2.1.0" else "tensorflow")
    package.rename(folder)
    about = folder / "python/platform/build_info.py"
    about.write_text("is_cuda_build = True\ncuda_version_number = '10'\n")
    header = folder / "include/tensorflow/core/public/version.h"
    header.write_text(
        VERSION.replace("14", version[2]).replace("PATCH_VERSION 1", "PATCH_VERSION 0")
    )
    kernels = folder / "python/_pywrap_tensorflow_internal.so"
    kernels.write_text("x\0cusolverDnSpotrf\0curandGenerate\0")
    return folder


@pytest.mark.parametrize("version", ["2.1.0", "2.2.0"])
def test_an_old_release_needs_the_headers_of_another_version(package: Path, version: str) -> None:
    folder = old(package, version)
    found = find_tensorflow(folder.with_name("tensorflow"))
    assert found is not None and (found.path, found.version) == (folder, version)
    assert found.sonames[0] == "libcudart.so.10.1" and "libcurand.so.10" in found.sonames
    names = {"cudnnCreate", "cublasSgemm_v2", "cusolverDnSpotrf", "curandGenerate"}
    assert found.names() == names
    with pytest.raises(
        SimcudaError, match=r"cuda.h, .* are not in .*; install nvidia-cuda-runtime"
    ):
        found.includes([_made(folder / "empty")])
    given = _made(folder / "given/crt").parent
    for header in ("cuda_runtime_api.h", "cuda.h", "crt/host_defines.h"):
        (given / header).write_text("")
    assert found.includes([given]) == [given]


def test_the_headers_of_a_wheel_that_has_them_are_its_own(package: Path) -> None:
    found = find_tensorflow(package)
    assert found is not None
    with pytest.raises(SimcudaError, match=r"are not in .*; install tensorflow==2.14.1 again"):
        found.includes([package])


@pytest.mark.parametrize("version", ["3.7", "3.8"])
def test_it_is_read_by_the_pythons_of_old_releases(version: str) -> None:
    command = [interpreter(version), "-m", "simcuda", "--help"]
    subprocess.run(command, env={"PYTHONPATH": str(TOOLS)}, stdout=subprocess.DEVNULL, check=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_the_assembler_makes_something_of_any_source(tmp_path: Path) -> None:
    program = tmp_path / "ptxas"
    program.write_text(ptxas_source())
    program.chmod(0o755)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert "release 12.5, V12.5.0" in said.stdout
    subprocess.run([program, "x.ptx", "-o", tmp_path / "x.cubin", "-arch=sm_90"], check=True)
    assert (tmp_path / "x.cubin").stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "version.h",
            "VERSION 14",
            "VERSION 15",
            "is 2.15.1, and .* install tensorflow==2.1.0 or",
        ),
        ("build_info.py", "True", "False", "not built for CUDA; .* instead of tensorflow-cpu"),
        ("version.h", None, None, "no TensorFlow at .*version.h"),
    ],
)
def test_another_tensorflow_is_refused(
    package: Path, name: str, old: str | None, new: str, message: str
) -> None:
    file = next(package.rglob(name))
    if old is None:
        file.unlink()
    else:
        file.write_text(file.read_text().replace(old, new))
    with pytest.raises(SimcudaError, match=message):
        find_tensorflow(package)


@pytest.mark.parametrize(
    ("function", "body"),
    [
        ("cudnnCreateTensorDescriptor", "*(void**)first = calloc(1, 512); return 0;"),
        ("cublasSetStream_v2", "*(void**)first = second; return 0;"),
        ("cudnnDestroy", "return 0;"),
        ("cublasSscal_v2", 'return simcuda_library_called("cublasSscal_v2", first);'),
        ("cudnnGetSomething", 'return simcuda_stub_called("cudnnGetSomething", 9);'),
        ("cusolverDnSpotrf", 'return simcuda_stub_called("cusolverDnSpotrf", 9);'),
        ("cufftExecC2C", 'return simcuda_stub_called("cufftExecC2C", 16);'),
    ],
)
def test_functions_of_libraries(function: str, body: str) -> None:
    assert f"int {function}(void* first, void* second) {{ {body} }}" in dry_library_source(
        {function}
    )
