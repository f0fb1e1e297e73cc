# SPDX-License-Identifier: Apache-2.0
"""Graphs of sessions: what is added, what is left alone, what is refused; tuning by sizes."""

import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_large_model_support import LMS

v1 = tf.compat.v1
X = np.random.RandomState(0).rand(4, 8, 8, 3).astype("float32")


def layer(x, name, width=8, before=None):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", (3, 3, before or x.shape[-1], width))
        return tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))


def network(batch=None, depth=6, devices=(None,)):
    """A graph that trains; a tower for each device."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        x = v1.placeholder(tf.float32, (batch, 8, 8, 3), name="x")
        losses = []
        for number, device in enumerate(devices):
            place, name = v1.device(device), v1.name_scope(f"tower{number}")
            with place, name, v1.variable_scope("net", reuse=v1.AUTO_REUSE):
                y = x + float(number)
                for each in range(depth):
                    y = layer(y, f"layer{each}")
                losses.append(tf.reduce_mean(tf.square(y)))
        loss = tf.add_n(losses, name="loss")
        v1.train.AdamOptimizer(0.01).minimize(loss, name="train", colocate_gradients_with_ops=True)
    return graph


def train(graph, steps=3):
    with v1.Session(
        graph=graph, config=v1.ConfigProto(allow_soft_placement=True)
    ) as session, graph.as_default():  # fmt: skip
        session.run(v1.global_variables_initializer())
        run = lambda: session.run(["loss:0", "train"], {"x:0": X})[0]  # noqa: E731
        losses = [run() for _ in range(steps)]
        return losses, session.run(v1.trainable_variables())


def added(graph):
    return [op for op in graph.get_operations() if op.name.startswith("lms/")]


def assert_trains_alike(graph, **options):
    losses, weights = train(graph)
    expected, plain = train(network(**options))
    assert losses == expected
    for one, other in zip(weights, plain):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", range(4))
def test_a_session_trains_to_the_same_digits(mode):
    graph = network()
    LMS(3, 4, 2, sync_mode=mode, serialization=["4:20"]).run(graph)
    outs = [op for op in added(graph) if "swapout" in op.name]
    ins = [op for op in added(graph) if "swapin" in op.name]
    assert len(outs) > 5 and len(ins) >= len(outs) and len(outs) + len(ins) == len(added(graph))
    assert all(op.type == "Identity" and op.device.endswith("CPU:0") for op in outs + ins)
    for op in ins:
        assert op.inputs[0].op in outs and op.control_inputs
        assert all(not reader.name.startswith("lms/") for reader in op.outputs[0].consumers())
    assert_trains_alike(graph)


def test_the_default_graph_and_a_second_run(said):
    graph = network()
    with graph.as_default():
        lms = LMS(3, 0, 1)
        lms.run()
        count = len(added(graph))
        lms.run()
        LMS(1, 0, 1).run()
    assert count > 5 and len(added(graph)) == count
    assert said[-1] == "[LMS][0] The graph was rewritten before. It is left as it is."


def test_the_hook_of_a_monitored_session():
    graph = network()
    with graph.as_default():
        v1.train.get_or_create_global_step()
        with v1.train.MonitoredTrainingSession(hooks=[LMS(3, 0, 1)]) as session:
            assert np.isfinite(session.run("loss:0", {"x:0": X}))
    assert len(added(graph)) > 5


def test_grappler_leaves_swaps_where_they_are():
    """A node that it bypassed or merged would not be in the graphs that ran."""
    graph = network(batch=4)
    LMS(3, 0, 1).run(graph)
    names = {op.name for op in added(graph) if "truediv" not in op.name}  # that is a constant
    options = v1.RunOptions(output_partition_graphs=True)
    said = v1.RunMetadata()
    with v1.Session(graph=graph) as session, graph.as_default():
        session.run(v1.global_variables_initializer())
        session.run(["loss:0", "train"], {"x:0": X}, options=options, run_metadata=said)
    nodes = {node.name: node for part in said.partition_graphs for node in part.node}
    assert names and names <= set(nodes)
    for name in names:
        if "swapin" in name:
            assert any(text.startswith("^") for text in nodes[name].input)


def test_towers_have_one_each():
    """The second is for another GPU; ops that are placed elsewhere are left alone."""
    devices = ("/gpu:0", "/gpu:1")
    graph = network(devices=devices)
    for device in devices:
        LMS(3, 0, 1, gpu_device=device).run(graph)
    towers = [op.name.partition("_tower")[2][:1] for op in added(graph) if "_tower" in op.name]
    assert set(towers) == {"0", "1"}
    other = network(devices=devices)
    LMS(3, 0, 1, gpu_device="/gpu:1").run(other)
    swapped = {op.inputs[0].op.device for op in added(other) if "swapout" in op.name}
    assert swapped == {"/device:GPU:1"}
    assert_trains_alike(graph, devices=devices)


def test_filters(said):
    graph = network()
    lms = LMS(3, 0, 1)
    lms.excl_output_by_types = {"Relu"}
    lms.incl_output_by_scopes = {"tower0/net/layer0", "tower0/net/layer1"}
    lms.run(graph)
    sources = {op.inputs[0].op for op in added(graph) if "swapout" in op.name}
    assert {op.type for op in sources} == {"Conv2D"} or not sources
    wrong = LMS(3, 0, 1)
    wrong.excl_input_by_types = ["Relux"]
    with pytest.raises(ValueError, match="excl_input_by_types names 'Relux'"):
        wrong.run(network())
    with pytest.raises(ValueError, match="excl_input_by_types is 'Relu', which is no set of names"):
        wrong.excl_input_by_types = "Relu"


@pytest.mark.parametrize("name", ["swapout_threshold", "swapin_groupby", "swapin_ahead"])
@pytest.mark.parametrize("wrong", [1.5, "2", None, True])
def test_what_is_no_integer(name, wrong):
    with pytest.raises(ValueError, match=f"{name} is .* which is no integer"):
        LMS(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1, 4])
def test_what_is_no_mode(wrong):
    with pytest.raises(ValueError, match="which is none of 0"):
        LMS(sync_mode=wrong)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *((name, -7) for name in ("swapout_threshold", "swapin_groupby", "swapin_ahead")),
        *(("debug", each) for each in ("no", None, 2)),
        *(("serialization", each) for each in (5, "3:5", None)),
        *(("serialization_by_size", each) for each in ("1", None, float("nan"), -1, [1])),
        *(("cpu_device", each) for each in (None, "cpus", 5, "/gpu:0", "")),
        *(("gpu_device", each) for each in ("gpus", 5, "/cpu:0", "/gpu:x", "")),
    ],
)
def test_what_is_none_of_its_options(option, wrong):
    with pytest.raises(ValueError, match=f"{option} is {re.escape(repr(wrong))}, which "):
        LMS(**{option: wrong})


@pytest.mark.parametrize("wrong", ["1", None])
def test_what_is_no_level_of_a_log(wrong):
    with pytest.raises(ValueError, match=r"debug_level is .* which is no integer"):
        LMS(debug=True, debug_level=wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("batch_size", each) for each in ("4", 0, -1, 1.5, True, 10**30)),
        *((name, "yes") for name in ("is_training", "autotune_plot")),
        *(("autotune_gpu_mem", each) for each in ("8", -1, float("nan"), 1e300, True, [1])),
    ],
)
def test_what_is_none_of_its_properties(name, wrong):
    with pytest.raises(ValueError, match=f"{name} is "):
        setattr(LMS(), name, wrong)


def test_numbers_of_numpy_are_numbers():
    lms = LMS(np.int64(3), np.int32(0), 1)
    lms.batch_size, lms.autotune_gpu_mem = np.int64(4), np.float32(0.5)
    lms.run(network())
    assert lms.batch_size == 4 and lms.autotune_gpu_mem == 0.5


@pytest.mark.parametrize("wrong", [5, "graph", network])
def test_what_is_no_graph(wrong):
    with pytest.raises(ValueError, match="which is no graph of TensorFlow's"):
        LMS(3, 0, 1).run(wrong)


@pytest.mark.parametrize("wrong", ["x", "nan", "inf", "-1", "1e400"])
def test_what_is_refused_leaves_the_graph_as_it_is(wrong, monkeypatch):
    monkeypatch.setenv("TF_GPU_HOST_MEM_LIMIT_IN_MB", wrong)
    graph = network()
    with pytest.raises(ValueError, match=r"TF_GPU_HOST_MEM_LIMIT_IN_MB is .* no number of MiB"):
        LMS(3, 0, 1).run(graph)
    assert not added(graph)


def test_a_batch_size_that_the_graph_cannot_have():
    graph = network()
    with graph.as_default():
        graph.get_tensor_by_name("x:0") + tf.ones((4, 1, 1, 1))
    lms = LMS(3, 0, 1)
    lms.batch_size = 5
    with pytest.raises(ValueError, match=r"batch_size is 5, which not every .* but are 5 and 4"):
        lms.run(graph)


# ---- tuning


def tuned(graph, share, **options):
    """With a share of what the graph takes by itself, without its variables."""
    probe = LMS()
    probe.batch_size = 4
    probe.autotune_gpu_mem = 1
    lms = LMS(**options)
    lms.batch_size = 4
    lms.autotune_gpu_mem = share
    lms.run(graph)
    return lms


def test_what_fits_is_left_alone(said):
    graph = network()
    tuned(graph, 1)
    assert not added(graph) and "[LMS][0] LMS is not necessary. Turned LMS off." in said


def test_the_numbers_are_found(said):
    graph = network()
    tuned(graph, 84e3 / (1 << 30))
    assert len(added(graph)) > 4
    simulated = [line for line in said if line.startswith("[LMS][0] [Simulator] ")]
    assert any("Memory for simulation: " in line for line in simulated)
    assert sum("Found a parameter set: swapout_threshold: " in line for line in simulated) >= 1
    text = "\n".join(said)
    for part in (
        f"The graph has {len(network().get_operations())} vertices and ",
        " MiB of learning parameters.",
        "The largest GPU operation is ",
        " topological levels.",
        "Configuration: swapout_threshold: ",
        "swap-out operations (",
        "Editing model for LMS, took: ",
    ):
        assert part in text
    assert_trains_alike(graph)


def test_a_model_is_tuned_once(said):
    lms = tuned(network(), 84e3 / (1 << 30))
    lms.run(network())
    assert "[LMS][0] The configuration of this model and batch size is known." in said


def test_what_is_known_is_of_the_same_filters(said):
    lms = tuned(network(), 84e3 / (1 << 30))
    lms.excl_output_by_types = {"Relu"}
    with pytest.raises(ValueError, match="no configuration was found"):
        lms.run(network())


def test_what_cannot_be_tuned(monkeypatch):
    with pytest.raises(ValueError, match="set batch_size"):
        lms = LMS()
        lms.autotune_gpu_mem = 1
        lms.run(network())
    with pytest.raises(ValueError, match=r"its variables, which stay, take 0\.000; give more"):
        tuned(network(), 1e-6)
    with pytest.raises(ValueError, match="no configuration was found"):
        tuned(network(), 5e4 / (1 << 30))
    monkeypatch.setenv("TF_LMS_SIMULATOR_MEM_RATIO", "2")
    with pytest.raises(ValueError, match="TF_LMS_SIMULATOR_MEM_RATIO is '2'"):
        tuned(network(), 1)


def test_a_device_is_needed():
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    lms = LMS()
    lms.batch_size = 4
    with pytest.raises(ValueError, match="set autotune_gpu_mem"):
        lms.run(network())


def test_what_is_left_to_do_where_each_tensors_numbers_cannot_be_found():
    """Three numbers are refused beside plan='best'."""
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    for options, instead in (({}, "groupby"), ({"plan": "best"}, "groupby and leave plan out")):
        lms = LMS(**options)
        lms.batch_size = 4
        with pytest.raises(ValueError, match=f"swapin_ahead and swapin_{instead}$"):
            lms.run(network())
        with pytest.raises(ValueError, match=f"swapin_ahead and swapin_{instead}$"):
            lms.run(loop())


def unknown(shape=None):
    """What Python computes has no shape."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, (4, 8, 8, 3), name="x")
        y = tf.numpy_function(np.sin, [x], tf.float32)
        y = early = tf.exp(y if shape is None else tf.ensure_shape(y, shape))
        for _ in range(6):
            y = tf.cos(y)
        tf.reduce_max(y + early)
    return graph


