# SPDX-License-Identifier: Apache-2.0
"""Small real conda packages, and a real client."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import zstandard
from lmsbuild_world import REPOSITORY, World, write
from rattler import (
    BuildString,
    Gateway,
    GenericVirtualPackage,
    PackageName,
    Subdir,
    Version,
    solve,
)
from rattler import install as install_packages
from rattler_build import assemble_package

from lmsbuild.conda.channel import Channel
from lmsbuild.conda.channelserver import Server, server

CONDA = """
[conda]
package = "alpha"
metapackage = "alpha-lms"
license = "Apache-2.0"
home = "https://alpha.example.org"
summary = "Alpha"
test = ["python -c 'import alpha.lms, alpha.version as v; assert len(v.__version__) > 3'"]
"""
CONTENT = {"lib/demo.txt": "demo\n"}


def give_conda(world: World) -> None:
    """Let the framework of `world` have a conda package."""
    toml = world.framework_file
    toml.write_text(toml.read_text() + CONDA)
    shutil.copytree(REPOSITORY / "conda-recipes", world.project.root / "conda-recipes")


def make(
    folder: Path, name: str = "demo", version: str = "1.0", build: str = "0",
    files: Mapping[str, str] = CONTENT, depends: Sequence[str] = (), subdir: str = "linux-64",
    number: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """A package in `folder`/<subdir>."""
    place = folder / subdir
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as staged:
        write(Path(staged), dict(files))
        made = assemble_package(
            name, version, subdir, build, place, files_dir=staged, depends=list(depends),
            build_number=number, **more,
        )  # fmt: skip
    return Path(made.path)


def meta(folder: Path, name: str, depends: Sequence[str], **more: Any) -> Path:
    """A metapackage."""
    return make(folder, name, files={}, depends=depends, subdir="noarch", noarch="generic", **more)


def rewrite(path: Path, part: str, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the members of the `info` or `pkg` part, as one who tampers would."""
    members, name, plain = _unpacked(path, part)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        files = {m.name: stream.read() for m in tar if (stream := tar.extractfile(m)) is not None}
    change(files)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    _pack(path, {**members, name: zstandard.compress(raw.getvalue())})


def append(path: Path, entries: Sequence[tarfile.TarInfo]) -> None:
    """Add members without content, of any name and kind, to the `pkg` part."""
    members, name, plain = _unpacked(path, "pkg")
    raw = io.BytesIO(plain)
    with tarfile.open(fileobj=raw, mode="a") as tar:
        for entry in entries:
            tar.addfile(entry)
    _pack(path, {**members, name: zstandard.compress(raw.getvalue())})


def _unpacked(path: Path, part: str) -> tuple[dict[str, bytes], str, bytes]:
    """The members of a package, and the name and the plain tar of one part."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = f"{part}-{path.stem}.tar.zst"
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(members[name])).read()
    return members, name, plain


def _pack(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


async def _install(
    urls: Sequence[str], specs: Sequence[str], prefix: Path, cuda: str, platform: str
) -> list[str]:
    virtual = [GenericVirtualPackage(PackageName("__glibc"), Version(_glibc()), BuildString("0"))]
    if cuda:
        entry = GenericVirtualPackage(PackageName("__cuda"), Version(cuda), BuildString("0"))
        virtual.append(entry)
    cache = prefix.parent / "rattler-cache"
    found = await solve(
        list(urls), list(specs), gateway=Gateway(cache_dir=cache / "repodata"),
        platforms=[Subdir(platform), Subdir("noarch")], virtual_packages=virtual,
    )  # fmt: skip
    await install_packages(
        found, prefix, cache_dir=cache / "pkgs", platform=Subdir(platform), show_progress=False
    )
    return sorted(f"{record.name.normalized} {record.version}" for record in found)


def _glibc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


def install(
    urls: Sequence[str], specs: Sequence[str], prefix: Path, cuda: str = "",
    platform: str = "linux-64",
) -> list[str]:  # fmt: skip
    """Solve and install into a new prefix as a conda client does, by rattler. Gives what went in.

    `cuda` is the CUDA version that the client believes the driver to have.
    """
    return asyncio.run(_install(urls, specs, prefix, cuda, platform))


@contextmanager
def running(listening: Server) -> Iterator[str]:
    """Its URL, while it answers."""
    with listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.url
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def serving(*channels: Channel) -> Iterator[list[str]]:
    """The channels' URLs, while they are served over http."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(server(channel, "127.0.0.1", 0))) for channel in channels
        ]
