# SPDX-License-Identifier: Apache-2.0
"""Everything that may hold a tensor other than an op that runs, one scene each. Prints a line of
JSON: what each scene computed, and the statistics of Large Model Support if it is there.

Runs on every TensorFlow that the suites know. The scenes use little memory each; `pressure` makes
idle tensors move between two looks at them.
"""

import hashlib
import json
import os
import sys
import threading
import time

import numpy as np
import tensorflow as tf

VERSION = tuple(map(int, tf.__version__.split(".")[:2]))
ROWS, COLUMNS = 64, 4096  # 1 MiB of float32
PRESSURE = int(sys.argv[1]) if len(sys.argv) > 1 else 0  # MiB that are used at once


def made_up(seed, shape=(ROWS, COLUMNS)):
    return tf.random.stateless_uniform(shape, (seed, 7))


@tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
def use(first):
    """By operations of a graph: on the oldest versions, what an eager one makes does not move.
    The argument keeps these from being computed beforehand."""
    value = tf.cast(first, tf.float32)
    held = [tf.fill((ROWS, COLUMNS), value + i) * 2.0 for i in range(PRESSURE)]
    with tf.control_dependencies(held):
        sums = [tf.reduce_sum(one) for one in held]
    with tf.control_dependencies(sums):  # once more: those that leave again have a good copy
        most = [tf.reduce_max(one) for one in held]
    return tf.add_n(sums + most)  # a sum that nobody uses would not be computed


def pressure():
    for _ in range(2):
        use(tf.constant(0))


def exact(*values):
    digest = hashlib.sha256()
    for value in tf.nest.flatten(values):
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def forwarding():
    """An op may write its output over an input that nobody else holds."""
    x = made_up(0)
    kept = tf.identity(x)
    for _ in range(4):
        x = tf.nn.relu(x * 1.5 - 0.1)
        pressure()
    return x, kept


def views():
    """Slices share their root's bytes, with pointers of their own."""
    x = made_up(1) + 0.0
    parts = [x[i * 8 : (i + 1) * 8] for i in range(8)]
    del x
    pressure()
    inner = parts[3][2:6]
    pressure()
    return [part + 1.0 for part in parts], inner * 2.0, tf.concat(parts, 0)


def reshapes():
    x = made_up(2) + 0.0
    y = tf.reshape(x, (COLUMNS, ROWS))
    z = tf.bitcast(x, tf.int32)
    pressure()
    return tf.reduce_sum(y, 0), z + 1, x


def variables():
    """A variable's tensor is shared by readers, replaced by writers, and written in place."""
    a, b = tf.Variable(made_up(3)), tf.Variable(tf.zeros((ROWS, COLUMNS)))
    seen = []
    for i in range(3):
        pressure()
        before = a.read_value()
        a.assign_add(made_up(4 + i))
        b.assign(a)
        pressure()
        b.assign_sub(before)
        seen += [before, b + 0.0]
    return seen, a.read_value()


def sparse_variables():
    """Scatter makes reads copy the variable from then on."""
    table = tf.Variable(made_up(8))
    for i in range(3):
        rows = tf.constant([i, 5, 9])
        table.scatter_add(tf.IndexedSlices(made_up(20 + i, (3, COLUMNS)), rows))
        pressure()
        picked = tf.gather(table, rows)
        table[3:5].assign(made_up(30 + i, (2, COLUMNS)))
    return picked, table.read_value()


def optimizers():
    layer = tf.keras.layers.Dense(1024)
    layer(made_up(9, (8, 1024)))
    adam = tf.keras.optimizers.Adam(1e-3)
    for i in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(made_up(10 + i, (8, 1024))) ** 2)
        pressure()
        adam.apply_gradients(
            zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        )
    return [v.numpy() for v in layer.trainable_variables]


def tensor_lists():
    """The lists that carry a loop's tensors to its gradient hold them inside variants."""

    @tf.function
    def run(x):
        rows = tf.TensorArray(tf.float32, 6, clear_after_read=False)
        for i in tf.range(6):
            x = tf.tanh(x * 1.1)
            rows = rows.write(i, x)
        return rows.read(2) + rows.stack()[4]

    x = tf.Variable(made_up(11))
    with tf.GradientTape() as tape:
        y = run(x)
    pressure()
    slope = tape.gradient(y, x)
    del tape
    held = tf.raw_ops.TensorListReserve(
        element_shape=[ROWS, COLUMNS], num_elements=2, element_dtype=tf.float32
    )
    for i in range(2):
        item = made_up(12 + i) * 1.0
        held = tf.raw_ops.TensorListSetItem(input_handle=held, index=i, item=item)
    del item
    pressure()
    kept = tf.io.parse_tensor(tf.io.serialize_tensor(held), tf.variant)  # no op for lists
    both = [
        tf.raw_ops.TensorListStack(
            input_handle=h, element_shape=[ROWS, COLUMNS], element_dtype=tf.float32
        )
        for h in (held, tf.zeros_like(held), kept, tf.raw_ops.AddN(inputs=[held, kept]))
    ]
    return y, slope, both


