# SPDX-License-Identifier: Apache-2.0
"""Programs of test_boundary.py that ask for more memory than there is: `python tf_memory.py NAME
[ARGUMENT]` prints one JSON value."""

import json
import os
import random
import sys
import threading
import time

import numpy as np
import tensorflow as tf

raw = tf.raw_ops
v1 = tf.compat.v1
stats = getattr(tf, "experimental", None)
MIB = 1 << 20
ONE = MIB // 4  # numbers of float32 in a MiB
N = ONE


def filled(mib, value=1.0):
    return tf.fill((mib * ONE,), float(value))


def device():
    return stats.lms_statistics()["devices"][0]


# ---- out and in again


def reclaim():
    held = [filled(4, i) + 0.0 for i in range(40)]
    right = all(float(tf.reduce_sum(x)) == float(i) * MIB for i, x in enumerate(held))
    found = device()
    return [right, found["bytes_reclaimed"], found["peak_bytes_in_use"]]


def host_limit(where):
    """Too little host memory, found out by a kernel for its result or by an operation for its
    operands; what is left is as it was."""
    held, said = [], ""
    try:
        for i in range(60):
            held.append(filled(4, i))
            if where == "operands":
                for x in held:
                    tf.reduce_max(x)
    except tf.errors.ResourceExhaustedError as error:
        said = str(error)
    del held[-1]
    return [said, all(float(x[7]) == float(i) for i, x in enumerate(held))]


def failed_page_in():
    a, b = (filled(40, value) for value in (1.5, 2.5))

    def exhausts(function):
        try:
            function()
        except tf.errors.ResourceExhaustedError as error:
            return "Large Model Support" in str(error)
        return False

    failed = [exhausts(lambda: a + b), exhausts(lambda: a * 2.0), exhausts(lambda: b + a)]
    found = [float(f(x)) for x in (a, b) for f in (tf.reduce_min, tf.reduce_max)]
    numbers = device()
    return [failed, found, numbers["pinned_bytes"], numbers["paged_in"]]


def _result(size):
    return tf.reduce_max(tf.tile(tf.fill((size,), 1.0), [8]))


def _results(size):
    """All at once, in threads of which each has what another lacks."""
    halves = [tf.fill((size,), float(i)) for i in range(8)]
    return tf.add_n([tf.reduce_max(tf.tile(tf.reverse(x, [0]), [8])) for x in halves])


def _operands(size):
    return tf.reduce_max(tf.add_n([tf.fill((size,), float(i)) for i in range(8)]))


def _constant(size):
    return tf.reduce_max(tf.constant(np.full((80 * ONE,), 1.0, "float32")) * tf.cast(size, "float"))


def out_of_memory(kind):
    """The error of a graph that needs 80 MiB at once, and the seconds until it comes."""
    tf.config.threading.set_inter_op_parallelism_threads(8)
    with tf.Graph().as_default(), v1.Session() as session:
        size = v1.placeholder(tf.int32, ())
        asked = globals()["_" + kind](size)
        start = time.time()
        try:
            session.run(asked, {size: 10 * ONE})
        except tf.errors.ResourceExhaustedError as error:
            return [str(error), time.time() - start]


# ---- where operands lie


def operands_take_what_they_need():
    a, b = tf.fill((9, MIB), 1.0), tf.fill((MIB, 5), 2.0)
    c = filled(52, 3)  # both leave
    right = tf.matmul(a, b).numpy().tolist() == [[float(2 * MIB)] * 5] * 9
    del c
    return right


def operands_between():
    sums = []
    for _ in range(3):  # the first time it is not known what the operation takes
        x, a, y = (filled(n) for n in (24, 8, 24))
        z = filled(20, 3)  # x leaves; a is where it was
        sums.append(float(tf.reduce_sum(tf.tile(a, [5]))))
        del x, a, y, z
    return sums


def first_without_room():
    x, a = filled(24), filled(8)
    del x
    return float(tf.reduce_sum(tf.tile(a, [5])))


