# SPDX-License-Identifier: Apache-2.0
"""The CI matrix: what to build of each tag, as a function of the tags and of ci/matrix.toml, and
pipelines of it.

A cell is one wheel: tag x Python x CUDA x architecture. Where there is an official wheel it is made
an overlay; what no official wheel covers is included by rule and built in full. The packages that
go beside an unpatched framework have a cell for each release that they are tested with.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import jinja2
from pydantic import Field

from lmsbuild.base.errors import ConfigError, SeriesError
from lmsbuild.base.hashing import write_atomic
from lmsbuild.base.project import Project
from lmsbuild.tags.frameworks import (
    X86_64,
    Framework,
    Model,
    image_name,
    load,
    read,
)
from lmsbuild.tags.words import CudaVersion, Machine, PythonVersion, Word

FILE = "ci/matrix.toml"
# Pipelines, by the name that --format takes: template and rendered file, below ci/.
PIPELINES = {
    "github": "github/lms.yml",
    "github-release": "github/lms-release.yml",
    "gitlab": "gitlab/lms.gitlab-ci.yml",
    "jenkins": "jenkins/Jenkinsfile",
}
TOOL_PYTHON = "3.11"  # that the jobs run lmsbuild with
# Of lmsbuild's cache, what all cells of a tag use: its source and headers.
CACHED = ("downloads", "headers", "repositories")
# Makes the channel of all that was released, in the folder `releases`.
CHANNEL = (
    "lmsbuild conda lmsbuild --test none --output releases/lmsbuild",
    "find releases -name '*.conda' -exec lmsbuild channel add channel {} +",
    "lmsbuild channel verify channel",
)


class Selection(Model):
    """Cells of the CI matrix, each part by a glob."""

    framework: str = "*"
    tag: str = "*"
    python: str = "*"
    cuda: str = "*"
    arch: str = "*"
    why: str


class Cell(Model):
    """One wheel that CI builds: an overlay of the official one, everything from source, or the
    package beside the official release `tag`."""

    framework: Word
    tag: Word
    python: PythonVersion
    cuda: CudaVersion
    arch: Machine
    build: Literal["overlay", "full", "plugin"]


class Runner(Model):
    """What a CI system calls the machines of an architecture."""

    github: list[str]  # labels
    gitlab: list[str]  # tags; none: any runner
    jenkins: str  # label expression


class Matrix(Model):
    """What is in ci/matrix.toml."""

    gpu: Runner = Runner(github=[], gitlab=[], jenkins="")  # machines with a GPU, where there are

    exclude: list[Selection] = Field(default_factory=list)
    include: list[Cell] = Field(default_factory=list)  # what no official wheel covers
    runners: dict[str, Runner] = Field(default_factory=dict)  # by architecture


@dataclass(frozen=True)
class Job:
    """A cell as a pipeline has it: where it runs and its commands, in order."""

    cell: Cell
    runner: Runner
    newest: bool = False  # of the Pythons of its tag and CUDA version
    default: bool = False  # of the tag's CUDA versions
    companions: bool = False  # go beside its wheel
    gpu: bool = False  # runs the suites on a GPU, and nothing else
    package: str = ""  # with the version, of a plug-in's cell
    compiled: bool = True  # of Python alone it runs everywhere
    others: tuple[str, ...] = ()  # Pythons of which it makes conda packages as well
    ships: bool = True  # a release has what this makes

    @property
    def name(self) -> str:
        cell = self.cell
        if self.plugin:
            return f"{cell.framework}-{cell.tag}-plugin"
        python, cuda = cell.python.replace(".", ""), cell.cuda.replace(".", "")
        device = f"cu{cuda}" if cuda.isdigit() else cuda
        name = f"{cell.framework}-{cell.tag}-py{python}-{device}-{cell.arch}"
        return f"{name}-gpu" if self.gpu else name

    @property
    def tag(self) -> str:
        return self.name if self.plugin else f"{self.cell.framework}-{self.cell.tag}"

    @property
    def file(self) -> str:
        """Names what is downloaded for the tag."""
        if self.plugin:
            return f"patches/{self.cell.framework}/plugin.toml"
        return f"patches/{self.cell.framework}/{self.cell.tag}/tag.toml"

    @property
    def minutes(self) -> int:
        """After which the job is stopped: an overlay takes minutes, a full build hours."""
        return 24 * 60 if self.full else 60

    @property
    def pythons(self) -> list[str]:
        """That its commands use."""
        return [*self.others, self.cell.python]

    @property
    def full(self) -> bool:
        return self.cell.build == "full"

    @property
    def plugin(self) -> bool:
        return self.cell.build == "plugin"

    @property
    def commands(self) -> list[str]:
        """An overlay or a plug-in is compiled in a container, so that it runs where the official
        wheel does and not only where this runner's libraries are; tested and packaged is that
        wheel."""
        if self.gpu:
            return [self._command("test", "--device cuda")]
        if self.full:
            return [self._command("wheel", "--full --output dist")]  # for the runner's machine
        if self.plugin:
            return [*self._plugin_commands("dist"), self._plugin_test("dist")]
        return [
            self._command("wheel", "--container --output dist"),
            self._command("test", "--wheel dist/*.whl"),
            self._command("conda", f"--wheel dist/*.whl{self._subdir} --output dist"),
        ]

    @property
    def release_commands(self) -> list[str]:
        """Into `release`; the key is there when the CI system has one. The wheel comes out the same
        as that in the image."""
        if self.plugin:
            return self._plugin_commands(f"release/{self.package}")
        named = f"--image {self.image} " if self.image else ""
        lines = [self._command("wheel", "--container --output dist")]
        if self.companions:
            lines.append(self._command("conda", "--companions --output release/companions"))
        if self.image:
            lines.append(self._command("image", "--light --wheel dist/*.whl"))
        options = f'--container {named}--output release ${{LMS_KEY:+--sign "$LMS_KEY"}}'
        return [*lines, self._command("release", options)]

    @property
    def test_command(self) -> str:
        """Of the wheel that is released."""
        if self.plugin:
            return self._plugin_test("release/*")
        return self._command("test", "--wheel release/*/*.whl")

    @property
    def image(self) -> str:
        """Of a tag there is one, so one cell makes it; "" for the others."""
        cell = self.cell
        if not (self.newest and self.default and cell.arch == X86_64):
            return ""
        return image_name(self.tag, "runtime", cell.arch, cell.python, cell.cuda)

    @property
    def _subdir(self) -> str:
        """Of conda's packages; those of another than linux-64 are not tested."""
        arch = self.cell.arch
        return "" if arch == X86_64 else f" --arch linux-{arch} --test none"

    def _plugin_commands(self, output: str) -> list[str]:
        """Wheel, sdist and conda packages into one folder."""
        container = "--container " if self.compiled else ""
        wheel = f"--wheel {output}/*.whl"
        return [
            self._command("plugin", f"{container}--output {output}"),
            *(
                self._command("conda", f"--plugin {wheel} --output {output}", python)
                for python in self.pythons
            ),
        ]

    def _plugin_test(self, folder: str) -> str:
        return self._command("test", f"--plugin --wheel {folder}/*.whl")

    def _command(self, name: str, more: str, python: str = "") -> str:
        cell = self.cell
        words = [f"{cell.framework}:{cell.tag}", "--python", python or cell.python]
        if not self.plugin:  # its wheel is for every CUDA version
            words += ["--cuda", cell.cuda]
        return f"lmsbuild {name} {shlex.join(words)} {more}"


