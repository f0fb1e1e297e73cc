# SPDX-License-Identifier: Apache-2.0
"""A release: all that is shipped of one wheel in one folder, and the proof that it can be rebuilt.

The folder is whole or not there, and never changes: what is released under a version stays that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmsbuild import __version__
from lmsbuild.base import cache, log, strictjson
from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import (
    ConfigError,
    FileError,
    MissingToolError,
    RebuildError,
    SignError,
    UsageError,
)
from lmsbuild.base.filenames import check_regular, file_name
from lmsbuild.base.hashing import sha256_bytes, sha256_file, write_atomic
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import make_folder
from lmsbuild.conda.make import made_of, make
from lmsbuild.conda.plan import framework_plan, subdir_of
from lmsbuild.places.imagecontents import Contents
from lmsbuild.series.series import export, export_name, series_of
from lmsbuild.ship import condasbom, imagesbom, sbom
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import Container, wheel
from lmsbuild.tags.download import header_wheel
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.words import CudaVersion, FileName, PythonVersion
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.overlay import Built

SCHEMA = 1
MANIFEST = "release.json"
SUMS = "SHA256SUMS"
NOTES = "NOTES.md"
SIGNATURE = f"{SUMS}.sig"
_BUILDING = ".release-"
_CONDA = ".conda"
_SBOM = ".cdx.json"
_MADE = ("patch", "wheel", "manifest", "sbom", "notes")  # kinds of which each is made again


@dataclass(frozen=True)
class Artefact:
    name: str
    kind: str  # patch, wheel, manifest, sbom, notes, or what was added
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Release:
    folder: Path
    artefacts: list[Artefact]
    reused: bool  # it was there
    planned: list[str] = field(default_factory=list)  # names of its files, of a dry run


@dataclass(frozen=True)
class Compared:
    """An artefact as it was released, and as it was made again."""

    name: str
    recorded: str
    rebuilt: str  # "" when nothing of this name was made

    @property
    def same(self) -> bool:
        return self.recorded == self.rebuilt


# Making one --------------------------------------------------------------------------------------


def release(
    target: Target, choices: Choices, console: Console, output: Path | None = None,
    *, dry_run: bool = False, container: Container | None = None, more: Sequence[Path] = (),
    images: Sequence[Contents] = (),
    packages: Callable[[Path], Sequence[Path]] = lambda wheel: (),
) -> Release:  # fmt: skip
    """Build the wheel, and put everything that is shipped of it into a folder below `output`.

    `packages` makes others of the wheel (for conda), `more` are further files that are part of it,
    `images` container images whose digests and bills of materials are. Raises RebuildError when
    this version was released before with other content.
    """
    _check_more(more)
    _, built = wheel(target, choices, console, dry_run=dry_run, container=container)
    own = packages(built.wheel)
    taken = [name for name, _ in _own_files(target, built)]
    _check_names(more, [*taken, *(file.name for file in own)])
    place = (output or target.work / "releases").absolute()
    folder = place / built.wheel.name.removesuffix(".whl")
    if dry_run:
        names = [name for name, _ in _own_files(target, built)]
        names += [name for file in own for name in (file.name, f"{file.name}{_SBOM}")]
        names += [imagesbom.name_of(image.name) for image in images]
        names += [*(file.name for file in more), MANIFEST, SUMS]
        return Release(folder, [], folder.exists(), names)
    make_folder(place)
    try:
        with console.step("release") as step, _room(place) as fresh:
            artefacts = _fill(
                fresh, target, built, own=own, more=more, images=images, console=console
            )
            step.note = counted(len(artefacts), "file")
            step.size = sum(artefact.bytes for artefact in artefacts)
            if folder.exists():
                with console.task(f"comparing with {folder.name}"):
                    _check_same(folder, fresh)
                step.note = "unchanged"
                return Release(folder, artefacts, reused=True)
            fresh.rename(folder)
    except OSError as error:  # of a write it names no file
        raise FileError.of(error, "" if error.filename else str(place)) from error
    return Release(folder, artefacts, reused=False)


def _check_more(more: Sequence[Path]) -> None:
    """Raise UsageError for a file that cannot be a part of a release."""
    for file in more:
        try:
            file_name(file.name)
            os.fsencode(file.name).decode("utf-8")
            check_regular(file)
        except ValueError as error:
            raise UsageError(
                f"{file} cannot be a part of a release because {error}; give another with --add"
            ) from error


def _check_names(more: Sequence[Path], taken: Sequence[str]) -> None:
    """Raise UsageError for a file that another of the release would take the name of."""
    names = {MANIFEST, SUMS, SIGNATURE, *taken}
    for file in more:
        if file.name in names:
            raise UsageError(
                f"{file} cannot be a part of the release because that has another {file.name}; "
                "give it another name"
            )
        names.add(file.name)


@contextlib.contextmanager
def _room(place: Path) -> Iterator[Path]:
    """A folder below `place` for a release in the making; what a killed run left goes."""
    with Lock(place / ".lock"):
        for left in place.glob(f"{_BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=_BUILDING) as building:
            fresh = Path(building) / "files"
            fresh.mkdir()
            yield fresh


def _own_files(target: Target, built: Built) -> list[tuple[str, str]]:
    """Name and kind of what is made for a release."""
    return [
        (export_name(target), "patch"),
        (built.wheel.name, "wheel"),
        (built.manifest.name, "manifest"),
        (f"{built.wheel.name}{_SBOM}", "sbom"),
        (NOTES, "notes"),
    ]


def _fill(
    fresh: Path, target: Target, built: Built, *, console: Console, own: Sequence[Path] = (),
    more: Sequence[Path] = (), images: Sequence[Contents] = (),
) -> list[Artefact]:  # fmt: skip
    """Put everything into `fresh`: what is made for a release, the `own` conda packages of the
    wheel each with its bill of materials, and `more`."""
    text = built.manifest.read_text(encoding="utf-8")
    manifest = json.loads(text)
    written = {"manifest": text.encode(), "notes": notes(target, built.wheel.name).encode()}
    with console.task(f"exporting the series of {target.label}"):
        written["patch"] = export(target)
    with console.task(f"bill of materials of {built.wheel.name}"):
        licences = _licences(target, console)
        bill = sbom.render(target, series_of(target), built.wheel, manifest, licences)
        written["sbom"] = bill.encode()
    kinds = dict(_own_files(target, built))
    for name, kind in kinds.items():
        if kind == "wheel":
            _link_or_copy(built.wheel, fresh / name)
        else:
            (fresh / name).write_bytes(written[kind])
    for file in own:
        name = f"{file.name}{_SBOM}"
        with console.task(f"bill of materials of {file.name}"):
            bill = condasbom.render(file, made_of(file), built.wheel)
        (fresh / name).write_text(bill, "utf-8")
        kinds[name] = "sbom"
    for image in images:
        name = imagesbom.name_of(image.name)
        (fresh / name).write_text(imagesbom.render(image), "utf-8")
        kinds[name] = "image-sbom"
    for file in own:
        _link_or_copy(file, fresh / file.name)
    for file in more:  # its owner may go on writing to it
        shutil.copyfile(file, fresh / file.name)
    for file in (*own, *more):
        kinds[file.name] = file.suffix.removeprefix(".") or "file"
    total = sum((fresh / name).stat().st_size for name in kinds)
    artefacts = []
    with console.task("checksums", total=max(1, total)) as task:
        for name, kind in kinds.items():
            artefacts.append(_artefact(fresh / name, kind))
            task.advance(artefacts[-1].bytes)
    about = {
        "schema": SCHEMA,
        "tag": target.label,
        "lmsbuild": __version__,
        "artefacts": [asdict(artefact) for artefact in artefacts],
        "images": {image.name: image.digest for image in images},
        "conda": {file.name: made_of(file) for file in (*own, *more) if file.suffix == _CONDA},
        "wheel": manifest,
    }
    (fresh / MANIFEST).write_text(_json(about), encoding="utf-8")
    sums = [*artefacts, _artefact(fresh / MANIFEST, "release")]
    (fresh / SUMS).write_text("".join(f"{a.sha256}  {a.name}\n" for a in sums), encoding="utf-8")
    return artefacts


def _licences(target: Target, console: Console) -> dict[str, str]:
    """Of the wheels that were compiled against, by name."""
    wheels = [header_wheel(header, target, console) for header in target.variant.headers]
    return {wheel.name: wheelfile.licence(wheel) for wheel in wheels}


def notes(target: Target, wheel_name: str) -> str:
    """What is in the release, from the messages of the series' commits."""
    parts = [
        f"# {target.framework_name} {target.tag_name} with Large Model Support",
        f"Version {target.version}, for upstream commit {target.tag.commit}.",
        f"```sh\npip install ./{wheel_name}\n```",
        "Or on upstream's source:",
        f"```sh\ngit am {export_name(target)}\n```",
    ]
    for patch in series_of(target).patches:
        paragraphs = patch.mail.body.split("\n\n")
        if patch.mail.trailers("Test"):
            paragraphs = paragraphs[:-1]
        parts.append(f"## {patch.subject}")
        parts += paragraphs
    return "\n\n".join(part for part in parts if part) + "\n"


