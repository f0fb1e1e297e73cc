# SPDX-License-Identifier: Apache-2.0
"""The typed form of the files in patches/, and the meaning of a tag on the command line.

`<framework>/framework.toml` says what is the same for every tag, `plugin.toml` beside it what the
plug-in is built for, and `<framework>/<tag>/tag.toml` everything of that tag.
"""

from __future__ import annotations

import difflib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tomli
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from lmsbuild.base.errors import ConfigError, FileError, UnknownTagError, UsageError
from lmsbuild.base.filenames import check_regular
from lmsbuild.base.project import FRAMEWORK_FILE, Project
from lmsbuild.tags.words import (
    Argument,
    CondaSpec,
    CudaVersion,
    CxxStandard,
    Define,
    FileName,
    Flags,
    Folder,
    FolderOfWheel,
    ImageReference,
    Include,
    InnerPath,
    LibraryPath,
    Machine,
    Prefix,
    Program,
    PythonVersion,
    QuotedValue,
    Requirements,
    Specifier,
    Suffix,
    Symbol,
    SystemPackage,
    Url,
    VariableName,
    VersionText,
    Word,
    check_word,
)

TAG_FILE = "tag.toml"
PLUGIN_FILE = "plugin.toml"
X86_64 = "x86_64"  # what the `wheel` of a variant is for
RUNTIME = "runtime"  # the folder of the patches that are the same for every tag
M = TypeVar("M", bound=BaseModel)


Sha1 = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Layout(Model):
    """Files of one folder of lms/ (not its subfolders) go to one folder of the framework."""

    source: InnerPath
    target: InnerPath
    patterns: list[FileName]


class Debian(Model):
    """A Debian source package whose orig tarball is the tag's source."""

    package: Word
    suite: Word
    version: Word  # upstream part, the Debian revision may move on
    tarball: FileName
    sha256: Sha256


class HeaderWheel(Model):
    """A wheel taken only for the headers (and link libraries) below `root`."""

    project: Word
    version: VersionText
    root: InnerPath
    sha256: Sha256


class Wheel(Model):
    """The official wheel that the overlay replaces parts of."""

    project: Word
    version: VersionText
    local: Annotated[str, Field(pattern=r"^[a-z0-9.]*$")]  # local version of ours, e.g. cu124.lms.1
    platforms: list[Word]
    version_file: InnerPath | None = None  # the Python file that holds __version__, if one does
    sha256: dict[PythonVersion, Sha256]


class Variant(Model):
    """What differs between the official wheels of a tag by their CUDA version."""

    abi: int  # _GLIBCXX_USE_CXX11_ABI
    wheel: Wheel
    headers: list[HeaderWheel] = []
    defines: list[Define] = []
    include: list[Include] = []  # after those of the overlay
    machines: dict[Machine, Wheel] = {}  # official wheels for other machines than x86_64


Manager = Literal["apt-get", "dnf", "microdnf", "yum"]


class Image(Model):
    """A container image of a tag. In names {python}, {nodot} and {cuda} stand for versions."""

    base: dict[Machine, ImageReference]
    compilers: list[Program] = []  # the first that the image has
    pythons: list[Program] = []  # likewise
    commands: list[Program] = []  # what it must have besides; looked for, not run
    packages: dict[Manager, list[SystemPackage]] = {}  # installed when something is missing
    requirements: dict[Machine, Requirements] = {}  # Python packages
    environment: dict[VariableName, QuotedValue] = {}

    @property
    def needs(self) -> list[list[str]]:
        """Of each of these the image must have one."""
        return [*filter(None, (self.compilers, self.pythons)), *([name] for name in self.commands)]


class Full(Model):
    """Upstream's own build, run in the `build` image: `fetch` with the network, then `commands`
    without, unless builds share what they compile between machines. {python}, {python_version},
    {version}, {jobs}, {output} (a folder for the wheel), {state} (one that stays for the next
    build), {cache} (one that all builds share) and {launcher} (what starts compilers) are filled
    in, in the commands and in the environment."""

    fetch: list[list[Argument]] = []
    commands: list[list[Argument]]
    memory: ByteSize  # of one compilation
    needs: list[InnerPath] = []  # files of the source that not every route brings
    environment: dict[VariableName, Argument] = {}
    ran: list[str] = []  # when and for what it was run to its end

    @property
    def bazel(self) -> bool:
        return any(command[0] == "bazel" for command in [*self.fetch, *self.commands])


