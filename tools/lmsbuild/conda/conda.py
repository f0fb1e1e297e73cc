# SPDX-License-Identifier: Apache-2.0
"""Conda packages from wheels: files staged, dependencies mapped, recipe rendered, package built.

rattler-build makes the package from a rendered recipe; what it cannot see, because it takes any
files for good, is checked here: every library that is needed has a place that it comes from, and
the package has the files of the wheel, each byte of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import zstandard
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, ValidationError

from lmsbuild import __version__
from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    ConfigError,
    FileError,
    LmsbuildError,
    MismatchError,
    PackageError,
)
from lmsbuild.base.hashing import sha256_file, sha256_value, write_atomic
from lmsbuild.base.project import Project, make_folder
from lmsbuild.conda.condapackage import (
    SUFFIX,
    CondaPackage,
    check_room,
    inspect,
    known_subdir,
    metadata,
    settle,
)
from lmsbuild.conda.staging import TIME, Staged, stage
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.platform_tag import newest_version
from lmsbuild.wheel.plugin import PluginTarget
from lmsbuild.wheel.wheelfile import WheelName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}
_OLDEST = "3.10"  # of lmsbuild's own Pythons, which asks for the most
_OWN_LICENCE = "LICENSE.large-model-support"
_BESIDE = ".manifest.json"
_BUILDING = ".build-"
_PROGRAM = Path(__file__).parent / "programs" / "conda_pack.py"


# Raises PackageError unless the tests of the package's recipe pass.
Tests = Callable[[CondaPackage, Console], None]


# The table of dependencies -----------------------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class System(_Model):
    libraries: list[str]
    driver: list[str]


class FromCompiler(_Model):
    conda: str
    symbols: dict[str, str]  # newest symbol version needed -> first version of the package


class FromWheel(_Model):
    conda: str = ""
    version: str = "same"  # same, major or any
    libraries: list[str] = []
    why: str = ""


class Table(_Model):
    system: System
    compiler: dict[str, FromCompiler]
    wheels: dict[str, FromWheel]


def recipes(project: Project) -> Path:
    return project.root / "conda-recipes"


def table(project: Project) -> Table:
    """Read and validate dependencies.toml. Raises ConfigError."""
    path = recipes(project) / "dependencies.toml"
    try:
        return Table.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path} cannot be used because {error}; correct the file") from error


# Dependencies ------------------------------------------------------------------------------------


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


def from_libraries(staged: Staged, wanted: Sequence[Requirement], known: Table) -> list[str]:
    """Conda's specs for the libraries that the staged ones need and no requirement brings.

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


# What is to be made ------------------------------------------------------------------------------


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Made:
    """A package, and whether it had been made before."""

    package: CondaPackage
    manifest: Path
    reused: bool
    tested: bool


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
        conda.package, target.tag.version, f"lms_{variant}py{python.replace('.', '')}_{number}",
        number, known_subdir(subdir), python, conda.home, conda.license,
        f"{conda.summary} with Large Model Support", depends, conda.test, conda.metapackage,
        mapped([Requirement(text) for text in target.tag.pins], table(target.project)),
    )  # fmt: skip


def plugin_plan(found: PluginTarget, python: str, subdir: str) -> Plan:
    """The package of the plug-in for one release."""
    target = found.target
    cuda = f"cu{target.cuda.replace('.', '')}"
    built_for = "".join(target.tag.version.split(".")[:2])
    return Plan(
        "torch-lms", found.plugin.version, f"lms_pt{built_for}{cuda}py{python.replace('.', '')}_0",
        0, known_subdir(subdir), python, "", "Apache-2.0",
        "Large Model Support for an unpatched PyTorch", _python(python),
        ['python -c "import importlib.util as i; assert i.find_spec(\'torch_lms\')"'],
    )  # fmt: skip


def own_plan() -> Plan:
    """The package of lmsbuild itself."""
    return Plan(
        "lmsbuild", __version__, "py_0", 0, "noarch", "", "", "Apache-2.0",
        "Patch series of Large Model Support, and the tool that builds them",
        ["python >=3.10,<3.14"], ["lmsbuild --version", "lmsbuild tags"],
    )  # fmt: skip


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


# Making it ---------------------------------------------------------------------------------------


