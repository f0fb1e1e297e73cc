# SPDX-License-Identifier: Apache-2.0
"""The compiler, and compiling many files with it: in parallel, and only what has changed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lmsbuild import elf
from lmsbuild.console import Task
from lmsbuild.errors import CompileError, MissingToolError
from lmsbuild.hashing import sha256_file, sha256_value, write_atomic

_KEPT_VARIANTS = 8


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Compiler:
    """$CXX, else g++."""

    command: str

    @classmethod
    def find(cls) -> Compiler:
        name = os.environ.get("CXX", "g++")
        path = shutil.which(shlex.split(name)[0])
        if path is None:
            raise MissingToolError(
                f"nothing can be compiled because {name} is not installed; run `lmsbuild doctor`"
            )
        return cls(path)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What of the toolchain decides the objects' bytes."""
        return {
            "compiler": self._line("--version"),
            "target": self._line("-dumpmachine"),
            "linker": self._line("-Wl,--version"),
        }

    @property
    def machine(self) -> str:
        return self.identity["target"].split("-")[0]

    def system_libraries(self) -> list[elf.Library]:
        """The C and C++ libraries that the compiler links to."""
        found = []
        for name in ("libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6"):
            done = subprocess.run(
                [self.command, f"-print-file-name={name}"],
                capture_output=True,
                text=True,
                check=False,
            )
            path = Path(done.stdout.strip())
            if path.is_file():
                found.append(elf.read(path))
        return found

    def _line(self, option: str) -> str:
        done = subprocess.run([self.command, option], capture_output=True, text=True, check=False)
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

    folder: Path
    compiler: Compiler
    roots: Roots
    prefix: str
    compiled: list[str] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def object_of(self, unit: Unit) -> Path:
        """The object file of one unit, compiled if need be. Raises CompileError."""
        roots = sorted(f"{name}={root.name}" for name, root in self.roots.fixed.items())
        flags = [unit.flags, unit.include, self.prefix]
        key = sha256_value([self.compiler.identity, unit.source, *flags, roots])
        folder = self.folder / key[:2] / key
        for note in sorted(folder.glob("*.json")):
            if self._fits(json.loads(note.read_text(encoding="utf-8"))):
                os.utime(note)
                return note.with_suffix(".o")
        return self._compile(unit, folder)

    def _fits(self, dependencies: dict[str, str]) -> bool:
        return all(self._hash(name) == digest for name, digest in dependencies.items())

    def _hash(self, name: str) -> str:
        """Content of a tree or system file; for a fixed root's file, whether it is shadowed."""
        with self._lock:
            known = self._hashes.get(name)
        if known is None:
            root, _, below = name.partition(":")
            if root == "/":
                path = Path(below)
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
        folder.mkdir(parents=True, exist_ok=True)
        command = [self.compiler.command, *unit.flags]
        for name in unit.include:
            option = "-I" if name.startswith("tree:") else "-isystem"
            command += [option, str(self.roots.resolve(name))]
        command += [f"-ffile-prefix-map={self.roots.tree}={self.prefix}"]
        with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as name:
            made, listed = Path(name) / "unit.o", Path(name) / "unit.d"
            command += ["-MD", "-MF", str(listed), "-c", str(self.roots.tree / unit.source)]
            command += ["-o", str(made)]
            done = _run(command)
            if done.returncode != 0:
                first = _first(done.stderr, ": error: ", ": fatal error: ")
                raise CompileError(
                    f"{unit.source} does not compile because {first}; correct the source",
                    source=unit.source,
                    output=done.stderr,
                    command=shlex.join(command),
                )
            words = re.sub(r"\\\n", " ", listed.read_text(encoding="utf-8")).split(": ", 1)[1]
            paths = {os.path.normpath(word) for word in words.split()}
            dependencies = {short: self._hash(short) for short in map(self.roots.short, paths)}
            with self._lock:
                self.compiled.append(unit.source)
                if "warning:" in done.stderr:
                    self.warnings[unit.source] = done.stderr
            stem = sha256_value(dependencies)[:16]
            kept = folder / f"{stem}.o"
            made.replace(kept)
            write_atomic(folder / f"{stem}.json", json.dumps(dependencies).encode())
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


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """In a fixed folder, which would get into an object, and in English, to find the errors."""
    return subprocess.run(
        command,
        cwd="/",
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


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


def link(
    compiler: Compiler, objects: list[Path], out: Path, rpath: str, libraries: list[Path | str]
) -> None:
    """Link a shared library. `libraries` are files, or names for -l. Raises CompileError."""
    command = [
        compiler.command, "-shared", "-fPIC", "-pthread", *map(str, objects), "-o", str(out),
        f"-Wl,-soname,{out.name}", f"-Wl,-rpath,{rpath}", "-Wl,--disable-new-dtags",
        "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,--allow-shlib-undefined", "-Wl,--build-id=sha1",
        "-Wl,--no-as-needed",
    ]  # fmt: skip
    # By path, not by -L: that would be searched for every library, and find the wrong one.
    command += [
        str(library) if isinstance(library, Path) else f"-l{library}" for library in libraries
    ]
    done = _run(command)
    if done.returncode != 0:
        first = _first(done.stderr, "undefined reference", "cannot find", "error")
        raise CompileError(
            f"{out.name} does not link because {first}; correct the sources or the list in "
            "frameworks.toml",
            output=done.stderr,
        )
