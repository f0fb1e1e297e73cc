# SPDX-License-Identifier: Apache-2.0
"""Large Model Support as a hook of an Estimator, which TensorFlow has up to 2.15."""

import tempfile

import tensorflow as tf
from digits import digits, parser
from mnist_session import network
from swapping import large_model_support

v1 = tf.compat.v1


def model(features, labels, mode):
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network(features))
    loss = tf.reduce_mean(each)
    train = v1.train.AdamOptimizer().minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def main():
    options = parser(__doc__).parse_args()
    v1.logging.set_verbosity("INFO")
    images, labels = digits(options)

    def given():
        data = v1.data.Dataset.from_tensor_slices((images, labels))
        return data.batch(options.batch_size, drop_remainder=True)

    lms = large_model_support(options)
    with tempfile.TemporaryDirectory() as folder:
        estimator = tf.estimator.Estimator(model, folder)
        estimator.train(given, hooks=[lms] if lms else [])


if __name__ == "__main__":
    main()
