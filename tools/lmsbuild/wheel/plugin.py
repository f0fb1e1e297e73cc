# SPDX-License-Identifier: Apache-2.0
"""torch_lms: the runtime as a package beside an official wheel, as an sdist and as a wheel.

The sdist is staged from lms/; the wheel is compiled from the same tree against the headers of one
official release. It has no Python C API in it, so that one wheel serves every Python.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from lmsbuild.base import cache
from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import UnknownTagError, UsageError, WheelError
from lmsbuild.base.filenames import check_regular
from lmsbuild.base.hashing import sha256_bytes, sha256_file, sha256_value, write_atomic
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import Project, make_folder
from lmsbuild.tags.download import header_wheel, official_wheel
from lmsbuild.tags.frameworks import Framework, Plugin, Release, Tag, Target, load
from lmsbuild.tags.runtimefiles import check_own, files_of, licence_text
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.headers import unpack, unpack_headers
from lmsbuild.wheel.libraries import find_library
from lmsbuild.wheel.platform_tag import platform_tag
from lmsbuild.wheel.toolchain import Compiler, ObjectCache, Roots, Unit, link, processors
from lmsbuild.wheel.wheelfile import WheelName

NAME = "torch_lms"
LIBRARY = "libtorch_lms.so"
CODE = "csrc"  # the C++ sources, in the sdist
MANIFEST = "lms-manifest.json"
_RPATH = "$ORIGIN/../torch/lib"
_PYTHON = "torch/cuda"  # the Python package lms lies there in the framework, and in ours here
_NO_COMMIT = "0" * 40


@dataclass(frozen=True)
class PluginTarget:
    """One official release, and how the plug-in is built for it."""

    target: Target
    plugin: Plugin
    release: Release

    @property
    def version(self) -> str:
        """Of the wheel: builds for different releases must not have one name."""
        if not self.plugin.compiled:
            return self.plugin.version
        at = Version(self.target.tag.version)
        return f"{self.plugin.version}+torch{at.major}.{at.minor}"


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    reused: bool  # nothing had changed
    compiled: int = 0  # files
    sha256: str = ""  # of the wheel


class ReleaseTarget(Target):
    """An official release that is no tag here."""

    @property
    def file(self) -> str:
        return f"patches/{self.framework_name}/plugin.toml"


def releases(project: Project) -> list[PluginTarget]:
    """Every release that the plug-in is built for, in the order of plugin.toml."""
    found = []
    for name, framework in load(project).items():
        if framework.plugin:
            suites = framework.plugin.suites or framework.shows.suites
            packages = [*framework.shows.packages, *framework.plugin.packages]
            shows = framework.shows.model_copy(update={"suites": suites, "packages": packages})
            beside = framework.model_copy(update={"shows": shows})
            for version, release in framework.plugin.releases.items():
                tag = _tag(framework, version, release)
                kind = Target if release.tag else ReleaseTarget
                target = kind(name, f"v{version}", beside, tag, project, next(iter(tag.cuda)))
                found.append(PluginTarget(target, framework.plugin, release))
    return found


def tested(found: PluginTarget) -> bytes:
    """The module of the package that says which releases it was tested beside."""
    framework = found.target.framework_name
    known = [each for each in releases(found.target.project) if each.release.tested]
    versions = [e.target.tag.version for e in known if e.target.framework_name == framework]
    return f"# SPDX-License-Identifier: Apache-2.0\nTESTED = {tuple(versions)!r}\n".encode()


def _tag(framework: Framework, version: str, release: Release) -> Tag:
    """The tag of a release; without a series of its own, only what names its official wheels."""
    if release.tag:
        return framework.tags[release.tag]
    images = framework.plugin.images if framework.plugin else {}
    return Tag.model_construct(
        version=version, commit=_NO_COMMIT, cuda=release.cuda, preimage={}, images=images
    )


def _distance(wanted: str, version: str) -> int:
    """Minor versions between the two, whatever is no version being beyond the newest."""
    try:
        ours, theirs = (Version(each).release for each in (wanted, version))
    except InvalidVersion:
        return -Version(version).minor
    return abs((ours[0] - theirs[0]) * 1000 + sum(ours[1:2]) - theirs[1])


def resolve(project: Project, spec: str) -> PluginTarget:
    """`v2.11.0`, `2.11.0`, `2.11` or `pytorch:v2.11.0`. Raises UnknownTagError with near ones."""
    known = releases(project)
    framework, _, name = spec.rpartition(":")
    wanted = name.removeprefix("v")
    for found in known:
        version = found.target.tag.version
        if framework in ("", found.target.framework_name) and wanted in (
            version,
            version.rpartition(".")[0],
        ):
            return found
    if not known:
        raise UnknownTagError(
            f"no plug-in can be built for {spec} because no framework here has one (a plugin.toml "
            "with releases); use the project that has it"
        )
    meant = framework or known[0].target.framework_name
    alike = [found for found in known if found.target.framework_name == meant] or known
    nearest = sorted(alike, key=lambda found: _distance(wanted, found.target.tag.version))
    near = [found.target.tag_name for found in nearest[:3]]
    raise UnknownTagError(
        f"no plug-in can be built for {spec} because plugin.toml has no such release; "
        f"near ones: {', '.join(near)}; to try a new one, "
        f"`lmsbuild plugin {wanted} --new`",
        near=near,
    )


def resolve_runtime(project: Project, spec: str, what: str) -> PluginTarget:
    """As `resolve`, where only the runtime beside a framework will do. Raises UsageError, too."""
    found = resolve(project, spec)
    if not found.plugin.compiled:
        raise UsageError(
            f"there is no {what} of {found.plugin.name} because it rewrites graphs and has no "
            "runtime; name a release of PyTorch"
        )
    return found


# The source tree ---------------------------------------------------------------------------------


def source_files(found: PluginTarget) -> dict[str, bytes]:
    """The sdist's files by path. The same for every release."""
    root = found.target.project.root
    files: dict[str, bytes] = {}
    layout = [*found.target.framework.layout, *found.plugin.layout]
    for path, file in files_of(found.target, layout).items():
        if path.startswith(f"{_PYTHON}/"):  # not what makes sources of a framework's headers
            files[f"{NAME}/{PurePosixPath(path).relative_to(_PYTHON)}"] = file.read_bytes()
        elif path.endswith((".h", ".cpp")):
            files[f"{CODE}/{path}"] = file.read_bytes()
    folder = root / found.plugin.sources
    for part in ("python", "package"):
        for file in sorted((folder / part).rglob("*")):
            if not file.is_dir() and "__pycache__" not in file.parts:
                check_own(root, file)
                files[file.relative_to(folder / part).as_posix()] = file.read_bytes()
    files[f"{NAME}/_tested.py"] = tested(found)
    files["flags.json"] = _json(_flags(found.plugin))
    files["LICENSE"] = licence_text(root)
    files["PKG-INFO"] = _metadata(found.plugin.version, "")
    return files


