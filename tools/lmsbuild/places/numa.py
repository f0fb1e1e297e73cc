# SPDX-License-Identifier: Apache-2.0
"""Which GPU is near which NUMA node: host memory of another node is reached over a slower way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
_NVIDIA = "0x10de"
_GPUS = ("0x0300", "0x0302")  # display and 3D controllers, as PCI classes them


@dataclass(frozen=True)
class Gpu:
    index: int  # in the order of the bus
    address: str
    node: int | None  # None where the machine does not say, or has one node

    @property
    def command(self) -> str:
        """What starts a program that uses this GPU beside its own memory and processors."""
        node = self.node if self.node is not None else 0
        return (
            f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={self.index} "
            f"numactl --cpunodebind={node} --membind={node} python train.py"
        )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def nodes(system: Path | None = None) -> list[int]:
    """The nodes that have processors; GPUs of POWER9 are nodes without any."""
    folders = ((system or SYSTEM) / "devices/system/node").glob("node[0-9]*")
    return sorted(int(folder.name[4:]) for folder in folders if _read(folder / "cpulist"))


def gpus(system: Path | None = None) -> list[Gpu]:
    """NVIDIA's GPUs, in the order of the bus."""
    system = system or SYSTEM
    near = nodes(system)
    found = [
        device
        for device in sorted((system / "bus/pci/devices").glob("*"))
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_GPUS)
    ]
    result = []
    for index, device in enumerate(found):
        text = _read(device / "numa_node")
        node = int(text) if text.isdigit() and len(near) > 1 and int(text) in near else None
        result.append(Gpu(index, device.name, node))
    return result
