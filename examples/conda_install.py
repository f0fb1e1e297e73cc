# SPDX-License-Identifier: Apache-2.0
"""Solves and installs a package from channels, with py-rattler: a client of the smallest kind.

python conda_install.py PREFIX SPEC CHANNEL...
CONDA_OVERRIDE_CUDA=12.4 stands for a driver that this machine has not.
"""

from __future__ import annotations

import asyncio
import os
import sys

from rattler import VirtualPackage, VirtualPackageOverrides, install, solve


async def main(prefix: str, spec: str, *channels: str) -> None:
    machine = VirtualPackage.detect(VirtualPackageOverrides.from_env())
    found = await solve(channels, [spec], virtual_packages=machine)
    await install(found, prefix)
    for record in sorted(found, key=lambda record: record.name.normalized):
        print(record.name.normalized, record.version, record.build, record.channel)


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # rattler's threads may still be at work, and an interpreter that ends then crashes
