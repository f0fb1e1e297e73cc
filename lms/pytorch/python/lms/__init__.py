# SPDX-License-Identifier: Apache-2.0
r"""Large Model Support: train models that are larger than the memory of the GPU.

When the device is full, tensors that no operator is using move to pinned host memory, and come back
before they are used again. Nothing in the model changes::

    import torch
    torch.cuda.lms.enable()

or, with no edit at all, ``PYTORCH_LMS=1 python train.py``. ``PYTORCH_LMS`` also takes the arguments
of :func:`enable`: ``PYTORCH_LMS=device_limit=8GiB,host_limit=64GiB``.

``LMS_DEBUG=chaos`` moves every tensor out after every operator and makes any access that no
operator made raise: a program, or an extension, that runs under it is safe under Large Model
Support.
"""

from . import api, environment, graphs, ibm, launches, library, pointers, sizes, statistics
from .api import (
    disable,
    enable,
    exclude,
    include,
    is_enabled,
    measure_waits,
    pin,
    reclaim,
    release_pointer,
    settings,
)
from .report import in_memory_summary, summary
from .statistics import reset_accumulated_stats, reset_peak_stats, stats

__all__ = [
    "enable",
    "disable",
    "is_enabled",
    "settings",
    "exclude",
    "include",
    "pin",
    "release_pointer",
    "reclaim",
    "stats",
    "summary",
    "reset_peak_stats",
    "reset_accumulated_stats",
    "measure_waits",
]

graphs.watch()
environment.read()
