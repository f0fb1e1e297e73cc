# SPDX-License-Identifier: Apache-2.0
"""A package of Python alone beside an official wheel: one wheel for every release, and an sdist."""

from __future__ import annotations

import json
from email.message import Message
from pathlib import Path

from lmsbuild.base.hashing import sha256_bytes, sha256_file, sha256_value
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import make_folder
from lmsbuild.tags.runtimefiles import check_own, licence_text
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.plugin import MANIFEST, Built, PluginTarget, key_of, tested, write_sdist
from lmsbuild.wheel.wheelfile import WheelName

_PYTHON = ">=3.10"


def source_files(found: PluginTarget) -> dict[str, bytes]:
    """The sdist's files by path. The same for every release."""
    root, name = found.target.project.root, found.plugin.name
    sources = root / found.plugin.sources
    files = {}
    for path in sorted((sources / name).rglob("*.py")):
        check_own(root, path)
        files[path.relative_to(sources).as_posix()] = path.read_bytes()
    files[f"{name}/_tested.py"] = tested(found)
    files["pyproject.toml"] = _pyproject(found).encode()
    files["LICENSE"] = licence_text(root)
    files["PKG-INFO"] = _metadata(found)
    return files


def _summary(found: PluginTarget) -> str:
    return f"Large Model Support for any stock {found.target.framework_name}"


def _metadata(found: PluginTarget) -> bytes:
    """Without a requirement: the framework's wheels have several names."""
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = found.plugin.name.replace("_", "-")
    message["Version"] = found.version
    message["Summary"] = _summary(found)
    message["License"] = "Apache-2.0"
    message["Requires-Python"] = _PYTHON
    return message.as_bytes()


def _pyproject(found: PluginTarget) -> str:
    return f"""\
# SPDX-License-Identifier: Apache-2.0
[build-system]
requires = ["hatchling>=1.21,<2"]
build-backend = "hatchling.build"

[project]
name = "{found.plugin.name.replace("_", "-")}"
version = "{found.version}"
description = "{_summary(found)}"
requires-python = "{_PYTHON}"
license = {{ text = "Apache-2.0" }}
"""


def build(found: PluginTarget, output: Path, *, dry_run: bool = False) -> Built:
    """Make the sdist and the wheel in `output`. Same inputs give the same bytes."""
    files = source_files(found)
    key = sha256_value({name: sha256_bytes(content) for name, content in files.items()})
    name = WheelName(found.plugin.name, found.version, "py3", "none", "any")
    wheel = output / str(name)
    sdist = output / f"{found.plugin.name}-{found.plugin.version}.tar.gz"
    if dry_run:
        return Built(wheel, sdist, reused=False)
    make_folder(output)
    with Lock(output / ".lock"):
        write_sdist(found, files, output)
        if key_of(wheel) == key and wheelfile.is_whole(wheel):
            return Built(wheel, sdist, reused=True, sha256=sha256_file(wheel))
        manifest = json.dumps({"schema": 1, "key": key}, indent=2)
        below = f"{found.plugin.name}/"
        members = {
            **{path: content for path, content in files.items() if path.startswith(below)},
            f"{name.dist_info}/METADATA": files["PKG-INFO"],
            f"{name.dist_info}/WHEEL": (
                b"Wheel-Version: 1.0\nGenerator: lmsbuild\nRoot-Is-Purelib: true\n"
                b"Tag: py3-none-any\n"
            ),
            f"{name.dist_info}/LICENSE": files["LICENSE"],
            f"{name.dist_info}/{MANIFEST}": f"{manifest}\n".encode(),
        }
        wheelfile.create(wheel, members)
    return Built(wheel, sdist, reused=False, sha256=sha256_file(wheel))