def conditionals():
    """What a branch keeps for its gradient is held by optionals."""

    @tf.function
    def run(x, wanted):
        for i in range(4):
            x = tf.cond(wanted[i], lambda x=x: tf.tanh(x * 1.1), lambda x=x: x * x)
        return x

    x = tf.Variable(made_up(30))
    with tf.GradientTape() as tape:
        y = run(x, tf.constant([True, False, True, True]))
    pressure()
    slope = tape.gradient(y, x)
    del tape
    if VERSION < (2, 3):
        return y, slope
    value = made_up(31) * 1.0
    held = tf.raw_ops.OptionalFromValue(components=[value, value * 2.0])
    del value
    pressure()
    kept = tf.io.parse_tensor(tf.io.serialize_tensor(held), tf.variant)  # no op for optionals
    both = [
        tf.raw_ops.OptionalGetValue(
            optional=h, output_types=[tf.float32] * 2, output_shapes=[[ROWS, COLUMNS]] * 2
        )
        for h in (held, tf.zeros_like(held), kept, tf.raw_ops.AddN(inputs=[held, kept]))
    ]
    return y, slope, both


def variants():
    """What is in variants that are not lists, and copied from there."""
    values = [made_up(14 + i) * 1.0 for i in range(2)]
    if VERSION < (2, 3):  # no scalars of ragged rank 0
        return values
    held = [
        tf.raw_ops.RaggedTensorToVariant(
            rt_nested_splits=[], rt_dense_values=value, batched_input=False
        )
        for value in values
    ]
    del values
    pressure()
    return tf.raw_ops.RaggedTensorFromVariant(
        encoded_ragged=tf.stack(held), input_ragged_rank=0, output_ragged_rank=1, Tvalues=tf.float32
    ).output_dense_values


def control_flow():
    @tf.function
    def run(x, n):
        if n > 2:  # noqa: SIM108 (AutoGraph's)
            y = tf.nn.relu(x - 0.5)
        else:
            y = x * 2.0
        for _ in tf.range(n):
            y = tf.cond(tf.reduce_sum(y) > 0.0, lambda y=y: y * 0.5 + x, lambda y=y: y - x)
        return tf.map_fn(lambda row: row * 2.0, y), tf.switch_case(n, [lambda: x, lambda: y])

    return [run(made_up(12), tf.constant(n)) for n in (0, 1, 3)]


def graph_mode():
    """Loops and arrays as TensorFlow 1 builds them, reference variables, feeds and fetches."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        v1.disable_control_flow_v2()
        place = v1.placeholder(tf.float32, (ROWS, COLUMNS))
        old = v1.get_variable("old", initializer=tf.zeros((ROWS, COLUMNS)), use_resource=False)
        new = v1.get_variable("new", initializer=tf.ones((ROWS, COLUMNS)), use_resource=True)
        array = tf.TensorArray(tf.float32, 4)

        def body(i, x, array):
            x = tf.nn.relu(x - 0.01)
            return i + 1, x, array.write(i, x * 2.0)

        _, last, array = v1.while_loop(lambda i, *_: i < 4, body, (0, place, array))
        gradient = v1.gradients(tf.reduce_sum(last * new), [place, new])
        update = v1.assign_add(old, last + gradient[0])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            found = []
            for seed in (13, 14):
                feed = np.random.RandomState(seed).rand(ROWS, COLUMNS).astype("float32")
                found += session.run([last, array.stack(), *gradient, update], {place: feed})
            found += session.run([old, new])
        v1.enable_control_flow_v2()
    return found


def datasets():
    """Threads of tf.data read what an op gave them, and keep it."""
    whole = made_up(15) + 0.0
    flow = tf.data.Dataset.from_tensor_slices(whole).map(lambda row: row * 2.0, 4).cache()
    flow = flow.shuffle(16, seed=1).batch(8).map(lambda rows: rows + whole[:8], 2).prefetch(2)
    found = []
    for _ in range(2):
        for rows in flow:
            pressure()
            found.append(tf.reduce_sum(rows, 1))
    return sorted(float(x) for x in tf.concat(found, 0))


def queues():
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[(ROWS, COLUMNS)])
    for i in range(3):
        queue.enqueue(made_up(16 + i) + 0.0)
    pressure()
    two = queue.dequeue_many(2)
    pressure()
    return two, queue.dequeue() + 0.0


def arrays():
    """NumPy arrays that share a tensor's bytes, and tensors made of them."""
    x = made_up(19) + 0.0
    shared = np.asarray(memoryview(x))
    copy = x.numpy()
    for _ in range(3):
        pressure()
    back = tf.constant(shared) + 0.0
    part = (made_up(19) + 0.0)[8:16]  # its root has no tensor of its own
    shared_part = np.asarray(memoryview(part))
    for _ in range(3):
        more = part * 1.0  # the only tensor, but not the only holder
        pressure()
    same = np.array_equal(shared, copy), np.array_equal(shared_part, copy[8:16])
    return same, shared, back, x * 1.0, shared_part, more


