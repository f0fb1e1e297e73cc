# SPDX-License-Identifier: Apache-2.0
"""A small official wheel: two real shared libraries, one of which uses the other."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from lmsbuild_world import REPOSITORY, UPSTREAM, ZERO, World, write

from lmsbuild.base import cache, use
from lmsbuild.base.hashing import sha256_file
from lmsbuild.checkout.refresh import refresh

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# libcore must go on exporting what libuser imports.
ENGINE = 'extern "C" int upstream() { return 40; }\nint engine() { return 2; }\n'
USER = "int upstream(); extern int line20; int use() { return upstream() + line20; }\n"


def build_libraries(folder: Path, compiler: str = "gcc") -> dict[str, Path]:
    """libcore.so from upstream's sources, and libuser.so that imports from it."""
    core, user = folder / "libcore.so", folder / "libuser.so"
    source = folder / "alloc.c"
    source.write_text(UPSTREAM["core/alloc.cpp"] + "int upstream() { return line20; }\n")
    (folder / "user.c").write_text(USER)
    options = ["-shared", "-fPIC", "-O1", "-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"]
    for out, text, more in ((core, source, []), (user, folder / "user.c", [str(core)])):
        command = [compiler, *options, f"-Wl,-soname,{out.name}", "-o", str(out), str(text), *more]
        subprocess.run(command, check=True)
    return {"alpha/lib/libcore.so": core, "alpha/lib/libuser.so": user}


def make_wheel(
    folder: Path, libraries: dict[str, Path], python: str = "cp311", version: str = "1.0",
    machine: str = "x86_64",
) -> Path:  # fmt: skip
    """The official wheel of alpha."""
    info = f"alpha-{version}.dist-info"
    members = {
        "alpha/__init__.py": b"",
        "alpha/version.py": f"__version__ = '{version}'\n".encode(),
        "alpha/api.py": UPSTREAM["python/api.py"].encode(),
        "alpha/windows.py": UPSTREAM["python/windows.py"].encode(),
        "alpha/gone.py": b"gone\n",
        "alpha/include/core/alloc.h": UPSTREAM["core/alloc.h"].encode(),
        **{name: path.read_bytes() for name, path in libraries.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: alpha\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
            f"Tag: {python}-{python}-linux_{machine}\n"
        ).encode(),
    }
    path = folder / f"alpha-{version}-{python}-{python}-linux_{machine}.whl"
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            # Written as a stream: the sizes stand behind the data, as in many real wheels.
            with archive.open(name, "w") as out:
                out.write(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record += f"{name},sha256={digest.decode()},{len(content)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def check_record(path: Path) -> None:
    """Every member is in RECORD with its true hash and size, and nothing else is."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(archive.namelist())
        assert len(archive.namelist()) == len(set(archive.namelist()))
        for name, (digest, size) in rows.items():
            if name == record:
                assert (digest, size) == ("", "")
                continue
            content = archive.read(name)
            made = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={made}", str(len(content)))


def offer(world: World) -> tuple[Path, dict[str, str]]:
    """The official wheel, recorded in tag.toml, and what lets pip find it."""
    folder = world.folder / "index"
    folder.mkdir()
    wheel = make_wheel(folder, build_libraries(folder), f"cp{PYTHON.replace('.', '')}")
    toml = world.tag_file
    entry = f'"3.11" = "{ZERO}"'
    toml.write_text(toml.read_text().replace(entry, f'"{PYTHON}" = "{sha256_file(wheel)}"'))
    edit(world, ENGINE)
    return wheel, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def edit(world: World, engine: str) -> None:
    """The runtime as it is to be, in lms/ and in the series."""
    write(world.project.root, {"lms/core/engine.cpp": engine})
    refresh(world.target, None)


def let_go() -> None:
    """As if this process had ended: it holds no entry of the cache and no folder any longer."""
    use.let_go()
    for path in list(cache._held):
        cache._let_go(path)


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The tool in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lmsbuild", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools"), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
