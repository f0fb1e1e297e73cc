# SPDX-License-Identifier: Apache-2.0
"""tf.experimental.get_*: IBM's statistics, and all of them as one dictionary.

What each of them counts is in docs/statistics.md of the project.
"""

import ctypes
import json

from tensorflow.python.framework.lms import sizes
from tensorflow.python.framework.lms.library import library
from tensorflow.python.util.tf_export import tf_export


@tf_export("experimental.lms_statistics")
def lms_statistics():
    """All statistics: {"enabled": bool, "devices_made": whether TensorFlow has made its devices,
    "devices": [one dict for each device], "host": {NUMA node: dict},
    "host_share": of what the host limit is a share, "" when it was set}."""
    text = library().TF_LmsStatistics()
    try:
        found = json.loads(ctypes.string_at(text).decode())
    finally:
        library().TF_LmsFree(text)
    for device in found["devices"]:
        device["handed_out_bytes"] = device["exposed_bytes"]  # its name before
    return found


@tf_export("experimental.lms_reset_peaks")
def lms_reset_peaks():
    """Sets the peaks of the statistics to the current values, and counts allocations anew."""
    library().TF_LmsResetPeaks()


def _of_device(name, gpu_id):
    number = sizes.integer(gpu_id)
    if number is None or number < 0:
        raise ValueError(f"{name} cannot be told of {gpu_id!r} because a GPU's id is 0 or more")
    devices = lms_statistics()["devices"]
    if number < len(devices):
        return devices[number][name]
    if devices:
        raise ValueError(
            f"{name} cannot be told of GPU {number} because the last one is {len(devices) - 1}; "
            "give another id"
        )
    return 0  # nothing has run yet


@tf_export("experimental.get_num_allocs")
def get_num_allocs(gpu_id=0):
    """Allocations so far."""
    return _of_device("num_allocs", gpu_id)


@tf_export("experimental.get_bytes_in_use")
def get_bytes_in_use(gpu_id=0):
    """Bytes that are allocated."""
    return _of_device("bytes_in_use", gpu_id)


@tf_export("experimental.get_peak_bytes_in_use")
def get_peak_bytes_in_use(gpu_id=0):
    """Most bytes that were allocated."""
    return _of_device("peak_bytes_in_use", gpu_id)


@tf_export("experimental.get_largest_alloc_size")
def get_largest_alloc_size(gpu_id=0):
    """Bytes of the largest allocation."""
    return _of_device("largest_alloc_size", gpu_id)


@tf_export("experimental.get_bytes_limit")
def get_bytes_limit(gpu_id=0):
    """Most bytes that can be allocated."""
    return _of_device("bytes_limit", gpu_id)


@tf_export("experimental.get_bytes_reserved")
def get_bytes_reserved(gpu_id=0):
    """Bytes that the allocator has of the device."""
    return _of_device("bytes_reserved", gpu_id)


@tf_export("experimental.get_peak_bytes_reserved")
def get_peak_bytes_reserved(gpu_id=0):
    """Most bytes that the allocator had of the device."""
    return _of_device("peak_bytes_reserved", gpu_id)


@tf_export("experimental.get_bytes_reservable_limit")
def get_bytes_reservable_limit(gpu_id=0):
    """Most bytes that the allocator can have of the device."""
    return _of_device("bytes_reservable_limit", gpu_id)


@tf_export("experimental.get_bytes_inactive")
def get_bytes_inactive(gpu_id=0):
    """Bytes on the device that no operation is using and that can move out."""
    return _of_device("bytes_inactive", gpu_id)


@tf_export("experimental.get_bytes_active")
def get_bytes_active(gpu_id=0):
    """Bytes in use that cannot move out now: `get_bytes_in_use` without `get_bytes_inactive`."""
    return _of_device("bytes_active", gpu_id)


@tf_export("experimental.get_peak_bytes_active")
def get_peak_bytes_active(gpu_id=0):
    """Most bytes that were active at a time: what the device must have."""
    return _of_device("peak_bytes_active", gpu_id)


@tf_export("experimental.get_bytes_reclaimed")
def get_bytes_reclaimed(gpu_id=0):
    """Bytes that have moved out so far."""
    return _of_device("bytes_reclaimed", gpu_id)


@tf_export("experimental.get_current_bytes_reclaimed")
def get_current_bytes_reclaimed(gpu_id=0):
    """Bytes that are in host memory now."""
    return _of_device("current_bytes_reclaimed", gpu_id)


@tf_export("experimental.get_peak_bytes_reclaimed")
def get_peak_bytes_reclaimed(gpu_id=0):
    """Most bytes that were in host memory at a time."""
    return _of_device("peak_bytes_reclaimed", gpu_id)


@tf_export("experimental.get_num_single_reclaims")
def get_num_single_reclaims(gpu_id=0):
    """How often a few tensors moved out to make room."""
    return _of_device("num_single_reclaims", gpu_id)


@tf_export("experimental.get_num_full_reclaims")
def get_num_full_reclaims(gpu_id=0):
    """How often everything idle moved out to make room."""
    return _of_device("num_full_reclaims", gpu_id)


@tf_export("experimental.get_num_defragmentations")
def get_num_defragmentations(gpu_id=0):
    """Kept for programs for IBM's TensorFlow 2.1; 0, as there is no such step."""
    _of_device("num_allocs", gpu_id)  # checks the id
    return 0


@tf_export("experimental.get_bytes_defragged")
def get_bytes_defragged(gpu_id=0):
    """Kept for programs for IBM's TensorFlow 2.1; 0, as there is no such step."""
    _of_device("num_allocs", gpu_id)
    return 0


def _of_host(name, numa_node):
    number = sizes.integer(numa_node)
    if number is None or number < 0:
        raise ValueError(
            f"{name} cannot be told of {numa_node!r} because a NUMA node's id is 0 or more"
        )
    return lms_statistics()["host"].get(str(number), {}).get(name, 0)


@tf_export("experimental.get_gpu_host_bytes_in_use")
def get_gpu_host_bytes_in_use(numa_node=0):
    """Bytes of a NUMA node's memory that tensors have moved to."""
    return _of_host("gpu_host_bytes_in_use", numa_node)


@tf_export("experimental.get_gpu_host_peak_bytes_in_use")
def get_gpu_host_peak_bytes_in_use(numa_node=0):
    """Most bytes of a NUMA node's memory that tensors had moved to."""
    return _of_host("gpu_host_peak_bytes_in_use", numa_node)
