# SPDX-License-Identifier: Apache-2.0
"""What packages there are: each one's name, version, build and what it always depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from lmsbuild import __version__
from lmsbuild.base.errors import (
    ConfigError,
    MismatchError,
)
from lmsbuild.base.project import Project
from lmsbuild.conda.condapackage import (
    SUFFIX,
    known_subdir,
)
from lmsbuild.conda.dependencies import mapped, table
from lmsbuild.tags.frameworks import Companion, Target, load
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.plugin import PluginTarget
from lmsbuild.wheel.wheelfile import WheelName

ALL = "powerai"  # what IBM's channel called the metapackage of all frameworks
TESTED = ("linux-64", "noarch")  # a TEST channel can be made for these
MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}


def subdir_of(machine: str) -> str:
    """Where conda keeps packages for it."""
    return {name: subdir for subdir, name in MACHINES.items()}[machine]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One package but for its files and what these need."""

    name: str
    version: str
    build: str
    number: int
    subdir: str
    python: str  # X.Y; "" for any
    home: str
    license: str
    summary: str
    depends: list[str]
    script: list[str]  # of the recipe's test
    metas: dict[str, list[str]] = field(default_factory=dict)  # metapackages -> what they pull
    constrains: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)  # libraries (with *) that may be missing

    @property
    def variant(self) -> str:
        """Of the build, what all Pythons have in common."""
        return self.build.split("py")[0]

    @property
    def meta_build(self) -> str:
        return f"{self.variant}_{self.number}".replace("__", "_").lstrip("_")

    @property
    def files(self) -> list[str]:
        """The packages below the output folder."""
        names = [f"{self.subdir}/{self.name}-{self.version}-{self.build}{SUFFIX}"]
        names += [f"noarch/{meta}-{self.version}-{self.meta_build}{SUFFIX}" for meta in self.metas]
        return names


def framework_plan(target: Target, python: str, subdir: str) -> Plan:
    """The package of a tag's wheel. Raises ConfigError when framework.toml says nothing of it."""
    conda = target.framework.conda
    if conda is None:
        raise ConfigError(
            f"no conda package of {target.label} can be made because {target.framework_file} has "
            "no table `conda`; add it"
        )
    variant, number = _local(target.wheel.local)
    depends = _python(python)
    on_gpu = variant != "cpu" and re.fullmatch(r"\d+\.\d+", target.cuda) is not None
    if on_gpu:
        major = int(target.cuda.split(".")[0])
        depends += [f"cuda-version >={target.cuda},<{major + 1}", f"__cuda >={major}"]
    known = table(target.project)
    depends += mapped([Requirement(text) for text in target.tag.uses], known)
    pins = mapped([Requirement(text) for text in target.tag.pins], known)
    pulls = f"{conda.package} =={target.tag.version} lms_{variant}*_{number}"
    return Plan(
        name=conda.package,
        version=target.tag.version,
        build=f"lms_{variant}py{python.replace('.', '')}_{number}",
        number=number,
        subdir=known_subdir(subdir),
        python=python,
        home=conda.home,
        license=conda.license,
        summary=f"{conda.summary} with Large Model Support",
        depends=depends,
        script=conda.test,
        metas={name: [pulls] for name in (conda.metapackage, *(conda.gpu if on_gpu else []))},
        constrains=[*conda.constrains, *pins],
    )


def companion_plan(target: Target, companion: Companion, python: str, subdir: str) -> Plan:
    """The package of an official wheel that goes beside the tag's: with this tag's builds alone."""
    of = framework_plan(target, python, subdir)
    return Plan(
        name=companion.project,
        version=companion.version,
        build=of.build,
        number=of.number,
        subdir=of.subdir,
        python=python,
        home=of.home,
        license=companion.license,
        summary=f"{companion.summary}, for {of.name} with Large Model Support",
        depends=[*_python(python), f"{of.name} =={of.version} {of.variant}*"],
        script=[],
        optional=companion.optional,
    )


