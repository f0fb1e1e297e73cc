# SPDX-License-Identifier: Apache-2.0
"""Programs of test_api.py: `python tf_api.py NAME [ARGUMENT]` prints one JSON value."""

import json
import os
import sys
import tempfile
import threading

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
config = tf.config.experimental
stats = tf.experimental
MIB = 1 << 20
SHAPE = (MIB // 4,)  # 1 MiB of float32


def filled(mib, value):
    return tf.fill((mib * SHAPE[0],), float(value))


def address(tensor):
    return tensor._numpy().__array_interface__["data"][0]


def device():
    return stats.lms_statistics()["devices"][0]


# ---- on and off


def switch():
    said = [config.get_lms_enabled()]
    config.set_lms_enabled(lms_enabled=True)
    said.append(config.get_lms_enabled())
    config.set_lms_enabled(False)
    said.append(config.get_lms_enabled())
    return [*said, v1.config.experimental.set_lms_enabled is config.set_lms_enabled]


def enabled_while_an_operation_runs(before):
    """`before` that it was on, with tensors in host memory, or it never was."""
    kept = []
    if before == "on":
        config.set_lms_enabled(True)
        kept += [filled(4, n) for n in range(80)]
        config.set_lms_enabled(False)
        kept = kept[:8]  # what is left fits, so none runs as if it were on
    right = [float(x[0]) for x in kept] == [float(n) for n in range(len(kept))]
    began, ends = threading.Event(), threading.Event()

    def operation(x):
        began.set()
        ends.wait()
        return x

    runs = threading.Thread(target=lambda: tf.py_function(operation, [filled(1, 1)], tf.float32))
    runs.start()
    began.wait()
    said = ""
    try:
        config.set_lms_enabled(True)
    except RuntimeError as error:
        said = str(error)
    on = config.get_lms_enabled()
    ends.set()
    runs.join()
    config.set_lms_enabled(True)
    return [said, on, config.get_lms_enabled(), right]


def defragmentation():
    """What IBM's TensorFlow 2.1 had beside the rest."""
    config.set_lms_defrag_enabled(lms_defrag_enabled=True)
    session = v1.ConfigProto()
    session.gpu_options.experimental.lms_defrag_enabled = True
    again = v1.ConfigProto.FromString(session.SerializeToString())
    return [
        config.get_lms_defrag_enabled(),
        again.gpu_options.experimental.lms_defrag_enabled,
        stats.get_num_defragmentations(0),
        stats.get_bytes_defragged(0),
    ]


def session_config():
    session = v1.ConfigProto(allow_soft_placement=True)
    session.gpu_options.experimental.lms_enabled = True
    again = v1.ConfigProto.FromString(session.SerializeToString())
    before = config.get_lms_enabled()
    with v1.Session(graph=tf.Graph(), config=session) as run, run.graph.as_default():
        run.run(v1.random_uniform((4, 4)))
    return [again.gpu_options.experimental.lms_enabled, before, config.get_lms_enabled()]


def write_config():
    session = v1.ConfigProto()
    session.gpu_options.experimental.lms_enabled = True
    return session.SerializeToString().hex()


def pass_config(text):
    """What an official TensorFlow makes of it."""
    return v1.ConfigProto.FromString(bytes.fromhex(text)).SerializeToString().hex()


def read_config(text):
    return v1.ConfigProto.FromString(bytes.fromhex(text)).gpu_options.experimental.lms_enabled


def options():
    return [config.get_lms_enabled(), config.get_lms_options()]


def host_share():
    """The host limit and the summary, before one is set and after."""
    found = [config.get_lms_options()["host_limit"], stats.lms_summary()]
    config.set_lms_options(host_limit="1GiB")
    return [*found, stats.lms_summary()]


def stored():
    """Turned on where nothing can act on it, then asked before and after the first operation."""
    config.set_lms_enabled(True)
    before = stats.lms_summary()
    filled(1, 1)
    return [config.get_lms_enabled(), before, stats.lms_summary()]


def after_a_tensor():
    """Turned on when TensorFlow has made its devices: acts from then on."""
    first = filled(4, 1)
    config.set_lms_enabled(True)
    held = [filled(4, n) for n in range(32)]
    right = [float(tf.reduce_max(x)) for x in held] == list(map(float, range(32)))
    moved = stats.get_bytes_reclaimed(0)
    return [right, float(first[-1]), moved, stats.lms_summary()]


# ---- statistics


def ibm_statistics(names):
    config.set_lms_enabled(True)
    x = tf.random.uniform((1024, 1024))
    y = tf.matmul(x, x)
    found = {name: getattr(stats, "get_" + name)(0) for name in names.split(",")}
    del y
    return found


def ids():
    """As NumPy's integers, of which loops over devices are made."""
    config.set_lms_enabled(True)
    x = filled(4, 1)
    return [
        float(x[0]),
        stats.get_bytes_in_use(np.int64(0)) == stats.get_bytes_in_use(gpu_id=0),
        stats.get_gpu_host_bytes_in_use(numa_node=np.int32(0)),
        stats.get_num_full_reclaims(np.uint8(0)),
    ]


def full_device():
    config.set_lms_enabled(True)
    kept = [tf.random.uniform((1024, 1024)) for _ in range(48)]
    found = {
        "reclaims": stats.get_num_single_reclaims(0) + stats.get_num_full_reclaims(0),
        "moved": stats.get_bytes_reclaimed(0),
        "now": stats.get_current_bytes_reclaimed(0),
        "peak": stats.get_peak_bytes_reclaimed(0),
        "host": stats.get_gpu_host_bytes_in_use(0),
        "host_peak": stats.get_gpu_host_peak_bytes_in_use(0),
        "summary": stats.lms_summary(),
    }
    del kept
    return found


def thrashing(mib):
    """Uses in turn of so many tensors of 1 MiB; what is logged meanwhile."""
    config.set_lms_enabled(True)
    kept = [filled(1, n) for n in range(int(mib))]
    with tempfile.TemporaryFile("w+") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
        right = all(float(kept[n % len(kept)][0]) == n % len(kept) for n in range(9000))
        log.seek(0)
        said = [line for line in log if "Large Model Support copies" in line]
    of_device = device()
    return [right, said, of_device["paged_in_bytes"] / of_device["used_bytes"]]


def peak_active():
    """What one operation needs, with much that is idle beside it and room enough; then anew."""
    config.set_lms_enabled(True)
    idle = [filled(4, n) for n in range(16)]
    a, b = filled(8, 1), filled(8, 2)
    stats.lms_reset_peaks()
    reset = device()
    c = a + b
    added = device()
    del c
    stats.lms_reset_peaks()
    again = device()
    del idle
    return [reset, added, again]


def peak_active_when_off():
    """Without Large Model Support, what is in use is active."""
    held = [filled(4, n) for n in range(8)]
    del held
    return device()


def peak_active_with_off_between():
    """Off again, on again: each part counts."""
    config.set_lms_enabled(True)
    small = filled(4, 1)
    config.set_lms_enabled(False)
    stats.lms_reset_peaks()
    held = [filled(4, n) for n in range(8)]
    del held
    found = device()
    del small
    return found


# ---- what moves


def values_survive(kind):
    """Each tensor, or variable, that moved out reads as it was."""
    config.set_lms_enabled(True)
    kept = {}
    for n in range(64):
        if kind == "tensor":
            kept[n] = filled(4, n)
        else:  # movable from the first operation on that finds it alone with its tensor
            kept[n] = tf.Variable(filled(4, n / 2))
            kept[n].assign_add(filled(4, n / 2))
    now = stats.get_current_bytes_reclaimed(0)
    right = all((kept[n].numpy() == n).all() for n in kept)
    return [right, stats.get_bytes_reclaimed(0), now, stats.lms_summary()]


def exclusion():
    config.set_lms_enabled(True)
    keep = tf.random.uniform((1024, 1024))
    variable = tf.Variable(tf.random.uniform((1024, 1024)))
    stats.lms_exclude(keep)
    stats.lms_exclude(variable)
    full = [tf.random.uniform((1024, 1024)) for _ in range(48)]
    found = device()
    del full
    return [found["excluded_bytes"] + found["handed_out_bytes"], found["bytes_reclaimed"]]


def address_of_the_excluded():
    """A tensor that the engine does not know yet is excluded and dies; another gets its address."""
    x = filled(8, 1)
    stats.lms_exclude(x)
    at = address(x)
    del x
    config.set_lms_enabled(True)
    y = filled(8, 2)
    excluded = device()["excluded_bytes"]
    return [address(y) == at, excluded]


def excluded_before_it_is_known():
    """One that lives is excluded from when the engine knows it."""
    variable = tf.Variable(filled(8, 1))
    variable.assign_add(filled(8, 1))  # alone with its tensor
    stats.lms_exclude(variable)
    config.set_lms_enabled(True)
    variable.assign_add(filled(8, 1))
    return device()["excluded_bytes"]


def device_limit():
    config.set_lms_options(device_limit="64MiB")
    config.set_lms_enabled(True)
    kept = [tf.random.uniform((1024, 1024)) for _ in range(32)]
    found = stats.get_peak_bytes_in_use(0)
    del kept
    return found


WRONG = (
    lambda: config.set_lms_options(host_limit="900TiB"),
    lambda: config.set_lms_options(device_limit="900TiB"),
    lambda: config.set_lms_options(host_limit="many"),
    lambda: config.set_lms_options(device_limit=-1),
    lambda: config.set_lms_options(min_size=1.5),
    lambda: stats.get_num_allocs("first"),
    lambda: stats.get_num_allocs(True),
    lambda: stats.get_gpu_host_bytes_in_use(-1),
    lambda: stats.lms_exclude("x"),
)


def wrong_arguments():
    said = []
    for call in WRONG:
        try:
            call()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def nothing():
    """The import is what is tested."""


# ---- constants


def folded(optimizer):
    """Sums that a session folds before it runs, of constants of 8 MiB: first to their last values,
    and the pool's peak after it, then to constants as large, which what runs takes in turn."""
    session = v1.ConfigProto(allow_soft_placement=True)
    session.gpu_options.experimental.lms_enabled = True
    session.graph_options.rewrite_options.disable_meta_optimizer = optimizer == "off"
    length, said = 8 * SHAPE[0], []
    for known in (True, False):
        with tf.Graph().as_default(), v1.Session(config=session) as run:
            by, at = v1.placeholder(tf.float32), v1.placeholder(tf.int32)
            sums = [tf.cumsum(tf.constant(np.full((length,), n, "float32"))) for n in range(4)]
            last = [one[-1] if known else tf.gather(one, at) for one in sums]
            results = run.run([one * by for one in last], {by: 2.0, at: length - 1})
            said += [[float(x) for x in results], device()["peak_bytes_in_use"]]
    return said[:3]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
