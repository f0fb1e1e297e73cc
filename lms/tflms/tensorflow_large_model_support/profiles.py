# SPDX-License-Identifier: Apache-2.0
"""How fast a device computes and copies, for simulated times.

The figures are nominal, of data sheets, and the same as those of the project's simulated device,
whose profiles name the sources. A profile of one's own, as a calibration measures, is as good.
"""

from __future__ import annotations

from typing import NamedTuple


class Profile(NamedTuple):
    """Operations and bytes in a second; nanoseconds."""

    name: str
    fp64: float
    tf32: float  # what TensorFlow computes floats in; fp32 where the device has none
    half: float
    bandwidth: float  # of device memory
    link_in: float  # to the device
    link_out: float
    kernel: int = 3_000  # of a kernel, beside its work
    copy: int = 2_000  # of a copy, beside its bytes

    def rate(self, width: int) -> float:
        """For numbers of so many bytes."""
        return self.half if width <= 2 else self.tf32 if width <= 4 else self.fp64


_GPUS = {  # fp64, tf32, half, bandwidth
    "v100-pcie": (7.0e12, 14.0e12, 112e12, 900e9),
    "v100-sxm2": (7.8e12, 15.7e12, 125e12, 900e9),
    "a100": (9.7e12, 156e12, 312e12, 1935e9),
    "h100": (34e12, 494.5e12, 989.5e12, 3350e9),
    "h200": (34e12, 494.5e12, 989.5e12, 4800e9),
    "gh200": (34e12, 494.5e12, 989.5e12, 4000e9),
    "rtx4090": (1.29e12, 82.6e12, 165.2e12, 1008e9),
}
_LINKS = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63.0e9, "nvlink2": 75e9, "c2c": 450e9}
_PROFILES = {
    "v100-16gb-pcie3": ("v100-pcie", "pcie3"),
    "v100-32gb-pcie3": ("v100-pcie", "pcie3"),
    "v100-16gb-nvlink2": ("v100-sxm2", "nvlink2"),
    "v100-32gb-nvlink2": ("v100-sxm2", "nvlink2"),
    "a100-80gb-pcie4": ("a100", "pcie4"),
    "h100-80gb-pcie5": ("h100", "pcie5"),
    "h200-141gb-pcie5": ("h200", "pcie5"),
    "gh200-96gb-c2c": ("gh200", "c2c"),
    "rtx4090-24gb-pcie4": ("rtx4090", "pcie4"),
}
PROFILES = {
    name: Profile(name, *_GPUS[gpu], _LINKS[link], _LINKS[link])
    for name, (gpu, link) in _PROFILES.items()
}
DEFAULT = PROFILES["v100-32gb-pcie3"]
# What a device's own name has in it. A link is not known of a name: the slower one is taken.
_NAMES = {
    "GH200": "gh200-96gb-c2c",
    "H200": "h200-141gb-pcie5",
    "H100": "h100-80gb-pcie5",
    "A100": "a100-80gb-pcie4",
    "V100": "v100-32gb-pcie3",
    "RTX 4090": "rtx4090-24gb-pcie4",
}


def profile(wanted: str | Profile) -> Profile:
    """Raises ValueError, with the known ones, for a name that is none."""
    if isinstance(wanted, Profile):
        return wanted
    if wanted not in PROFILES:
        raise ValueError(
            f"profile is {wanted!r}, which is none of {', '.join(PROFILES)}; name one of them, or "
            "give a Profile of your device"
        )
    return PROFILES[wanted]


def like(device: str) -> Profile | None:
    """For a device that calls itself so; None: no profile is like it."""
    return next((PROFILES[found] for part, found in _NAMES.items() if part in device), None)