class SourceList(Model):
    """A variable of upstream's CMake that must list the same sources, or a rule of a BUILD file
    that must list the same of those below its folder."""

    file: InnerPath
    variable: str


class Library(Model):
    """A shared library of the wheel that is built from the patched tree."""

    path: LibraryPath  # in the wheel
    like: InnerPath  # member whose RPATH it takes; itself when it replaces one
    # Where the official library of that path goes. The new one then needs it, has only what
    # differs, and is found first.
    official: LibraryPath | None = None
    sources: list[InnerPath]
    cmake: SourceList | None = None
    bazel: SourceList | None = None
    defines: list[Define] = []
    exports: list[Symbol] = []  # with `official`: symbols (with *) beside those that it replaces
    link: list[Word] = []  # names of libraries for -l, in order
    bundled: dict[FileName, FileName] = {}  # a needed library, as the wheel brings it
    # Needed libraries that it alone has, or the official one alone, on purpose.
    differs: list[FileName] = []

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def listed(self) -> SourceList | None:
        """Where upstream's build lists the sources."""
        return self.cmake or self.bazel


class Install(Model):
    """Touched files that go into the wheel as they are."""

    source: Folder  # folder in the tree, "" for its root
    suffixes: list[Suffix]
    target: FolderOfWheel  # folder in the wheel; {data} stands for the wheel's data folder


MadeOf = Annotated[list[Include], Field(min_length=2)]


class Generated(Model):
    """Members of the wheel that upstream's build makes of files that the series touches."""

    api: list[InnerPath] = []  # roots of the public API: what tf_export names is imported there
    protos: dict[InnerPath, InnerPath] = {}  # .proto file of the tree -> its module in the wheel
    # What is included and made first -> the program that makes it, and the files that it reads: run
    # as `python PROGRAM OUTPUT FILE...`.
    headers: dict[InnerPath, MadeOf] = {}


class Overlay(Model):
    """How the libraries are built, whatever the CUDA version."""

    cxx_standard: CxxStandard
    flags: Flags
    # Below the tree or the wheel (tree:, wheel:, {data} as in Install); header wheels come after.
    include: list[Include]
    prefix: Prefix  # what __FILE__ shows instead of the tree's path
    libraries: list[Library]
    install: list[Install]
    build_files: list[str]  # touched files (globs) that a wheel does not carry
    generated: Generated = Field(default_factory=Generated)  # made when it is needed


class Verified(Model):
    """The last time that a tag was tried on its own code, and how far."""

    on: date
    how: Literal["applied", "built", "trained"]


class Companion(Model):
    """An official wheel that is used beside the tag's, and has no conda package that fits it."""

    project: Word
    version: VersionText
    license: QuotedValue
    summary: str
    # Libraries (with *) that parts of it need and that only some systems have.
    optional: list[FileName] = []
    sha256: dict[PythonVersion | Literal["any"], Sha256]

    def digest(self, python: str) -> str | None:
        return self.sha256.get(python) or self.sha256.get("any")


class Tag(Model):
    """What is in tag.toml."""

    version: VersionText
    commit: Sha1
    debian: Debian | None = None
    cuda: dict[CudaVersion, Variant] = Field(min_length=1)  # the first is the default
    pins: Requirements = []  # of what the wheel requires: newer ones have broken it since
    alone: Requirements = []  # as of what `run` and `test` use
    uses: Requirements = []  # what the wheel uses and does not require
    tools: Requirements = []  # instead of those of the same name that `run` and `test` use
    companions: list[Companion] = []
    images: dict[Literal["compiler", "build", "runtime", "test"], Image] = {}
    full: Full | None = None
    overlay: Overlay
    preimage: dict[InnerPath, Sha1] = {}
    verified: Verified | None = None


