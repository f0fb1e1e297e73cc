# SPDX-License-Identifier: Apache-2.0
"""The C interface of the runtime, in the framework library that TensorFlow has loaded."""

import ctypes
import os

_ERROR_SIZE = 1024
_library = None


def library():
    """The library. Raises RuntimeError when it is one without Large Model Support."""
    global _library
    if _library is None:
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
        found = ctypes.CDLL(os.path.join(root, "libtensorflow_framework.so.2"))
        if not hasattr(found, "TF_LmsSetEnabled"):
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
            function = getattr(found, "TF_Lms" + name)
            function.restype, function.argtypes = result, arguments
        _library = found
    return _library


def call(function, exception, *arguments):
    """Calls a function that writes why it failed. Raises `exception` with that."""
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    if function(*arguments, error, _ERROR_SIZE) != 0:
        raise exception(error.value.decode(errors="replace") or "Large Model Support failed")
