# SPDX-License-Identifier: Apache-2.0
"""torch_lms from its sdist: `pip install` compiles it for the official torch that it meets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("LMS_SDIST"), reason="needs LMS_SDIST, the sdist"),
]

TRAIN = """
import torch
x = [torch.full((1 << 20,), float(i), device="cuda") for i in range(20)]  # 80 MiB
assert all((t == i).all().item() for i, t in enumerate(x))
assert torch.cuda.lms.stats()["lms.paged_out_bytes"] > 0
print("moved", torch.cuda.lms.summary().splitlines()[0])
"""


def pip(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """pip of the interpreter that the environment was made from: it has none of its own. What it
    starts to build in imports torch, which the simulated device has to be there for."""
    base = Path(sys.base_prefix) / "bin" / "python3"
    command = [str(base), "-m", "pip", "--python", python, "--disable-pip-version-check", *words]
    hook = lms_device.TOOLS / "simcuda" / "hook"
    environment = {
        **lms_device.child_environment(),
        "CPATH": os.environ.get("SIMCUDA_CUDA_INCLUDE", ""),
        **({"SIMCUDA": "1", "PYTHONPATH": str(hook)} if lms_device.device.kind == "sim" else {}),
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A folder with what pip installs."""
    stock = pytestconfig.getoption("--stock")
    if not stock:
        pytest.skip("--stock names no Python with the official torch")
    folder = tmp_path_factory.mktemp("site")
    done = pip(
        stock, "install", "--no-build-isolation", "--no-deps", "--no-index", "--target",
        str(folder), os.environ["LMS_SDIST"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(site: Path, stock: str, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = lms_device.child_environment()
    for name in ("PYTORCH_LMS", "TORCH_LMS_FORCE"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = os.pathsep.join([str(site), environment["PYTHONPATH"]])
    command = lms_device.child_command("sim", stock, 48 * MIB, "immediate")
    # A folder on PYTHONPATH is no site folder, whose .pth file Python would read.
    program = f"import site; site.addsitedir({str(site)!r})\n{code}"
    script = site.with_name("program.py")
    script.write_text(program)
    return subprocess.run(
        [*command, str(script)], env={**environment, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "variables"),
    [
        ("import torch_lms; torch_lms.enable(min_size=0)", {}),
        ("", {"PYTORCH_LMS": "min_size=0"}),
    ],
    ids=["one-line", "no-edit"],
)
def test_it_builds_and_trains(
    site: Path, pytestconfig: Any, start: str, variables: dict[str, str]
) -> None:
    forced = {"TORCH_LMS_FORCE": os.environ.get("TORCH_LMS_FORCE", "0")}
    stock = pytestconfig.getoption("--stock")
    done = run(site, stock, f"{start}\n{TRAIN}", **forced, **variables)
    assert done.returncode == 0 and "moved Large Model Support: on" in done.stdout, done.stdout
    assert (
        f"BUILT_FOR = '{torch.__version__.partition('+')[0]}'"
        in (site / "torch_lms" / "_built_for.py").read_text()
    )


def test_beside_a_version_that_was_not_tested(
    site: Path, pytestconfig: Any, tmp_path: Path
) -> None:
    other = tmp_path / "site"
    shutil.copytree(site, other)
    (other / "torch_lms" / "_tested.py").write_text("TESTED = ('2.3.0', '3.1.0')\n")
    stock, start = pytestconfig.getoption("--stock"), "import torch_lms; torch_lms.enable()"
    done = run(other, stock, start)
    assert done.returncode != 0
    assert "it was not tested with PyTorch" in done.stdout
    assert "the nearest tested version is 2.3.0; set TORCH_LMS_FORCE=1" in done.stdout
    assert run(other, stock, start, TORCH_LMS_FORCE="1").returncode == 0