class Release(Model):
    """An official release that the plug-in is built for."""

    tested: bool = True  # the suites pass; else it is imported only when forced
    requires: Specifier  # of the framework's version, in the wheel's metadata
    cxx_standard: CxxStandard = ""  # where something is compiled
    tag: FileName | None = None  # whose variants these are
    cuda: dict[CudaVersion, Variant] = {}

    @model_validator(mode="after")
    def _has_variants(self) -> Release:
        if (self.tag is None) != bool(self.cuda):
            raise ValueError("a release has either the tag whose variants it has, or its own cuda")
        return self


class Plugin(Model):
    """What is in plugin.toml: Large Model Support as a package beside an official wheel."""

    name: Word  # of the package
    version: VersionText
    sources: InnerPath  # folder with its Python side
    suites: InnerPath | None = None  # of its own; the framework's do for the same runtime
    packages: Requirements = []  # that its suites use beside the framework's
    layout: list[Layout] = []  # what is compiled, in addition to the framework's
    include: list[Include] = []
    flags: Flags = []
    link: list[Word] = []
    images: dict[Literal["compiler"], Image] = {}  # of releases that are no tag here
    releases: dict[VersionText, Release]

    @property
    def compiled(self) -> bool:
        """Whether it is built for each release; of Python alone, one wheel is for all."""
        return bool(self.layout)


class Shows(Model):
    """What `run` and `test` run, and on what where there is no GPU."""

    suites: InnerPath  # folder of the regression suites
    packages: Requirements = []  # that the suites use beside the framework
    # Without what they require, which is among the others or, of whatever version, the framework.
    alone: Requirements = []
    example: InnerPath  # the training run of the demonstration
    switch: VariableName  # the environment variable that turns LMS on
    device: Literal["simcuda", "cpu"]  # cpu: the framework's own CPU device with a limited pool
    tests: list[InnerPath]  # that the runtime patch names


class Conda(Model):
    """The framework's conda packages."""

    package: Word
    metapackage: Word  # pulls the package with Large Model Support
    gpu: list[Word] = []  # what others call a metapackage of theirs for a GPU: one for ours, too
    constrains: list[CondaSpec] = []  # of other channels: what does not go beside it
    license: QuotedValue
    home: Url
    summary: str
    test: list[str]  # shell lines that must succeed where the package is installed


class FrameworkFile(Model):
    """What is in framework.toml."""

    url: Url
    recognise: list[InnerPath]
    shows: Shows
    conda: Conda | None = None
    layout: list[Layout]
    line_length: dict[str, int] = {}  # upstream's own limit for files that match the glob
    # What IBM's Large Model Support had for which tags (with *), whether or not they are here.
    ibm: dict[QuotedValue, list[FileName]] = {}


class Framework(FrameworkFile):
    tags: dict[str, Tag]  # newest first
    plugin: Plugin | None

    def variants(self, release: Release) -> Mapping[str, Variant]:
        """Of a release, by CUDA version: its own, or those of its tag."""
        return self.tags[release.tag].cuda if release.tag else release.cuda


