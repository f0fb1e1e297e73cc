# SPDX-License-Identifier: Apache-2.0
"""Do the new libraries fit where the old ones were, and on which systems do they run?"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import WheelError
from lmsbuild.base.hashing import (
    sha256_value,
)
from lmsbuild.tags.frameworks import Library
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.inputs import Inputs
from lmsbuild.wheel.platform_tag import newest_version, platform_tag

_FORM = 2  # of the list of libraries that is kept
# Part of the C library or the compiler: their split into files changed over the years.
_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*\.so\.\d+)$")


@dataclass(frozen=True)
class Needs:
    """The oldest systems that a wheel runs on, told by its platform tag and the official one's."""

    platform: str
    official: str
    because: str


def needs_of(
    inputs: Inputs, new: dict[str, elf.Library], official: dict[str, elf.Library]
) -> Needs:
    """By the symbol versions of all libraries that the wheel will have."""
    machine = inputs.compiler.machine
    theirs = [library.versions for library in official.values()]
    ours = [library.versions for library in {**official, **new}.values()]
    before, after = platform_tag(machine, theirs), platform_tag(machine, ours)
    if before == after:
        return Needs(after, before, "as the official wheel")
    raised = []
    for member, library in new.items():
        for family in ("GLIBC", "GLIBCXX", "CXXABI"):
            found = newest_version([library.versions], family)
            if Version(found) > Version(newest_version(theirs, family)):
                raised.append(f"{member.rsplit('/', 1)[-1]} needs {family}_{found}")
    compiler = inputs.compiler.identity["compiler"]
    return Needs(after, before, f"{', '.join(raised)}, which {compiler} linked it to")


def official_libraries(inputs: Inputs, console: Console) -> dict[str, elf.Library]:
    """What each library of the official wheel needs and gives (member -> Library).

    Of the symbols only those that a replaced library exports are kept; the rest is of no use
    here and large.
    """
    replaced = [lib.path for lib in inputs.target.tag.overlay.libraries if lib.path == lib.like]

    def fill(note: Path) -> None:
        found: dict[str, elf.Library] = {}
        for member in wheelfile.names(inputs.wheel):
            if re.search(r"\.so(\.[\w.]+)?$", member):
                file = note.with_name("library.so")
                wheelfile.extract_one(inputs.wheel, member, file)
                found[member] = elf.read(file)
        given = frozenset[str]().union(*(found[member].exports for member in replaced))
        note.write_text(
            json.dumps({member: lib.only(given).dump() for member, lib in found.items()}),
            encoding="utf-8",
        )

    name = sha256_value([inputs.target.wheel.sha256[inputs.python], replaced, _FORM])[:16]
    title = f"list of the libraries of {inputs.wheel.name}"
    note = cache.keep("libraries", name, title, fill, console, tag=inputs.target.label)
    data = json.loads(note.read_text(encoding="utf-8"))
    return {member: elf.Library.load(fields) for member, fields in data.items()}


def check_fit(
    inputs: Inputs, new: dict[str, elf.Library], official: dict[str, elf.Library]
) -> None:
    """Check the new libraries against the wheel that they go into."""
    for library in inputs.target.tag.overlay.libraries:
        _check_library(library, new, official)
    # What the official compiler put into every library, today's systems have in the C++ library.
    given = [*{**official, **new}.values(), *inputs.compiler.system_libraries()]
    exported = frozenset[str]().union(*(library.exports for library in given))
    for member, user in official.items():
        missing = sorted(user.imports - exported)
        if missing and member not in new:
            raise WheelError(
                f"the overlay does not fit because {member} imports {missing[0]} and "
                f"{len(missing) - 1} more that nothing exports any longer; keep upstream's "
                "interface",
                missing=missing,
                member=member,
            )


def _check_library(
    library: Library, built: dict[str, elf.Library], official: dict[str, elf.Library]
) -> None:
    new, like = built[library.path], official[library.like]
    if library.official:
        first = [name for name in new.needed if not _SYSTEM.match(name)][:1]
        if first != [built[library.official].soname]:
            raise WheelError(
                f"{library.name} does not fit because it needs {first[0] if first else 'nothing'} "
                f"before {library.official}; this is a defect of the link step"
            )
    elif library.path == library.like:
        ours = {name for name in new.needed if not _SYSTEM.match(name)}
        theirs = {name for name in like.needed if not _SYSTEM.match(name)}
        if ours ^ theirs != set(library.differs):
            raise WheelError(
                f"{library.name} does not fit because it needs {', '.join(sorted(ours))}, the "
                f"official one {', '.join(sorted(theirs))}; correct `link` or `differs` in tag.toml"
            )
    if new.soname != library.name or new.rpath != like.rpath or new.is_runpath != like.is_runpath:
        raise WheelError(
            f"{library.name} does not fit because its soname or RPATH is not as in "
            f"{library.like}; this is a defect of the link step"
        )