def _flags(plugin: Plugin) -> dict[str, object]:
    standards = {
        ".".join(version.split(".")[:2]): release.cxx_standard
        for version, release in plugin.releases.items()
    }
    return {"version": plugin.version, "flags": plugin.flags, "standards": standards}


def _metadata(version: str, requires: str) -> bytes:
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = NAME.replace("_", "-")
    message["Version"] = version
    message["Summary"] = "Large Model Support for an unpatched PyTorch"
    message["License"] = "Apache-2.0"
    message["Requires-Python"] = ">=3.9"
    if requires:
        message["Requires-Dist"] = f"torch{requires}"
    return message.as_bytes()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_sdist(found: PluginTarget, files: dict[str, bytes], output: Path) -> Path:
    """The sdist in `output`. Same inputs give the same bytes."""
    stem = f"{found.plugin.name}-{found.plugin.version}"
    path = output / f"{stem}.tar.gz"
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(f"{stem}/{name}")
            info.size, info.mode = len(files[name]), 0o644
            archive.addfile(info, io.BytesIO(files[name]))
    write_atomic(path, gzip.compress(raw.getvalue(), mtime=0))
    return path


# The wheel ---------------------------------------------------------------------------------------


def build(
    found: PluginTarget,
    python: str,
    output: Path,
    console: Console,
    jobs: int | None = None,
    *,
    dry_run: bool = False,
    compiler: Compiler | None = None,
) -> Built:
    """Make the sdist, and the wheel for one release, in `output`. A `compiler` of a container must
    be able to read `workplace`.

    Raises CompileError, DownloadError, MissingToolError or WheelError.
    """
    files = source_files(found)
    name = f"{NAME}-{found.version}-py3-none"
    sdist = output / f"{NAME}-{found.plugin.version}.tar.gz"
    if dry_run:
        return Built(output / f"{name}-*.whl", sdist, reused=False)
    compiler = compiler or Compiler.find()
    key = sha256_value(
        {
            "files": {name: sha256_bytes(content) for name, content in files.items()},
            "release": found.release.model_dump(mode="json"),
            "variant": found.target.variant.model_dump(mode="json"),
            "plugin": found.plugin.model_dump(mode="json"),
            "toolchain": compiler.identity,
        }
    )
    make_folder(output)
    with Lock(output / ".lock"):
        write_sdist(found, files, output)
        for wheel in output.glob(f"{name}-*.whl"):
            made_of = key_of(wheel)
            if made_of == key and wheelfile.is_whole(wheel):
                return Built(wheel, sdist, reused=True, sha256=sha256_file(wheel))
            if made_of:  # otherwise it is none of ours
                wheel.unlink()
        return _make(
            found,
            files,
            key,
            sdist,
            compiler,
            python=python,
            jobs=jobs or processors(),
            console=console,
        )


