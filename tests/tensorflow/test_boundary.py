# SPDX-License-Identifier: Apache-2.0
"""Whatever holds a tensor finds its bytes: views, variables, variants, lists, arrays, datasets,
queues, NumPy, threads. Each scene of tf_boundary.py must give what the official wheel gives."""

import json
from functools import lru_cache
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_boundary.py")
SCENES = [
    "forwarding",
    "views",
    "reshapes",
    "variables",
    "sparse_variables",
    "optimizers",
    "tensor_lists",
    "variants",
    "control_flow",
    "graph_mode",
    "datasets",
    "queues",
    "arrays",
    "python_functions",
    "checkpoints",
    "threads",
    "replaced_variables",
]
POOL = 48
MODES = {
    # Room for a third of what is asked for at once.
    "pressure": {"TF_LMS": "1"},
    # Everything idle leaves after every op, and its old place is overwritten.
    "chaos": {"TF_LMS": "1", "LMS_DEBUG": "chaos"},
}


@pytest.fixture(scope="module")
def scenes(programs, request):
    """Mode -> what the scenes gave, in one process each: of one test alone, its own scene."""
    asked_for = [getattr(item, "callspec", None) for item in request.session.items]
    names = sorted({c.params["scene"] for c in asked_for if c and "scene" in c.params})
    if any(item.name.startswith("test_moved") for item in request.session.items):
        names = []

    @lru_cache(maxsize=None)
    def run(mode):
        wheel, pool, asked, env = "stock", None, "4", {}
        if mode != "stock":
            wheel, env = "lms", MODES[mode]
            pool, asked = (POOL, str(3 * POOL)) if mode == "pressure" else (256, "4")
        said = programs.run(PROGRAM, wheel, pool, env, arguments=[asked, *names])
        return json.loads(said.splitlines()[-1])

    return run


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scenes, scene, mode):
    assert scenes(mode)[scene] == scenes("stock")[scene]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_moved(scenes, mode):
    """The scenes did move tensors, both ways, and found copies that were still good."""
    device = scenes(mode)["statistics"]["devices"][0]
    assert device["paged_out"] > 50 and device["paged_in"] > 20 and device["clean_evictions"] > 0


def test_reclaim(programs, eager_moves):
    """Idle tensors make way, come back as they were, and the pool never grows past its size."""
    code = (
        "import json, numpy as np, tensorflow as tf\n"
        "held = [tf.fill((1 << 20,), float(i)) + 0.0 for i in range(40)]\n"
        "right = all(float(tf.reduce_sum(x)) == float(i) * (1 << 20) for i, x in enumerate(held))\n"
        "device = tf.experimental.lms_statistics()['devices'][0]\n"
        "print(json.dumps([right, device['bytes_reclaimed'], device['peak_bytes_in_use']]))\n"
    )
    said = programs.run(code, pool=64, env={"TF_LMS": "1"})
    right, reclaimed, peak = json.loads(said.splitlines()[-1])
    assert right and reclaimed >= 96 << 20 and peak <= 64 << 20


def test_out_of_memory_names_the_host_limit(programs):
    """Too little host memory is an error that names the variable, and nothing is lost."""
    code = (
        "import json, tensorflow as tf\n"
        "held = []\n"
        "try:\n"
        "    for i in range(60): held.append(tf.fill((1 << 20,), float(i)) + 0.0)\n"
        "except tf.errors.ResourceExhaustedError as error: print('exhausted')\n"
        "del held[-1]\n"
        "print(all(float(x[7]) == float(i) for i, x in enumerate(held)))\n"
    )
    env = {"TF_LMS": "1", "TF_GPU_HOST_MEM_LIMIT_IN_MB": "64", "TF_CPP_MIN_LOG_LEVEL": "1"}
    said = programs.run("import sys; sys.stderr = sys.stdout\n" + code, pool=64, env=env)
    assert said.splitlines()[-2:] == ["exhausted", "True"]


def test_failed_page_in_loses_nothing(programs, eager_moves):
    """The operands of one operation do not fit together: what came in, and what did not, is as it
    was, and so after an operation that finds no room for its output."""
    code = """
import json, tensorflow as tf
a, b = (tf.fill((10 << 20,), value) for value in (1.5, 2.5))
def exhausts(function):
    try:
        function()
    except tf.errors.ResourceExhaustedError as error:
        return "Large Model Support" in str(error) or "OOM" in str(error)
failed = [exhausts(lambda: a + b), exhausts(lambda: a * 2.0), exhausts(lambda: b + a)]
found = [float(f(x)) for x in (a, b) for f in (tf.reduce_min, tf.reduce_max)]
device = tf.experimental.lms_statistics()["devices"][0]
print(json.dumps([failed, found, device["pinned_bytes"], device["paged_in"]]))
"""
    said = programs.run(code, pool=64, env={"TF_LMS": "1"})
    failed, found, pinned, paged_in = json.loads(said.splitlines()[-1])
    assert failed == [True] * 3 and found == [1.5, 1.5, 2.5, 2.5]
    assert pinned == 0 and paged_in > 0


