# SPDX-License-Identifier: Apache-2.0
"""TF_LMS and LMS_DEBUG: Large Model Support with no edit to the program."""

import os
import sys

from tensorflow.python.framework.lms import options, sizes
from tensorflow.python.framework.lms.library import call, library


def _set_modes(modes):
    for mode in filter(None, modes.split(",")):
        if mode != "chaos":
            raise ValueError(f"LMS_DEBUG knows the mode 'chaos', got {mode!r}")
        call(library().TF_LmsSetOption, RuntimeError, b"chaos", 1)


def enable():
    """Does what the variables say. Raises ValueError for what they cannot."""
    _set_modes(os.environ.get("LMS_DEBUG", ""))
    value = os.environ.get("TF_LMS", "").strip()
    if value.lower() in ("", "0", "off", "false"):
        return
    given = {}
    if value.lower() not in ("1", "on", "true"):
        for item in value.split(","):
            name, separator, size = item.partition("=")
            name = name.strip()
            if not separator or name not in options.NAMES:
                raise ValueError(
                    "TF_LMS takes 1, 0, or device_limit=, host_limit= and min_size= separated by "
                    f"commas; got {item!r}"
                )
            given[name] = sizes.parse(f"{name} in TF_LMS", size)
    options.set_sizes(**given)
    call(library().TF_LmsSetEnabled, RuntimeError, 1)
    print(
        "TF_LMS: Large Model Support is on"
        + "".join(f", {name} {sizes.text(size)}" for name, size in given.items()),
        file=sys.stderr,
    )