def rules_of(project: Project) -> Matrix:
    """Raises ConfigError naming each wrong entry."""
    return read(Matrix, project.root / FILE)


def cells(frameworks: Mapping[str, Framework], rules: Matrix) -> list[Cell]:
    """Every wheel to build, in the order of the tags; then the plug-ins'. Raises ConfigError for a
    rule of no use."""
    overlays = [
        Cell(
            framework=framework_name,
            tag=tag_name,
            python=python,
            cuda=cuda,
            arch=arch,
            build="overlay",
        )
        for framework_name, framework in frameworks.items()
        for tag_name, tag in framework.tags.items()
        for cuda, variant in tag.cuda.items()
        for wheel in (variant.wheel, *variant.machines.values())
        for python in sorted(wheel.sha256, key=_version)
        for arch in dict.fromkeys(map(_architecture, wheel.platforms))
    ]
    official = [*overlays, *_plugins(frameworks)]
    for rule in rules.exclude:
        if not any(_selects(rule, cell) for cell in official):
            raise ConfigError(
                f"{FILE}: the rule of `exclude` with why = {rule.why!r} cannot "
                "be used because it matches no wheel; correct or remove it"
            )
    kept = [cell for cell in official if not any(_selects(rule, cell) for rule in rules.exclude)]
    for cell in rules.include:
        tags = frameworks.get(cell.framework)
        if tags is None or cell.tag not in tags.tags or cell.cuda not in tags.tags[cell.tag].cuda:
            raise ConfigError(
                f"{FILE}: the cell of `include` {cell.framework}:{cell.tag} for CUDA "
                f"{cell.cuda} cannot be used because there is no such tag and version; correct it"
            )
        if cell in kept:
            raise ConfigError(
                f"{FILE}: the cell of `include` {cell} cannot be used because the "
                "official wheels have it; remove it"
            )
    return [*kept, *rules.include]