def make(
    plan: Plan, wheel: Path, project: Project, output: Path, console: Console,
    tests: Tests | None = None,
) -> list[Made]:  # fmt: skip
    """The package of `wheel`, and its metapackage if it has one, in `output`/<subdir>.

    With `tests` the recipe's tests must pass. Raises WheelError, ConfigError, PackageError.
    """
    known = table(project)
    key = sha256_value(
        [
            asdict(plan), sha256_file(wheel), known.model_dump(mode="json"), __version__, _tools(),
            {file.name: sha256_file(file) for file in recipes(project).glob("*.j2")},
        ]
    )  # fmt: skip
    make_folder(output)
    try:
        with FileLock(output / ".lock"):
            for left in output.glob(f"{_BUILDING}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=output, prefix=_BUILDING) as folder:
                made = _existing(plan, key, output)
                if made is None:
                    package, facts = _make(plan, wheel, known, project, Path(folder), console)
                    _pass(package, tests, console)
                    facts["key"] = key
                    made = _publish(package, output, facts, tested=tests is not None)
                elif tests and not made.tested:
                    made = _tested(made, tests, console)
                found = [made]
                if plan.meta:
                    found.append(_meta(plan, made, project, output, Path(folder), console))
                return found
    except OSError as error:
        raise FileError.of(error, str(error.filename or output)) from error


def run_tests(package: CondaPackage, channels: Sequence[str], cuda: str, console: Console) -> None:
    """Run the tests of the package's recipe in an environment solved from `channels`.

    `cuda` is the version that the environment's driver is taken to have, "" for none. Raises
    PackageError with what a test that fails says.
    """
    # The environment is for a machine with a driver, and this one may have none.
    variables = {"CONDA_OVERRIDE_CUDA": os.environ.get("CONDA_OVERRIDE_CUDA", cuda)} if cuda else {}
    with console.task(f"running the recipe's tests of {package.path.name}"):
        order = {"package": str(package.path), "channels": list(channels)}
        done = _rattler("test", order, variables)
    if done.error:
        lines = [line for line in done.output.splitlines() if re.search("[Ee]rror|[Cc]annot", line)]
        raise PackageError(
            f"{package.path.name} did not pass because its recipe's tests failed with: "
            f"{(lines or ['nothing was said'])[0]}; see the full log, and check the channels "
            f"({', '.join(channels)})",
            output=done.output,
        )


@dataclass(frozen=True)
class _Answer:
    """What rattler-build did, `error` empty if it succeeded."""

    files: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def output(self) -> str:
        return "\n".join([*self.log, self.error])


def _rattler(work: str, order: Mapping[str, object], variables: Mapping[str, str]) -> _Answer:
    """Run rattler-build in a process of its own (see the program)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        command = [sys.executable, str(_PROGRAM), work, json.dumps(order), str(file)]
        done = log.run(command, env={**os.environ, **variables})
        try:
            answer = _Answer(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            answer = _Answer(error=f"it ended with code {done.returncode}, saying {last}")
    log.note(answer.output)
    return answer


def _tools() -> str:
    from rattler_build import rattler_build_version

    return f"rattler-build {rattler_build_version()}, zstandard {zstandard.__version__}"


def _beside(package: Path) -> Path:
    return package.with_name(f"{package.name}{_BESIDE}")


def made_of(package: Path) -> dict[str, Any]:
    """What the manifest beside a package says that it was made of; nothing where there is none."""
    try:
        note = json.loads(_beside(package).read_text(encoding="utf-8"))
        return {name: note[name] for name in ("tools", "recipes", "wheel_sha256") if name in note}
    except (OSError, ValueError):
        return {}


def _existing(plan: Plan, key: str, output: Path) -> Made | None:
    path = output / plan.files[0]
    try:
        note = json.loads(_beside(path).read_text(encoding="utf-8"))
        if note["key"] != key or sha256_file(path) != note["sha256"]:
            return None
        return Made(inspect(path), _beside(path), True, bool(note["tested"]))
    except (OSError, ValueError, KeyError, LmsbuildError):
        return None


def _make(
    plan: Plan, wheel: Path, known: Table, project: Project, folder: Path, console: Console
) -> tuple[CondaPackage, dict[str, object]]:
    """The package in `folder`, and what its manifest says of the wheel."""
    site = f"lib/python{plan.python}/site-packages" if plan.python else "site-packages"
    with console.step(f"staging {wheel.name}"):
        staged = stage(wheel, folder / "recipe" / "staged", site)
        wanted = required(staged.requirements, plan.python or _OLDEST, _machine(plan))
        depends = [*plan.depends, *mapped(wanted, known)]
        depends += _without(depends, from_libraries(staged, wanted, known))
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
        "licences": _licences(staged, project, folder / "recipe"),
    }  # fmt: skip
    with console.step(f"building {Path(plan.files[0]).name}") as step:
        built = _build("wheel.yaml.j2", values, plan.subdir, project, folder)
        package = inspect(built)
        _check_files(package, staged)
        step.size, step.digest = package.bytes, package.sha256
    return package, {
        "wheel": wheel.name, "wheel_sha256": sha256_file(wheel), "recipes": _used(project)
    }  # fmt: skip


def _machine(plan: Plan) -> str:
    return MACHINES.get(plan.subdir, "x86_64")


def _without(there: Sequence[str], specs: Sequence[str]) -> list[str]:
    """Those `specs` whose package is not named yet."""
    names = {text.split()[0] for text in there}
    return [text for text in specs if text.split()[0] not in names]


def _licences(staged: Staged, project: Project, recipe: Path) -> list[str]:
    """The wheel's licence files and our own beside the recipe, as the recipe names them."""
    files = {f"{number}-{Path(path).name}": staged.root / path
             for number, path in enumerate(sorted(staged.licences))}  # fmt: skip
    files[_OWN_LICENCE] = recipes(project) / "LICENSE"
    (recipe / "licences").mkdir()
    for name, file in files.items():
        shutil.copyfile(file, recipe / "licences" / name)
    return [f"licences/{name}" for name in files]


def _build(
    template: str, values: Mapping[str, Any], subdir: str, project: Project, folder: Path
) -> Path:
    """Render a recipe, build it and give the package its settled form. Raises PackageError."""
    recipe = folder / "recipe" / "recipe.yaml"
    recipe.parent.mkdir(exist_ok=True)
    recipe.write_text(render(template, values, project), encoding="utf-8")
    log.note(recipe.read_text(encoding="utf-8"))
    threads = max(2, os.cpu_count() or 2)
    order = {"recipe": str(recipe), "platform": subdir, "output": str(folder / "out"),
             "threads": threads}  # fmt: skip
    done = _rattler("build", order, {})
    if done.error:
        check_room(folder, done.error)
        raise PackageError(
            f"{values['name']} was not built because rattler-build says: {done.error}; see the "
            "full log",
            output=done.output,
        )
    built = Path(done.files[0])
    settle(built, TIME)
    return built


def render(template: str, values: Mapping[str, Any], project: Project) -> str:
    """The recipe as text. Raises ConfigError for a template that is wrong."""
    loader = jinja2.FileSystemLoader(recipes(project))
    try:
        found = jinja2.Environment(
            loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        ).get_template(template)
        return found.render(values)
    except jinja2.TemplateError as error:
        raise ConfigError(
            f"conda-recipes/{template} cannot be used because {error}; correct it"
        ) from error


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
    package: CondaPackage, output: Path, facts: Mapping[str, object], tested: bool = False
) -> Made:
    """Put a package and its manifest into their place, the package last."""
    target = output / package.subdir / package.path.name
    target.parent.mkdir(exist_ok=True)
    placed = replace(package, path=target)
    package.path.replace(target)
    _note(placed, {**facts, "tested": tested})
    return Made(placed, _beside(target), False, tested)