@dataclass(frozen=True)
class Target:
    """One tag of one framework, for one CUDA version, and where its patches lie."""

    framework_name: str
    tag_name: str
    framework: Framework
    tag: Tag
    project: Project
    cuda: str
    machine: str = field(default_factory=platform.machine)  # as `uname -m` says it

    @property
    def variant(self) -> Variant:
        return self.tag.cuda[self.cuda]

    @property
    def wheel(self) -> Wheel:
        """For a machine that has none of its own, that of x86_64."""
        return self.variant.machines.get(self.machine, self.variant.wheel)

    @property
    def machines(self) -> list[str]:
        """That there are official wheels for."""
        return [X86_64, *self.variant.machines]

    def for_machine(self, name: str | None) -> Target:
        """The same tag for another machine; None is this one."""
        return replace(self, machine=name or self.machine)

    @property
    def pythons(self) -> list[str]:
        """Versions (X.Y) that there are official wheels for, oldest first."""
        return sorted(self.wheel.sha256, key=lambda version: int(version.split(".")[1]))

    @property
    def version(self) -> str:
        """Of the overlay wheel."""
        return f"{self.tag.version}+{self.wheel.local}"

    def python(self, wanted: str | None) -> str:
        """`wanted` (X.Y), or the running Python if there is an official wheel for it, else the
        newest that there is one for. Raises UsageError, ConfigError where no wheel is recorded."""
        if not self.pythons:
            raise ConfigError(
                f"no wheel of {self.label} can be chosen because {self.file} records none for CUDA "
                f"{self.cuda}; add `platforms` and `sha256` of the official ones"
            )
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        version = wanted or (running if running in self.pythons else self.pythons[-1])
        self.official_sha256(version)
        return version

    def official_sha256(self, python: str) -> str:
        """Of the official wheel for CPython `python` (X.Y). Raises UsageError."""
        digest = self.wheel.sha256.get(python)
        if digest is None:
            raise UsageError(
                f"{self.wheel.project} {self.wheel.version} cannot be had for Python {python} "
                f"because its official wheels are for {', '.join(self.pythons)}; choose one with "
                "--python"
            )
        return digest

    def for_cuda(self, version: str | None) -> Target:
        """The same tag for CUDA `version`; None is the default. Raises UsageError."""
        if version is not None and version not in self.tag.cuda:
            raise UsageError(
                f"no wheel of {self.label} can be made for CUDA {version} because its official "
                f"wheels are for {', '.join(self.tag.cuda)}; choose one with --cuda"
            )
        return replace(self, cuda=version or self.cuda)

    @property
    def patches(self) -> list[Path]:
        """The files of its series, in their order."""
        folders = (self.runtime_patches, self.tag_patches)
        return [file for folder in folders for file in sorted(folder.glob("*.patch"))]

    @property
    def label(self) -> str:
        return f"{self.framework_name}:{self.tag_name}"

    @property
    def slug(self) -> str:
        return f"{self.framework_name}-{self.tag_name}"

    @property
    def file(self) -> str:
        """Of what is said of the tag, from the project's root."""
        return f"patches/{self.framework_name}/{self.tag_name}/{TAG_FILE}"

    @property
    def framework_file(self) -> str:
        return f"patches/{self.framework_name}/{FRAMEWORK_FILE}"

    @property
    def runtime_patches(self) -> Path:
        return self.project.patches / self.framework_name / RUNTIME

    @property
    def tag_patches(self) -> Path:
        return self.project.patches / self.framework_name / self.tag_name

    @property
    def work(self) -> Path:
        return self.project.work / self.slug


def image_name(slug: str, kind: str, machine: str, python: str = "", cuda: str = "") -> str:
    """Of a container image, with all that its kind depends on."""
    number = f"cu{cuda.replace('.', '')}" if cuda[:1].isdigit() else cuda
    parts = [kind, f"py{python}" if python else "", number, machine]
    return f"lmsbuild/{slug}:{'-'.join(filter(None, parts))}".lower()


def read(model: type[M], path: Path) -> M:
    """The checked content of a TOML file. Raises ConfigError naming each wrong entry."""
    try:
        check_regular(path)
        data = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} cannot be read because it is not there; take it from the project's repository"
        ) from error
    except OSError as error:
        raise FileError.of(error, str(path)) from error
    except (ValueError, RecursionError) as error:  # of TOML or UTF-8, too
        raise ConfigError(f"{path} cannot be read because {error}; correct the file") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
        )
        raise ConfigError(f"{path} is invalid because {wrong}; correct the entries") from error


def load(project: Project) -> dict[str, Framework]:
    """Every supported framework, by name. Raises ConfigError naming the file and what is wrong."""
    return {path.parent.name: _framework(path) for path in project.framework_files}