def test_what_has_no_shape_is_told_what_gives_it_one():
    with pytest.raises(ValueError, match=r"as that of PyFunc; .* by tf\.ensure_shape, or give"):
        tuned(unknown(), 1)
    graph = unknown((4, 8, 8, 3))
    tuned(graph, 2.5 * X.nbytes / 0.9 / (1 << 30))
    assert added(graph)


def test_the_share_of_the_memory(monkeypatch, said):
    for variables, share in (
        ({}, 0.9),
        ({"DDL_OPTIONS": "x"}, 0.8),
        ({"DDL_OPTIONS": "x", "TF_LMS_SIMULATOR_MEM_RATIO": "0.5"}, 0.5),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        del said[:]
        tuned(network(), 1000)
        assert f"[LMS][0] [Simulator] Memory for simulation: {1000 * share:.2f} GiB" in said


def test_all_variables_stay():
    """The optimizer's, too."""
    graph = network()
    lms = LMS(3, 0, 1)
    lms.run(graph)
    with graph.as_default():
        every, trained = (
            4 * sum(variable.shape.num_elements() for variable in variables)
            for variables in (v1.global_variables(), v1.trainable_variables())
        )
    assert lms.simulated.variables == every > 2 * trained


def loop():
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, (4, 4), name="x")
        y = layer(tf.reshape(x, (1, 4, 4, 1)), "before")
        _, z = tf.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a) + tf.sin(a)), (0, y)
        )
        z = layer(z, "after") + y
        loss = tf.reduce_mean(z, name="loss")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        v1.enable_control_flow_v2()
    return graph


