# SPDX-License-Identifier: Apache-2.0
"""The device, and how much memory a simulated run may take."""

from __future__ import annotations

import os

import tensorflow as tf

from tensorflow_large_model_support import profiles

GIB = 1 << 30
_RATIO = "TF_LMS_SIMULATOR_MEM_RATIO"
HOST_LIMIT = "TF_GPU_HOST_MEM_LIMIT_IN_MB"
_HOST_MIB = 64 << 10  # TensorFlow's own default


def device_bytes(gigabytes: float | None, gpu_device: str | None, instead: str) -> int:
    """The memory of the device, or what the user named. Raises ValueError if there is neither, with
    what the user can do `instead`."""
    if gigabytes is not None:
        return int(gigabytes * GIB)
    from tensorflow.python.client import device_lib

    index = tf.DeviceSpec.from_string(gpu_device or "/gpu:0").device_index or 0
    for device in device_lib.list_local_devices():
        spec = tf.DeviceSpec.from_string(device.name)
        if spec.device_type == "GPU" and spec.device_index == index:
            return int(device.memory_limit)
    raise ValueError(
        "the numbers cannot be tuned because TensorFlow sees no GPU whose memory could be the "
        f"limit; set autotune_gpu_mem to GiB, or {instead}"
    )


def profile(gpu_device: str | None) -> profiles.Profile:
    """Of the device, by its name; of another where TensorFlow sees none, or one like no profile."""
    index = tf.DeviceSpec.from_string(gpu_device or "/gpu:0").device_index or 0
    seen = tf.config.list_physical_devices("GPU")[index : index + 1]
    names = [
        tf.config.experimental.get_device_details(each).get("device_name", "") for each in seen
    ]
    return next(filter(None, map(profiles.like, names)), profiles.DEFAULT)


def ratio() -> float:
    """The share of it that a run may take, for what no simulation sees."""
    given = os.environ.get(_RATIO)
    if given is None:
        return 0.8 if "DDL_OPTIONS" in os.environ else 0.9
    try:
        share = float(given)
        if not 0 < share <= 1:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{_RATIO} is {given!r}, which is no share of the memory; give a number above 0, up to "
            "1"
        ) from None
    return share


def threads() -> int:
    """That launch ops beside each other."""
    return tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1


def host_bytes() -> int:
    """What TensorFlow may take of host memory that a GPU can copy to."""
    given = os.environ.get(HOST_LIMIT)
    try:
        mebibytes = int(float(given)) if given else _HOST_MIB
        if mebibytes < 0:
            raise ValueError
    except (OverflowError, ValueError):
        raise ValueError(f"{HOST_LIMIT} is {given!r}, which is no number of MiB") from None
    return mebibytes << 20
