# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import simcuda
from simcuda import COUNTERS, Settings, SimcudaError, parse_bytes
from simcuda.device import ORDER_SIZE, STREAM_COPIES, TIMES
from simcuda.dry import require_shapes
from simcuda.stubs import Library, api_functions, api_source, library_source, version_script
from simcuda.torchinfo import Torch, cuda_includes, find_torch


@pytest.mark.parametrize(
    ("text", "size"),
    [("64M", 64 << 20), ("1.5G", 3 << 29), ("512", 512), ("2 KiB", 2048), ("1TB", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("struct", "names"),
    [
        ("Counters", COUNTERS),
        ("StreamCopies", STREAM_COPIES),
        ("Times", TIMES),
        ("OrderSize", ORDER_SIZE),
    ],
)
def test_the_numbers_of_the_device_have_the_names_of_its_structs(
    struct: str, names: tuple[str, ...]
) -> None:
    """Where one had more than the other, it would be written beyond what Python made for it."""
    header = (Path(simcuda.__file__).parent / "src/runtime/simcuda.h").read_text()
    (members,) = re.findall(rf"struct Simcuda{struct} \{{(.*?)\}};", header, re.S)
    assert members.count("int64_t") == members.count(";")
    assert tuple(re.findall(r"(\w+)[,;]", members)) == names


@pytest.mark.parametrize("text", ["", "M", "-1", "64X", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SimcudaError, match="write it like 64M"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mode": "fast"}, "choose one of immediate"),
        ({"strict": "ignore"}, "choose one of error"),
        ({"devices": 0}, "choose 1 to 16"),
        ({"memory": "0"}, "a device without memory cannot be simulated; give some with --memory"),
        ({"lag": "x"}, "not a number"),
        ({"order": "yes"}, "choose one of off, report, error"),
        ({"order": "error", "queries": "lazy"}, "choose one of eager, strict"),
        ({"queries": "strict"}, "cannot be strict with order off"),
        ({"size": 3}, "unknown setting size"),
        ({"dry": True}, "give --profile with one of a100-80gb-pcie4, "),
        ({"dry": True, "profile": "v100"}, "no profile 'v100'; choose one of a100"),
        ({"dry": True, "profile": "a100-80gb-pcie4", "mode": "lazy"}, "leave them out with dry"),
        ({"profile": "a100-80gb-pcie4"}, "profile a100-80gb-pcie4 cannot be used because it is of"),
        ({"assume": "nonzero=1"}, "assume nonzero=1 cannot be used because it is of the dry"),
        ({"values": "report"}, "values report cannot be used .* give --dry, too"),
        ({"values": "maybe"}, "values is 'maybe'; choose one of off, report, error"),
        ({"workspaces": "maybe"}, "workspaces is 'maybe'; choose one of on, off"),
        ({"workspaces": "off"}, "workspaces off cannot be used because it is of the dry device"),
        (
            {"dry": True, "profile": "a100-80gb-pcie4", "framework": "tensorflow", "memory": "99T"},
            "allocator would keep a table of .* give less with --memory",
        ),
        ({"contents": "some"}, "contents is 'some'; choose one of small, all"),
        ({"contents": "all"}, "contents all cannot be used because it is of TensorFlow's device"),
        (
            {"dry": True, "profile": "a100-80gb-pcie4", "assume": "sort=1"},
            "nothing to assume for 'sort'; choose of nonzero, unique",
        ),
        (
            {"dry": True, "profile": "a100-80gb-pcie4", "assume": "nonzero=2"},
            "nonzero is '2', not a number from 0 to 1",
        ),
    ],
)
def test_wrong_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], message: str
) -> None:
    # The tests that load a device in this process leave its settings in the environment.
    for name in [name for name in os.environ if name.startswith("SIMCUDA_")]:
        monkeypatch.delenv(name)
    with pytest.raises(SimcudaError, match=message):
        Settings.read(**setting)


def test_what_the_program_gives_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMCUDA_MEMORY", "32M")
    monkeypatch.setenv("SIMCUDA_MODE", "lazy")
    settings = Settings.read(mode="late-write")
    assert (settings.memory, settings.mode) == (32 << 20, "late-write")


