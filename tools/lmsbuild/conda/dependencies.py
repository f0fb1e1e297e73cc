# SPDX-License-Identifier: Apache-2.0
"""What a package depends on: a wheel's requirements and libraries in conda's names.

Every library that is needed has a place that it comes from; rattler-build would not ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field

from lmsbuild.base.errors import (
    ConfigError,
    PackageError,
)
from lmsbuild.base.project import Project
from lmsbuild.conda.staging import Staged
from lmsbuild.tags.frameworks import Model, read
from lmsbuild.wheel.platform_tag import newest_version


class System(Model):
    libraries: list[str]
    driver: list[str]


class FromCompiler(Model):
    conda: str
    symbols: dict[str, str]  # newest symbol version needed -> first version of the package


class FromWheel(Model):
    conda: str = ""
    version: str = "same"  # same, major or any
    libraries: list[str] = Field(default_factory=list)
    why: str = ""


class Table(Model):
    system: System
    compiler: dict[str, FromCompiler]
    wheels: dict[str, FromWheel]


def table(project: Project) -> Table:
    """Raises ConfigError naming each wrong entry."""
    return read(Table, project.recipes / "dependencies.toml")


def environment(python: str, machine: str) -> dict[str, str]:
    """What markers of requirements are evaluated with."""
    return {
        "python_version": python, "python_full_version": f"{python}.0", "extra": "",
        "platform_system": "Linux", "platform_machine": machine, "sys_platform": "linux",
        "os_name": "posix", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip


def required(requirements: Iterable[str], python: str, machine: str) -> list[Requirement]:
    """The requirements that count for this Python and machine, without their markers."""
    found = []
    for text in requirements:
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker is None or marker.evaluate(environment(python, machine)):
            found.append(requirement)
    return found


def mapped(wanted: Sequence[Requirement], known: Table) -> list[str]:
    """Conda's specs for what a wheel requires. Raises ConfigError for what the table has not."""
    specs = []
    for requirement in wanted:
        entry = known.wheels.get(canonicalize_name(requirement.name))
        if entry is None:
            raise ConfigError(
                f"no package can be made because the wheel requires {requirement} and the table "
                "does not know what that is in conda; add it to conda-recipes/dependencies.toml",
                requirement=str(requirement),
            )
        if entry.conda:
            specs.append(f"{entry.conda} {_version(requirement, entry.version)}".strip())
    return specs


def _version(requirement: Requirement, rule: str) -> str:
    pin = next((s.version for s in requirement.specifier if s.operator == "=="), None)
    if rule == "any":
        return ""
    if rule == "major" and pin:
        return f">={pin},<{Version(pin).major + 1}"
    parts = [
        s.version if s.operator == "==" and s.version.endswith(".*") else f"{s.operator}{s.version}"
        for s in sorted(requirement.specifier, key=str, reverse=True)
    ]
    return ",".join(parts)


def from_libraries(
    staged: Staged, wanted: Sequence[Requirement], known: Table, optional: Sequence[str] = ()
) -> list[str]:
    """Conda's specs for the libraries that the staged ones need and no requirement brings, but for
    those that match one of `optional`.

    Every SONAME must come from the package, from a package of the table, from the compiler's
    runtime or from the system. Raises PackageError naming one that comes from nowhere.
    """
    brings = {soname: entry for entry in known.wheels.values() for soname in entry.libraries}
    names = {canonicalize_name(requirement.name) for requirement in wanted}
    there = {known.wheels[name].conda for name in names if name in known.wheels}
    specs: dict[str, str] = {}
    for path, library in sorted(staged.libraries.items()):
        for soname in library.needed:
            if soname in staged.sonames or soname in known.system.libraries:
                continue
            if any(fnmatchcase(soname, name) for name in optional):
                continue
            if soname in known.system.driver:
                specs["__cuda"] = "__cuda"
            elif soname in known.compiler:
                runtime = known.compiler[soname]
                specs[runtime.conda] = _runtime_spec(runtime, staged)
            elif soname in brings:
                name = brings[soname].conda
                if name not in there:
                    specs[name] = f"{name} {_of_soname(soname, brings[soname])}".strip()
            else:
                raise PackageError(
                    f"no package can be made because {path} needs {soname}, which neither the "
                    "package nor what it depends on brings; add who brings it to "
                    "conda-recipes/dependencies.toml",
                    file=path,
                    library=soname,
                )
    return [specs[name] for name in sorted(specs)]


def _of_soname(soname: str, entry: FromWheel) -> str:
    """`>=12,<13` of libcudart.so.12, for a package whose version is that of its libraries."""
    major = re.search(r"\.so\.(\d+)$", soname)
    if entry.version != "major" or major is None:
        return ""
    return f">={major[1]},<{int(major[1]) + 1}"


def _runtime_spec(runtime: FromCompiler, staged: Staged) -> str:
    family = next(iter(runtime.symbols)).split("_")[0]
    versions = [library.versions for library in staged.libraries.values()]
    needed = Version(newest_version(versions, family))
    for symbol, version in runtime.symbols.items():
        if Version(symbol.split("_")[1]) >= needed:
            return f"{runtime.conda} >={version}"
    raise PackageError(
        f"no package can be made because a library needs {family}_{needed}, which is newer than "
        f"every {runtime.conda} of the table; add it to conda-recipes/dependencies.toml"
    )