def _check_same(folder: Path, fresh: Path) -> None:
    """Raise RebuildError unless the release in `folder` is this one."""
    ours, theirs = _sums(fresh), _sums(folder)
    differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if differing:
        raise RebuildError(
            f"{folder} was left as it is because it holds another release of the same version "
            f"({', '.join(differing)} differ); raise the wheel's `local` version in "
            "tag.toml, or remove the folder if it was never published",
            differing=differing,
        )


def _sums(folder: Path) -> dict[str, str]:
    """What every file of the folder is now, not what SHA256SUMS says."""
    files = (file for file in sorted(folder.iterdir()) if file.name != SIGNATURE)
    return {file.name: sha256_file(file) if file.is_file() else "no file" for file in files}


# Signing it --------------------------------------------------------------------------------------


def sign(folder: Path, key: Path) -> Path:
    """The signature of the release's checksums, by OpenSSH with the private `key`; one that is
    there stays. Raises MissingToolError, SignError."""
    signature = folder / SIGNATURE
    if signature.is_file():
        return signature
    program = shutil.which("ssh-keygen")
    if program is None:
        raise MissingToolError(
            "the release was not signed because there is no ssh-keygen; install OpenSSH"
        )
    with cache.scratch() as place:
        shutil.copyfile(folder / SUMS, place / SUMS)
        # Without a terminal it asks nobody for a passphrase.
        done = log.run([program, "-Y", "sign", "-f", str(key), "-n", "file", str(place / SUMS)])
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise SignError(
                f"{folder} was not signed because ssh-keygen says: {said}; give a private key of "
                "OpenSSH's that has no passphrase, or whose agent runs",
                output=done.stderr,
            )
        write_atomic(signature, (place / SIGNATURE).read_bytes())
    return signature


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Made(_Part):
    name: FileName
    sha256: str
    bytes: int


