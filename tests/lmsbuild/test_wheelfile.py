# SPDX-License-Identifier: Apache-2.0
"""Wheels made and installed for real; the shared libraries in them are compiled here."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lmsbuild_wheels import build_libraries, check_record, make_wheel
from packaging.utils import parse_wheel_filename

from lmsbuild.base.errors import WheelError
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.platform_tag import platform_tag
from lmsbuild.wheel.wheelfile import WheelName


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    return make_wheel(folder, build_libraries(folder))


def repacked(official: Path, folder: Path) -> Path:
    to = folder / "alpha-1.0+lms.1-cp311-cp311-linux_x86_64.whl"
    changed = {
        "alpha/api.py": b"def memory():\n    return 1\n",
        "alpha/new, with comma.py": b"new\n",
        "alpha-1.0+lms.1.dist-info/METADATA": b"Name: alpha\nVersion: 1.0+lms.1\n",
    }
    wheelfile.repack(official, to, changed, frozenset({"alpha/gone.py"}))
    return to


def test_repacked_wheel_is_whole(official: Path, tmp_path: Path) -> None:
    check_record(official)
    new = repacked(official, tmp_path)
    check_record(new)
    with zipfile.ZipFile(official) as a, zipfile.ZipFile(new) as b:
        assert b.read("alpha/api.py").endswith(b"return 1\n")
        assert b.read("alpha/new, with comma.py") == b"new\n"
        assert "alpha/gone.py" not in b.namelist()
        assert not any(name.startswith("alpha-1.0.dist-info") for name in b.namelist())
        for name in ("alpha/lib/libuser.so", "alpha/version.py"):
            assert a.read(name) == b.read(name)
            old, fresh = a.getinfo(name), b.getinfo(name)
            assert (old.compress_size, old.external_attr) == (
                fresh.compress_size,
                fresh.external_attr,
            )


def test_same_inputs_give_the_same_bytes(official: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = repacked(official, tmp_path / "a"), repacked(official, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()


def test_pip_installs_it(official: Path, tmp_path: Path) -> None:
    new = repacked(official, tmp_path)
    target = tmp_path / "site"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target",
            str(target), "--python-version", "3.11", "--only-binary=:all:", "--platform",
            "linux_x86_64", str(new),
        ],
        check=True,
    )  # fmt: skip
    assert (target / "alpha-1.0+lms.1.dist-info").is_dir()
    assert (target / "alpha/api.py").read_text().endswith("return 1\n")


def test_damaged_wheel_is_named_and_leaves_nothing(official: Path, tmp_path: Path) -> None:
    for cut in (100, official.stat().st_size - 30):
        broken = tmp_path / official.name
        broken.write_bytes(official.read_bytes()[:cut])
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        with pytest.raises(WheelError, match=broken.name):
            repacked(broken, out)
        assert not list(out.iterdir())


@pytest.mark.parametrize("kind", ["rotten", "encrypted", "unknown compression"])
def test_a_member_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    """Whatever Python's zipfile and zlib call it."""
    path = tmp_path / "a-1.0-py3-none-any.whl"
    member = "a-1.0.dist-info/METADATA"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, "Name: a\nVersion: 1.0\n" * 40)
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    if kind == "rotten":
        content[30 + len(member)] ^= 0xFF
    elif kind == "encrypted":
        content[6] |= 1
        content[central + 8] |= 1
    else:
        content[8] = content[central + 10] = 97
    path.write_bytes(content)
    with pytest.raises(WheelError, match="cannot be used because it is damaged"):
        wheelfile.requirements(path)


def test_library_is_read(official: Path, tmp_path: Path) -> None:
    wheelfile.extract(official, ["alpha/lib/libuser.so", "alpha/lib/libcore.so"], tmp_path)
    user = elf.read(tmp_path / "alpha/lib/libuser.so")
    core = elf.read(tmp_path / "alpha/lib/libcore.so")
    assert user.soname == "libuser.so"
    assert "libcore.so" in user.needed
    assert (user.rpath, user.is_runpath) == ("$ORIGIN", False)
    assert {"line20", "upstream"} <= core.exports
    assert "upstream" in user.imports and "upstream" not in user.exports
    with pytest.raises(WheelError, match="no sound"):
        elf.read(official)


def test_platform_tag_says_what_is_needed() -> None:
    old = {"libc.so.6": ["GLIBC_2.2.5"]}
    middle = {"libc.so.6": ["GLIBC_2.14", "GLIBC_2.17"]}
    new = {"libstdc++.so.6": ["GLIBCXX_3.4.30"], "libcudart.so.12": ["libcudart.so.12"]}
    assert platform_tag("x86_64", [old]) == "manylinux_2_5_x86_64"
    assert platform_tag("x86_64", [old, middle]) == "manylinux_2_17_x86_64"
    assert platform_tag("x86_64", [old, middle, new]) == "manylinux_2_35_x86_64"
    assert platform_tag("x86_64", [{"libc.so.6": ["GLIBC_9.9"]}]) == "linux_x86_64"
    with pytest.raises(WheelError, match="vax"):
        platform_tag("vax", [old])


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x", "a//x"])
def test_a_member_that_leads_out_is_named(name: str, official: Path, tmp_path: Path) -> None:
    """Another place than its name says would be no better."""
    hostile = tmp_path / official.name
    hostile.write_bytes(official.read_bytes())
    with zipfile.ZipFile(hostile, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(WheelError, match="cannot be used because it is damaged"):
        wheelfile.unpack(hostile, tmp_path / "deep/er")
    with pytest.raises(WheelError, match="cannot be used because it is damaged"):
        wheelfile.extract(hostile, [name], tmp_path / "deep/er")
    assert not list(tmp_path.rglob("x"))


@pytest.mark.parametrize(
    "file",
    [
        "torch-2.10.0-3-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.6.0+cu124.lms.1-cp311-cp311-manylinux_2_34_x86_64.whl",
        "alpha-1.0-1local-py3-none-any.whl",
    ],
)
def test_the_name_of_a_wheel(file: str) -> None:
    """Official ones may have a build number."""
    name = WheelName.of(Path(file))
    _, version, build, tags = parse_wheel_filename(file)
    assert str(name) == file and name.version == str(version)
    assert name.build == "".join(map(str, build))
    assert {str(tag) for tag in tags} == {f"{name.python}-{name.abi}-{name.platform}"}
    assert name.dist_info == f"{name.project}-{name.version}.dist-info"


@pytest.mark.parametrize("file", ["a-1.0-x-py3-none-any.whl", "a-1.0-py3-none.whl", "a.zip"])
def test_no_name_of_a_wheel(file: str) -> None:
    with pytest.raises(WheelError, match="no wheel's name"):
        WheelName.of(Path(file))
