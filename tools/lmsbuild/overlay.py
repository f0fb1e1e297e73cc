# SPDX-License-Identifier: Apache-2.0
"""The overlay wheel: the official wheel with a few libraries built from the patched tree.

Checked before anything is written: the tree is the one the wheel was made of, every touched file
reaches the wheel, and the new libraries fit where the old ones were.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lmsbuild import __version__, cmake, elf, wheelfile
from lmsbuild.console import Console
from lmsbuild.download import hash_memory, header_wheel, official_wheel
from lmsbuild.errors import ConfigError, MismatchError, WheelError
from lmsbuild.frameworks import HeaderWheel, Library, Target
from lmsbuild.git import Git
from lmsbuild.hashing import (
    git_blob,
    sha256_large_file,
    sha256_value,
    write_atomic,
)
from lmsbuild.platform_tag import platform_tag
from lmsbuild.project import cache_dir
from lmsbuild.series import NO_BLOB, Series, series_of
from lmsbuild.toolchain import Compiler, ObjectCache, Roots, Unit, link, processors
from lmsbuild.wheelfile import WheelName

MANIFEST = "lms-manifest.json"
SCHEMA = 1
# Part of the C library or the compiler: their split into files changed over the years.
_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*\.so\.\d+)$")


@dataclass(frozen=True)
class Built:
    wheel: Path
    manifest: Path
    key: str
    reused: bool  # nothing had changed
    compiled: int
    sha256: str


@dataclass(frozen=True)
class _Inputs:
    """Everything that decides the bytes of the wheel."""

    target: Target
    tree: Path
    series: Series
    python: str
    wheel: Path
    headers: dict[str, Path]
    compiler: Compiler
    tree_id: str

    def manifest(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "tag": self.target.label,
            "commit": self.target.tag.commit,
            "lmsbuild": __version__,
            "python": self.python,
            "patches": {patch.name: patch.sha256 for patch in self.series.patches},
            "tree": self.tree_id,
            "overlay": sha256_value(self.target.tag.overlay.model_dump(mode="json")),
            "cuda": self.target.cuda,
            "version": self.target.version,
            "toolchain": self.compiler.identity,
            "inputs": {
                self.wheel.name: self.target.wheel.sha256[self.python],
                **{
                    self.headers[header.project].name: header.sha256
                    for header in self.target.variant.headers
                },
            },
        }


def build(
    target: Target,
    tree: Path,
    python: str,
    output: Path,
    console: Console,
    jobs: int | None = None,
    dry_run: bool = False,
) -> Built:
    """Make the overlay wheel of the patched checkout `tree` for CPython `python` in `output`.

    Raises ConfigError, MismatchError, CompileError, WheelError or DownloadError.
    """
    inputs = _gather(target, tree, python, console)
    manifest = inputs.manifest()
    key = sha256_value(manifest)
    output.mkdir(parents=True, exist_ok=True)
    with FileLock(output / ".lock"):
        found = _existing(output, key)
        if found:
            return found
        _check_lists(inputs)
        if dry_run:
            name = WheelName.of(inputs.wheel)
            version = target.version
            path = output / f"{name.project}-{version}-{name.python}-{name.abi}-*.whl"
            return Built(path, Path(f"{path}.manifest.json"), key, False, 0, "")
        return _make(inputs, key, manifest, output, jobs or processors(), console)


def _gather(target: Target, tree: Path, python: str, console: Console) -> _Inputs:
    series = series_of(target)
    git = Git(tree)
    if series.applied(git) != len(series.patches):
        raise WheelError(
            f"no wheel can be made of {tree} because the series of {target.label} is not applied "
            f"there; run `lmsbuild apply {target.tag_name}`"
        )
    return _Inputs(
        target=target,
        tree=tree.resolve(),
        series=series,
        python=python,
        wheel=official_wheel(target.wheel, python, console),
        headers={h.project: header_wheel(h, console) for h in target.variant.headers},
        compiler=Compiler.find(),
        tree_id=git.text("rev-parse", "HEAD^{tree}"),
    )


def _existing(output: Path, key: str) -> Built | None:
    for note in output.glob("*.manifest.json"):
        try:
            manifest = json.loads(note.read_text(encoding="utf-8"))
            wheel = output / manifest["wheel"]["name"]
            if manifest["key"] == key and wheel.is_file():
                digest = sha256_large_file(wheel, hash_memory())
                if digest == manifest["wheel"]["sha256"]:
                    return Built(wheel, note, key, True, 0, digest)
        except (OSError, ValueError, KeyError):
            continue
    return None


# What goes where ---------------------------------------------------------------------------------


def installed_as(target: Target, file: str) -> str | None:
    """The member that a touched file of the tree becomes as it is, if it does."""
    for rule in target.tag.overlay.install:
        prefix = f"{rule.source}/" if rule.source else ""
        if file.startswith(prefix) and Path(file).suffix in rule.suffixes:
            return f"{rule.target}/{file.removeprefix(prefix)}"
    return None


def _check_lists(inputs: _Inputs) -> None:
    """Every touched file must reach the wheel; sources must be those that CMake compiles."""
    overlay = inputs.target.tag.overlay
    compiled = {source for library in overlay.libraries for source in library.sources}
    for file in inputs.series.before:
        if (
            file not in compiled
            and installed_as(inputs.target, file) is None
            and not any(fnmatch.fnmatch(file, pattern) for pattern in overlay.build_files)
        ):
            raise ConfigError(
                f"{file} would be missing from the wheel because no library compiles it and no "
                "rule installs it; add it to frameworks.toml",
                file=file,
            )
    for library in overlay.libraries:
        cmake.check_sources(library, inputs.tree)


def _installed_members(inputs: _Inputs) -> tuple[dict[str, bytes], frozenset[str]]:
    """Members changed and removed by touched files that go in as they are.

    A file that upstream has must be in the official wheel with upstream's content: otherwise the
    wheel was built of other code, and the patched file would not fit it.
    """
    changed: dict[str, bytes] = {}
    removed: set[str] = set()
    members = set(wheelfile.names(inputs.wheel))
    after = inputs.series.after()
    for file, before in inputs.series.before.items():
        member = installed_as(inputs.target, file)
        if member is None:
            continue
        if before != NO_BLOB and member in members:
            found = git_blob(wheelfile.read(inputs.wheel, member))
            if found != before:
                raise MismatchError(
                    f"{inputs.wheel.name} was not built of {inputs.target.label} because its "
                    f"{member} has blob {found}, not {before}; the overlay cannot be made"
                )
        if after[file] == NO_BLOB:
            removed.add(member)
        else:
            changed[member] = (inputs.tree / file).read_bytes()
    return changed, frozenset(removed)


# Building ----------------------------------------------------------------------------------------


def _make(
    inputs: _Inputs,
    key: str,
    manifest: dict[str, object],
    output: Path,
    jobs: int,
    console: Console,
) -> Built:
    overlay = inputs.target.tag.overlay
    changed, removed = _installed_members(inputs)
    compiler = inputs.compiler
    with tempfile.TemporaryDirectory(dir=output, prefix=".build-") as name:
        folder = Path(name)
        with console.task("unpacking headers"):
            roots = Roots(inputs.tree, _unpack_all(inputs))
        cache = ObjectCache(cache_dir() / "objects", compiler, roots, overlay.prefix)
        with ThreadPoolExecutor(1) as background:
            official = background.submit(_official_libraries, inputs)
            objects = _compile(inputs, cache, jobs, console)
            with console.task("reading the official libraries, linking"):
                built = _link(inputs, roots, objects, folder, official)
        with console.task("checking the libraries"):
            platform = _check_fit(inputs, built, official.result())
        changed.update({member: file.read_bytes() for member, file in built.items()})
        for source, text in cache.warnings.items():
            if source in inputs.series.before:
                console.warn(f"{source} compiles with warnings:\n{text}")
        old = WheelName.of(inputs.wheel)
        version = inputs.target.version
        new = WheelName(old.project, version, old.python, old.abi, platform)
        changed.update(_identity(inputs, old, new))
        manifest = {
            **manifest,
            "key": key,
            "members": {
                **{member: sha256_bytes(content) for member, content in sorted(changed.items())},
                **dict.fromkeys(sorted(removed), "removed"),
            },
        }
        changed[f"{new.dist_info}/{MANIFEST}"] = _json(manifest)
        wheel = output / str(new)
        with console.task(f"writing {wheel.name}"):
            wheelfile.repack(inputs.wheel, wheel, changed, removed)
            digest = sha256_large_file(wheel, hash_memory())
    beside = wheel.with_name(f"{wheel.name}.manifest.json")
    about = {"name": wheel.name, "sha256": digest, "bytes": wheel.stat().st_size}
    write_atomic(beside, _json({**manifest, "wheel": about}))
    return Built(wheel, beside, key, False, len(cache.compiled), digest)


def sha256_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _unpack_all(inputs: _Inputs) -> dict[str, Path]:
    overlay = inputs.target.tag.overlay
    wanted = [i.removeprefix("wheel:") for i in overlay.include if i.startswith("wheel:")]
    linked = {f"lib{name}.so" for library in overlay.libraries for name in library.link}

    def of_official(member: str) -> bool:
        return any(member.startswith(f"{folder}/") for folder in wanted) or (
            member.rsplit("/", 1)[-1] in linked
        )

    roots = {
        "wheel": _unpack(
            inputs.wheel,
            inputs.target.wheel.sha256[inputs.python],
            sorted(linked),
            of_official,
        )
    }
    for header in inputs.target.variant.headers:
        roots[header.project] = _unpack_headers(header, inputs.headers[header.project])
    return roots


def _unpack_headers(header: HeaderWheel, wheel: Path) -> Path:
    below = re.compile(rf"{re.escape(header.root)}/(include|lib)/")
    return _unpack(wheel, header.sha256, [], lambda member: bool(below.match(member)))


def header_folders(target: Target, console: Console) -> list[Path]:
    """The CUDA include folders of a tag, downloaded and unpacked if need be."""
    return [
        _unpack_headers(header, header_wheel(header, console)) / header.root / "include"
        for header in target.variant.headers
    ]


def _unpack(wheel: Path, digest: str, linked: list[str], wanted: Callable[[str], bool]) -> Path:
    folder = cache_dir() / "unpacked" / sha256_value([digest, linked])[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new-") as name:
                fresh = Path(name) / "content"
                fresh.mkdir()
                members = [member for member in wheelfile.names(wheel) if wanted(member)]
                wheelfile.extract(wheel, members, fresh)
                fresh.rename(folder)
    return folder


def _compile(
    inputs: _Inputs, cache: ObjectCache, jobs: int, console: Console
) -> dict[str, list[Path]]:
    """Objects per library (by its path in the wheel)."""
    overlay = inputs.target.tag.overlay
    headers = [f"{h.project}:{h.root}/include" for h in inputs.target.variant.headers]
    include = [*overlay.include, *headers]
    units: dict[str, list[Unit]] = {}
    for library in overlay.libraries:
        flags = (
            f"-std={overlay.cxx_standard}",
            f"-D_GLIBCXX_USE_CXX11_ABI={inputs.target.variant.abi}",
            *overlay.flags,
            *(f"-D{define}" for define in library.defines),
        )
        units[library.path] = [Unit(source, flags, tuple(include)) for source in library.sources]
    everything = [unit for group in units.values() for unit in group]
    with console.task(f"compiling {len(everything)} files", total=len(everything)) as task:
        objects = dict(zip(everything, cache.objects_of(everything, jobs, task), strict=True))
    return {path: [objects[unit] for unit in group] for path, group in units.items()}


def _link(
    inputs: _Inputs,
    roots: Roots,
    objects: dict[str, list[Path]],
    folder: Path,
    official: Future[dict[str, elf.Library]],
) -> dict[str, Path]:
    """Link in the order of the list, so that a library finds those before it."""
    built: dict[str, Path] = {}
    for library in inputs.target.tag.overlay.libraries:
        out = folder / library.name
        places = [folder, *roots.fixed.values()]
        libraries = [_find_library(name, places) or name for name in library.link]
        rpath = official.result()[library.like].rpath
        link(inputs.compiler, objects[library.path], out, rpath, libraries)
        built[library.path] = out
    return built


def _find_library(name: str, places: list[Path]) -> Path | None:
    for place in places:
        found = sorted(place.rglob(f"lib{name}.so")) or sorted(place.rglob(f"lib{name}.so.*"))
        if found:
            return found[0]
    return None


def _official_libraries(inputs: _Inputs) -> dict[str, elf.Library]:
    """What each library of the official wheel needs and gives (member -> Library).

    Of the symbols only those that a replaced library exports are kept; the rest is of no use
    here and large.
    """
    replaced = [lib.path for lib in inputs.target.tag.overlay.libraries if lib.path == lib.like]
    digest = inputs.target.wheel.sha256[inputs.python]
    note = cache_dir() / "libraries" / f"{sha256_value([digest, replaced, SCHEMA])[:16]}.json"
    if note.is_file():
        data = json.loads(note.read_text(encoding="utf-8"))
        return {
            member: elf.Library(
                **{
                    **fields,
                    "imports": frozenset(fields["imports"]),
                    "exports": frozenset(fields["exports"]),
                }
            )
            for member, fields in data.items()
        }
    found: dict[str, elf.Library] = {}
    note.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=note.parent, prefix="new-") as name:
        for member in wheelfile.names(inputs.wheel):
            if re.search(r"\.so(\.[\w.]+)?$", member):
                file = Path(name) / "library.so"
                wheelfile.extract_one(inputs.wheel, member, file)
                found[member] = elf.read(file)
    given = frozenset().union(*(found[member].exports for member in replaced))
    slim = {
        member: elf.Library(
            library.soname, library.needed, library.rpath, library.is_runpath, library.versions,
            library.imports & given, library.exports & given,
        )
        for member, library in found.items()
    }  # fmt: skip
    data = {
        member: {
            **vars(library),
            "imports": sorted(library.imports),
            "exports": sorted(library.exports),
        }
        for member, library in slim.items()
    }
    write_atomic(note, json.dumps(data).encode())
    return slim


def _check_fit(inputs: _Inputs, built: dict[str, Path], official: dict[str, elf.Library]) -> str:
    """Check the new libraries against the wheel; gives the platform tag of the whole."""
    new = {member: elf.read(file) for member, file in built.items()}
    for library in inputs.target.tag.overlay.libraries:
        _check_library(library, new[library.path], official)
    everything = {**official, **new}
    # What the official compiler put into every library, today's systems have in the C++ library.
    given = [*everything.values(), *inputs.compiler.system_libraries()]
    exported = frozenset[str]().union(*(library.exports for library in given))
    for member, user in official.items():
        missing = sorted(user.imports - exported)
        if missing and member not in new:
            raise WheelError(
                f"the overlay does not fit because {member} imports {missing[0]} and "
                f"{len(missing) - 1} more that nothing exports any longer; keep upstream's "
                "interface",
                missing=missing,
                member=member,
            )
    return platform_tag(inputs.compiler.machine, [lib.versions for lib in everything.values()])


def _check_library(library: Library, new: elf.Library, official: dict[str, elf.Library]) -> None:
    like = official[library.like]
    if library.path == library.like:
        ours = {name for name in new.needed if not _SYSTEM.match(name)}
        theirs = {name for name in like.needed if not _SYSTEM.match(name)}
        if ours != theirs:
            raise WheelError(
                f"{library.name} does not fit because it needs {', '.join(sorted(ours))}, the "
                f"official one {', '.join(sorted(theirs))}; correct `link` in frameworks.toml"
            )
    if new.soname != library.name or new.rpath != like.rpath or new.is_runpath != like.is_runpath:
        raise WheelError(
            f"{library.name} does not fit because its soname or RPATH is not as in "
            f"{library.like}; this is a defect of the link step"
        )


def _identity(inputs: _Inputs, old: WheelName, new: WheelName) -> dict[str, bytes]:
    """METADATA, WHEEL and the version file with the new version and tag."""
    metadata = wheelfile.read(inputs.wheel, f"{old.dist_info}/METADATA").decode()
    metadata = re.sub(r"^Version: .*$", f"Version: {new.version}", metadata, count=1, flags=re.M)
    about = wheelfile.read(inputs.wheel, f"{old.dist_info}/WHEEL").decode()
    about = re.sub(r"^(Tag|Generator): .*\n", "", about, flags=re.M).rstrip("\n")
    about += f"\nGenerator: lmsbuild {__version__}\n"
    about += f"Tag: {new.python}-{new.abi}-{new.platform}\n"
    member = inputs.target.wheel.version_file
    text = wheelfile.read(inputs.wheel, member).decode()
    version, count = re.subn(
        r"^__version__ = .*$", f"__version__ = '{new.version}'", text, count=1, flags=re.M
    )
    if not count:
        raise WheelError(
            f"the version cannot be set because {member} has no __version__ line; correct "
            "version_file in frameworks.toml"
        )
    return {
        f"{new.dist_info}/METADATA": metadata.encode(),
        f"{new.dist_info}/WHEEL": about.encode(),
        member: version.encode(),
    }
