# SPDX-License-Identifier: Apache-2.0
"""What is in a wheel, as a CycloneDX bill of materials: the same wheel, the same bytes."""

from __future__ import annotations

import base64
import re
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import AttachedText, Encoding, HashAlgorithm, HashType, Property
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
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lmsbuild.series.series import Series
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.wheelfile import WheelName

NAMESPACE = uuid.UUID("4b0f3a5e-6d5c-5a53-9d8e-0d6f2f5a9c11")  # of these documents
_OURS = "Apache-2.0"
LIBRARY = re.compile(r"\.so(\.[\w.]+)?$")


def render(
    target: Target, series: Series, wheel: Path, manifest: Mapping[str, Any],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """CycloneDX 1.6 as JSON: the wheel, the official one that it descends from with the patches
    between them, the libraries that were rebuilt, what it was compiled against and with, and what
    it requires. `manifest` is the one beside the wheel, `headers` the licences of the wheels that
    it was compiled against, by name.
    """
    digest = str(manifest["wheel"]["sha256"])
    theirs = wheelfile.licence(wheel)
    conda = target.framework.conda
    ours = conda.license if conda else theirs
    root = package(wheel.name, digest, licence=ours)
    recorded = target.official_sha256(manifest["python"])
    official = next(name for name, found in manifest["inputs"].items() if found == recorded)
    root.pedigree = Pedigree(
        ancestors=[package(official, recorded, licence=theirs)],
        patches=[
            Patch(
                type=PatchClassification.UNOFFICIAL,
                diff=Diff(text=_attached(patch.data)),
            )
            for patch in series.patches
        ],
    )
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, digest))
    # The series' date: a document about the same wheel does not change from day to day.
    bom.metadata.timestamp = max(parsedate_to_datetime(p.mail.date) for p in series.patches)
    bom.metadata.component = root
    for member, content in manifest["members"].items():
        if LIBRARY.search(member):
            bom.components.add(file(member, content, ours))
    for patch in series.patches:
        bom.components.add(file(f"patches/{patch.name}", patch.sha256, _OURS))
    for name, found in manifest["inputs"].items():
        if name != official:
            said = headers.get(name, "")  # it is not shipped
            bom.components.add(package(name, found, ComponentScope.EXCLUDED, licence=said))
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
    return written(bom)


def written(bom: Bom) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is described may require nothing
        outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
        return outputter.output_as_string(indent=2) + "\n"


def _requirements(wheel: Path) -> Iterator[Component]:
    for line in wheelfile.requirements(wheel):
        requirement = Requirement(line)
        if "extra" in str(requirement.marker):
            continue
        name = canonicalize_name(requirement.name)
        version = exact([(one.operator, one.version) for one in requirement.specifier])
        yield required(
            PackageURL("pypi", None, name, version),
            str(requirement.specifier),
            line,
            ComponentScope.OPTIONAL if requirement.marker else ComponentScope.REQUIRED,
        )


def exact(wanted: Sequence[tuple[str, str]]) -> str | None:
    """The one version that is asked for, if it is one: scanners look for versions, not ranges."""
    named = {version for operator, version in wanted if operator in ("==", "===")}
    return named.pop() if len(named) == 1 and "*" not in "".join(named) else None


def required(
    purl: PackageURL, range_: str, ref: str, scope: ComponentScope = ComponentScope.REQUIRED
) -> Component:
    """Something that is needed and not in it. Its version where only one will do, and the range."""
    return Component(
        name=purl.name,
        type=ComponentType.LIBRARY,
        version=purl.version,
        scope=scope,
        purl=purl,
        properties=[Property(name="lmsbuild:range", value=range_)] if range_ else [],
        bom_ref=f"requires:{ref}",
    )


def _attached(diff: bytes) -> AttachedText:
    """The very bytes: a patch may hold what is no UTF-8."""
    return AttachedText(
        content=base64.b64encode(diff).decode(),
        content_type="text/x-diff",
        encoding=Encoding.BASE_64,
    )


def package(
    wheel: str, digest: str, scope: ComponentScope | None = None, *, licence: str = ""
) -> Component:
    """What the file `wheel` holds."""
    name = WheelName.of(Path(wheel))
    return Component(
        name=name.project,
        type=ComponentType.LIBRARY,
        version=name.version,
        scope=scope,
        purl=PackageURL("pypi", None, name.project.lower().replace("_", "-"), name.version),
        licenses=licences(licence),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        bom_ref=wheel,
    )


def licences(text: str) -> list[License]:
    """The licence `text`: an SPDX expression, an id, or else a name of its own."""
    return [LicenseFactory().make_from_string(text)] if text else []


def file(name: str, digest: str, licence: str = "") -> Component:
    return Component(
        name=name,
        type=ComponentType.FILE,
        licenses=licences(licence),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        bom_ref=name,
    )