def _framework(path: Path) -> Framework:
    folder = path.parent
    for tag in filter(Path.is_dir, sorted(folder.iterdir())):
        os.scandir(tag).close()  # a glob takes one that may not be read for one that is empty
    for patch in sorted(folder.glob("*/*.patch")):
        if patch.parent.name != RUNTIME and not (patch.parent / TAG_FILE).is_file():
            raise ConfigError(
                f"{patch.parent} cannot be used because it has patches and no {TAG_FILE}; write "
                "one like that of another tag, or remove the folder"
            )
    files = sorted(folder.glob(f"*/{TAG_FILE}"))
    for name in (folder.name, *(file.parent.name for file in files)):
        try:  # it becomes a part of names of images, folders and files
            check_word(name)
        except ValueError as error:
            raise ConfigError(
                f"{folder} cannot be used because {name!r} is the name of no framework or tag; "
                "rename that folder"
            ) from error
    tags = {file.parent.name: read(Tag, file) for file in files}
    newest_first = sorted(tags.items(), key=lambda each: Version(each[1].version), reverse=True)
    file = folder / PLUGIN_FILE
    plugin = read(Plugin, file) if file.exists() else None
    for version, release in plugin.releases.items() if plugin else ():
        if release.tag is not None and release.tag not in tags:
            raise ConfigError(
                f"{file} is invalid because releases.{version} is of {release.tag}, which is no "
                "tag here; correct the entry"
            )
    return Framework(**dict(read(FrameworkFile, path)), tags=dict(newest_first), plugin=plugin)


def targets(project: Project) -> list[Target]:
    """Every supported tag: by framework, then the newest first."""
    return [
        Target(framework_name, tag_name, framework, tag, project, next(iter(tag.cuda)))
        for framework_name, framework in load(project).items()
        for tag_name, tag in framework.tags.items()
    ]


def resolve(project: Project, spec: str) -> Target:
    """`v2.6.0`, `2.6.0` or `pytorch:v2.6.0`. Raises UnknownTagError listing the near ones."""
    known = targets(project)
    framework, colon, name = spec.rpartition(":")
    found = [
        target
        for target in known
        if name in (target.tag_name, target.tag_name.removeprefix("v"))
        and (not colon or framework == target.framework_name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(target.label for target in found)
        raise UnknownTagError(
            f"{spec} is ambiguous because several frameworks have it; name one of {choices}",
            near=[target.label for target in found],
        )
    if not known:
        raise UnknownTagError(
            f"{spec} cannot be used because {project.patches} has no tags at all; check out the "
            "whole project"
        )
    _had_by_ibm(spec, framework, name, known)
    words = {target.label: target.label for target in known}
    words.update({target.tag_name: target.label for target in known})
    near = difflib.get_close_matches(spec, words, n=6, cutoff=0.4)
    labels = list(dict.fromkeys(words[word] for word in near)) or [t.label for t in known]
    shown = spec if spec.split() == [spec] else repr(spec)
    raise UnknownTagError(
        f"{shown} cannot be used because no supported framework has this tag; "
        f"name one of {', '.join(labels)} (all: `lmsbuild tags`)",
        near=labels,
    )


def _had_by_ibm(spec: str, framework: str, name: str, known: list[Target]) -> None:
    """Raises UnknownTagError, saying where to go, for a tag that IBM's users may have. What a *
    takes may be another framework's as well, so then the framework must be named."""
    plain = f"v{name.removeprefix('v')}"
    for target in known:
        if framework not in ("", target.framework_name):
            continue
        for what, tags in target.framework.ibm.items():
            for tag in (plain, f"{plain}.0"):
                listed = tag in tags or (framework and any(fnmatchcase(tag, t) for t in tags))
                if listed and tag not in target.framework.tags:
                    _send_on(spec, f"{what} for {target.framework_name}:{tag}", tag, target)


def _send_on(spec: str, had: str, tag: str, alike: Target) -> None:
    by_version = sorted((Version(tag.version), name) for name, tag in alike.framework.tags.items())
    try:
        wanted = Version(tag)
    except InvalidVersion:  # of a *
        return
    same_minor = [each for each in by_version if each[0].release[:2] == wanted.release[:2]]
    later = [each for each in by_version if each[0] > wanted]
    nearest = f"{alike.framework_name}:{(same_minor or later or by_version[-1:])[0][1]}"
    raise UnknownTagError(
        f"{spec} cannot be used because there is no series for it here, although IBM's Large Model "
        f"Support had {had}; use {nearest}, the nearest that there is, or take that series there "
        f"(`lmsbuild port {nearest} {tag}`); docs/coming-from-ibm.md says what became of IBM's "
        "names, `lmsbuild tags` lists all tags and what the plug-in is for",
        near=[nearest],
    )
