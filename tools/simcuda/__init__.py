# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA device: torch programs run on it without a GPU.

    import simcuda
    simcuda.load(memory="64M", mode="lazy")
    import torch                      # torch.cuda.is_available() is now true
    print(simcuda.device.counters())

See docs/simcuda.md for what it shows and what it cannot show.
"""

from .config import MODES, Settings, parse_bytes
from .device import COUNTERS, Device
from .errors import SimcudaError
from .loader import device, install, load, settle
from .order import ORDER, Operation, Race

__all__ = [
    "COUNTERS",
    "MODES",
    "ORDER",
    "Device",
    "Operation",
    "Race",
    "Settings",
    "SimcudaError",
    "device",
    "install",
    "load",
    "parse_bytes",
    "settle",
]
