# SPDX-License-Identifier: Apache-2.0
"""DeepLabV3, which says of each pixel of an image what it shows, with Large Model Support."""

import numpy as np
import tensorflow as tf
from segmentation import parser, train

layers = tf.keras.layers
CLASSES = 21
RATES = (6, 12, 18)  # of the convolutions that look around a place, near and far
WIDTH = 256
BACKBONES = {  # and the layer in which they have made images 16 times smaller
    "resnet50": ("ResNet50", "conv4_block6_out"),
    "mobilenet": ("MobileNet", "conv_pw_11_relu"),
}


def convolution(x, size, rate=1):
    x = layers.Conv2D(WIDTH, size, padding="same", dilation_rate=rate, use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def network(side, kind):
    """A backbone down to a sixteenth of the image's size, a pyramid of views, and back up."""
    name, last = BACKBONES[kind]
    make = getattr(tf.keras.applications, name)
    backbone = make(include_top=False, weights=None, input_shape=(side, side, 3))
    x = backbone.get_layer(last).output
    around = [convolution(x, 1), *(convolution(x, 3, rate) for rate in RATES)]
    whole = convolution(layers.GlobalAveragePooling2D(keepdims=True)(x), 1)
    around.append(layers.UpSampling2D(side // 16, interpolation="bilinear")(whole))
    x = convolution(layers.Concatenate()(around), 1)
    x = layers.Conv2D(CLASSES, 1)(x)
    x = layers.UpSampling2D(16, interpolation="bilinear")(x)
    return tf.keras.Model(backbone.input, x)


def main():
    made = parser(__doc__, image_size=512)
    made.add_argument("--backbone", choices=BACKBONES, default="resnet50")
    options = made.parse_args()
    if options.image_size % 16:
        made.error("--image_size is no multiple of 16, by which the network makes images smaller")
    side = options.image_size
    draw = np.random.RandomState(0)
    images = draw.rand(options.batch_size, side, side, 3).astype("float32")
    labels = draw.randint(CLASSES, size=(options.batch_size, side, side)).astype("int32")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train(options, network(side, options.backbone), loss, images, labels)


if __name__ == "__main__":
    main()