def operand_of_another_size():
    full = [filled(24) for _ in range(3)]  # one of them leaves
    tf.tile(filled(7), [1])
    del full
    x, a, y = (filled(n) for n in (24, 8, 24))
    z = filled(20, 3)  # x leaves; a is where it was
    found = float(tf.reduce_sum(tf.tile(a, [5])))
    del x, y, z
    return found


def many_operands():
    sums, n = [], 1 << 14
    for _ in range(3):  # the first time it is not known what the operation takes
        held = raw.EmptyTensorList(element_shape=[n], max_num_elements=-1, element_dtype=tf.float32)
        between = []
        for i in range(64):
            held = raw.TensorListPushBack(input_handle=held, tensor=tf.fill((n,), float(i)))
            between.append(tf.fill((8 * n,), 1.0))
        rows = raw.TensorListStack(input_handle=held, element_shape=[n], element_dtype=tf.float32)
        sums.append(float(tf.reduce_sum(rows)))
        del held, between, rows
    return sums


def nearly_all(kind):
    """One operation with operands and result of 62 MiB in a pool of 64, cut up by others."""
    sizes = random.Random(1)
    held = {}
    for i in range(200):
        held[i % 60] = tf.fill((int(sizes.uniform(0.2, 3) * ONE),), float(i % 60))
        if i % 3 == 0:
            held["small", i % 60] = tf.fill((sizes.randrange(1, 900),), 1.0)
        if i % 7 == 0:
            held.pop(sizes.choice(list(held)))
    if kind == "result":
        found = float(tf.tile(tf.fill((int(7.75 * ONE),), 2.0), [7])[-1])
    else:
        terms = [tf.fill((int(15.5 * ONE),), float(i)) for i in range(3)]
        found = float(raw.AddN(inputs=terms)[-1]) - 1.0
    return [found, all(float(x[0]) == k for k, x in held.items() if not isinstance(k, tuple))]


def beside_most():
    """A sum over what nearly fills the pool."""
    most = tf.fill((22, 2 * ONE), 2.0)
    return float(tf.reduce_sum(most, axis=0)[-1])


# ---- lists


def loop_with_gradient():
    x = tf.Variable(tf.fill((256, 1024), 0.5))

    @tf.function
    def step():
        with tf.GradientTape() as tape:

            def body(i, y):
                return i + 1, tf.tanh(y * 1.01)

            y = tf.while_loop(lambda i, y: i < 40, body, (0, x * 1.0))[1]
            z = tf.reduce_sum(y)
        return z, tf.reduce_sum(tape.gradient(z, x))

    return [[float(v).hex() for v in step()] for _ in range(2)]


def items(places, length):
    held = raw.TensorListReserve(element_shape=[N], num_elements=length, element_dtype=tf.float32)
    for i in places:
        held = raw.TensorListSetItem(input_handle=held, index=i, item=tf.fill((N,), float(i)))
    return held


def _pushed():
    empty = [
        raw.EmptyTensorList(element_shape=[N], max_num_elements=-1, element_dtype=tf.float32)
        for _ in range(12)
    ]
    handles = tf.stack(empty)
    return raw.TensorListPushBackBatch(input_handles=handles, tensor=tf.fill((12, N), 1.0))


LIST_MAKERS = {
    "zeros": lambda: tf.zeros_like(items(range(12), 12)),
    "sum": lambda: raw.AddN(inputs=[items(range(8), 8), items(range(8), 8)]),
    "from a tensor": lambda: raw.TensorListFromTensor(
        tensor=tf.fill((12, N), 1.0), element_shape=[N]
    ),
    "scattered": lambda: raw.TensorListScatterV2(
        tensor=tf.fill((12, N), 1.0), indices=list(range(12)), element_shape=[N], num_elements=12
    ),
    "scattered into one": lambda: raw.TensorListScatterIntoExistingList(
        input_handle=items([], 12), tensor=tf.fill((12, N), 1.0), indices=list(range(12))
    ),
    "split": lambda: raw.TensorListSplit(
        tensor=tf.fill((12 * N,), 1.0),
        element_shape=[-1],
        lengths=tf.constant([N] * 12, tf.int64),
    ),
    "pushed": _pushed,
}