def test_a_while_loop_is_left_alone(said):
    graph = loop()
    LMS(2, 0, 1).run(graph)
    assert any("tf.while_loop(swap_memory=True)" in line for line in said) and added(graph)
    for op in added(graph):
        assert op._get_control_flow_context() is None

    def run(one):
        with v1.Session(graph=one) as session, one.as_default():
            session.run([variable.initializer for variable in v1.global_variables()])
            session.run([v.assign(tf.ones_like(v)) for v in v1.trainable_variables()])
            return [
                session.run(["loss:0", "train"], {"x:0": np.eye(4)})[0].item() for _ in range(3)
            ]

    with graph.as_default():
        assert len({*run(graph)}) == 3
    assert run(graph) == run(loop())
    with pytest.raises(ValueError, match="is a while-loop, whose memory no simulation knows"):
        lms = LMS()
        lms.autotune_gpu_mem = 1
        lms.run(loop())


def phases():
    """Keras' layers of TensorFlow 1: each does one thing in training and another otherwise."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        v1.disable_control_flow_v2()
        phase = v1.placeholder_with_default(False, (), name="keras_learning_phase")
        y = v1.placeholder(tf.float32, (4, 8, 8, 3), name="x")
        for number in range(4):
            y = layer(y, f"layer{number}")
            scale = v1.get_variable(f"scale{number}", (8,), initializer=v1.ones_initializer())

            def trained(y=y, scale=scale):
                mean, variance = tf.nn.moments(y, (0, 1, 2))
                early = tf.sin(y)
                return tf.nn.batch_normalization(y, mean, variance, None, scale, 1e-3) * early

            y = tf.cond(phase, trained, lambda y=y, scale=scale: tf.tanh(y * scale) + y)
        loss = tf.reduce_mean(tf.square(y), name="loss")
        v1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, name="train")
        v1.enable_control_flow_v2()
    return graph


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("numbers", [(1, 0, 1), (4, 30, 7)])
def test_branches_of_tensorflow_1_are_rewritten(mode, numbers):
    """Digits are equal whichever are taken, and what is fetched alone runs alone."""
    graph, plain = phases(), phases()
    LMS(*numbers, sync_mode=mode).run(graph)
    inside = [op for op in added(graph) if "Switch" in op.name or "cond" in op.name]
    assert len(inside) > 10
    feeds = [{"x:0": X, "keras_learning_phase:0": phase} for phase in (True, False, True)]

    def run(one):
        with v1.Session(graph=one) as session, one.as_default():
            session.run(v1.global_variables_initializer())
            said = [session.run(["loss:0", "train"], feed)[0] for feed in feeds]
            said += [session.run("loss:0", feed) for feed in feeds]
            return said, session.run(v1.trainable_variables())

    (losses, weights), (expected, others) = run(graph), run(plain)
    assert losses == expected and len({*map(float, losses)}) > 3
    for one, other in zip(weights, others):
        np.testing.assert_array_equal(one, other)


def test_the_phase_that_is_simulated():
    """Training, unless `is_training` says otherwise."""
    peaks = []
    for training in (True, False):
        lms = LMS(1, 0, 1)
        lms.is_training = training
        graph = phases()
        lms.run(graph)
        peaks.append(lms.simulated.before.peak)
        reads = {source.op.name for op in added(graph) for source in op.inputs}
        assert any("Sin" in name for name in reads) == training
    assert peaks[0] > peaks[1]


def test_host_memory_above_the_limit_is_said(monkeypatch):
    warned = []
    monkeypatch.setattr(v1.logging, "warning", lambda text, *parts: warned.append(text % parts))
    monkeypatch.setenv("TF_GPU_HOST_MEM_LIMIT_IN_MB", "0.0")
    lms = LMS(3, 0, 1)
    lms.batch_size = 4
    lms.run(network())
    (line,) = warned
    assert line.endswith("set TF_GPU_HOST_MEM_LIMIT_IN_MB=1")


def test_a_final_graph_is_refused():
    graph = network()
    graph.finalize()
    with pytest.raises(ValueError, match="because it is final; run LMS before"):
        LMS(3, 0, 1).run(graph)


def test_what_is_fed_in_the_middle():
    """A swap-in may wait for an op before it, which then reads what it did not need to."""

    def graph():
        made = tf.Graph()
        with made.as_default():
            x, y = (v1.placeholder(tf.float32, (4, 8), name=name) for name in "xy")
            early = tf.sin(x, name="early")
            middle = tf.tanh(tf.exp(early * y), name="middle")
            tf.add(tf.cos(tf.exp(middle)), early, name="end")
        return made

    def run(one):
        with v1.Session(graph=one) as session:
            return session.run("end:0", {"middle:0": X[0, :4, :, 0], "early:0": X[1, :4, :, 0]})

    late, soon = graph(), graph()
    LMS(1, 0, 1).run(late)
    LMS(1, 0, 99).run(soon)
    assert added(late) and added(soon)
    np.testing.assert_array_equal(run(late), run(graph()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="feed a value for placeholder"):
        run(soon)


def test_a_final_graph_that_was_rewritten_before_is_left_alone(said):
    graph = network()
    LMS(3, 0, 1).run(graph)
    graph.finalize()
    LMS(3, 0, 1).run(graph)
    assert said[-1] == "[LMS][0] The graph was rewritten before. It is left as it is."
