# SPDX-License-Identifier: Apache-2.0
"""The official wheels of a tag that is not supported yet, as far as the package index says: for
which Pythons, platform and CUDA, and the wheels of NVIDIA's that have the headers for that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from lmsbuild.base.console import Console
from lmsbuild.base.errors import DownloadError, LmsbuildError, OfflineError
from lmsbuild.base.settings import offline
from lmsbuild.tags.frameworks import HeaderWheel, Target, Variant
from lmsbuild.tags.new_release import PYTHONS, Ask, ask_index, cuda_of, digest_of, header_of

# pip takes a platform by its exact name: the newest first.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


@dataclass(frozen=True)
class Official:
    """The wheels of one variant."""

    cuda: str
    platform: str
    sha256: dict[str, str]  # per Python
    headers: list[HeaderWheel]


@dataclass(frozen=True)
class Wheels:
    found: dict[str, Official] = field(default_factory=dict)  # by the name of the old tag's variant
    lost: dict[str, str] = field(default_factory=dict)  # the same -> why none was found


def look_up(series: Target, version: str, console: Console, ask: Ask = ask_index) -> Wheels:
    """The wheels of `version` of the framework, like those of the tag `series`."""
    wheels = Wheels()
    with console.task(f"looking up the wheels of {series.framework_name} {version}"):
        for name, variant in series.tag.cuda.items():
            try:
                wheels.found[name] = _official(name, variant, version, ask)
            except LmsbuildError as error:
                wheels.lost[name] = error.message
    return wheels


def _official(name: str, variant: Variant, version: str, ask: Ask) -> Official:
    if offline():
        raise OfflineError(
            f"the wheels of {variant.wheel.project} {version} were not looked up because downloads "
            "are off; write them into tag.toml"
        )
    old = variant.wheel.platforms or ["linux_x86_64"]
    match = re.search(r"x86_64|aarch64|ppc64le", old[0])
    machine = match[0] if match else "x86_64"
    platforms = list(dict.fromkeys([*old, *(f"{each}_{machine}" for each in _PLATFORMS)]))
    pythons = sorted({*variant.wheel.sha256, *PYTHONS}, key=lambda p: [*map(int, p.split("."))])
    found = {
        python: report
        for python in pythons
        if (report := ask(variant.wheel.project, version, python, platforms)) is not None
    }
    if not found:
        raise DownloadError(
            f"the wheels of {variant.wheel.project} {version} are not known because the index has "
            f"none for {machine}; write them into tag.toml"
        )
    first = next(iter(found.values()))
    file = unquote(urlsplit(str(first["download_info"]["url"])).path).rpartition("/")[2]
    tags = {tag.platform for tag in parse_wheel_filename(file)[3]}
    platform = next((each for each in platforms if each in tags), min(tags))
    cuda, headers = name, list(variant.headers)
    if headers:
        cuda = cuda_of(first["metadata"].get("requires_dist", []), version)
        headers = [header_of(header, cuda, ask, platforms) for header in headers]
    return Official(cuda, platform, {p: digest_of(r) for p, r in found.items()}, headers)
