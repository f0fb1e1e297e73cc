# SPDX-License-Identifier: Apache-2.0
"""Programs of test_outside.py: tensors that no kernel of TensorFlow made in the pool. `python
tf_outside.py NAME [ARGUMENT]` prints one JSON value."""

import hashlib
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

stats = getattr(tf, "experimental", None)
MIB = 1 << 20
ONE = MIB // 4  # numbers of float32 in a MiB
LAYERS = 24


def array(mib, value):
    """Of NumPy, not aligned as TensorFlow wants it: it makes a copy."""
    buffer = np.empty(mib * ONE + 32, "float32")
    offset = 1 if buffer.ctypes.data % 64 == 0 else 0
    made = buffer[offset : offset + mib * ONE]
    made[:] = value
    return made


def device():
    tf.constant(1.0)  # there are no devices before the first operation
    return stats.lms_statistics()["devices"][0]


def fill_pool():
    """Arrays that share the memory of all that is in the pool: nothing can move any more."""
    held = []
    for size in (4, 1):
        while device()["bytes_in_use"] + size * MIB < 47 * MIB:
            held.append(memoryview(tf.fill((size * ONE,), 1.0)))
    return held


# ---- from Python


def from_numpy():
    held = [tf.constant(array(4, i)) for i in range(LAYERS)]
    right = [float(tf.reduce_max(x)) for x in held] == list(range(LAYERS))
    right = right and all((x.numpy() == i).all() for i, x in enumerate(held))
    return [right, device()["bytes_reclaimed"]]


def held_by_python():
    """More than the pool has room for: what the error says, if there is one."""
    held = []
    try:
        for i in range(2 * LAYERS):
            held.append(tf.fill((4 * ONE,), float(i)))
    except tf.errors.ResourceExhaustedError as error:
        return str(error)


def from_numpy_in_a_full_pool():
    full = fill_pool()
    held = [tf.constant(array(4, i)) for i in range(LAYERS)]
    right = [float(tf.reduce_max(x)) for x in held] == list(range(LAYERS))
    return right and all(np.asarray(x)[0] == 1.0 for x in full)


def from_a_list_in_a_full_pool():
    full = fill_pool()
    held = [tf.constant([float(i)] * ONE) for i in range(8)]
    return [float(x[-1]) for x in held] == list(range(8)) and len(full) > 0


def feeds():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        places = [v1.placeholder(tf.float32, (4 * ONE,)) for _ in range(LAYERS)]
        most = [tf.reduce_max(x) for x in places]
        fed = {x: array(4, i) for i, x in enumerate(places)}
        return [float(x) for x in session.run(most, fed)] == list(range(LAYERS))


# ---- variables


def model(mib=4):
    """As many layers of so many MiB each."""
    side = int((mib * ONE) ** 0.5)
    layers = [tf.keras.layers.Dense(side, use_bias=False) for _ in range(LAYERS)]
    return tf.keras.Sequential([tf.keras.layers.Input((side,)), *layers])


def weights():
    return [array(4, (i - 11) / 2**12).reshape(1024, 1024) for i in range(LAYERS)]


def sums(variables):
    return [float(tf.reduce_sum(v)) for v in variables] == [(i - 11) * 256.0 for i in range(LAYERS)]


def set_weights():
    made = model()
    made.set_weights(weights())
    right = sums(made.variables)
    for variable in made.variables:
        variable.assign_add(tf.ones((1024, 1024)))
    found = [float(tf.reduce_sum(v)) for v in made.variables]
    return [right, found == [(i - 11) * 256.0 + MIB for i in range(LAYERS)], device()["exposed"]]


def load_h5(folder):
    made = model()
    made.set_weights(weights())
    file = os.path.join(folder, "weights.h5")
    made.save_weights(file)
    other = model()
    del made
    other.load_weights(file)
    return sums(other.variables)