def _note(package: CondaPackage, facts: Mapping[str, object]) -> None:
    value = {
        "schema": 1, **facts, "lmsbuild": __version__, "tools": _tools(),
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


def _meta(
    plan: Plan, made: Made, project: Project, output: Path, folder: Path, console: Console
) -> Made:
    """The metapackage: the same for every Python."""
    build = plan.meta_build
    values = {
        "name": plan.meta, "version": plan.version, "number": plan.number, "build": build,
        "depends": [f"{plan.name} =={plan.version} {plan.variant}*_{plan.number}"],
        "home": plan.home, "license": "Apache-2.0",
        "licences": [f"licences/{_OWN_LICENCE}"],
        "summary": f"Pulls {plan.summary}",
    }  # fmt: skip
    key = sha256_value([values, _tools(), sha256_file(recipes(project) / "LICENSE")])
    shell = replace(plan, name=plan.meta, build=build, subdir="noarch")
    there = _existing(shell, key, output)
    if there:
        return there
    shutil.rmtree(folder / "recipe", ignore_errors=True)
    (folder / "recipe" / "licences").mkdir(parents=True)
    shutil.copyfile(recipes(project) / "LICENSE", folder / "recipe" / "licences" / _OWN_LICENCE)
    built = _build("metapackage.yaml.j2", values, "noarch", project, folder)
    return _publish(inspect(built), output, {"key": key, "recipes": _used(project)})


def _used(project: Project) -> dict[str, str]:
    """The files that packages are made by, with their hashes."""
    files = [*recipes(project).glob("*.j2"), recipes(project) / "dependencies.toml"]
    return {file.name: sha256_file(file) for file in files}