class _Artefact(_Made):
    kind: str


class _Wheel(_Part):
    """What is beside a wheel, as far as it is looked at."""

    python: PythonVersion
    cuda: CudaVersion
    patches: dict[str, str]
    toolchain: dict[str, str]
    inputs: dict[str, str]
    members: dict[str, str]
    wheel: _Made


class _Manifest(_Part):
    schema_: int = Field(alias="schema")
    tag: str
    artefacts: list[_Artefact]
    conda: dict[FileName, dict[str, Any]] = {}
    wheel: _Wheel


# Making it again ---------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """A release's manifest, or the one beside a wheel in that form. Raises ConfigError."""
    try:
        data = strictjson.loads(path.read_text(encoding="utf-8"))
        if "artefacts" not in data:
            about = data["wheel"]
            made = {"name": about["name"], "kind": "wheel", "sha256": about["sha256"]}
            data = {
                "schema": SCHEMA,
                "tag": data["tag"],
                "artefacts": [{**made, "bytes": about["bytes"]}],
                "wheel": data,
            }
        _Manifest.model_validate(data)
    except OSError as error:
        raise FileError.of(error, str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{path} cannot be used because it is no manifest of lmsbuild "
            f"({'.'.join(map(str, first['loc']))}: {first['msg']}); give the {MANIFEST} of a "
            "release or the .manifest.json beside a wheel"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be used because it is no manifest of lmsbuild ({error}); give the "
            f"{MANIFEST} of a release or the .manifest.json beside a wheel"
        ) from error
    if data["schema"] != SCHEMA:
        raise ConfigError(
            f"{path} cannot be used because it has schema {data['schema']}, and this lmsbuild "
            f"reads {SCHEMA}; use the lmsbuild {data.get('lmsbuild', '')} that made it"
        )
    checked: dict[str, Any] = data
    return checked