def _plugins(frameworks: Mapping[str, Framework]) -> list[Cell]:
    """One cell for each release, with its newest Python: the wheel is for all of them."""
    found = []
    for name, framework in frameworks.items():
        for version, release in framework.plugin.releases.items() if framework.plugin else ():
            cuda, variant = next(iter(framework.variants(release).items()))
            if not variant.wheel.sha256:
                continue  # of a tag that was ported and whose wheels nobody has looked up yet
            python = max(variant.wheel.sha256, key=_version)
            found.append(
                Cell(
                    framework=name, tag=f"v{version}", python=python, cuda=cuda, arch=X86_64,
                    build="plugin",
                )
            )  # fmt: skip
    return found


def select(found: Sequence[Cell], labels: Sequence[str]) -> list[Cell]:
    """Those of the tags `labels` (framework:tag); all when there are none."""
    return [cell for cell in found if not labels or f"{cell.framework}:{cell.tag}" in labels]


def jobs(frameworks: Mapping[str, Framework], rules: Matrix, chosen: Sequence[Cell]) -> list[Job]:
    """Raises ConfigError when there is no runner for an architecture."""
    missing = sorted({cell.arch for cell in chosen} - set(rules.runners))
    if missing:
        raise ConfigError(
            f"{FILE}: no pipeline can be made because `runners` has no entry "
            f"for {', '.join(missing)}; add it"
        )
    newest = {
        (cell.framework, cell.tag, cell.cuda, cell.arch): cell
        for cell in chosen
        if cell.build != "plugin"
    }
    found = [
        _plugin_job(frameworks[cell.framework], cell, rules.runners[cell.arch])
        if cell.build == "plugin"
        else Job(
            cell,
            rules.runners[cell.arch],
            newest=cell in newest.values(),
            default=cell.cuda == next(iter(frameworks[cell.framework].tags[cell.tag].cuda)),
            companions=any(
                one.digest(cell.python)
                for one in frameworks[cell.framework].tags[cell.tag].companions
            ),
            ships=cell.build == "overlay",
        )
        for cell in chosen
    ]
    with_gpu = [
        Job(job.cell, rules.gpu, newest=True, gpu=True, ships=False)
        for job in found
        if job.newest and not job.full and frameworks[job.cell.framework].shows.device == "simcuda"
    ]
    return [*found, *with_gpu]


def _plugin_job(framework: Framework, cell: Cell, runner: Runner) -> Job:
    """Of a package that is compiled for each release every one is shipped; else one is for all."""
    plugin = framework.plugin
    assert plugin is not None, "its cells are made of it"
    release = cell.tag.removeprefix("v")
    if plugin.compiled:
        wheel = framework.variants(plugin.releases[release])[cell.cuda].wheel
        others = tuple(each for each in sorted(wheel.sha256, key=_version) if each != cell.python)
        package = f"{plugin.name}-{plugin.version}-{cell.tag}"
        return Job(cell, runner, package=package, others=others)
    last = release == list(plugin.releases)[-1]
    return Job(cell, runner, package=f"{plugin.name}-{plugin.version}", compiled=False, ships=last)


def render(project: Project, format: str, work: Sequence[Job]) -> str:
    """The pipeline of a CI system for these jobs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(project.root / "ci" / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    template = environment.get_template(f"{Path(PIPELINES[format]).name}.j2")
    system = format.partition("-")[0]
    return template.render(
        jobs=[job for job in work if not job.gpu or getattr(job.runner, system)],
        tool_python=TOOL_PYTHON, cached=CACHED, channel=CHANNEL,
    )  # fmt: skip


def rendered(project: Project) -> dict[Path, str]:
    """The committed pipelines as they must be: file -> text."""
    rules = rules_of(project)
    frameworks = load(project)
    work = jobs(frameworks, rules, cells(frameworks, rules))
    return {
        project.root / "ci" / file: render(project, name, work) for name, file in PIPELINES.items()
    }


def stale(files: dict[Path, str]) -> list[Path]:
    """Those whose text on the disk is another."""
    return [
        path
        for path, text in files.items()
        if not path.is_file() or path.read_bytes() != text.encode()
    ]


def check(project: Project) -> None:
    """Raises SeriesError naming the committed pipelines that are stale."""
    old = stale(rendered(project))
    if old:
        names = ", ".join(path.relative_to(project.root).as_posix() for path in old)
        raise SeriesError(
            f"{names} cannot be used because a tag, {FILE} or a template changed since; run "
            "`lmsbuild matrix --write` and commit",
            stale=old,
        )


def write(files: dict[Path, str]) -> list[Path]:
    """Write those that changed, each at once; which they were."""
    changed = stale(files)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, files[path].encode())
    return changed


def _selects(rule: Selection, cell: Cell) -> bool:
    return all(
        fnmatchcase(getattr(cell, name), getattr(rule, name))
        for name in ("framework", "tag", "python", "cuda", "arch")
    )


def _architecture(platform: str) -> str:
    """Of a wheel's platform: manylinux_2_28_x86_64 -> x86_64."""
    for arch in ("x86_64", "ppc64le", "aarch64"):
        if platform.endswith(f"_{arch}"):
            return arch
    return platform


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]
