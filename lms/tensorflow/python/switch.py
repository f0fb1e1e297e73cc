# SPDX-License-Identifier: Apache-2.0
"""tf.config.experimental.set_lms_enabled: on and off, under IBM's names."""

from tensorflow.python.framework.lms.library import call, library
from tensorflow.python.util.tf_export import tf_export

_defrag_enabled = False


@tf_export("config.experimental.set_lms_enabled")
def set_lms_enabled(lms_enabled):
    """Turns Large Model Support on or off, for all devices.

    It acts on a device as soon as TensorFlow has made it; `tf.experimental.lms_summary` says
    whether there is one. Turned on after that, it acts from then on: tensors that are there already
    stay, but for variables.

    Args:
      lms_enabled: Whether tensors move to host memory when a device is full.

    Raises:
      RuntimeError: When it is turned on while operations run that do not end for ten seconds.
    """
    call(library().TF_LmsSetEnabled, RuntimeError, int(bool(lms_enabled)))


@tf_export("config.experimental.get_lms_enabled")
def get_lms_enabled():
    """Whether Large Model Support is on."""
    return bool(library().TF_LmsGetEnabled())


@tf_export("config.experimental.set_lms_defrag_enabled")
def set_lms_defrag_enabled(lms_defrag_enabled):
    """Kept for programs for IBM's TensorFlow 2.1; changes nothing.

    Large Model Support always makes room in one piece, by what it chooses to move out.
    """
    global _defrag_enabled
    _defrag_enabled = bool(lms_defrag_enabled)


@tf_export("config.experimental.get_lms_defrag_enabled")
def get_lms_defrag_enabled():
    """What `set_lms_defrag_enabled` was given."""
    return _defrag_enabled