def assigned_in_a_full_pool():
    """What found no room is taken in when there is some."""
    full = fill_pool()
    variable = tf.Variable(array(8, 1.0))
    full.clear()
    after = device()["bytes_in_use"]
    variable.assign_add(tf.ones((8 * ONE,)))
    taken = device()["bytes_in_use"] - after
    return [float(tf.reduce_max(variable)), taken]


# ---- files


def restored_in_parts(folder):
    """Numbers that threads of the kernel's own read, because there are 16 Mi of them or more."""
    variable = tf.Variable(np.arange(17 << 20, dtype="float32"))
    checkpoint = tf.train.Checkpoint(v=variable)
    path = checkpoint.write(os.path.join(folder, "saved"))
    checkpoint.read(path)
    return float(variable[-1])


def batches_in_a_full_pool():
    full = fill_pool()
    rows = np.ones((40, ONE // 2), "float32")
    dataset = tf.data.Dataset.from_tensor_slices(rows).map(lambda x: x * 2.0)
    sums = [float(tf.reduce_sum(x)) for x in dataset.batch(8)]
    return sums == 5 * [8.0 * ONE] and len(full) > 0


def batch_beyond_the_limit():
    tf.config.experimental.set_lms_options(device_limit=8 * MIB)
    dataset = tf.data.Dataset.range(4).map(lambda i: tf.fill((4 * ONE,), tf.cast(i, tf.float32)))
    start = time.time()
    try:
        return [float(tf.reduce_max(x)) for x in dataset.batch(4)]
    except tf.errors.ResourceExhaustedError as error:
        return [str(error), time.time() - start]


def digest(prefix):
    """Of what the files of a checkpoint hold."""
    found = hashlib.sha256()
    for file in sorted(f for f in os.listdir(os.path.dirname(prefix)) if f.startswith("saved")):
        with open(os.path.join(os.path.dirname(prefix), file), "rb") as data:
            found.update(file.encode() + data.read())
    return found.hexdigest()


def variables(values):
    return [tf.Variable(tf.fill((4 * ONE,), float(x)), name=f"v{i}") for i, x in enumerate(values)]


def saved(folder):
    """The prefix of a checkpoint of 96 MiB."""
    held = variables(range(LAYERS))
    prefix = os.path.join(folder, "saved")
    tf.train.Checkpoint(**{v.name.split(":")[0]: v for v in held}).write(prefix)
    return prefix


def save(folder):
    return digest(saved(folder))


def restore(folder):
    prefix = saved(folder)
    held = variables([0.0] * LAYERS)
    tf.train.Checkpoint(**{v.name.split(":")[0]: v for v in held}).read(prefix)
    right = [float(tf.reduce_max(v)) for v in held] == list(range(LAYERS))
    for variable in held:
        variable.assign_add(tf.ones((4 * ONE,)))
    after = [float(tf.reduce_min(v)) for v in held] == [i + 1.0 for i in range(LAYERS)]
    return [right, after]


def save_and_use(folder):
    """Another thread updates the variables meanwhile; each value that is saved is one of its."""
    import threading

    held = variables([0.0] * LAYERS)
    stop = threading.Event()

    def update():
        while not stop.is_set():
            for variable in held:
                variable.assign_add(tf.ones((4 * ONE,)))

    worker = threading.Thread(target=update)
    worker.start()
    prefix = os.path.join(folder, "saved")
    checkpoint = tf.train.Checkpoint(**{v.name.split(":")[0]: v for v in held})
    whole = []
    for _ in range(3):
        checkpoint.write(prefix)
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_dtype_map():
            if name.startswith("v"):
                value = reader.get_tensor(name)
                whole.append(value.min() == value.max())
    stop.set()
    worker.join()
    return [all(whole), len(whole) == 3 * LAYERS]


def saver(folder):
    """As TensorFlow 1 does it, in one operation for all."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        held = [
            v1.get_variable(f"v{i}", initializer=tf.fill((4 * ONE,), float(i)), use_resource=True)
            for i in range(LAYERS)
        ]
        cleared = [v.assign(tf.zeros((4 * ONE,))) for v in held]
        most = [tf.reduce_max(v) for v in held]
        keep = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        prefix = keep.save(session, os.path.join(folder, "saved"))
        for one in cleared:
            session.run(one.op)
        none = [float(session.run(x)) for x in most]
        keep.restore(session, prefix)
        return [
            none == [0.0] * LAYERS,
            [float(session.run(x)) for x in most] == list(range(LAYERS)),
        ]


def estimator(folder):
    """Turned on by its configuration; saves and restores all variables at once."""
    v1 = tf.compat.v1
    session = v1.ConfigProto()
    session.gpu_options.experimental.lms_enabled = True

    def step(features, labels, mode):
        x = features
        for i in range(16):
            x = tf.tanh(tf.matmul(x, v1.get_variable(f"w{i}", (1024, 1024))))
        loss = tf.reduce_mean(tf.square(x - labels))
        by = v1.train.GradientDescentOptimizer(0.1)
        train = by.minimize(loss, global_step=v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def flow():
        return tf.data.Dataset.from_tensors(
            (np.ones((8, 1024), "float32"), np.float32(1.0))
        ).repeat()

    run = tf.estimator.RunConfig(session_config=session, tf_random_seed=1)
    made = tf.estimator.Estimator(step, model_dir=folder, config=run)
    made.train(flow, steps=2)
    before = tf.config.experimental.get_lms_enabled(), device()["bytes_reclaimed"]
    loss = made.evaluate(flow, steps=1)["loss"]
    return [*before, float(loss).hex()]


# ---- XLA


def compiled_function(body):
    try:
        return tf.function(jit_compile=True)(body)
    except TypeError:  # its name until 2.4
        return tf.function(experimental_compile=True)(body)


def compiled():
    @compiled_function
    def scaled(x, by):
        return x * by + 1.0

    x = tf.ones((4 * ONE,))
    held = [scaled(x, tf.constant(float(i))) for i in range(40)]
    return [[float(tf.reduce_max(y)) for y in held] == [i + 1.0 for i in range(40)],
            device()["bytes_reclaimed"]]  # fmt: skip


def compiled_in_a_graph():
    """A call of one is a kernel of XLA's, but has the type of calls that nobody compiled."""

    @compiled_function
    def scaled(x, by):
        return x * by + 1.0

    @tf.function
    def graph(x, by):
        return scaled(scaled(x, by), by)

    held = [tf.ones((4 * ONE,))]
    held += [graph(held[0], tf.constant(float(i))) for i in range(20)]
    return [[float(tf.reduce_max(y)) for y in held[1:]] == [i * (i + 1.0) + 1 for i in range(20)],
            device()["bytes_reclaimed"]]  # fmt: skip


def compiled_variables():
    """Whose memory others share: else they keep the memory that they have."""

    @compiled_function
    def fill(variable, by):
        variable.assign(tf.ones((20 * ONE,)) * by)

    held, before = [], []
    for i in range(3):
        held.append(tf.Variable(tf.fill((20 * ONE,), float(i))))
        before.append(held[-1].read_value())
        fill(held[-1], tf.constant(i + 3.0))
    return [float(tf.reduce_max(x)) for x in before + held] == [float(i) for i in range(6)]


def compiled_without_room():
    """The variable that it writes is locked when it fails."""
    variable, x = tf.Variable(tf.zeros((ONE,))), tf.ones((ONE,))

    @compiled_function
    def grow(x):
        variable.assign_add(x)
        return tf.reduce_sum(tf.sort(tf.tile(x[None], [256, 1]), 0))

    try:
        tf.function(lambda x: grow(x))(x)
    except tf.errors.ResourceExhaustedError:
        print(json.dumps(True), flush=True)
    os._exit(0)  # what XLA had taken by then may be freed twice, as without LMS


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
