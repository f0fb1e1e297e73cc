# SPDX-License-Identifier: Apache-2.0
"""Conda packages from wheels: staged, built of a recipe, compared with the wheel, and put in place.

A package that was made of the same is found again by the manifest beside it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmsbuild import __version__
from lmsbuild.base import strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    FileError,
    LmsbuildError,
    PackageError,
)
from lmsbuild.base.hashing import sha256_file, sha256_value, write_atomic
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import Project, make_folder
from lmsbuild.conda.condapackage import (
    CondaPackage,
    inspect,
    metadata,
)
from lmsbuild.conda.dependencies import Table, from_libraries, mapped, required, table
from lmsbuild.conda.plan import MACHINES, Plan
from lmsbuild.conda.rattler import tools
from lmsbuild.conda.recipe import OWN_LICENCE, build_recipe, put_licences, used
from lmsbuild.conda.staging import Staged, stage
from lmsbuild.wheel.platform_tag import newest_version

_OLDEST = "3.10"  # of lmsbuild's own Pythons, which asks for the most
_BESIDE = ".manifest.json"
_BUILDING = ".build-"
# Raises PackageError unless the tests of the package's recipe pass.
Tests = Callable[[CondaPackage, Console], None]


@dataclass(frozen=True)
class Made:
    """A package, and whether it had been made before."""

    package: CondaPackage
    manifest: Path
    reused: bool
    tested: bool


@dataclass(frozen=True)
class _Work:
    """A run of `make`."""

    plan: Plan
    wheel: Path
    project: Project
    output: Path
    folder: Path  # for what is not ready yet, on the file system of `output`
    console: Console


def make(
    plan: Plan, wheel: Path, project: Project, output: Path, console: Console,
    *, tests: Tests | None = None,
) -> list[Made]:  # fmt: skip
    """The package of `wheel`, and its metapackages, in `output`/<subdir>.

    With `tests` the recipe's tests must pass. Raises WheelError, ConfigError, PackageError.
    """
    known = table(project)
    key = sha256_value(
        [
            asdict(plan), sha256_file(wheel), known.model_dump(mode="json"), __version__, tools(),
            {file.name: sha256_file(file) for file in project.recipes.glob("*.j2")},
        ]
    )  # fmt: skip
    make_folder(output)
    try:
        with Lock(output / ".lock"):
            for left in output.glob(f"{_BUILDING}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=output, prefix=_BUILDING) as folder:
                work = _Work(plan, wheel, project, output, Path(folder), console)
                made = _existing(plan, key, output)
                if made is None:
                    package, facts = _make(work, known)
                    _pass(package, tests, console)
                    facts["key"] = key
                    made = _publish(package, output, facts, tested=tests is not None)
                elif tests and not made.tested:
                    made = _tested(made, tests, console)
                return [made, *(_meta(work, name, pulls) for name, pulls in plan.metas.items())]
    except OSError as error:
        raise FileError.of(error, "" if error.filename else str(output)) from error


def _beside(package: Path) -> Path:
    return package.with_name(f"{package.name}{_BESIDE}")


def made_of(package: Path) -> dict[str, Any]:
    """What the manifest beside a package says that it was made of; nothing where there is none."""
    note = strictjson.record(_beside(package))
    return {name: note[name] for name in ("tools", "recipes", "wheel_sha256") if name in note}


def _existing(plan: Plan, key: str, output: Path) -> Made | None:
    path = output / plan.files[0]
    try:
        note = strictjson.record(_beside(path))
        if note["key"] != key or sha256_file(path) != note["sha256"]:
            return None
        return Made(inspect(path), _beside(path), reused=True, tested=bool(note["tested"]))
    except (OSError, ValueError, KeyError, LmsbuildError):
        return None


def _make(work: _Work, known: Table) -> tuple[CondaPackage, dict[str, object]]:
    """The package in the folder of `work`, and what its manifest says of the wheel."""
    plan, wheel, project = work.plan, work.wheel, work.project
    site = f"lib/python{plan.python}/site-packages" if plan.python else "site-packages"
    with work.console.step(f"staging {wheel.name}"):
        staged = stage(wheel, work.folder / "recipe" / "staged", site)
        wanted = required(staged.requirements, plan.python or _OLDEST, _machine(plan))
        depends = [*plan.depends, *mapped(wanted, known)]
        depends += _without(depends, from_libraries(staged, wanted, known, plan.optional))
        glibc = newest_version([x.versions for x in staged.libraries.values()], "GLIBC")
        if glibc != "0":
            depends.append(f"__glibc >={glibc}")
        brought = {soname for entry in known.wheels.values() for soname in entry.libraries}
        staged = staged.with_rpath_to_prefix(brought)
    values = {
        **asdict(plan), "depends": sorted(depends),
        "noarch": "" if plan.python else "python",
        "entry_points": [] if plan.python else staged.entry_points,
        "contents": sorted(staged.licences) or sorted(staged.files)[:1],
        "licences": put_licences(staged, project, work.folder / "recipe"),
    }  # fmt: skip
    with work.console.step(f"building {Path(plan.files[0]).name}") as step:
        built = build_recipe("wheel.yaml.j2", values, plan.subdir, project, work.folder)
        package = inspect(built)
        _check_files(package, staged)
        step.size, step.digest = package.bytes, package.sha256
    return package, {
        "wheel": wheel.name, "wheel_sha256": sha256_file(wheel), "recipes": used(project)
    }  # fmt: skip


def _machine(plan: Plan) -> str:
    return MACHINES.get(plan.subdir, "x86_64")


def _without(there: Sequence[str], specs: Sequence[str]) -> list[str]:
    """Those `specs` whose package is not named yet."""
    names = {text.split()[0] for text in there}
    return [text for text in specs if text.split()[0] not in names]


def _check_files(package: CondaPackage, staged: Staged) -> None:
    """The package has what was staged, every byte, and its licences: a build that copies nothing
    succeeds as well."""
    said = json.loads(metadata(package.path)["info/paths.json"])["paths"]
    have = {entry["_path"]: entry["sha256"] for entry in said if entry.get("sha256")}
    wrong = sorted(
        name for name in set(have) | set(staged.files) if have.get(name) != staged.files.get(name)
    )
    if wrong:
        raise PackageError(
            f"{package.path.name} was not made because {len(wrong)} of its files are not those of "
            f"the wheel ({', '.join(wrong[:3])}); this is a defect of the recipe",
            files=wrong,
        )
    if not any(name.startswith("info/licenses/") for name in metadata(package.path)):
        raise PackageError(
            f"{package.path.name} was not made because no licence is in it; correct the recipe"
        )


def _pass(package: CondaPackage, tests: Tests | None, console: Console) -> None:
    if tests:
        with console.step("recipe's tests"):
            tests(package, console)


def _publish(
    package: CondaPackage, output: Path, facts: Mapping[str, object], *, tested: bool = False
) -> Made:
    """Put a package and its manifest into their place, the package last."""
    target = output / package.subdir / package.path.name
    target.parent.mkdir(exist_ok=True)
    placed = replace(package, path=target)
    package.path.replace(target)
    _note(placed, {**facts, "tested": tested})
    return Made(placed, _beside(target), reused=False, tested=tested)


def _note(package: CondaPackage, facts: Mapping[str, object]) -> None:
    value = {
        "schema": 1, **facts, "lmsbuild": __version__, "tools": tools(),
        "package": package.path.name, "subdir": package.subdir, "sha256": package.sha256,
        "depends": package.depends,
    }  # fmt: skip
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    write_atomic(_beside(package.path), text.encode())


def _tested(made: Made, tests: Tests, console: Console) -> Made:
    _pass(made.package, tests, console)
    facts = json.loads(made.manifest.read_text(encoding="utf-8"))
    facts.pop("schema")
    _note(made.package, {**facts, "tested": True})
    return replace(made, tested=True)


def _meta(work: _Work, name: str, pulls: list[str]) -> Made:
    """A metapackage: the same for every Python."""
    plan, project, folder = work.plan, work.project, work.folder
    build = plan.meta_build
    values = {
        "name": name, "version": plan.version, "number": plan.number, "build": build,
        "depends": pulls,
        "home": plan.home, "license": "Apache-2.0",
        "licences": [f"licences/{OWN_LICENCE}"],
        "summary": f"Pulls {' and '.join(pulls)}",
    }  # fmt: skip
    key = sha256_value([values, tools(), sha256_file(project.recipes / "LICENSE")])
    shell = replace(plan, name=name, build=build, subdir="noarch")
    there = _existing(shell, key, work.output)
    if there:
        return there
    shutil.rmtree(folder / "recipe", ignore_errors=True)
    (folder / "recipe" / "licences").mkdir(parents=True)
    shutil.copyfile(project.recipes / "LICENSE", folder / "recipe" / "licences" / OWN_LICENCE)
    built = build_recipe("metapackage.yaml.j2", values, "noarch", project, folder)
    return _publish(inspect(built), work.output, {"key": key, "recipes": used(project)})
