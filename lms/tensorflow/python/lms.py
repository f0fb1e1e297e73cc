# SPDX-License-Identifier: Apache-2.0
r"""Large Model Support: train models that are larger than the memory of the GPU.

When the device is full, tensors that no operation is using move to host memory, and come back
before they are used again. Nothing in the model changes::

    import tensorflow as tf
    tf.config.experimental.set_lms_enabled(True)

or in a session's configuration::

    config = tf.compat.v1.ConfigProto()
    config.gpu_options.experimental.lms_enabled = True

or, with no edit at all, ``TF_LMS=1 python train.py``. ``TF_LMS`` also takes limits:
``TF_LMS=device_limit=8GiB,host_limit=64GiB``. ``TF_GPU_HOST_MEM_LIMIT_IN_MB``, TensorFlow's own
limit of the memory of the host that GPUs use, holds for Large Model Support too.

``LMS_DEBUG=chaos`` moves every tensor out after every operation, and to use one that no operation
asked for ends the process.
"""

import ctypes
import json
import os
import re
import sys

from tensorflow.python.eager import context
from tensorflow.python.util.tf_export import tf_export

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Argument of set_lms_options -> option of the library.
_OPTIONS = {"device_limit": "limit", "host_limit": "host_limit", "min_size": "min_size"}
_ERROR_SIZE = 1024
_library = None


def _lib():
    """The framework library, which TensorFlow has loaded."""
    global _library
    if _library is None:
        root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        library = ctypes.CDLL(os.path.join(root, "libtensorflow_framework.so.2"))
        if not hasattr(library, "TF_LmsSetEnabled"):
            raise RuntimeError(
                "Large Model Support is not part of this build of TensorFlow because "
                "libtensorflow_framework.so.2 lacks it; install the whole wheel again"
            )
        error = [ctypes.c_char_p, ctypes.c_size_t]
        for name, result, arguments in (
            ("SetEnabled", ctypes.c_int, [ctypes.c_int, *error]),
            ("GetEnabled", ctypes.c_int, []),
            ("SetOption", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64, *error]),
            ("GetOption", ctypes.c_int64, [ctypes.c_char_p]),
            ("ExcludeBuffer", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
            ("Statistics", ctypes.c_void_p, []),
            ("Free", None, [ctypes.c_void_p]),
            ("ResetPeaks", ctypes.c_int, []),
        ):
            function = getattr(library, "TF_Lms" + name)
            function.restype, function.argtypes = result, arguments
        _library = library
    return _library


def _call(function, exception, *arguments):
    """Calls a function that writes why it failed. Raises `exception` with that."""
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    if function(*arguments, error, _ERROR_SIZE) != 0:
        raise exception(error.value.decode(errors="replace") or "Large Model Support failed")


def _parse_size(name, size):
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(
            f"{name} must be a number of bytes or a string such as '8GiB', got {size!r}"
        )
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{name} must be bytes or a size such as '512MiB' or '8G', got {size!r}"
            )
        size = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if size < 0:
        raise ValueError(f"{name} cannot be negative, got {size}")
    return size


def _check_fits(name, size):
    pool = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    if name == "device_limit" and _on_limited_cpu() and pool.isdigit() and size > int(pool) << 20:
        raise ValueError(
            f"device_limit cannot be {_size(size)} because TF_CPU_BFC_MEM_LIMIT_IN_MB gives the "
            f"CPU device {_size(int(pool) << 20)}; give less"
        )


def _set_options(**sizes):
    for name, size in sizes.items():
        _check_fits(name, size)
        _call(_lib().TF_LmsSetOption, ValueError, _OPTIONS[name].encode(), size)


# ---- on and off


def _on_limited_cpu():
    return os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")


def _check_device():
    if not _on_limited_cpu() and not context.context().list_physical_devices("GPU"):
        raise RuntimeError(
            "Large Model Support cannot be turned on because TensorFlow sees no GPU; check the "
            "driver and CUDA_VISIBLE_DEVICES (to try it on the CPU device, set "
            "TF_CPU_ALLOCATOR_USE_BFC=1 and TF_CPU_BFC_MEM_LIMIT_IN_MB)"
        )


def _context_exists():
    # Not context.context(), which would make one.
    current = getattr(context, "_context", None)
    return getattr(current, "_context_handle", None) is not None