def key_of(wheel: Path) -> str:
    """What it was made of; "" for what is no wheel of ours."""
    try:
        check_regular(wheel)
        manifest = wheelfile.read(wheel, f"{WheelName.of(wheel).dist_info}/{MANIFEST}")
        return str(json.loads(manifest)["key"])
    except (OSError, WheelError, ValueError, KeyError, TypeError):
        return ""


def _make(
    found: PluginTarget,
    files: dict[str, bytes],
    key: str,
    sdist: Path,
    compiler: Compiler,
    *,
    python: str,
    jobs: int,
    console: Console,
) -> Built:
    target, plugin = found.target, found.plugin
    roots = _roots(found, files, python, console)
    headers = [f"{h.project}:{h.root}/include" for h in target.variant.headers]
    flags = (
        f"-std={found.release.cxx_standard}",
        f"-D_GLIBCXX_USE_CXX11_ABI={target.variant.abi}",
        *plugin.flags,
    )
    below = f"{CODE}/"
    units = [
        Unit(file.removeprefix(below), flags, (*plugin.include, *headers))
        for file in sorted(files)
        if file.startswith(below) and file.endswith(".cpp")
    ]
    objects = ObjectCache(compiler, roots, f"/{NAME}")
    with console.step(f"compiling {counted(len(units), 'file')}", total=len(units)) as task:
        compiled = objects.objects_of(units, jobs, task)
        task.note = f"{len(objects.compiled)} anew"
    for source, text in objects.warnings.items():
        console.warn(f"{source} compiles with warnings:\n{text}")
    with cache.scratch() as folder, console.step("linking") as step:
        library = folder / LIBRARY
        places = list(roots.fixed.values())
        link(
            compiler, compiled, library, _RPATH,
            [find_library(each, places) or each for each in plugin.link],
        )  # fmt: skip
        platform = platform_tag(compiler.machine, [elf.read(library).versions])
        content = library.read_bytes()
        step.size = len(content)
    name = WheelName(NAME, found.version, "py3", "none", platform)
    built_for = (
        "# SPDX-License-Identifier: Apache-2.0\n"
        f'BUILT_FOR = "{target.tag.version}"\n'
        f'CUDA = "{target.cuda}"\n'
        f"ABI = {bool(target.variant.abi)}\n"
    )
    manifest = {
        "schema": 1,
        "key": key,
        "built_for": target.label,
        "toolchain": compiler.identity,
        "sources": sha256_value(objects.read),
    }
    members = {
        **{path: text for path, text in files.items() if _is_installed(path)},
        f"{NAME}/_built_for.py": built_for.encode(),
        f"{NAME}/{LIBRARY}": content,
        f"{name.dist_info}/METADATA": _metadata(found.version, found.release.requires),
        f"{name.dist_info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: lmsbuild\nRoot-Is-Purelib: false\n"
            f"Tag: py3-none-{platform}\n"
        ).encode(),
        f"{name.dist_info}/LICENSE": files["LICENSE"],
        f"{name.dist_info}/{MANIFEST}": _json(manifest),
    }
    wheel = sdist.with_name(str(name))
    wheelfile.create(wheel, members)
    return Built(
        wheel, sdist, reused=False, compiled=len(objects.compiled), sha256=sha256_file(wheel)
    )


def _is_installed(path: str) -> bool:
    return path.startswith(f"{NAME}/") or path in ("_torch_lms_switch.py", "torch_lms.pth")


def workplace(target: Target) -> Path:
    """What is compiled is put into a folder there."""
    return target.work / "plugin"


def _roots(found: PluginTarget, files: dict[str, bytes], python: str, console: Console) -> Roots:
    """The sources, the headers and the libraries to link to, unpacked."""
    target = found.target
    tree = workplace(target) / CODE
    shutil.rmtree(tree, ignore_errors=True)
    for name, content in files.items():
        if name.startswith(f"{CODE}/"):
            path = tree / name.removeprefix(f"{CODE}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    wheel = official_wheel(target, python, console)
    linked = {f"torch/lib/lib{name}.so" for name in found.plugin.link}
    members = [
        member
        for member in wheelfile.names(wheel)
        if member.startswith("torch/include/") or member in linked
    ]
    fixed = {"wheel": unpack(wheel, target.wheel.sha256[python], members, target, console)}
    for header in target.variant.headers:
        file = header_wheel(header, target, console)
        fixed[header.project] = unpack_headers(header, file, target, console)
    return Roots(tree, fixed)
