# SPDX-License-Identifier: Apache-2.0
"""What is in a wheel, as a CycloneDX bill of materials: the same wheel, the same bytes."""

from __future__ import annotations

import base64
import re
import uuid
import warnings
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from cyclonedx.model import AttachedText, Encoding, HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import (
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement

from lmsbuild.series.series import Series
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.wheelfile import WheelName

_NAMESPACE = uuid.UUID("4b0f3a5e-6d5c-5a53-9d8e-0d6f2f5a9c11")  # of these documents
_LIBRARY = re.compile(r"\.so(\.[\w.]+)?$")


def render(target: Target, series: Series, wheel: Path, manifest: Mapping[str, Any]) -> str:
    """CycloneDX 1.6 as JSON: the wheel, the official one that it descends from with the patches
    between them, the libraries that were rebuilt, what it was compiled against and with, and what
    it requires. `manifest` is the one beside the wheel.
    """
    digest = str(manifest["wheel"]["sha256"])
    root = _package(wheel.name, digest)
    recorded = target.official_sha256(manifest["python"])
    official = next(name for name, found in manifest["inputs"].items() if found == recorded)
    root.pedigree = Pedigree(
        ancestors=[_package(official, recorded)],
        patches=[
            Patch(
                type=PatchClassification.UNOFFICIAL,
                diff=Diff(text=_attached(patch.data)),
            )
            for patch in series.patches
        ],
    )
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, digest))
    # The series' date: a document about the same wheel does not change from day to day.
    bom.metadata.timestamp = max(parsedate_to_datetime(p.mail.date) for p in series.patches)
    bom.metadata.component = root
    for member, content in manifest["members"].items():
        if _LIBRARY.search(member):
            bom.components.add(_file(member, content))
    for patch in series.patches:
        bom.components.add(_file(f"patches/{patch.name}", patch.sha256))
    for name, found in manifest["inputs"].items():
        if name != official:
            bom.components.add(_package(name, found, ComponentScope.EXCLUDED))  # not shipped
    for tool in ("compiler", "linker"):
        bom.components.add(
            Component(
                name=tool,
                type=ComponentType.APPLICATION,
                version=manifest["toolchain"][tool],
                scope=ComponentScope.EXCLUDED,
                bom_ref=tool,
            )
        )
    needed = list(_requirements(wheel))
    bom.components.update(needed)
    bom.register_dependency(root, needed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a wheel may require nothing
        outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
        return outputter.output_as_string(indent=2) + "\n"


def _requirements(wheel: Path) -> Iterator[Component]:
    for line in wheelfile.requirements(wheel):
        requirement = Requirement(line)
        if "extra" in str(requirement.marker):
            continue
        yield Component(
            name=requirement.name,
            type=ComponentType.LIBRARY,
            version=str(requirement.specifier) or None,
            scope=ComponentScope.OPTIONAL if requirement.marker else ComponentScope.REQUIRED,
            purl=PackageURL("pypi", None, requirement.name.lower()),
            bom_ref=f"requires:{line}",
        )


def _attached(diff: bytes) -> AttachedText:
    """The very bytes: a patch may hold what is no UTF-8."""
    return AttachedText(
        content=base64.b64encode(diff).decode(),
        content_type="text/x-diff",
        encoding=Encoding.BASE_64,
    )


def _package(file: str, digest: str, scope: ComponentScope | None = None) -> Component:
    """What the wheel `file` holds."""
    name = WheelName.of(Path(file))
    return Component(
        name=name.project,
        type=ComponentType.LIBRARY,
        version=name.version,
        scope=scope,
        purl=PackageURL("pypi", None, name.project.lower().replace("_", "-"), name.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        bom_ref=file,
    )


def _file(name: str, digest: str) -> Component:
    return Component(
        name=name,
        type=ComponentType.FILE,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        bom_ref=name,
    )