@tf_export("config.experimental.set_lms_enabled")
def set_lms_enabled(enabled):
    """Turns Large Model Support on or off, for all devices.

    Args:
      enabled: Whether tensors move to host memory when a device is full.

    Raises:
      RuntimeError: When it is turned on after TensorFlow has made its devices, or when there is no
        device that it works on.
    """
    if enabled and not get_lms_enabled():
        if _context_exists():
            raise RuntimeError(
                "Large Model Support cannot be turned on because TensorFlow has made its devices "
                "already (a tensor exists or an operation ran); call set_lms_enabled before the "
                "first operation, or set TF_LMS=1"
            )
        _check_device()
    _call(_lib().TF_LmsSetEnabled, RuntimeError, int(bool(enabled)))


@tf_export("config.experimental.get_lms_enabled")
def get_lms_enabled():
    """Whether Large Model Support is on."""
    return bool(_lib().TF_LmsGetEnabled())


@tf_export("config.experimental.set_lms_options")
def set_lms_options(device_limit=None, host_limit=None, min_size=None):
    """Sets limits of Large Model Support. What is None keeps its value.

    Args:
      device_limit: Most bytes of each device's pool that tensors may take; 0 for the whole pool.
      host_limit: Most bytes of host memory that tensors may move to; 0 for no limit.
      min_size: Tensors smaller than this many bytes move only if nothing else makes room.

    Sizes are integers or strings such as "8GiB".

    Raises:
      ValueError: For what is no size, or more than the machine has.
    """
    given = {"device_limit": device_limit, "host_limit": host_limit, "min_size": min_size}
    _set_options(**{n: _parse_size(n, size) for n, size in given.items() if size is not None})


@tf_export("config.experimental.get_lms_options")
def get_lms_options():
    """The options in force, in bytes; 0 for no limit."""
    return {name: _lib().TF_LmsGetOption(option.encode()) for name, option in _OPTIONS.items()}


# ---- exclusion


class _DLTensor(ctypes.Structure):
    # The start of DLManagedTensor, whose layout DLPack fixes.
    _fields_ = (("data", ctypes.c_void_p),)


def _pointer(tensor):
    """Where the data of an eager tensor is."""
    if ":CPU:" in tensor.device.upper():
        return tensor._numpy().__array_interface__["data"][0]
    from tensorflow.python.dlpack import dlpack

    capsule = dlpack.to_dlpack(tensor)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_address(get(capsule, b"dltensor")).data


def _tensors(target):
    values = getattr(target, "variables", None)
    for value in [target] if values is None else values:
        value = value.read_value() if hasattr(value, "read_value") else value
        if not hasattr(value, "_numpy"):
            raise TypeError(
                "expected an eager tensor, a variable, or a model or layer with variables, got "
                f"{type(value).__name__}"
            )
        yield value


@tf_export("experimental.lms_exclude")
def lms_exclude(target):
    """Keeps an eager tensor, a variable, or a model's or layer's variables on the device."""
    for tensor in _tensors(target):
        _lib().TF_LmsExcludeBuffer(_pointer(tensor), 1)


@tf_export("experimental.lms_include")
def lms_include(target):
    """Undoes `lms_exclude`."""
    for tensor in _tensors(target):
        _lib().TF_LmsExcludeBuffer(_pointer(tensor), 0)


# ---- statistics


@tf_export("experimental.lms_statistics")
def lms_statistics():
    """All statistics: {"devices": [one dict for each device], "host": {NUMA node: dict}}."""
    text = _lib().TF_LmsStatistics()
    try:
        return json.loads(ctypes.string_at(text).decode())
    finally:
        _lib().TF_LmsFree(text)


@tf_export("experimental.lms_reset_peaks")
def lms_reset_peaks():
    """Sets the peaks of the statistics to the current values."""
    _lib().TF_LmsResetPeaks()


