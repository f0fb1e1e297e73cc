# SPDX-License-Identifier: Apache-2.0
"""Programs in the forms that TFLMS v1 and v2 were published with, as programs of their own, beside
the same ones without the lines about LMS: what they train is equal."""

import re
import tempfile
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from test_examples import TF2_14, run, swap_outs

SESSION = """
from hashlib import sha256
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)

def deepnn(x):
    for number in range(4):
        kernel = tf.get_variable(f"kernel{number}", (3, 3, x.shape[-1], 4))
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME"))
    weights = tf.get_variable("weights", (8 * 8 * 4, 10))
    return tf.matmul(tf.reshape(x, [-1, 8 * 8 * 4]), weights)

tf.set_random_seed(0)
x = tf.placeholder(tf.float32, [None, 8, 8, 1])
y_ = tf.placeholder(tf.int64, [None])
y_conv = deepnn(x)
with tf.name_scope("loss"):
    cross_entropy = tf.losses.sparse_softmax_cross_entropy(labels=y_, logits=y_conv)
with tf.name_scope("adam_optimizer"):
    train_step = tf.train.AdamOptimizer(1e-4).minimize(cross_entropy)

LMS

draw = np.random.RandomState(0)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(3):
        batch = draw.rand(8, 8, 8, 1), draw.randint(10, size=8)
        train_step.run(feed_dict={x: batch[0], y_: batch[1]})
    for value in sess.run(tf.trainable_variables()):
        print("trained", sha256(value.tobytes()).hexdigest())
"""

ESTIMATOR = """
import tempfile
from hashlib import sha256
import numpy as np
import tensorflow as tf
v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.INFO)

def cnn_model_fn(features, labels, mode):
    x = features["x"]
    for number in range(4):
        kernel = v1.get_variable(f"kernel{number}", (3, 3, x.shape[-1], 4))
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"), name=f"relu{number}")
    weights = v1.get_variable("weights", (8 * 8 * 4, 10))
    logits = tf.matmul(tf.reshape(x, [-1, 8 * 8 * 4]), weights)
    probabilities = tf.nn.softmax(logits, name="softmax_tensor")
    loss = v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    with tf.name_scope("adam_optimizer"):
        optimizer = v1.train.GradientDescentOptimizer(learning_rate=0.001)
        train_op = optimizer.minimize(loss=loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)

draw = np.random.RandomState(0)
train_input_fn = v1.estimator.inputs.numpy_input_fn(
    x={"x": draw.rand(32, 8, 8, 1).astype("float32")}, y=draw.randint(10, size=32),
    batch_size=8, num_epochs=None, shuffle=False)
config = tf.estimator.RunConfig(tf_random_seed=0)
mnist_classifier = tf.estimator.Estimator(
    model_fn=cnn_model_fn, model_dir=tempfile.mkdtemp(), config=config)
logging_hook = v1.train.LoggingTensorHook(tensors={"probs": "softmax_tensor"}, every_n_iter=50)

LMS

mnist_classifier.train(
    input_fn=train_input_fn,
    steps=3,
    hooks=[logging_hook, lms_hook],
)
for name in sorted(mnist_classifier.get_variable_names()):
    print("trained", sha256(mnist_classifier.get_variable_value(name).tobytes()).hexdigest())
"""

KERAS = """
from hashlib import sha256
import numpy as np
import tensorflow as tf
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Input((16, 16, 1))])
for _ in range(4):
    model.add(layers.Conv2D(16, 3, padding="same", activation="relu"))
model.add(layers.GlobalAveragePooling2D())
model.add(layers.Dense(10, activation="softmax"))
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", jit_compile=False)
draw = np.random.RandomState(0)

def batches():
    while True:
        yield draw.rand(8, 16, 16, 1).astype("float32"), draw.randint(10, size=8)

training_gen = batches()

LMS

model.FIT(
    training_gen,
    steps_per_epoch=3, epochs=2, verbose=0,
    callbacks=[lms_callback],
)
for value in model.get_weights():
    print("trained", sha256(value.tobytes()).hexdigest())
"""

