# SPDX-License-Identifier: Apache-2.0
"""A tag that is not supported yet: what stands for it while a series is ported to it, and what is
written down of it afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import tomli
import tomlkit
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from lmsbuild.base.errors import ConfigError, UsageError
from lmsbuild.base.filenames import file_name
from lmsbuild.base.git import NOTHING
from lmsbuild.base.project import Project
from lmsbuild.base.transaction import PROJECT_STATE, Content, FileTransaction
from lmsbuild.checkout.edits import Line
from lmsbuild.series.series import check_folders, patch_files
from lmsbuild.tags.frameworks import TAG_FILE, Tag, Target, load, targets
from lmsbuild.tags.official import Official, Wheels

_PORTED = "# Ported from"
_WHEELS = "the official wheels (`wheel`: platforms, sha256), their CUDA versions, ABI and headers"
# What no source says.
_UNKNOWN = (
    "`pins`, `uses`, `images` and `full`: what upstream built and ran it with",
    "`companions`: official wheels that go beside it",
    "`alone`: what the suites use besides, without what that requires; `tools`: other versions",
    "`overlay`: the sources of each library, flags and folders",
)


def new_tag(target: Target, spec: str) -> Target:
    """A tag of the framework of `target`, with nothing known of its code. Raises UsageError for
    what is the name of no release."""
    framework, _, name = spec.rpartition(":")
    try:
        version = str(Version(file_name(name).removeprefix("v")))
    except (InvalidVersion, ValueError) as error:
        raise UsageError(
            f"{target.label} cannot be ported to {spec!r} because that is the name of no release; "
            "give a tag like v1.13.1"
        ) from error
    if framework not in ("", target.framework_name):
        raise UsageError(
            f"{target.label} cannot be ported to {spec} because that is another framework; give a "
            f"tag of {target.framework_name}"
        )
    tag = target.tag.model_copy(
        update={"version": version, "commit": NOTHING, "debian": None, "preimage": {}}
    )
    return replace(target, tag_name=name, tag=tag)


def check_new(target: Target, new: Target) -> None:
    """Raise UsageError when the tag is supported already, or could not be written down."""
    if target.project.installed:
        raise UsageError(
            "the patches of an installed lmsbuild are not written because an update would undo it; "
            "work in a clone of the project, or name one with LMSBUILD_ROOT"
        )
    if patch_files(new.tag_patches) or (new.tag_patches / TAG_FILE).exists():
        raise UsageError(
            f"{target.label} cannot be ported to {new.tag_name} because that is supported already; "
            f"change its patches with `lmsbuild apply {new.label}` and `lmsbuild refresh "
            f"{new.label}`, or remove {new.tag_patches} first"
        )
    check_folders(new, f"{target.label} cannot be ported to {new.tag_name}")


def nearest(project: Project, spec: str) -> Target:
    """The supported tag that a series for `spec` is best taken from: of the newest release before
    it, else of the oldest. Raises UsageError."""
    framework, _, name = spec.rpartition(":")
    known = [each for each in targets(project) if framework in ("", each.framework_name)]
    names = sorted({each.framework_name for each in known})
    if len(names) != 1:
        raise UsageError(
            f"{spec} cannot be added because it does not say of which framework it is; name one "
            f"as in {(names or list(load(project)))[0]}:{name}"
        )
    try:
        version = Version(name.removeprefix("v"))
    except InvalidVersion:
        return known[0]  # `new_tag` says what is wrong
    known.sort(key=lambda each: Version(each.version))
    older = [each for each in known if Version(each.version) <= version]
    return older[-1] if older else known[0]


def unknown(series: Target, line: Line, wheels: Wheels) -> list[str]:
    """What a person must say of the tag, in words: what no source says, and sources of the overlay
    that are not there any more."""
    told = [f"the official wheels for {name}: {why}" for name, why in wheels.lost.items()]
    told += ["`abi` of the official wheels"] if wheels.found else []
    told = [*(told or [_WHEELS]), *_UNKNOWN]
    if line.target.tag.commit == NOTHING:
        told.insert(0, f"`commit`: upstream's commit of {line.target.tag_name}")
    files = [file for lib in series.tag.overlay.libraries for file in lib.sources]
    lost = line.missing(files)
    if lost:
        told.append(f"sources of `overlay` that are not there: {', '.join(lost)}")
    return told


def record(series: Target, line: Line, wheels: Wheels) -> list[str]:
    """Write the folder of the tag of `line`: its patches, and a tag.toml like that of `series` with
    the blobs that they were made for. Names the files, from the project's root."""
    target, root = line.target, series.project.root
    files = {target.file: _tag_file(series, line, wheels)}
    folder = target.file.rpartition("/")[0]
    files.update({f"{folder}/{name}": content for name, content in line.hooks.items()})
    command = f"port {series.label} {target.tag_name}"
    with FileTransaction.begin(root, root / PROJECT_STATE, command) as transaction:
        for name, content in files.items():
            transaction.put(name, Content(content))
        transaction.commit()
    return sorted(files)


