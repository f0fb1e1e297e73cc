# SPDX-License-Identifier: Apache-2.0
"""A release of a framework that the plug-in is not built for yet: its entry in plugin.toml.

Everything in it is from the package index, but for the ABI, which is that of the nearest known
release. The headers are of the wheel's version of CUDA, in the packages that a known release of the
same major version has them from.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, DownloadError, UsageError
from lmsbuild.base.hashing import write_atomic
from lmsbuild.base.project import Project
from lmsbuild.tags.frameworks import PLUGIN_FILE, Framework, HeaderWheel, Variant, load

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# What the headers' wheels are for: pip takes a platform by its exact name.
_OLDER = tuple(f"manylinux{each}_x86_64" for each in ("_2_27", "_2_24", "_2_17", "2014", "1"))
# (project, version, Python, platforms) -> pip's report on the wheel, None when there is none.
Ask = Callable[[str, str, str, Sequence[str]], "Mapping[str, Any] | None"]


def ask_index(
    project: str, version: str, python: str, platforms: Sequence[str]
) -> Mapping[str, Any] | None:
    """What pip would install, without getting it."""
    with tempfile.TemporaryDirectory() as folder:
        done = log.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:",
                "--python-version", python, "--implementation", "cp",
                *(word for each in platforms for word in ("--platform", each)),
                "--target", folder, "--report", "-", f"{project}=={version}",
            ]
        )  # fmt: skip
    if done.returncode == 0:
        report: dict[str, Any] = json.loads(done.stdout)["install"][0]
        return report
    if "No matching distribution" in done.stderr:
        return None
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    raise DownloadError(
        f"{project} {version} cannot be looked up because pip says {last}; check the network and "
        "run again"
    )


def add(
    project: Project, name: str, spec: str, console: Console, *, dry_run: bool = False,
    ask: Ask = ask_index,
) -> str:  # fmt: skip
    """Write the entry of an untested release of framework `name` into plugin.toml.

    Returns the entry. Raises UsageError, DownloadError or ConfigError."""
    framework = load(project)[name]
    version = _version(spec)
    if framework.plugin and not framework.plugin.compiled:
        raise UsageError(
            f"{version} cannot be added by --new because {framework.plugin.name} is not built "
            f"for one; add its wheel to patches/{name}/{PLUGIN_FILE}, like those that are there"
        )
    with console.task(f"looking up {name} {version}"):
        text = entry(framework, name, version, ask)
    if dry_run:
        return text
    file = project.patches / name / PLUGIN_FILE
    old = file.read_text(encoding="utf-8")
    write_atomic(file, f"{old.rstrip()}\n\n{text}".encode())
    try:
        load(project)
    except ConfigError:
        write_atomic(file, old.encode())
        raise
    return text


def _version(spec: str) -> str:
    try:
        version = Version(spec.rpartition(":")[2].removeprefix("v"))
    except InvalidVersion:
        version = Version("0")
    if len(version.release) != 3:
        raise UsageError(f"{spec} cannot be added because it is no release; give e.g. 2.16.0")
    return str(version)


def entry(framework: Framework, name: str, version: str, ask: Ask) -> str:
    assert framework.plugin is not None
    minor = version.rpartition(".")[0]
    for each in framework.plugin.releases:
        if each.rpartition(".")[0] == minor:
            raise UsageError(
                f"{version} cannot be added because the plug-in for {each} is for all of {minor}; "
                f"run `lmsbuild plugin {each}`"
            )
    known = {
        Version(each): (each_cuda, variant, release.cxx_standard)
        for each, release in framework.plugin.releases.items()
        for each_cuda, variant in framework.variants(release).items()
    }
    _, newest, standard = known[max(known)]
    (platform,) = newest.wheel.platforms
    found = {
        python: report
        for python in PYTHONS
        if (report := ask(newest.wheel.project, version, python, [platform])) is not None
    }
    if not found:
        raise DownloadError(
            f"{newest.wheel.project} {version} cannot be added because the index has no wheel of "
            f"it for {platform} and Python {', '.join(PYTHONS)}; check the version"
        )
    cuda = cuda_of(next(iter(found.values()))["metadata"].get("requires_dist", []), version)
    same = [at for at, (each, _, _) in known.items() if each.split(".")[0] == cuda.split(".")[0]]
    if not same:
        raise ConfigError(
            f"{version} cannot be added because it is for CUDA {cuda} and plugin.toml names "
            "headers of no release for that; add it by hand, with nvidia-cuda-runtime, -crt and "
            "nvidia-nvml-dev of that version"
        )
    # A later release is nearer than an earlier one: what changed once, as the ABI did, stays.
    near = known[min((at for at in known if at > Version(version)), default=max(known))][1]
    headers = [
        header_of(header, cuda, ask, [platform, *_OLDER]) for header in known[max(same)][1].headers
    ]
    return _text(
        name, version, cuda, standard, near, headers=headers, platform=platform, found=found
    )


def header_of(like: HeaderWheel, cuda: str, ask: Ask, platforms: Sequence[str]) -> HeaderWheel:
    report = ask(like.project, f"{cuda}.*", PYTHONS[0], platforms)
    if report is None:
        raise DownloadError(
            f"the release cannot be added because the index has no {like.project} {cuda} for "
            f"{', '.join(platforms)}, whose headers it needs; add it by hand"
        )
    return like.model_copy(
        update={"version": report["metadata"]["version"], "sha256": digest_of(report)}
    )


def digest_of(report: Mapping[str, Any]) -> str:
    return str(report["download_info"]["archive_info"]["hashes"]["sha256"])


def cuda_of(requirements: list[str], version: str) -> str:
    """X.Y of "cuda-toolkit[...]==13.2.2" or "nvidia-cuda-runtime-cu12==12.8.90"."""
    for requirement in requirements:
        match = re.match(
            r"(?:cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?)\b[^=;]*==\s*(\d+\.\d+)", requirement
        )
        if match:
            return match[1]
    raise ConfigError(
        f"{version} cannot be added because its wheel does not tell its CUDA version (no "
        "cuda-toolkit and no nvidia-cuda-runtime among its requirements); add it by hand"
    )


def _text(
    name: str, version: str, cuda: str, standard: str, near: Variant,
    *, headers: Sequence[HeaderWheel], platform: str, found: Mapping[str, Mapping[str, Any]],
) -> str:  # fmt: skip
    major, minor = version.split(".")[:2]
    release = f'releases."{version}"'
    variant = f'{release}.cuda."{cuda}"'
    lines = [
        f"[{release}]",
        "tested = false",
        f'requires = ">={major}.{minor},<{major}.{int(minor) + 1}"',
        f'cxx_standard = "{standard}"',
        "",
        f"[{variant}]",
        f"abi = {near.abi}",
        "",
        f"[{variant}.wheel]",
        f'project = "{near.wheel.project}"',
        f'version = "{version}"',
        'local = ""',
        f'platforms = ["{platform}"]',
        f'version_file = "{near.wheel.version_file}"',
        "",
        f"[{variant}.wheel.sha256]",
    ]
    for python, report in found.items():
        lines.append(f'"{python}" = "{digest_of(report)}"')
    for header in headers:
        lines += [
            "",
            f"[[{variant}.headers]]",
            f'project = "{header.project}"',
            f'version = "{header.version}"',
            f'root = "{header.root}"',
            f'sha256 = "{header.sha256}"',
        ]
    return "\n".join(lines) + "\n"
