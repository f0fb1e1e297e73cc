# SPDX-License-Identifier: Apache-2.0
"""tf.experimental.lms_exclude: tensors that stay on the device."""

import ctypes

from tensorflow.python.framework.lms.library import library
from tensorflow.python.util.tf_export import tf_export


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
        library().TF_LmsExcludeBuffer(_pointer(tensor), 1)


@tf_export("experimental.lms_include")
def lms_include(target):
    """Undoes `lms_exclude`."""
    for tensor in _tensors(target):
        library().TF_LmsExcludeBuffer(_pointer(tensor), 0)
