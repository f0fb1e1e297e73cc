# SPDX-License-Identifier: Apache-2.0
"""What is in a container image, as a CycloneDX bill of materials; the same image, the same one."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timezone

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from lmsbuild.places.imagecontents import Contents, PythonPackage, SystemPackage
from lmsbuild.ship.sbom import NAMESPACE, licences, written


def name_of(image: str) -> str:
    """Of the file beside the release."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", image).lstrip(".-") + ".cdx.json"


def render(found: Contents) -> str:
    """CycloneDX 1.6 as JSON: the image, the packages of its system and those of Python."""
    repository, _, tag = found.name.rpartition(":")
    repository = repository or found.name
    where = {"arch": found.architecture, "repository_url": repository, "tag": tag}
    root = Component(
        name=found.name,
        type=ComponentType.CONTAINER,
        version=found.digest,
        purl=PackageURL("oci", None, repository.rpartition("/")[2], found.digest, where),
        licenses=licences(found.labels.get("org.opencontainers.image.licenses", "")),
        bom_ref=found.name,
    )
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, found.id))
    bom.metadata.timestamp = _moment(found.created)
    bom.metadata.component = root
    inside = [_system(found, each) for each in found.system] + [_python(p) for p in found.python]
    bom.components.update(inside)
    bom.register_dependency(root, inside)
    return written(bom)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)  # then parts of a second


def _system(found: Contents, package: SystemPackage) -> Component:
    distribution = f"{found.distribution}-{found.release}" if found.release else found.distribution
    where = {"arch": package.machine, "distro": distribution}
    name, version = package.name, package.version
    purl = PackageURL(package.kind, found.distribution, name, version, where)
    return Component(
        name=name, type=ComponentType.LIBRARY, version=version, purl=purl, bom_ref=str(purl)
    )


def _python(package: PythonPackage) -> Component:
    purl = PackageURL("pypi", None, canonicalize_name(package.name), package.version)
    return Component(
        name=package.name, type=ComponentType.LIBRARY, version=package.version, purl=purl,
        licenses=licences(package.licence), bom_ref=str(purl),
    )  # fmt: skip