def dlpack():
    """Another tensor over the bytes of a part, whose root has no tensor of its own."""
    if not hasattr(tf.experimental, "dlpack"):
        return None
    part = (made_up(20) + 0.0)[8:16]
    alias = tf.experimental.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(part))
    double = tf.function(lambda rows: rows * 2.0)  # pointers are not taken unseen in a graph
    for _ in range(2):
        more = double(part)  # the only part, but not the only holder
        pressure()
    return alias * 1.0, more


def python_functions():
    kept = []

    def keep(value):
        kept.append(value)
        return value * 2.0

    x = made_up(22) + 0.0
    y = tf.numpy_function(keep, [x], tf.float32)
    z = tf.py_function(keep, [x + 1.0], tf.float32)
    del x
    for _ in range(2):
        pressure()
    return y, z, [np.array(k) for k in kept]


def checkpoints():
    import tempfile

    variable = tf.Variable(made_up(23))
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(v=variable).save(os.path.join(folder, "c"))
        variable.assign(made_up(24))
        pressure()
        changed = variable + 0.0
        tf.train.Checkpoint(v=variable).restore(path)
    return changed, variable.read_value(), tf.io.serialize_tensor(variable).numpy()


def threads():
    """Ops of many threads on the same tensors."""
    shared = [made_up(40 + i) + 0.0 for i in range(6)]
    results = [None] * 8

    def work(index):
        x = shared[index % 6]
        for i in range(20):
            x = x * 0.5 + shared[(index + i) % 6]
        results[index] = x.numpy()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def replaced_variables():
    """An update of two variables finds one in other memory than when it began: it waits to write
    the other, which a slow operation reads, and meanwhile a third gives the one a copy. An update
    waits for the variable of the lowest address first, so there is one slow variable among many.
    The pauses make that order likely; the sums are right in every order."""
    values = [tf.Variable(tf.fill((ROWS * COLUMNS,), 1000.0)) for _ in range(7)]
    slow = values.pop(3)
    ones, none = tf.ones((ROWS * COLUMNS,)), tf.zeros((ROWS * COLUMNS,))
    places = tf.zeros((1 << 22,), tf.int32)

    def read(value):
        tf.gather(slow, places)

    def update(value):
        tf.raw_ops.ResourceApplyMomentum(
            var=value.handle, accum=slow.handle, lr=1.0, grad=ones, momentum=0.0, use_locking=True
        )

    def replace(value):
        shared = value.read_value()  # whoever changes what others share makes a copy
        value.assign_add(none)
        del shared

    for value in 3 * values:
        workers = [threading.Thread(target=f, args=(value,)) for f in (read, update, replace)]
        for worker in workers:
            worker.start()
            time.sleep(0.004)
        for worker in workers:
            worker.join()
    return [(tf.reduce_min(value), tf.reduce_max(value)) for value in values]


SCENES = [
    forwarding, views, reshapes, variables, sparse_variables, optimizers, tensor_lists, variants,
    control_flow, graph_mode, datasets, queues, arrays, dlpack, python_functions, checkpoints,
    threads, replaced_variables, conditionals,
]  # fmt: skip


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    only = sys.argv[2:]
    result = {}
    for scene in SCENES:
        if only and scene.__name__ not in only:
            continue
        tf.random.set_seed(0)
        tf.keras.utils.set_random_seed(0) if hasattr(tf.keras.utils, "set_random_seed") else None
        value = scene()
        result[scene.__name__] = exact(value)
        print(scene.__name__, file=sys.stderr, flush=True)
    if hasattr(tf.config.experimental, "get_lms_enabled"):
        result["statistics"] = tf.experimental.lms_statistics()
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