def list_made(maker):
    held = LIST_MAKERS[maker]()
    found = float(tf.reduce_sum(tf.fill((24 * N,), 1.0)))
    del held
    return found


def sum_of_lists():
    both = raw.AddN(inputs=[items(range(20), 40), items(range(19, 40), 40)])
    return [
        float(
            raw.TensorListGetItem(
                input_handle=both, index=i, element_shape=[N], element_dtype=tf.float32
            )[-1]
        )
        for i in (3, 19, 30)
    ]


def branches():
    """Of conditionals: kept in optionals."""

    @tf.function
    def run(x):
        for _ in range(12):
            x = tf.cond(x[0] > 0, lambda x=x: tf.nn.relu(x) * 2.0, lambda x=x: -x)
        return x

    x = tf.Variable(filled(1, 0.1))
    with tf.GradientTape() as tape:
        y = run(x)
    slope = tape.gradient(y, x)
    return [round(float(y[7]), 3), float(slope[7])]


# ---- small tensors


def small_between_large():
    small, large = [], []
    for i in range(36):
        large.append(filled(1))
        small += [tf.fill((64,), float(i)) for _ in range(100)]
    del large
    whole = filled(40, 2)
    return [float(tf.reduce_max(whole)), float(tf.add_n(small)[0])]


def small_in_a_full_pool():
    large = [filled(1) for _ in range(78)]
    for used in large[:26]:
        tf.reduce_sum(used)
    small = [tf.fill((800,), float(i)) for i in range(900)]
    whole = filled(56, 2)
    return [float(tf.reduce_max(whole)), float(tf.add_n(small)[0])]


def room_of_small():
    shape, two = tf.constant([47 * ONE]), tf.constant(2.0)
    small = [tf.fill((64,), two) for _ in range(8000)]
    del small
    return float(tf.reduce_max(tf.fill(shape, two)))


def small_under_a_limit():
    tf.config.experimental.set_lms_options(device_limit=24 * MIB)
    small, large = [], []
    for i in range(36):
        large.append(filled(1))
        small += [tf.fill((64,), float(i)) for _ in range(100)]
    within = stats.get_peak_bytes_in_use() <= 24 * MIB
    return [float(tf.add_n(small)[0]), within, stats.get_num_full_reclaims()]


# ---- variables, constants, threads


def updated_variables():
    first = filled(4)
    held = [tf.Variable(first) for _ in range(20)]
    for i, variable in enumerate(held):
        variable.assign_add(filled(4, i))
    return [float(tf.reduce_max(v)) for v in held] == [i + 1.0 for i in range(20)]


def constants():
    with tf.Graph().as_default(), v1.Session() as session:
        by = v1.placeholder(tf.float32)
        held = [tf.constant(np.full((ONE,), i, "float32")) for i in range(40)]
        most = [tf.reduce_max(one * by) for one in held]
        wanted = [[i * x for i in range(40)] for x in (1.0, 3.0)]
        return [session.run(most, {by: x}) for x in (1.0, 3.0)] == wanted


def threads_that_fit_alone(count):
    """Threads whose operations take 34 of 48 MiB, with the operands of the others in the way."""
    tf.config.threading.set_inter_op_parallelism_threads(8)
    inputs = [filled(2, i) for i in range(int(count))]
    ready = threading.Barrier(len(inputs))
    wrong = []

    @tf.function(input_signature=[tf.TensorSpec((2 * ONE,))])
    def largest(x):
        return tf.reduce_max(tf.tile(tf.reverse(x, [0]), [16]))

    largest.get_concrete_function()

    def work(number):
        ready.wait()
        for _ in range(8):
            try:
                found = float(largest(inputs[number]))
            except tf.errors.ResourceExhaustedError as error:
                found = str(error)
            if found != number:
                wrong.append(found)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong


def written_input(library, kind):
    """An operation with its input in the middle of the pool writes into it, if nobody else refers
    to it, and then asks for more than there is beside it."""
    add = tf.load_op_library(library).add_one_and_more
    before, x = filled(16), filled(2)

    @tf.function
    def given(x):
        return add(x=tf.reverse(x, [0]), more=36 * ONE)

    try:
        found = given(x) if kind == "given" else add(x=x, more=36 * ONE)
    except tf.errors.ResourceExhaustedError:
        return "out of memory"
    return [float(tf.reduce_min(found[0])), float(tf.reduce_max(found[0])), float(before[0])]


def alone_at_last(library, file):
    """An operation that gives up after ten seconds begins anew, with its operand between those of
    two that end only then: in the middle of the pool, where it leaves no room on either side."""
    until = tf.load_op_library(library).run_until
    found = {}
    more = filled(30)
    open(file, "w").close()
    until(x=filled(2), file=file)  # so that what it takes is known
    os.remove(file)
    del more
    held = [filled(2, i) for i in range(23)]

    def run(name, operation):
        try:
            found[name] = float(operation())
        except tf.errors.ResourceExhaustedError as error:
            found[name] = str(error)

    largest = lambda: tf.reduce_max(tf.tile(held[1], [16]))  # noqa: E731
    workers = [
        threading.Thread(target=run, args=("first", lambda: until(x=held[7], file=file))),
        threading.Thread(target=run, args=("second", lambda: until(x=held[10], file=file))),
        threading.Thread(target=run, args=("largest", largest)),
    ]
    for worker in workers:
        worker.start()
        time.sleep(0.5)
    time.sleep(11)
    open(file, "w").close()
    for worker in workers:
        worker.join()
    return [found["first"], found["second"], found["largest"]]


def arrays_of_threads(count):
    """Each makes a tensor from an array, works on it, and looks at the result for a moment."""
    wrong = []

    def work(number):
        try:
            x = tf.constant(np.full(20 * ONE, number, "f"))
            for _ in range(4):
                x = tf.roll(x, 1, 0)
            if x.numpy()[7] != number:
                wrong.append(number)
        except tf.errors.ResourceExhaustedError as error:
            wrong.append(str(error))

    start = time.time()
    for _ in range(3):
        workers = [threading.Thread(target=work, args=(i,)) for i in range(int(count))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return [wrong, time.time() - start]


def let_go_by_another_thread():
    held = [memoryview(filled(40))]
    waiting = threading.Timer(0.5, held.clear)
    waiting.start()
    return float(filled(30, 2)[5])


def said_of(function):
    start = time.time()
    try:
        function()
    except tf.errors.ResourceExhaustedError as error:
        return [str(error), time.time() - start]


def pieces():
    """30 of 48 MiB, of which 4 in the middle cannot move."""
    before, middle = filled(20), memoryview(filled(4))
    del before
    said = said_of(lambda: filled(30))
    return [*said, len(middle)]


def parsed():
    text = tf.io.serialize_tensor(np.ones(20 * ONE, "float32"))
    full = memoryview(filled(40))
    return [*said_of(lambda: tf.io.parse_tensor(text, tf.float32)), len(full)]


def ops_that_do_not_fit_together():
    tf.config.threading.set_inter_op_parallelism_threads(8)

    def made(value):
        variable = tf.Variable(tf.fill((4 << 10, 1 << 10), value))
        variable.assign_add(tf.fill((4 << 10, 1 << 10), value))  # alone with its tensor
        return variable

    held = [made(i / 2) for i in range(8)]

    @tf.function
    def step():
        halves = [tf.split(tf.reverse(v, [0]), 2, axis=1) for v in held]
        return [tf.reduce_max(a) + tf.reduce_max(b) * 2.0 for a, b in halves]

    return [[float(x) for x in step()] for _ in range(4)]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
