# SPDX-License-Identifier: Apache-2.0
"""The whole way from a patched tree to an installed overlay, with a small real wheel."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lmsbuild_processes import run
from lmsbuild_wheels import ENGINE, PYTHON, check_record, edit, let_go, make_wheel
from lmsbuild_world import World, write

from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    CompileError,
    ConfigError,
    DownloadError,
    FileError,
    LmsbuildError,
    MismatchError,
    UsageError,
    WheelError,
)
from lmsbuild.base.hashing import sha256_bytes, sha256_file
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.refresh import refresh
from lmsbuild.wheel import overlay, wheelfile


def build(world: World, console: Console) -> overlay.Built:
    path = fetch(world.target, "git", None, console).path
    apply(world.target, path, console)
    return overlay.build(world.target, path, PYTHON, world.folder / "out", console, jobs=2)


def test_overlay_is_installed_and_used(world: World, official: Path, console: Console) -> None:
    built = build(world, console)
    check_record(built.wheel)
    assert built.wheel.name.startswith("alpha-1.0+lms.1-cp3")
    assert "manylinux" in built.wheel.name
    site = world.folder / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*command, str(built.wheel)], check=True)
    ctypes.CDLL(str(site / "alpha/lib/libcore.so"))
    assert ctypes.CDLL(str(site / "alpha/lib/libuser.so")).use() == 40 + 21
    assert (site / "alpha/version.py").read_text() == "__version__ = '1.0+lms.1'\n"
    assert (site / "alpha/api.py").read_text().endswith("return 1\n")
    assert (site / "alpha/windows.py").read_bytes() == b"first = 1\r\nsecond = 3\r\n"
    assert (site / "alpha/include/core/lms/engine.h").is_file()
    metadata = wheelfile.read(built.wheel, "alpha-1.0+lms.1.dist-info/METADATA").decode()
    assert "Version: 1.0+lms.1\n" in metadata
    about = wheelfile.read(built.wheel, "alpha-1.0+lms.1.dist-info/WHEEL").decode()
    assert f"Tag: {'-'.join(built.wheel.stem.split('-')[2:])}\n" in about


def test_manifest_tells_inputs_and_outputs(world: World, official: Path, console: Console) -> None:
    built = build(world, console)
    beside = json.loads(built.manifest.read_text())
    inside = json.loads(
        wheelfile.read(built.wheel, f"alpha-1.0+lms.1.dist-info/{overlay.MANIFEST}")
    )
    assert beside.pop("wheel") == {
        "name": built.wheel.name,
        "sha256": sha256_file(built.wheel),
        "bytes": built.wheel.stat().st_size,
    }
    assert beside.pop("key") == built.key
    assert beside == inside
    assert inside["inputs"] == {official.name: sha256_file(official)}
    assert len(inside["patches"]) == 3
    library = wheelfile.read(built.wheel, "alpha/lib/libcore.so")
    assert inside["members"]["alpha/lib/libcore.so"] == sha256_bytes(library)
    assert str(world.folder) not in built.manifest.read_text()
    assert str(world.folder).encode() not in library


def test_unchanged_is_recognised_and_one_edit_compiles_one_file(
    world: World, official: Path, console: Console
) -> None:
    assert build(world, console).compiled == 2
    began = time.monotonic()
    assert build(world, console).reused
    assert time.monotonic() - began < 2
    edit(world, ENGINE.replace("return 2", "return 3"))
    again = build(world, console)
    assert (again.reused, again.compiled) == (False, 1)
    edit(world, ENGINE)
    back = build(world, console)
    assert (back.reused, back.compiled) == (False, 0)


def test_tampered_output_is_built_again(world: World, official: Path, console: Console) -> None:
    built = build(world, console)
    content = built.wheel.read_bytes()
    built.wheel.write_bytes(content[:-1] + b"x")
    again = build(world, console)
    assert not again.reused and again.wheel.read_bytes() == content


@pytest.mark.parametrize("text", ["", "[]", '{"made": "1"}', '{"read": [], "made": "1"}'])
def test_damaged_record_of_an_object(
    world: World, official: Path, console: Console, text: str
) -> None:
    """As a full disk leaves it."""
    built = build(world, console)
    content = built.wheel.read_bytes()
    notes = list((world.folder / "cache/objects").rglob("*.json"))
    assert notes
    for note in notes:
        note.write_text(text)
    built.wheel.unlink()
    again = build(world, console)
    assert again.compiled == built.compiled and again.wheel.read_bytes() == content


def test_a_folder_where_the_wheel_goes(world: World, official: Path, console: Console) -> None:
    """It is named, and not what was to take its place; what is built waits for it to go."""
    built = build(world, console)
    built.wheel.unlink()
    built.wheel.mkdir()
    with pytest.raises(FileError) as at:
        build(world, console)
    assert at.value.message.startswith(f"{built.wheel} cannot be read or written because Is a dir")
    built.wheel.rmdir()
    assert build(world, console).wheel.is_file()


def test_a_manifest_names_a_wheel_beside_it(world: World, official: Path, console: Console) -> None:
    built = build(world, console)
    elsewhere = built.wheel.parent.parent / built.wheel.name
    built.wheel.rename(elsewhere)
    text = json.loads(built.manifest.read_text())
    text["wheel"]["name"] = f"../{elsewhere.name}"
    built.manifest.write_text(json.dumps(text))
    again = build(world, console)
    assert not again.reused and again.wheel == built.wheel and again.wheel.is_file()


def toml_replace(world: World, old: str, new: str) -> None:
    toml = world.tag_file
    assert old in toml.read_text()
    toml.write_text(toml.read_text().replace(old, new))


def refused(world: World, console: Console, kind: type[LmsbuildError], text: str) -> None:
    with pytest.raises(kind, match=text):
        build(world, console)
    assert not list((world.folder / "out").glob("*.whl"))


def test_lost_symbol_is_named(world: World, official: Path, console: Console) -> None:
    edit(world, "int engine() { return 2; }\n")
    refused(world, console, WheelError, r"libuser\.so imports upstream")


def test_source_missing_from_the_list(world: World, official: Path, console: Console) -> None:
    """CMake compiles a file that tag.toml does not list."""
    toml_replace(world, '"core/alloc.cpp", "core/lms/engine.cpp"', '"core/lms/engine.cpp"')
    refused(world, console, ConfigError, r"core/alloc\.cpp")


def test_source_missing_from_cmake(world: World, official: Path, console: Console) -> None:
    toml_replace(world, '"core/lms/engine.cpp"]', '"core/lms/engine.cpp", "core/x.cpp"]')
    refused(world, console, ConfigError, r"tag\.toml alone has core/x\.cpp")


def test_touched_file_that_would_not_ship(world: World, official: Path, console: Console) -> None:
    toml_replace(world, 'suffixes = [".py"]', 'suffixes = [".pyi"]')
    refused(world, console, ConfigError, r"python/.*\.py would be missing")


def test_wheel_of_other_code(world: World, official: Path, console: Console) -> None:
    """The official wheel's copy of a file that the series changes is not upstream's."""
    other = official.with_name("other.whl")
    official.rename(other)
    changed = {"alpha/api.py": b"def memory():\n    return 9\n"}
    wheelfile.repack(other.rename(world.folder / official.name), official, changed)
    old = sha256_file(world.folder / official.name)
    toml_replace(world, old, sha256_file(official))
    refused(world, console, MismatchError, r"alpha/api\.py")


def test_wheel_with_another_hash(world: World, official: Path, console: Console) -> None:
    toml_replace(world, sha256_file(official), "1" * 64)
    with pytest.raises(
        DownloadError, match=rf"alpha 1\.0 .*has SHA-256 {sha256_file(official)}, not 1111"
    ):
        build(world, console)


def test_python_without_a_wheel(world: World, official: Path, console: Console) -> None:
    path = fetch(world.target, "git", None, console).path
    apply(world.target, path, console)
    with pytest.raises(UsageError, match=r"Python 2\.7"):
        overlay.build(world.target, path, "2.7", world.folder / "out", console)


def test_damaged_download_is_named_and_had_anew(
    world: World, official: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(console, "warn", warnings.append)
    first = build(world, console).wheel.read_bytes()
    (cached,) = (world.folder / "cache/packages").rglob("*.whl")
    sound = cached.read_bytes()
    cached.write_bytes(sound[:-9])
    digest, size = sha256_file(cached), cached.stat().st_size
    let_go()
    shutil.rmtree(world.folder / "out")
    assert build(world, console).wheel.read_bytes() == first
    assert cached.read_bytes() == sound
    (said,) = warnings
    assert f"{cached.parent} has {size} bytes and SHA-256 {digest}, not {len(sound)} bytes" in said
    assert sha256_file(cached) in said


def test_compile_error_names_the_line(world: World, official: Path, console: Console) -> None:
    edit(world, "int engine() { return wrong; }\n")
    refused(world, console, CompileError, r"engine\.cpp does not compile.*wrong")


def test_undefined_symbol_does_not_link(world: World, official: Path, console: Console) -> None:
    edit(world, ENGINE + "int missing(); int other() { return missing(); }\n")
    refused(world, console, CompileError, "undefined reference to `missing")


def test_unpatched_tree_is_refused(world: World, official: Path, console: Console) -> None:
    path = fetch(world.target, "git", None, console).path
    with pytest.raises(WheelError, match="not applied"):
        overlay.build(world.target, path, PYTHON, world.folder / "out", console)


def test_header_edit_recompiles_its_users(world: World, official: Path, console: Console) -> None:
    edit(world, '#include "engine.h"\n' + ENGINE)
    assert build(world, console).compiled == 2
    write(world.project.root, {"lms/core/engine.h": "#pragma once\nint engine();\nint more();\n"})
    refresh(world.target, None)
    assert build(world, console).compiled == 1


def test_library_is_loaded_as_the_official_one(
    world: World, official: Path, console: Console, tmp_path: Path
) -> None:
    """Name, search path and what it needs: read by binutils, not by our own reader."""
    built = build(world, console)
    member = "alpha/lib/libcore.so"
    facts = []
    for name, wheel in (("old", official), ("new", built.wheel)):
        wheelfile.extract(wheel, [member], tmp_path / name)
        command = ["readelf", "--wide", "--dynamic", str(tmp_path / name / member)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        wanted = ("(SONAME)", "(RPATH)", "(RUNPATH)", "(NEEDED)")
        lines = [line.split(")", 1) for line in text.splitlines() if any(w in line for w in wanted)]
        system = ("libstdc++", "libm.", "libgcc_s", "libc.")
        facts.append({tuple(line) for line in lines if not any(s in line[1] for s in system)})
    assert facts[0] == facts[1]
    assert any("RPATH" in line[0] and "$ORIGIN" in line[1] for line in facts[1])


def test_library_that_needs_more_is_refused(world: World, official: Path, console: Console) -> None:
    toml_replace(world, 'variable = "CORE_SRCS" }', 'variable = "CORE_SRCS" }\nlink = ["z"]')
    refused(world, console, WheelError, r"libcore\.so does not fit because it needs libz")


Z = 'variable = "CORE_SRCS" }'


def test_library_may_differ_where_that_is_said(
    world: World, official: Path, console: Console, tmp_path: Path
) -> None:
    """It needs one more, by the name under which the wheel would bring it."""
    bundled = 'bundled = { "libz.so.1" = "libz-1a2b.so.1" }'
    toml_replace(world, Z, f'{Z}\nlink = ["z"]\n{bundled}\ndiffers = ["libz-1a2b.so.1"]')
    member = "alpha/lib/libcore.so"
    wheelfile.extract(build(world, console).wheel, [member], tmp_path)
    command = ["readelf", "--wide", "--dynamic", str(tmp_path / member)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "[libz-1a2b.so.1]" in text and "[libz.so.1]" not in text


@pytest.mark.parametrize(
    ("said", "because"),
    [
        ('differs = ["libz.so.1"]', r"libcore\.so does not fit .* correct `link` or `differs`"),
        (
            'bundled = { "libz.so.1" = "liby.so.1" }',
            r"needs? liby\.so\.1 because .*libz\.so\.1 is not",
        ),
    ],
)
def test_a_difference_that_is_none_is_refused(
    world: World, official: Path, console: Console, said: str, because: str
) -> None:
    toml_replace(world, Z, f"{Z}\n{said}")
    refused(world, console, WheelError, because)


def test_a_compiler_that_does_not_work_is_named(
    world: World, official: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    refused(world, console, CompileError, r"/bin/false is no working C\+\+ compiler.*set CXX")
    monkeypatch.setenv("CXX", "g++ '-O2")
    refused(world, console, UsageError, r"CXX=g\+\+ '-O2 cannot be used .* no closing quotation")
    program = world.folder / "g++"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    refused(world, console, FileError, f"{program.name}.* Exec format error; put the program")


def test_a_compiler_of_blanks_is_none(
    world: World, official: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", " ")
    assert build(world, console).compiled


@pytest.mark.default
def test_log_holds_all_that_the_compiler_said(world: World, official: Path) -> None:
    edit(world, "int engine() { return first; }\nint other() { return second; }\n")
    code, _, err = run("wheel", "v1.0")
    assert code == 11
    assert "engine.cpp does not compile because" in err and "first" in err and "second" not in err
    (log,) = (world.folder / "work/logs").glob("*-wheel-*.log")
    assert "second" in log.read_text() and "-ffile-prefix-map" in log.read_text()


@pytest.mark.default
def test_wheel_for_another_python_and_cuda(world: World, official: Path) -> None:
    """Nothing of the running Python gets in; each CUDA version has a wheel of its own."""
    other = make_wheel(official.parent, libraries_of(official), "cp310")
    text = world.tag_file.read_text()
    text = text.replace("sha256 = {", f'sha256 = {{ "3.10" = "{sha256_file(other)}",', 1)
    start = text.index('[cuda."0"]')
    end = text.index("[overlay]")
    second = text[start:end].replace('cuda."0"', 'cuda."13.0"').replace("lms.1", "cu130.lms.1")
    world.tag_file.write_text(text[:end] + second + text[end:])
    code, out, err = run("wheel", "v1.0", "--python", "3.10", "--cuda", "13.0", "--json")
    assert code == 0, err
    assert Path(json.loads(out)["wheel"]).name.startswith("alpha-1.0+cu130.lms.1-cp310-cp310-")
    code, _, err = run("wheel", "v1.0", "--cuda", "11.8")
    assert code == 2 and "CUDA 11.8" in err and "0, 13.0" in err
    code, _, err = run("wheel", "v1.0", "--python", "2.7")
    assert code == 2 and "3.10" in err


def libraries_of(wheel: Path) -> dict[str, Path]:
    return {f"alpha/lib/{path.name}": path for path in wheel.parent.glob("*.so")}