def test_operands_take_no_more_than_they_need(programs, eager_moves):
    """The first operand comes into a hole of less than twice its size; the rest of it is for the
    second one."""
    code = (
        "import tensorflow as tf\n"
        "a, b = tf.fill((9, 1 << 20), 1.0), tf.fill((1 << 20, 5), 2.0)\n"
        "c = tf.fill((13 << 20,), 3.0)  # both leave\n"
        "print(tf.matmul(a, b).numpy().tolist() == [[float(2 << 20)] * 5] * 9)\n"
    )
    assert programs.run(code, pool=64, env={"TF_LMS": "1"}).splitlines()[-1] == "True"


def test_operands_do_not_lie_between(programs, eager_moves):
    """Before an operation takes most of the pool, its operand moves out of the middle."""
    code = (
        "import tensorflow as tf\n"
        "for _ in range(3):  # the first time it is not known what the operation takes\n"
        "    x, a, y = (tf.fill((n << 18,), 1.0) for n in (24, 8, 24))\n"
        "    z = tf.fill((20 << 18,), 3.0)  # x leaves; a is where it was\n"
        "    print(float(tf.reduce_sum(tf.tile(a, [5]))))\n"
        "    del x, a, y, z\n"
    )
    said = programs.run(code, pool=64, env={"TF_LMS": "1"})
    assert said.splitlines()[-3:] == 3 * [str(40.0 * 2**18)]


def test_the_first_operation_without_room(programs, eager_moves):
    """Until then nothing had to make way, and its operand lies where it came to lie."""
    code = (
        "import tensorflow as tf\n"
        "x, a = tf.fill((24 << 18,), 1.0), tf.fill((8 << 18,), 1.0)\n"
        "del x\n"
        "print(float(tf.reduce_sum(tf.tile(a, [5]))))\n"
    )
    said = programs.run(code, pool=64, env={"TF_LMS": "1"})
    assert said.splitlines()[-1] == str(40.0 * 2**18)


def test_an_operand_of_another_size_does_not_lie_between(programs, eager_moves):
    """What an operation took with an operand of nearly that size says nothing of this one."""
    code = (
        "import tensorflow as tf\n"
        "full = [tf.fill((24 << 18,), 1.0) for _ in range(3)]  # one of them leaves\n"
        "tf.tile(tf.fill((7 << 18,), 1.0), [1])\n"
        "del full\n"
        "x, a, y = (tf.fill((n << 18,), 1.0) for n in (24, 8, 24))\n"
        "z = tf.fill((20 << 18,), 3.0)  # x leaves; a is where it was\n"
        "print(float(tf.reduce_sum(tf.tile(a, [5]))))\n"
    )
    said = programs.run(code, pool=64, env={"TF_LMS": "1"})
    assert said.splitlines()[-1] == str(40.0 * 2**18)


def test_many_operands_do_not_lie_between(programs, eager_moves):
    """Nor do those of an operation that takes little, but reads what lies all over the pool."""
    code = (
        "import tensorflow as tf\n"
        "raw, N = tf.raw_ops, 1 << 14\n"
        "for _ in range(3):  # the first time it is not known what the operation takes\n"
        "    held = raw.EmptyTensorList(\n"
        "        element_shape=[N], max_num_elements=-1, element_dtype=tf.float32)\n"
        "    between = []\n"
        "    for i in range(64):\n"
        "        held = raw.TensorListPushBack(input_handle=held, tensor=tf.fill((N,), float(i)))\n"
        "        between.append(tf.fill((8 * N,), 1.0))\n"
        "    rows = raw.TensorListStack(\n"
        "        input_handle=held, element_shape=[N], element_dtype=tf.float32)\n"
        "    print(float(tf.reduce_sum(rows)))\n"
        "    del held, between, rows\n"
    )
    said = programs.run(code, pool=40, env={"TF_LMS": "1"})
    assert said.splitlines()[-3:] == 3 * [str(float(sum(range(64)) << 14))]


