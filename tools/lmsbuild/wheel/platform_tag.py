# SPDX-License-Identifier: Apache-2.0
"""The platform tag that a set of libraries deserves, by auditwheel's policies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from packaging.version import Version

from lmsbuild.base.errors import WheelError


def platform_tag(machine: str, needs: Iterable[Mapping[str, list[str]]]) -> str:
    """The oldest manylinux tag (e.g. manylinux_2_35_x86_64) whose systems have all that is needed.

    `needs` gives, per library of the wheel, the versions it wants of each system library.
    Raises WheelError for a processor that auditwheel does not know.
    """
    try:
        architecture = Architecture(machine)
    except ValueError as error:
        raise WheelError(
            f"the platform tag cannot be told because auditwheel knows no {machine}; build on "
            "another processor"
        ) from error
    wanted: dict[str, set[str]] = {}
    for versions in needs:
        for library, names in versions.items():
            # Only these families say how old a system may be; a library's own versions do not.
            system = {n for n in names if n.startswith(("GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_"))}
            wanted.setdefault(library, set()).update(system)
    policies = WheelPolicies(libc=Libc.GLIBC, arch=architecture)
    name: str = policies.versioned_symbols_policy(wanted).name
    return name


def newest_version(needs: Iterable[Mapping[str, list[str]]], family: str) -> str:
    """The newest version of a family (`GLIBC`, `GLIBCXX`) among what libraries want, else "0"."""
    found = [
        Version(name.removeprefix(f"{family}_"))
        for versions in needs
        for names in versions.values()
        for name in names
        if re.fullmatch(rf"{family}_[0-9.]+", name)
    ]
    return str(max(found, default=Version("0")))
