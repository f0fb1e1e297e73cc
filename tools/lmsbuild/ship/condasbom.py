# SPDX-License-Identifier: Apache-2.0
"""What is in a conda package, as a CycloneDX bill of materials; the same package, the same one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Pedigree
from packageurl import PackageURL

from lmsbuild.conda.condapackage import inspect, metadata
from lmsbuild.ship.sbom import LIBRARY, NAMESPACE, exact, file, licences, package, required, written


def render(path: Path, made: Mapping[str, Any], wheel: Path) -> str:
    """CycloneDX 1.6 as JSON: the package, the wheel that it was made from, its libraries, and what
    it depends on. `made` is what the manifest beside the package says."""
    found = inspect(path)
    licence = found.record.get("license") or ""
    where = {"build": found.build, "subdir": found.subdir, "type": "conda"}
    root = Component(
        name=found.name,
        type=ComponentType.LIBRARY,
        version=found.version,
        purl=PackageURL("conda", None, found.name, found.version, where),
        licenses=licences(licence),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=found.sha256)],
        bom_ref=path.name,
    )
    origin = made.get("wheel_sha256")
    if origin:
        root.pedigree = Pedigree(ancestors=[package(wheel.name, origin)])
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, found.sha256))
    seconds = found.record.get("timestamp", 0) / 1000
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, timezone.utc)
    bom.metadata.component = root
    for entry in json.loads(metadata(path)["info/paths.json"])["paths"]:
        if entry["path_type"] == "hardlink" and LIBRARY.search(entry["_path"]):
            bom.components.add(file(entry["_path"], entry["sha256"], licence))
    needed = [_dependency(spec) for spec in found.depends]
    bom.components.update(needed)
    bom.register_dependency(root, needed)
    return written(bom)


def _dependency(spec: str) -> Component:
    name, _, wanted = spec.partition(" ")
    version = wanted.split(" ")[0]
    one = exact([("==", version[2:])]) if version.startswith("==") else None
    return required(PackageURL("conda", None, name, one), wanted, spec)