def _of_device(name, gpu_id):
    devices = lms_statistics()["devices"]
    if isinstance(gpu_id, bool) or not isinstance(gpu_id, int) or gpu_id < 0:
        raise ValueError(f"{name} cannot be told of {gpu_id!r} because a GPU's id is 0 or more")
    if gpu_id < len(devices):
        return devices[gpu_id][name]
    if devices:
        raise ValueError(
            f"{name} cannot be told of GPU {gpu_id} because the last one is {len(devices) - 1}; "
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
    """Bytes that the allocator has reserved of the device."""
    return _of_device("bytes_reserved", gpu_id)


@tf_export("experimental.get_peak_bytes_reserved")
def get_peak_bytes_reserved(gpu_id=0):
    """Most bytes that the allocator has reserved of the device."""
    return _of_device("peak_bytes_reserved", gpu_id)


@tf_export("experimental.get_bytes_reservable_limit")
def get_bytes_reservable_limit(gpu_id=0):
    """Most bytes that the allocator can reserve of the device."""
    return _of_device("bytes_reservable_limit", gpu_id)


@tf_export("experimental.get_bytes_inactive")
def get_bytes_inactive(gpu_id=0):
    """Bytes on the device that no operation is using: they can move out."""
    return _of_device("bytes_inactive", gpu_id)


@tf_export("experimental.get_bytes_active")
def get_bytes_active(gpu_id=0):
    """Bytes that operations are using."""
    return _of_device("bytes_active", gpu_id)


@tf_export("experimental.get_peak_bytes_active")
def get_peak_bytes_active(gpu_id=0):
    """Most bytes that operations used at a time: what the device must have."""
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


def _of_host(name, numa_node):
    return lms_statistics()["host"].get(str(numa_node), {}).get(name, 0)


@tf_export("experimental.get_gpu_host_bytes_in_use")
def get_gpu_host_bytes_in_use(numa_node=0):
    """Bytes of a NUMA node's memory that tensors have moved to."""
    return _of_host("gpu_host_bytes_in_use", numa_node)


@tf_export("experimental.get_gpu_host_peak_bytes_in_use")
def get_gpu_host_peak_bytes_in_use(numa_node=0):
    """Most bytes of a NUMA node's memory that tensors had moved to."""
    return _of_host("gpu_host_peak_bytes_in_use", numa_node)


def _size(value):
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


@tf_export("experimental.lms_summary")
def lms_summary():
    """A few lines that say whether Large Model Support is on and what it did."""
    options = get_lms_options()
    statistics = lms_statistics()

    def limit(name):
        return _size(options[name]) if options[name] > 0 else "none"

    lines = [
        f"Large Model Support: {'on' if get_lms_enabled() else 'off'}"
        + (" (chaos mode)" if _lib().TF_LmsGetOption(b"chaos") > 0 else ""),
        f"  limits: device {limit('device_limit')}, host {limit('host_limit')},"
        f" minimum size {_size(options['min_size'])}",
    ]
    for number, s in enumerate(statistics["devices"]):
        lines.append(
            f"  {s.get('name', number)}: {_size(s['bytes_reclaimed'])} moved out in"
            f" {s['num_single_reclaims'] + s['num_full_reclaims']} reclaims;"
            f" now {_size(s['current_bytes_reclaimed'])} on the host,"
            f" {_size(s['bytes_in_use'])} of {_size(s['bytes_limit'])} in use,"
            f" at most {_size(s['peak_bytes_active'])} by operations at a time"
        )
    for node, s in sorted(statistics["host"].items()):
        lines.append(
            f"  host memory of NUMA node {node}: {_size(s['gpu_host_bytes_in_use'])} used"
            f" (peak {_size(s['gpu_host_peak_bytes_in_use'])})"
        )
    return "\n".join(lines)


# ---- no edit to the program


def _enable_from_environment():
    for mode in filter(None, os.environ.get("LMS_DEBUG", "").split(",")):
        if mode != "chaos":
            raise ValueError(f"LMS_DEBUG knows the mode 'chaos', got {mode!r}")
        _call(_lib().TF_LmsSetOption, RuntimeError, b"chaos", 1)
    value = os.environ.get("TF_LMS", "").strip()
    if value.lower() in ("", "0", "off", "false"):
        return
    sizes = {}
    if value.lower() not in ("1", "on", "true"):
        for item in value.split(","):
            name, separator, size = item.partition("=")
            name = name.strip()
            if not separator or name not in _OPTIONS:
                raise ValueError(
                    "TF_LMS takes 1, 0, or device_limit=, host_limit= and min_size= separated by "
                    f"commas; got {item!r}"
                )
            sizes[name] = _parse_size(f"{name} in TF_LMS", size)
    _set_options(**sizes)
    _call(_lib().TF_LmsSetEnabled, RuntimeError, 1)
    print(
        "TF_LMS: Large Model Support is on"
        + "".join(f", {name} {_size(size)}" for name, size in sizes.items()),
        file=sys.stderr,
    )


_enable_from_environment()
