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

What is public is what the modules of this package export under ``tf.config.experimental`` and
``tf.experimental``.
"""

from tensorflow.python.framework.lms import (
    environment,
    exclusion,
    options,
    statistics,
    summary,
    switch,
)

__all__ = ("exclusion", "options", "statistics", "summary", "switch")

environment.enable()
