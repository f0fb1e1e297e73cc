# SPDX-License-Identifier: Apache-2.0
"""What packages there are: each one's name, version, build and what it always depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from lmsbuild import __version__
from lmsbuild.base.errors import (
    ConfigError,
    MismatchError,
)
from lmsbuild.conda.condapackage import (
    SUFFIX,
    known_subdir,
)
from lmsbuild.conda.dependencies import mapped, table
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.plugin import PluginTarget
from lmsbuild.wheel.wheelfile import WheelName

MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}


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
    meta: str = ""  # name of the metapackage, "" for none
    constrains: list[str] = field(default_factory=list)

    @property
    def variant(self) -> str:
        """Of the build, what all Pythons have in common."""
        return self.build.split("py")[0]

    @property
    def meta_build(self) -> str:
        return f"{self.variant.rstrip('_')}_{self.number}"

    @property
    def files(self) -> list[str]:
        """The packages below the output folder."""
        names = [f"{self.subdir}/{self.name}-{self.version}-{self.build}{SUFFIX}"]
        if self.meta:
            names.append(f"noarch/{self.meta}-{self.version}-{self.meta_build}{SUFFIX}")
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
    if variant != "cpu" and re.fullmatch(r"\d+\.\d+", target.cuda):
        major = int(target.cuda.split(".")[0])
        depends += [f"cuda-version >={target.cuda},<{major + 1}", f"__cuda >={major}"]
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
        meta=conda.metapackage,
        constrains=mapped([Requirement(text) for text in target.tag.pins], table(target.project)),
    )


def plugin_plan(found: PluginTarget, python: str, subdir: str) -> Plan:
    """The package of the plug-in for one release."""
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


def own_plan() -> Plan:
    """The package of lmsbuild itself."""
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
    """Raise MismatchError unless the wheel is that of `project` in `version` for the plan."""
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