def rebuild(
    target: Target, recorded: Mapping[str, Any], choices: Choices, console: Console,
    container: Container | None = None,
) -> list[Compared]:  # fmt: skip
    """Make what `recorded` tells of again, every file compiled anew, and compare bit for bit.

    Files that were only added to the release are not made again. Raises RebuildError saying what
    differs and why, as far as the two manifests tell.
    """
    about = _own(recorded)
    with cache.scratch() as folder:
        _, built = wheel(
            target, choices, console, folder / "wheels", container=container,
            objects=folder / "objects",
        )  # fmt: skip
        fresh = folder / "files"
        fresh.mkdir()
        made = {a.name: a.sha256 for a in _fill(fresh, target, built, console=console)}
        now = json.loads(built.manifest.read_text(encoding="utf-8"))
        packages = _packages(target, choices, built, folder / "conda", console) if about else []
        for file in packages:
            text = condasbom.render(file, made_of(file), built.wheel)
            made |= {
                file.name: sha256_file(file),
                f"{file.name}{_SBOM}": sha256_bytes(text.encode()),
            }
        origins = {file.name: made_of(file) for file in packages}
    compared = [
        Compared(artefact["name"], artefact["sha256"], made.get(artefact["name"], ""))
        for artefact in recorded["artefacts"]
        if artefact["kind"] in _MADE or artefact["name"] in about
    ]
    wrong = [one for one in compared if not one.same]
    if wrong:
        packed = [one.name for one in wrong if one.name in about]
        why = explain(recorded["wheel"], now) if len(packed) < len(wrong) else []
        for name in packed:
            why += explain_package(name, about[name], origins.get(name, {}))
        raise RebuildError(
            f"{', '.join(one.name for one in wrong)} came out other than recorded because "
            f"{'; '.join(why)}; build it with the recorded inputs",
            compared=[asdict(one) for one in compared],
            why=why,
        )
    return compared


def _own(recorded: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conda packages of a release that were made from its wheel, and what they are made of."""
    wheel = recorded["wheel"]["wheel"]["sha256"]
    packages: Mapping[str, Mapping[str, Any]] = recorded.get("conda", {})
    return {
        name: facts
        for name, facts in packages.items()
        if facts and facts.get("wheel_sha256", wheel) == wheel
    }


def _packages(target: Target, choices: Choices, built: Built, folder: Path, console: Console
) -> list[Path]:  # fmt: skip
    plan = framework_plan(target, target.python(choices.python), subdir_of(target.machine))
    made = make(plan, built.wheel, target.project, folder, console)
    return [one.package.path for one in made]


def explain_package(name: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why a conda package differs from the one that was released."""
    if not now:
        return [f"{name} is not what the tag's package is called now"]
    found = _differences("recipe", recorded.get("recipes", {}), now.get("recipes", {}))
    if recorded.get("tools") != now.get("tools"):
        found.append(f"{name} was made by {recorded.get('tools')}, now by {now.get('tools')}")
    if recorded.get("wheel_sha256") != now.get("wheel_sha256"):
        found.append(f"the wheel in {name} is another")
    return found or [f"what {name} is made of is equal, but its build is not reproducible"]


def explain(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why two wheels differ: their inputs first, and only if these are equal, their members."""
    found: list[str] = []
    for key, what in (
        ("tag", "the tag"),
        ("commit", "upstream's commit"),
        ("python", "the Python"),
        ("cuda", "the CUDA version"),
        ("version", "the version"),
        ("lmsbuild", "lmsbuild"),
    ):
        if recorded.get(key) != now.get(key):
            found.append(f"{what} was {recorded.get(key)} and is {now.get(key)}")
    for key, what in (("toolchain", "the"), ("patches", "patch"), ("inputs", "input")):
        found += _differences(what, recorded.get(key, {}), now.get(key, {}))
    if recorded.get("overlay") != now.get("overlay"):
        found.append("the tag's table `overlay` in tag.toml changed")
    if not found and recorded.get("sources") != now.get("sources"):
        found.append("a source or header that was compiled changed")
    members = _differences("member", recorded.get("members", {}), now.get("members", {}))
    if not found:
        found = ["the inputs are equal, but the build is not reproducible", *members]
    elif members:
        found.append(f"members of the wheel that differ for it: {len(members)}")
    return found


def _differences(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    found = []
    for name in sorted({*old, *new}):
        if name not in new:
            found.append(f"{what} {name} is gone")
        elif name not in old:
            found.append(f"{what} {name} is new")
        elif old[name] != new[name]:
            found.append(f"{what} {name} was {old[name]} and is {new[name]}")
    return found


def _artefact(file: Path, kind: str) -> Artefact:
    return Artefact(file.name, kind, sha256_file(file), file.stat().st_size)


def _link_or_copy(source: Path, to: Path) -> None:
    """A second name where the file system allows it: wheels are large, and never written to."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
