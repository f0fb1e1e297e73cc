# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA device: torch programs run on it without a GPU, and TensorFlow's dry.

    import simcuda
    simcuda.load(memory="64M", mode="lazy")
    import torch                      # torch.cuda.is_available() is now true
    print(simcuda.device.counters())

See docs/simcuda.md for what it shows and what it cannot show.
"""

from .config import MODES, Settings
from .device import COUNTERS, Device
from .errors import SimcudaError
from .host_cache import empty_host_cache
from .loader import device, install, load, settle
from .order import ORDER, Operation, Race
from .profiles import Profile, profile, read_profiles
from .sizes import parse_bytes

__all__ = [
    "COUNTERS",
    "MODES",
    "ORDER",
    "Device",
    "Operation",
    "Profile",
    "Race",
    "Settings",
    "SimcudaError",
    "device",
    "empty_host_cache",
    "install",
    "load",
    "parse_bytes",
    "profile",
    "read_profiles",
    "settle",
]