def test_what_a_loop_keeps_for_its_gradient_moves(programs):
    """It is in lists, inside variants."""
    code = (
        "import tensorflow as tf\n"
        "x = tf.Variable(tf.fill((256, 1024), 0.5))\n"
        "@tf.function\n"
        "def step():\n"
        "    with tf.GradientTape() as tape:\n"
        "        def body(i, y):\n"
        "            return i + 1, tf.tanh(y * 1.01)\n"
        "        y = tf.while_loop(lambda i, y: i < 40, body, (0, x * 1.0))[1]\n"
        "        z = tf.reduce_sum(y)\n"
        "    return z, tf.reduce_sum(tape.gradient(z, x))\n"
        "for _ in range(2):\n"
        "    print([float(v).hex() for v in step()])\n"
    )
    found = programs.run(code, pool=24, env={"TF_LMS": "1"}).splitlines()[-2:]
    assert found == programs.run(code, wheel="stock").splitlines()[-2:]


LIST_MAKERS = {
    "zeros": "tf.zeros_like(items(range(12), 12))",
    "sum": "tf.raw_ops.AddN(inputs=[items(range(8), 8), items(range(8), 8)])",
    "from a tensor": "raw.TensorListFromTensor(tensor=tf.fill((12, N), 1.0), element_shape=[N])",
    "scattered": (
        "raw.TensorListScatterV2(tensor=tf.fill((12, N), 1.0), indices=list(range(12)),\n"
        "    element_shape=[N], num_elements=12)"
    ),
    "scattered into one": (
        "raw.TensorListScatterIntoExistingList(input_handle=items([], 12),\n"
        "    tensor=tf.fill((12, N), 1.0), indices=list(range(12)))"
    ),
    "split": (
        "raw.TensorListSplit(tensor=tf.fill((12 * N,), 1.0), element_shape=[-1],\n"
        "    lengths=tf.constant([N] * 12, tf.int64))"
    ),
    "pushed": (
        "raw.TensorListPushBackBatch(input_handles=tf.stack(\n"
        "    [raw.EmptyTensorList(element_shape=[N], max_num_elements=-1,\n"
        "    element_dtype=tf.float32) for _ in range(12)]), tensor=tf.fill((12, N), 1.0))"
    ),
}
LISTS = (
    "import tensorflow as tf\n"
    "raw, N = tf.raw_ops, 1 << 18\n"
    "def items(places, length):\n"
    "    held = raw.TensorListReserve(\n"
    "        element_shape=[N], num_elements=length, element_dtype=tf.float32)\n"
    "    for i in places:\n"
    "        held = raw.TensorListSetItem(\n"
    "            input_handle=held, index=i, item=tf.fill((N,), float(i)))\n"
    "    return held\n"
)


@pytest.mark.parametrize("maker", LIST_MAKERS)
def test_lists_that_operations_make_move(programs, eager_moves, maker):
    """Such as the zeros that a list's gradient begins with: 8 MiB or more of them."""
    code = LISTS + (
        "held = %s\nprint(float(tf.reduce_sum(tf.fill((24 * N,), 1.0))))\n" % LIST_MAKERS[maker]
    )
    assert programs.run(code, pool=32, env={"TF_LMS": "1"}).splitlines()[-1] == str(24.0 * 2**18)


def test_a_sum_of_lists_brings_in_what_it_reads(programs, eager_moves):
    """What one of them has alone is passed on, as where a loop's gradient collects its slopes."""
    code = LISTS + (
        "both = raw.AddN(inputs=[items(range(20), 40), items(range(19, 40), 40)])\n"
        "for i in (3, 19, 30):\n"
        "    print(float(raw.TensorListGetItem(input_handle=both, index=i,\n"
        "        element_shape=[N], element_dtype=tf.float32)[-1]))\n"
    )
    said = programs.run(code, pool=32, env={"TF_LMS": "1"})
    assert said.splitlines()[-3:] == ["3.0", "38.0", "30.0"]


def test_small_tensors_keep_no_room_apart(programs):
    """What is too small to move is not put between large tensors, however much of it there is."""
    code = (
        "import tensorflow as tf\n"
        "small, large = [], []\n"
        "for i in range(36):\n"
        "    large.append(tf.fill((1 << 18,), 1.0))\n"
        "    small += [tf.fill((64,), float(i)) for _ in range(100)]\n"
        "del large\n"
        "whole = tf.fill((10 << 20,), 2.0)\n"
        "print(float(tf.reduce_max(whole)), float(tf.add_n(small)[0]))\n"
    )
    said = programs.run(code, pool=48, env={"TF_LMS": "1"})
    assert said.splitlines()[-1] == "2.0 %s" % float(100 * sum(range(36)))


