# SPDX-License-Identifier: Apache-2.0
"""What is in a container image: its packages, of the system and of Python, as it says itself."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from docker.errors import ImageNotFound

from lmsbuild.base.errors import BaseImageError
from lmsbuild.places.docker import Engine, owner, translated
from lmsbuild.wheel.wheelfile import licence_of

_FIELDS = ("License-Expression", "License", "Classifier")
_PYTHON = f"""
import importlib.metadata, json
for each in importlib.metadata.distributions():
    about = each.metadata
    said = {{name: about.get_all(name) or [] for name in {_FIELDS}}}
    print(json.dumps([about["Name"], about["Version"], said]))
"""
_MARK = "---"
_SYSTEM = r"""
cat /etc/os-release /usr/lib/os-release 2>/dev/null; echo ---
dpkg-query -W -f 'deb ${Package} ${Version} ${Architecture}\n' 2>/dev/null ||
rpm -qa --qf 'rpm %{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n' 2>/dev/null ||
apk list --installed 2>/dev/null | sed -n 's/^\(.*\)-\([^-]*-r[0-9]*\) \([^ ]*\) .*/apk \1 \2 \3/p'
echo ---
"""


@dataclass(frozen=True)
class SystemPackage:
    kind: str  # deb, rpm or apk
    name: str
    version: str
    machine: str


@dataclass(frozen=True)
class PythonPackage:
    name: str
    version: str
    licence: str


@dataclass(frozen=True)
class Contents:
    """Of the image `name`."""

    name: str
    id: str
    digest: str  # the registry's once it was pushed, else the engine's id
    created: str  # as the engine says it
    architecture: str
    labels: Mapping[str, str]
    distribution: str  # ID of os-release
    release: str  # and VERSION_ID
    system: list[SystemPackage] = field(default_factory=list)
    python: list[PythonPackage] = field(default_factory=list)


def digest(image: Any) -> str:
    pushed = image.attrs.get("RepoDigests") or []
    return str(pushed[0].partition("@")[2] if pushed else image.id)


def contents(engine: Engine, name: str) -> Contents:
    """Ask the image itself, in a container without network. Raises BaseImageError where the engine
    has no such image, and what `translated` makes."""
    try:
        image = engine.client.images.get(name)
    except ImageNotFound as error:
        raise BaseImageError(
            f"the digest of {name} cannot be recorded because {engine.host} has no such image; "
            "build it with `lmsbuild image`"
        ) from error
    python = f"python -c {shlex.quote(_PYTHON)} || python3 -c {shlex.quote(_PYTHON)} || true"
    with translated(f"what is in {name} was not listed", name):
        said: bytes = engine.client.containers.run(
            image.id, ["sh", "-c", f"{_SYSTEM}({python}) 2>/dev/null"], entrypoint=[], remove=True,
            network_mode="none", labels=owner(), cap_drop=["ALL"], stderr=False,
            security_opt=["no-new-privileges"],
        )  # fmt: skip
    parts = said.decode(errors="replace").split(f"{_MARK}\n")
    about, system, packages = (parts + [""] * 3)[:3]
    try:
        found = {_python(line) for line in packages.splitlines()}
    except (ValueError, TypeError, AttributeError) as error:
        raise BaseImageError(
            f"what is in {name} was not listed because its Python says no list of packages "
            f"({error}); leave the image out, or build it again"
        ) from error
    fields = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', about, re.MULTILINE))
    return Contents(
        name=name, id=str(image.id), digest=digest(image), created=str(image.attrs["Created"]),
        architecture=str(image.attrs["Architecture"]), labels=dict(image.labels),
        distribution=fields.get("ID", "linux"), release=fields.get("VERSION_ID", ""),
        system=[SystemPackage(*words) for line in system.splitlines()
                if len(words := line.split()) == 4],
        python=sorted(found, key=lambda p: (p.name, p.version)),
    )  # fmt: skip


def _python(line: str) -> PythonPackage:
    name, version, said = json.loads(line)
    about = Message()
    for key, values in said.items():
        for value in values:
            about[key] = value
    return PythonPackage(name, version, licence_of(about))
