# SPDX-License-Identifier: Apache-2.0
"""Which members of the official wheel change: touched files that go in as they are, what upstream's
build generates of touched files, and the wheel's own name.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from pathlib import Path

from lmsbuild import __version__
from lmsbuild.base.errors import ConfigError, MismatchError, WheelError
from lmsbuild.base.git import open_at
from lmsbuild.base.hashing import (
    git_blob,
)
from lmsbuild.series.series import NO_BLOB
from lmsbuild.tags import sourcelists
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.words import DATA
from lmsbuild.wheel import generated, wheelfile
from lmsbuild.wheel.inputs import Inputs
from lmsbuild.wheel.wheelfile import WheelName


def installed_as(target: Target, file: str) -> str | None:
    """The member that a touched file of the tree becomes as it is, if it does.

    `{data}` in it stands for the wheel's data folder, whose name has the version.
    """
    if any(fnmatch.fnmatch(file, pattern) for pattern in target.tag.overlay.build_files):
        return None
    for rule in target.tag.overlay.install:
        prefix = f"{rule.source}/" if rule.source else ""
        if file.startswith(prefix) and Path(file).suffix in rule.suffixes:
            return f"{rule.target}/{file.removeprefix(prefix)}"
    return None


def check_lists(inputs: Inputs) -> None:
    """Every touched file must reach the wheel; sources must be those that CMake compiles."""
    overlay = inputs.target.tag.overlay
    compiled = {source for library in overlay.libraries for source in library.sources}
    for file in inputs.series.before:
        if (
            file not in compiled
            and installed_as(inputs.target, file) is None
            and file not in overlay.generated.protos
            and not any(fnmatch.fnmatch(file, pattern) for pattern in overlay.build_files)
        ):
            raise ConfigError(
                f"{file} would be missing from the wheel because no library compiles it and no "
                f"rule installs it; add it to {inputs.target.file}",
                file=file,
            )
    for library in overlay.libraries:
        sourcelists.check_sources(library, inputs.tree)


def installed_members(inputs: Inputs) -> tuple[dict[str, bytes], frozenset[str]]:
    """Members changed and removed by touched files that go in as they are.

    A file that upstream has must be in the official wheel with upstream's content: otherwise the
    wheel was built of other code, and the patched file would not fit it.
    """
    changed: dict[str, bytes] = {}
    removed: set[str] = set()
    members = set(wheelfile.names(inputs.wheel))
    after = inputs.series.after()
    old = WheelName.of(inputs.wheel)
    new = replace(old, version=inputs.target.version)
    for file, before in inputs.series.before.items():
        place = installed_as(inputs.target, file)
        if place is None:
            continue
        member = place.replace(DATA, old.data)
        if before != NO_BLOB and member in members:
            found = git_blob(wheelfile.read(inputs.wheel, member))
            if found != before:
                raise MismatchError(
                    f"{inputs.wheel.name} was not built of {inputs.target.label} because its "
                    f"{member} has blob {found}, not {before}; the overlay cannot be made"
                )
        member = place.replace(DATA, new.data)
        if after[file] == NO_BLOB:
            removed.add(member)
        else:
            changed[member] = (inputs.tree / file).read_bytes()
    changed.update(_generated_members(inputs))
    return changed, frozenset(removed)


def _generated_members(inputs: Inputs) -> dict[str, bytes]:
    """Members that upstream's build makes of touched files."""
    made: dict[str, bytes] = {}
    checkout = open_at(inputs.tree)
    what = inputs.target.tag.overlay.generated

    def upstream(file: str) -> bytes:
        blob = inputs.series.before[file]
        return b"" if blob == NO_BLOB else checkout.blob(blob)

    imports: dict[str, list[str]] = {}
    for file in inputs.series.before:
        if what.api and file.endswith(".py") and installed_as(inputs.target, file):
            known = generated.exports(upstream(file), file)
            now = generated.exports((inputs.tree / file).read_bytes(), file)
            fresh = {name: symbol for name, symbol in now.items() if name not in known}
            for root in what.api:
                for member, lines in generated.api_imports(fresh, file, root).items():
                    imports.setdefault(member, []).extend(lines)
    for member, lines in imports.items():
        official = wheelfile.read(inputs.wheel, member)
        made[member] = generated.with_imports(official, lines, member)
    for file, member in what.protos.items():
        if file in inputs.series.before:
            before = generated.descriptor(inputs.tree, file, upstream(file))
            after = generated.descriptor(inputs.tree, file)
            official = wheelfile.read(inputs.wheel, member)
            made[member] = generated.proto_module(official, before, after, member)
    return made


def identity(inputs: Inputs, old: WheelName, new: WheelName) -> dict[str, bytes]:
    """METADATA, WHEEL and the version file with the new version and tag."""
    metadata = wheelfile.read(inputs.wheel, f"{old.dist_info}/METADATA").decode()
    metadata = re.sub(r"^Version: .*$", f"Version: {new.version}", metadata, count=1, flags=re.M)
    about = wheelfile.read(inputs.wheel, f"{old.dist_info}/WHEEL").decode()
    about = re.sub(r"^(Tag|Generator): .*\n", "", about, flags=re.M).rstrip("\n")
    about += f"\nGenerator: lmsbuild {__version__}\n"
    about += f"Tag: {new.python}-{new.abi}-{new.platform}\n"
    changed = {
        f"{new.dist_info}/METADATA": metadata.encode(),
        f"{new.dist_info}/WHEEL": about.encode(),
    }
    member = inputs.target.wheel.version_file
    if member is None:
        return changed
    text = wheelfile.read(inputs.wheel, member).decode()
    version, count = re.subn(
        r"^__version__ = .*$", f"__version__ = '{new.version}'", text, count=1, flags=re.M
    )
    if not count:
        raise WheelError(
            f"the version cannot be set because {member} has no __version__ line; correct "
            "version_file in tag.toml"
        )
    return {**changed, member: version.encode()}