def plugin_plan(found: PluginTarget, python: str, subdir: str) -> Plan:
    """The package of the plug-in for one release, or of one that is for all of them."""
    if not found.plugin.compiled:
        return _pure_plan(found)
    target = found.target
    cuda = f"cu{target.cuda.replace('.', '')}"
    built_for = "".join(target.tag.version.split(".")[:2])
    return Plan(
        name="torch-lms",
        version=found.plugin.version,
        build=f"lms_pt{built_for}{cuda}py{python.replace('.', '')}_0",
        number=0,
        subdir=known_subdir(subdir),
        python=python,
        home="",
        license="Apache-2.0",
        summary="Large Model Support for an unpatched PyTorch",
        depends=_python(python),
        script=["python -c \"import importlib.util as i; assert i.find_spec('torch_lms')\""],
    )


def _pure_plan(found: PluginTarget) -> Plan:
    """It asks for no package of the framework, as that has several names, and is used with any."""
    name, framework = found.plugin.name, found.target.framework_name
    tested = [Version(each) for each, at in found.plugin.releases.items() if at.tested]
    oldest, newest = min(tested), max(tested)
    beyond = f"{newest.major}.{newest.minor + 1}"
    return Plan(
        name=name.replace("_", "-"),
        version=found.version,
        build="py_0",
        number=0,
        subdir="noarch",
        python="",
        home="",
        license="Apache-2.0",
        summary=f"Large Model Support for any stock {framework}",
        depends=["python >=3.10"],
        script=[f'python -c "import {name}.tuner"'],
        constrains=[f"{framework} >={oldest.major}.{oldest.minor},<{beyond}.0a0"],
    )


def own_plan(project: Project) -> Plan:
    """The package of lmsbuild itself, and the metapackage that pulls every framework."""
    conda = [found.conda for found in load(project).values() if found.conda]
    return Plan(
        name="lmsbuild",
        version=__version__,
        build="py_0",
        number=0,
        subdir="noarch",
        python="",
        home="",
        license="Apache-2.0",
        summary="Patch series of Large Model Support, and the tool that builds them",
        depends=["python >=3.10,<3.14"],
        script=["lmsbuild --version", "lmsbuild tags"],
        metas={ALL: [one.metapackage for one in conda]},
    )


def _python(python: str) -> list[str]:
    major, minor = python.split(".")
    return [
        f"python >={python},<{major}.{int(minor) + 1}.0a0",
        f"python_abi {python}.* *_cp{major}{minor}{'m' if int(minor) < 8 else ''}",
    ]


def _local(local: str) -> tuple[str, int]:
    """Of `cu124.lms.1`: `cu124` and 1."""
    match = re.fullmatch(r"(?:(\w+)\.)?lms\.(\d+)", local)
    if match is None:
        raise ConfigError(
            f"no build string can be made because the local version {local} has another form than "
            "cu124.lms.1; correct `local` in tag.toml"
        )
    return match[1] or "", int(match[2])


def check_wheel(wheel: Path, plan: Plan, project: str, version: str) -> None:
    """Raise MismatchError unless the wheel is that of `project` in `version` for the plan, and
    WheelError for what is no archive."""
    name = WheelName.of(wheel)
    if not name.is_of(project, version):
        raise MismatchError(
            f"{wheel.name} cannot be packaged because it is not {project} {version}, the wheel of "
            "this tag; give that wheel, or the tag that this one is of",
            wheel=wheel.name,
        )
    if plan.subdir != "noarch" and not name.platform.endswith(f"_{MACHINES[plan.subdir]}"):
        raise MismatchError(
            f"{wheel.name} cannot be packaged because it is not for {plan.subdir}; give a wheel "
            "that was built for it (a full build, for what no official wheel covers)",
            wheel=wheel.name,
        )
    tag = f"cp{plan.python.replace('.', '')}"
    if plan.python and not name.python.startswith("py3") and tag not in name.python.split("."):
        raise MismatchError(
            f"{wheel.name} cannot be packaged because it is not for Python {plan.python}; choose "
            "its Python with --python",
            wheel=wheel.name,
        )
    wheelfile.names(wheel)
