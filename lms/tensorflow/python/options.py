# SPDX-License-Identifier: Apache-2.0
"""tf.config.experimental.set_lms_options: limits."""

import os

from tensorflow.python.framework.lms import sizes
from tensorflow.python.framework.lms.library import call, library
from tensorflow.python.util.tf_export import tf_export

# Argument of set_lms_options -> option of the library.
NAMES = {"device_limit": "limit", "host_limit": "host_limit", "min_size": "min_size"}


def on_limited_cpu():
    """Whether the CPU device has a pool, which Large Model Support can manage."""
    return os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")


def _check_fits(name, size):
    pool = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    if name == "device_limit" and on_limited_cpu() and pool.isdigit() and size > int(pool) << 20:
        raise ValueError(
            f"device_limit cannot be {sizes.text(size)} because TF_CPU_BFC_MEM_LIMIT_IN_MB gives "
            f"the CPU device {sizes.text(int(pool) << 20)}; give less"
        )


def set_sizes(**given):
    """Options in bytes."""
    for name, size in given.items():
        _check_fits(name, size)
        call(library().TF_LmsSetOption, ValueError, NAMES[name].encode(), size)


@tf_export("config.experimental.set_lms_options")
def set_lms_options(device_limit=None, host_limit=None, min_size=None):
    """Sets limits of Large Model Support. What is None keeps its value.

    Args:
      device_limit: Most bytes of each device's pool that tensors may take; 0 for the whole pool.
      host_limit: Most bytes of host memory that tensors may move to; 0 for no limit. Unless
        it is set, 3/4 of the machine's memory, or of the cgroup's where that is less, divided by
        the processes that a launcher (MPI, Slurm) began on the machine.
      min_size: Tensors smaller than this many bytes move only if nothing else makes room.

    Sizes are integers or strings such as "8GiB".

    Raises:
      TypeError: For what is neither.
      ValueError: For what is no size, or more than the machine has.
    """
    given = {"device_limit": device_limit, "host_limit": host_limit, "min_size": min_size}
    set_sizes(**{n: sizes.parse(n, size) for n, size in given.items() if size is not None})


@tf_export("config.experimental.get_lms_options")
def get_lms_options():
    """The options in force, in bytes; 0 for no limit."""
    return {name: library().TF_LmsGetOption(option.encode()) for name, option in NAMES.items()}