def test_small_tensors_of_a_full_pool_keep_no_room_apart(programs, eager_moves):
    """What is idle makes way for them at the end of the pool, not where it is the oldest."""
    code = (
        "import tensorflow as tf\n"
        "large = [tf.fill((1 << 18,), 1.0) for i in range(78)]\n"
        "for used in large[:26]:\n"
        "    tf.reduce_sum(used)\n"
        "small = [tf.fill((800,), float(i)) for i in range(900)]\n"
        "whole = tf.fill((56 << 18,), 2.0)\n"
        "print(float(tf.reduce_max(whole)), float(tf.add_n(small)[0]))\n"
    )
    said = programs.run(code, pool=80, env={"TF_LMS": "1"})
    assert said.splitlines()[-1] == "2.0 %s" % float(sum(range(900)))


def test_room_of_small_tensors_comes_back(programs):
    """What was set aside for small tensors that are gone serves a large one."""
    code = (
        "import tensorflow as tf\n"
        "shape, two = tf.constant([47 << 18]), tf.constant(2.0)\n"
        "small = [tf.fill((64,), two) for _ in range(8000)]\n"
        "del small\n"
        "print(float(tf.reduce_max(tf.fill(shape, two))))\n"
    )
    assert programs.run(code, pool=48, env={"TF_LMS": "1"}).splitlines()[-1] == "2.0"


def test_small_tensors_under_a_limit(programs, eager_moves):
    """Room for small tensors is made as for others where a limit is below the pool."""
    code = (
        "import tensorflow as tf\n"
        "tf.config.experimental.set_lms_options(device_limit=24 << 20)\n"
        "small, large = [], []\n"
        "for i in range(36):\n"
        "    large.append(tf.fill((1 << 18,), 1.0))\n"
        "    small += [tf.fill((64,), float(i)) for _ in range(100)]\n"
        "print(float(tf.add_n(small)[0]), tf.experimental.get_peak_bytes_in_use() <= 24 << 20,\n"
        "      tf.experimental.get_num_full_reclaims())\n"
    )
    said = programs.run(code, pool=48, env={"TF_LMS": "1"})
    assert said.splitlines()[-1] == "%s True 0" % float(100 * sum(range(36)))


def test_variables_move_from_their_first_update_on(programs):
    """An update gives a variable that shares its first value a tensor of its own."""
    code = (
        "import tensorflow as tf\n"
        "first = tf.fill((1 << 20,), 1.0)\n"
        "held = [tf.Variable(first) for _ in range(20)]\n"
        "for i, variable in enumerate(held): variable.assign_add(tf.fill((1 << 20,), float(i)))\n"
        "print([float(tf.reduce_max(v)) for v in held] == [i + 1.0 for i in range(20)])\n"
    )
    assert programs.run(code, pool=48, env={"TF_LMS": "1"}).splitlines()[-1] == "True"


def test_constants_move(programs):
    """A graph's constants, which it keeps for good, and more of them than the pool holds."""
    code = (
        "import numpy as np, tensorflow as tf\n"
        "v1 = tf.compat.v1\n"
        "with tf.Graph().as_default(), v1.Session() as session:\n"
        "    by = v1.placeholder(tf.float32)\n"
        "    held = [tf.constant(np.full((1 << 18,), i, 'float32')) for i in range(40)]\n"
        "    most = [tf.reduce_max(one * by) for one in held]\n"
        "    wanted = [[i * x for i in range(40)] for x in (1.0, 3.0)]\n"
        "    print([session.run(most, {by: x}) for x in (1.0, 3.0)] == wanted)\n"
    )
    assert programs.run(code, pool=24, env={"TF_LMS": "1"}).splitlines()[-1] == "True"


def test_ops_that_do_not_fit_together(programs):
    """Many threads, and room for one of these ops at a time: none takes what another lacks."""
    code = (
        "import json, tensorflow as tf\n"
        "tf.config.threading.set_inter_op_parallelism_threads(8)\n"
        "def made(value):\n"
        "    variable = tf.Variable(tf.fill((4 << 10, 1 << 10), value))\n"
        "    variable.assign_add(tf.fill((4 << 10, 1 << 10), value))  # alone with its tensor\n"
        "    return variable\n"
        "held = [made(i / 2) for i in range(8)]\n"
        "@tf.function\n"
        "def step():\n"
        "    halves = [tf.split(tf.reverse(v, [0]), 2, axis=1) for v in held]\n"
        "    return [tf.reduce_max(a) + tf.reduce_max(b) * 2.0 for a, b in halves]\n"
        "print(json.dumps([[float(x) for x in step()] for _ in range(4)]))\n"
    )
    found = programs.run(code, pool=56, env={"TF_LMS": "1"}).splitlines()[-1]
    assert json.loads(found) == json.loads(programs.run(code, wheel="stock").splitlines()[-1])