NUMBERS = "swapout_threshold=2, swapin_ahead=2, swapin_groupby=3"
WAYS = {
    "v1_session": (SESSION, """\
        from tensorflow_large_model_support import LMS
        lms_obj = LMS({'adam_optimizer'})
        lms_obj.run(graph=tf.get_default_graph())
        """),
    "v1_session_with_its_graph": (SESSION, """\
        from tensorflow_large_model_support import LMS
        lms_obj = LMS({'adam_optimizer'}, graph=tf.get_default_graph())
        lms_obj.run()
        """),
    "v1_session_with_every_option": (SESSION, """\
        from tensorflow_large_model_support import LMS
        lms_obj = LMS(
            graph=tf.get_default_graph(), optimizer_scopes={'adam_optimizer'},
            starting_scope=None, starting_op_names={'kernel0/read', 'Placeholder'},
            excl_scopes={'loss'}, incl_scopes=set(), excl_types={'Reshape'}, incl_types=set(),
            n_tensors=-1, lb=3, ub=50, fuse_swapins=True, ctrld_strategy='direct_order',
            swap_branches=False, branch_threshold=0, debug=True, debug_level=1)
        lms_obj.run()
        """),
    "v1_estimator": (ESTIMATOR, """\
        from tensorflow_large_model_support import LMSSessionRunHook
        lms_hook = LMSSessionRunHook({'adam_optimizer'})
        """),
    "v1_keras": (KERAS, """\
        from tensorflow_large_model_support import LMSKerasCallback
        lms_callback = LMSKerasCallback()
        """),
    "v1_keras_with_options": (KERAS, """\
        from tensorflow_large_model_support import LMSKerasCallback
        lms_callback = LMSKerasCallback(n_tensors=3, lb=2, swap_branches=True, branch_threshold=4)
        """),
    "v2_session": (SESSION, f"""\
        from tensorflow_large_model_support import LMS
        lms = LMS({NUMBERS})
        lms.batch_size = 8
        lms.run()
        """),
    "v2_session_with_its_graph": (SESSION, """\
        from tensorflow_large_model_support import LMS
        lms = LMS(swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=3)
        lms.run(graph=tf.get_default_graph())
        """),
    "v2_estimator": (ESTIMATOR, f"""\
        from tensorflow_large_model_support import LMS
        lms_hook = LMS({NUMBERS})
        lms_hook.batch_size = 8
        """),
    "v2_keras": (KERAS, f"""\
        from tensorflow_large_model_support import LMS
        lms_callback = LMS({NUMBERS})
        lms_callback.batch_size = 8
        """),
    "v2_keras_tuned": (KERAS, """\
        from tensorflow_large_model_support import LMS
        lms_callback = LMS()
        lms_callback.batch_size = 8
        lms_callback.autotune_gpu_mem = 8e-4
        """),
}  # fmt: skip


def program(way, fit="fit"):
    source, lines = WAYS[way]
    return source.replace("LMS\n", dedent(lines), 1).replace("FIT", fit)


def trained(said):
    return re.findall(r"^trained ([0-9a-f]+)$", said, re.MULTILINE)


@cache
def expected(source):
    """What is trained without the lines about LMS."""
    lines = source.replace("FIT", "fit").splitlines()
    text = "\n".join(line for line in lines if "lms" not in line.lower())
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.py"
        plain.write_text(text)
        said = run(plain)
    assert "[LMS]" not in said
    return trained(said)


@pytest.mark.parametrize("way", WAYS)
def test_it_runs_and_trains_to_the_same_digits(way, tmp_path):
    if WAYS[way][0] is ESTIMATOR and not TF2_14:
        pytest.skip("this TensorFlow has no Estimator")
    script = tmp_path / "script.py"
    script.write_text(program(way))
    said = run(script)
    assert swap_outs(said) > 2
    assert trained(said) and trained(said) == expected(WAYS[way][0])


@pytest.mark.skipif(not TF2_14, reason="Keras 3 has no fit_generator")
def test_fit_generator_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program("v2_keras", "fit_generator"))
    assert swap_outs(run(script)) > 2