def test_a_dry_device_has_the_memory_of_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SIMCUDA_")]:
        monkeypatch.delenv(name)
    dry = {"dry": True, "profile": "a100-80gb-pcie4"}
    settings = Settings.read(**dry, assume="nonzero=0.5,bincount=8")
    assert settings.memory == (80 << 30) - (512 << 20)
    assert settings.assumptions() == {"nonzero": 0.5, "bincount": 8}
    assert Settings.read(**dry, memory="16G").memory == 16 << 30


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    (folder / "crt").mkdir(parents=True)
    (folder / "crt/host_defines.h").write_text("")
    (folder / "cuda_runtime_api.h").write_text(
        "#define CUDART_VERSION  12040\n"
        "extern __host__ cudaError_t CUDARTAPI cudaFoo(int *x);\n"
        "extern __host__ cudaError_t CUDARTAPI cudaBar_ptsz(int *x);\n"
    )
    (folder / "cuda.h").write_text(
        "#define cuMemFoo cuMemFoo_v2\n#define cuOther 3\nCUresult CUDAAPI cuMemFoo(int a);\n"
    )
    (folder / "nvml.h").write_text("nvmlReturn_t DECLDIR nvmlFoo(int a);\n")
    return folder


def test_every_function_of_the_headers_is_found(headers: Path) -> None:
    assert api_functions([headers]) == {"cudaFoo", "cuMemFoo", "cuMemFoo_v2", "nvmlFoo"}


def test_refusals_return_the_status_of_their_api() -> None:
    source = api_source({"cudaFoo", "cuFoo", "nvmlFoo"})
    assert 'simcuda_unsupported("cudaFoo")' in source
    assert 'simcuda_stub_called("cuFoo", 801)' in source
    assert 'simcuda_stub_called("nvmlFoo", 3)' in source


def test_stand_in_library() -> None:
    library = Library(
        "libcudnn.so.9", "cudnn", {"cudnnGetVersion": "", "cudnnCreate": "libcudnn.so.9"}
    )
    source = library_source(library)
    assert "return 99900;" in source
    assert 'simcuda_stub_called("cudnnCreate", 3000)' in source
    assert version_script(library) == "libcudnn.so.9 { global: *; };\n"


TORCH = Torch(Path("/nonexistent/torch"), "2.6.0+cu124", "12.4")


def test_missing_headers_name_the_wheels(tmp_path: Path) -> None:
    with pytest.raises(SimcudaError, match=r"nvidia-cuda-runtime-cu12.*--cuda-include"):
        cuda_includes(TORCH, [tmp_path])


def test_header_wheels_are_named_as_their_cuda_names_them() -> None:
    assert TORCH.header_wheels[1] == "nvidia-cuda-nvcc-cu12==12.4.*"
    newer = Torch(TORCH.path, "2.15.0+cu132", "13.2")
    assert newer.header_wheels[1] == "nvidia-cuda-crt==13.2.*"


def test_headers_of_another_cuda_are_refused(headers: Path) -> None:
    other = Torch(TORCH.path, "2.11.0+cu130", "13.0")
    assert cuda_includes(TORCH, [headers]) == [headers.resolve()]
    with pytest.raises(SimcudaError, match=r"is of CUDA 12, but torch 2.11.0\+cu130 needs"):
        cuda_includes(other, [headers])


def test_a_torch_without_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimcudaError, match=r"no version\.py"):
        find_torch(tmp_path)
    (tmp_path / "version.py").write_text("__version__ = '2.6.0+cpu'\ncuda = None\n")
    with pytest.raises(SimcudaError, match="not built for CUDA"):
        find_torch(tmp_path)


def test_a_torch_without_shapes_cannot_run_dry() -> None:
    require_shapes(Torch(Path("torch"), "2.6.0+cu124", "12.4"))
    with pytest.raises(SimcudaError, match=r"torch 1\.13\.1\+cu117 cannot run on the dry device"):
        require_shapes(Torch(Path("torch"), "1.13.1+cu117", "11.7"))
