# SPDX-License-Identifier: Apache-2.0
"""A TEST channel: what a package needs beside it, made of this machine's Python and of wheels.

For the tests of recipes where no real channel can be reached. Python and what Python modules are
imported are real; packages of CUDA bring the simulated device's libraries, or nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import MissingToolError
from lmsbuild.conda.channel import Channel
from lmsbuild.conda.dependencies import FromWheel, Table, required
from lmsbuild.conda.staging import stage
from lmsbuild.wheel import elf

_LEFT_OUT = (
    "site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "config-*",
)  # fmt: skip
_WHERE = """
import sys
from sysconfig import get_config_var, get_path
print(sys.version.split()[0], get_path("stdlib"), get_config_var("LIBDIR"),
      get_config_var("DESTSHARED"))
"""
_SITE_PACKAGES = (
    "import site, sys; "
    "site.addsitedir('%s/lib/python%d.%d/site-packages' % (sys.prefix, *sys.version_info[:2]))\n"
)
_SUMMARY = "TEST package, made from files of one machine; not for use"


class TestChannel:
    """Packages for Python `python` (X.Y, run by `interpreter`) in `folder`; `wheels` is a folder
    of wheels, `libraries` one of shared libraries that stand in for others."""

    __test__ = False  # no test of pytest's

    def __init__(
        self, folder: Path, python: str, interpreter: Path, wheels: Path | None, known: Table,
        *, libraries: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self._python = python
        self._interpreter = interpreter
        self._known = known
        self._libraries = libraries
        found = sorted(wheels.glob("*.whl")) if wheels else []
        self._wheels = {self._conda_name(parse_wheel_filename(x.name)[0]): x for x in found}

    def fill(self, depends: Sequence[str], console: Console) -> Channel:
        """Add whatever `depends` (specs) ask for, and what that needs."""
        channel = Channel(self.folder)
        with console.task("making a TEST channel"), tempfile.TemporaryDirectory() as place:
            made = list(self._all(list(depends), Path(place)))
            channel.add(made, console, stubs=True)
        return channel

    def _all(self, waiting: list[str], place: Path) -> Iterator[Path]:
        done = set()
        while waiting:
            spec = waiting.pop()
            name = spec.split()[0]
            if name in done or name.startswith("__"):
                continue
            done.add(name)
            if name == "python":
                yield self._make_python(place)
            elif name in self._wheels:
                path, more = self._make_wheel(name, place)
                waiting += more
                yield path
            else:
                yield self._stand_in(spec, place)

    def _conda_name(self, project: str) -> str:
        entry = self._known.wheels.get(canonicalize_name(project))
        return entry.conda if entry and entry.conda else canonicalize_name(project)

    def _assemble(
        self, name: str, version: str, build: str, place: Path, files: Path | None,
        *, depends: Sequence[str] = (),
    ) -> Path:  # fmt: skip
        from rattler_build import assemble_package

        empty = place / "empty"
        empty.mkdir(exist_ok=True)
        out = place / "packages"
        out.mkdir(exist_ok=True)
        made = assemble_package(
            name, version, "linux-64", build, out, files_dir=files or empty, summary=_SUMMARY,
            license="LicenseRef-TEST", depends=list(depends), compression_level=1,
            detect_prefix=False,
        )  # fmt: skip
        return Path(made.path)

    def _stand_in(self, spec: str, place: Path) -> Path:
        """A package of the lowest version asked for, with the stand-ins of its libraries."""
        name, *rest = spec.split()
        version = re.search(r"\d[\w.]*", rest[0]) if rest else None
        number = version[0].rstrip(".") if version else "1.0"
        build = rest[1].replace("*", "0") if len(rest) > 1 else "test_0"
        return self._assemble(name, number, build, place, self._stand_ins(name, place))

    def _stand_ins(self, name: str, place: Path) -> Path | None:
        entries: list[FromWheel] = [x for x in self._known.wheels.values() if x.conda == name]
        wanted = {soname for entry in entries for soname in entry.libraries}
        found = [
            file
            for soname in sorted(wanted)
            if self._libraries and (file := self._libraries / soname).is_file()
        ]
        if not found:
            return None
        root = place / f"stand-in-{name}"
        (root / "lib").mkdir(parents=True)
        for file in found:
            shutil.copy2(file, root / "lib")
        return root

    def _make_wheel(self, name: str, place: Path) -> tuple[Path, list[str]]:
        wheel = self._wheels[name]
        root = place / f"wheel-{name}"
        staged = stage(wheel, root, f"lib/python{self._python}/site-packages")
        needs = [
            self._conda_name(requirement.name)
            for requirement in required(staged.requirements, self._python, "x86_64")
            if self._conda_name(requirement.name) in self._wheels
        ]
        version = str(parse_wheel_filename(wheel.name)[1])
        path = self._assemble(name, version, "test_0", place, root, depends=[*needs, "python"])
        shutil.rmtree(root)
        return path, needs

    def _make_python(self, place: Path) -> Path:
        """The interpreter with its standard library: CPython finds these beside itself."""
        done = log.run([str(self._interpreter), "-c", _WHERE])
        if done.returncode != 0:
            raise MissingToolError(
                f"no TEST channel can be made because {self._interpreter} does not run; choose "
                "another Python with --python"
            )
        version, stdlib, libdir, dynload = done.stdout.split()
        root = place / "python"
        name = f"python{self._python}"
        shutil.copytree(
            stdlib,
            root / "lib" / name,
            ignore=shutil.ignore_patterns(*_LEFT_OUT),
            ignore_dangling_symlinks=True,
        )
        if not Path(dynload).is_relative_to(stdlib):
            shutil.copytree(dynload, root / "lib" / name / "lib-dynload", dirs_exist_ok=True)
        (root / "lib" / name / "site-packages").mkdir()
        (root / "lib" / name / "site-packages" / "README.txt").write_text("TEST\n")
        debian = root / "lib" / "python3" / "dist-packages"  # its Python looks here instead
        debian.mkdir(parents=True)
        (debian / "site-packages.pth").write_text(_SITE_PACKAGES)
        (root / "bin").mkdir()
        binary = root / "bin" / name
        shutil.copy2(self._interpreter.resolve(), binary)
        for alias in ("python", "python3"):
            (root / "bin" / alias).symlink_to(name)
        for needed in elf.read(binary).needed:
            if needed.startswith("libpython"):
                shutil.copy2(Path(libdir) / needed, root / "lib" / needed)
        build = f"test_cp{self._python.replace('.', '')}"
        path = self._assemble("python", version, build, place, root)
        shutil.rmtree(root)
        return path


def wheel_requirements(requirements: Sequence[str], python: str, known: Table) -> list[str]:
    """Of what a wheel requires, what a TEST channel takes from wheels: not CUDA's libraries, and
    nothing that the table leaves out."""
    found: list[str] = []
    for requirement in required(requirements, python, "x86_64"):
        entry = known.wheels.get(canonicalize_name(requirement.name))
        if entry and entry.conda and not entry.libraries and entry.conda != "triton":
            found.append(str(Requirement(str(requirement))))
    return found
