# SPDX-License-Identifier: Apache-2.0
"""Large Model Support for a graph that a session runs."""

import tensorflow as tf
from digits import COUNT, digits, parser
from swapping import large_model_support

v1 = tf.compat.v1


def network(images):
    x = images
    for number, width in enumerate((32, 64)):
        kernel = v1.get_variable(f"kernel{number}", (3, 3, x.shape[-1], width))
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "SAME")
    x = tf.reshape(x, (-1, 7 * 7 * 64))
    return tf.matmul(x, v1.get_variable("weights", (7 * 7 * 64, COUNT)))


def main():
    options = parser(__doc__).parse_args()
    v1.logging.set_verbosity("INFO")
    images, labels = digits(options)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 28, 28, 1))
        y = v1.placeholder(tf.int32, (None,))
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=network(x))
        loss = tf.reduce_mean(each)
        train = v1.train.AdamOptimizer().minimize(loss)
        begin = v1.global_variables_initializer()
        lms = large_model_support(options)
        if lms:
            lms.run(graph)
        with v1.Session() as session:
            session.run(begin)
            for step in range(options.steps):
                part = slice(step * options.batch_size, (step + 1) * options.batch_size)
                value, _ = session.run([loss, train], {x: images[part], y: labels[part]})
            print(f"loss {value:.6f} after {options.steps} steps")


if __name__ == "__main__":
    main()
