# SPDX-License-Identifier: Apache-2.0
"""tf.experimental.lms_summary: what Large Model Support does, in a few lines."""

from tensorflow.python.framework.lms import sizes
from tensorflow.python.framework.lms.library import library
from tensorflow.python.framework.lms.options import get_lms_options
from tensorflow.python.framework.lms.statistics import lms_statistics
from tensorflow.python.util.tf_export import tf_export


def _state(statistics):
    if not statistics["enabled"]:
        return "off"
    if statistics["devices"]:
        return "on"
    if not statistics["devices_made"]:
        return "on, from when TensorFlow makes its devices, with the first operation"
    return (
        "on, but without a device to act on, because TensorFlow sees no GPU; check the driver and "
        "CUDA_VISIBLE_DEVICES (to try it on the CPU device, set TF_CPU_ALLOCATOR_USE_BFC=1 and "
        "TF_CPU_BFC_MEM_LIMIT_IN_MB)"
    )


@tf_export("experimental.lms_summary")
def lms_summary():
    """A few lines that say whether Large Model Support is on, where it acts, and what it did."""
    options = get_lms_options()
    statistics = lms_statistics()

    def limit(name):
        return sizes.text(options[name]) if options[name] > 0 else "none"

    share = f" ({statistics['host_share']})" if statistics["host_share"] else ""
    lines = [
        f"Large Model Support: {_state(statistics)}"
        + (" (chaos mode)" if library().TF_LmsGetOption(b"chaos") > 0 else ""),
        f"  limits: device {limit('device_limit')}, host {limit('host_limit')}{share},"
        f" minimum size {sizes.text(options['min_size'])}",
    ]
    for number, s in enumerate(statistics["devices"]):
        lines.append(
            f"  {s.get('name', number)}: {sizes.text(s['bytes_reclaimed'])} moved out in"
            f" {s['num_single_reclaims'] + s['num_full_reclaims']} reclaims;"
            f" now {sizes.text(s['current_bytes_reclaimed'])} on the host,"
            f" {sizes.text(s['bytes_in_use'])} of {sizes.text(s['bytes_limit'])} in use,"
            f" at most {sizes.text(s['peak_bytes_active'])} active at a time"
        )
    for node, s in sorted(statistics["host"].items()):
        lines.append(
            f"  host memory of NUMA node {node}: {sizes.text(s['gpu_host_bytes_in_use'])} used"
            f" (peak {sizes.text(s['gpu_host_peak_bytes_in_use'])})"
        )
    return "\n".join(lines)