def verified(target: Target, how: str) -> None:
    """Write down how far a tag was tried today, in the words of `Verified`."""
    file = target.project.root / target.file
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    if document["commit"] == NOTHING:
        return  # nobody knows that it was the tag's own code
    _put_verified(document, how)
    command = f"port {target.label}"
    state = target.project.root / PROJECT_STATE
    with FileTransaction.begin(target.project.root, state, command) as transaction:
        transaction.put(target.file, Content(tomlkit.dumps(document).encode()))
        transaction.commit()


def _put_verified(document: tomlkit.TOMLDocument, how: str) -> None:
    value = tomlkit.inline_table()
    value.update({"on": date.today(), "how": how})
    document["verified"] = value


def _tag_file(series: Target, line: Line, wheels: Wheels) -> bytes:
    target = line.target
    text = (series.project.root / series.file).read_text(encoding="utf-8")
    document = tomlkit.parse(text)
    document["version"] = target.tag.version
    document["commit"] = target.tag.commit
    if target.tag.commit == NOTHING:
        document.pop("verified", None)
    else:
        _put_verified(document, "applied")
    for name in ("debian", "companions"):
        document.pop(name, None)
    for variant in document["cuda"].values():
        variant["wheel"]["version"] = target.tag.version
        variant["wheel"]["platforms"] = []
        variant["wheel"]["sha256"] = tomlkit.table()
    for name, official in wheels.found.items():
        _put_official(document, name, official)
    if "full" in document:
        document["full"].pop("ran", None)
    document["preimage"] = _table(line.preimage())
    head = "\n".join(
        (
            f"{_PORTED} {series.tag_name}. What `lmsbuild port` cannot know is empty, or still",
            f"# as of {series.tag_name}:",
            *(f"# - {what}" for what in unknown(series, line, wheels)),
        )
    )
    made = _below_comments(tomlkit.dumps(document), head)
    try:
        Tag.model_validate(tomli.loads(made))
    except ValidationError as error:
        raise ConfigError(
            f"{target.file} was not written because it would be invalid ({error}); correct "
            f"{series.file}"
        ) from error
    return made.encode()


def _below_comments(text: str, head: str) -> str:
    """`text` with `head` below the comment that it begins with, its licence, instead of what an
    earlier port said there."""
    first = re.match(r"(#.*\n)*", text)
    assert first is not None
    kept = re.split(rf"^(?:#\n)?{_PORTED}", first[0], maxsplit=1, flags=re.MULTILINE)[0]
    return f"{kept}{'#' if kept else ''}{chr(10) if kept else ''}{head}\n{text[first.end() :]}"


def _put_official(document: tomlkit.TOMLDocument, name: str, official: Official) -> None:
    variant: Any = document["cuda"][name]
    wheel = variant["wheel"]
    wheel["platforms"] = [official.platform]
    wheel["sha256"] = _table(official.sha256)
    for header, found in zip(variant.get("headers", []), official.headers, strict=True):
        header["version"], header["sha256"] = found.version, found.sha256
    if official.cuda != name:
        number = official.cuda.replace(".", "")
        wheel["local"] = re.sub(r"^cu\d+", f"cu{number}", str(wheel["local"]))
        every: Any = document["cuda"]
        every.add(official.cuda, every.pop(name))


def _table(values: Mapping[str, str]) -> tomlkit.items.Table:
    table = tomlkit.table()
    for name, value in sorted(values.items()):
        table.add(name, value)
    return table
