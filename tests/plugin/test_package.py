# SPDX-License-Identifier: Apache-2.0
"""The Python side of torch_lms, beside a stand-in for torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "lms" / "plugin" / "python"


def load_versions(
    monkeypatch: pytest.MonkeyPatch, built_for: str, tested: tuple[str, ...]
) -> ModuleType:
    package = ModuleType("torch_lms")
    built, known = ModuleType("torch_lms._built_for"), ModuleType("torch_lms._tested")
    vars(built).update(BUILT_FOR=built_for, CUDA="12.4", ABI=False)
    vars(known).update(TESTED=tested)
    for module in (package, built, known):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("versions", SOURCES / "torch_lms/_versions.py")
    assert spec and spec.loader
    versions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(versions)
    return versions


TESTED = ("2.6.0", "2.11.0", "2.14.1")


@pytest.mark.parametrize(
    ("built_for", "running", "error"),
    [
        ("2.6.0", "2.6.0+cu124", None),
        ("2.6.0", "2.6.1", None),
        ("2.14.1", "2.14.0+cu130", None),
        (
            "2.6.0",
            "2.11.0+cu130",
            r"built for PyTorch 2\.6\.0 and this is 2\.11\.0\+cu130; "
            r".*`lmsbuild plugin 2\.11\.0`; .*tested one is 2\.11\.0",
        ),
        ("2.9.0", "2.9.0", r"not tested with PyTorch 2\.9\.0; .* 2\.11\.0; set TORCH_LMS_FORCE=1"),
        ("2.16.0", "2.16.0a0+git1", r"not tested .* nearest tested version is 2\.14\.1"),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, built_for: str, running: str, error: str | None
) -> None:
    versions = load_versions(monkeypatch, built_for, TESTED)
    if error is None:
        versions.check(running, "12.6", False, {})
        return
    with pytest.raises(ImportError, match=error):
        versions.check(running, "12.4", False, {})
    with pytest.raises(ImportError):
        versions.check(running, "12.4", False, {"TORCH_LMS_FORCE": "0"})
    versions.check(running, "12.4", False, {"TORCH_LMS_FORCE": "1"})


@pytest.mark.parametrize(
    ("cuda", "abi", "text"),
    [
        ("11.8", False, "CUDA 11.8 without the C++11 ABI"),
        ("12.4", True, "CUDA 12.4 with the C++11 ABI"),
        (None, False, "CUDA none without"),
    ],
)
def test_other_builds_of_the_same_version(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, abi: bool, text: str
) -> None:
    versions = load_versions(monkeypatch, "2.6.0", TESTED)
    with pytest.raises(ImportError) as caught:
        versions.check("2.6.0", cuda, abi, {})
    assert "was built for CUDA 12.4 without the C++11 ABI" in str(caught.value)
    assert text in str(caught.value)
    versions.check("2.6.0", cuda, abi, {"TORCH_LMS_FORCE": "1"})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site folder with the switch, a torch and a torch_lms that say when they are imported."""
    for name in ("torch_lms.pth", "_torch_lms_switch.py"):
        (tmp_path / name).write_bytes((SOURCES / name).read_bytes())
    for name, more in (("torch", "from torch import sub"), ("torch_lms", "import torch")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"{more}\nprint('{name}')\n")
    (tmp_path / "torch" / "sub.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("value", "code", "printed"),
    [
        (None, "import torch", "torch"),
        ("0", "import torch", "torch torch_lms"),
        ("1", "import torch, torch", "torch torch_lms"),
        ("1", "import torch.sub", "torch torch_lms"),
        ("1", "import json", ""),
        # Looking for torch without importing it must not use the switch up.
        (
            "1",
            "import importlib.util as u; assert u.find_spec('torch'); import torch",
            "torch torch_lms",
        ),
        ("1", "import torch_lms", "torch torch_lms"),
        ("1", "import torch, importlib; importlib.reload(torch)", "torch torch_lms torch"),
    ],
)
def test_switch(site: Path, value: str | None, code: str, printed: str) -> None:
    start = f"import site; site.addsitedir({str(site)!r})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{start}\n{code}"],
        env={} if value is None else {"PYTORCH_LMS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == printed.split()


def test_the_switch_costs_an_unset_interpreter_nothing(site: Path) -> None:
    start = f"import site, sys; site.addsitedir({str(site)!r})"
    code = f"{start}; print([m for m in sys.modules if 'lms' in m])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
