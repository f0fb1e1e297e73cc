# SPDX-License-Identifier: Apache-2.0
"""What ManyModel and Keras_ManyModel share: the models, the options, made-up images, profiling."""

import argparse
import ctypes
import ctypes.util
import os
import sys

import numpy as np
import tensorflow as tf

CLASSES = 15
MODELS = {  # as they are named on the command line: those of keras.applications
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
    "resnet50v2": "ResNet50V2",
    "resnet101v2": "ResNet101V2",
    "resnet152v2": "ResNet152V2",
    "densenet121": "DenseNet121",
    "densenet169": "DenseNet169",
    "densenet201": "DenseNet201",
    "inception": "InceptionV3",
    "inceptionresnet": "InceptionResNetV2",
    "mobilenet": "MobileNet",
    "mobilenetv2": "MobileNetV2",
    "nasnetlarge": "NASNetLarge",
    "nasnetmobile": "NASNetMobile",
    "xception": "Xception",
}
_RUNTIMES = ("libcudart.so", "libcudart.so.12", "libcudart.so.11.0")


def parser(what):
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--model", choices=MODELS, default="resnet50", type=str.lower)
    made.add_argument("--epochs", type=int, default=1)
    made.add_argument("--steps", type=int, default=10, help="of an epoch")
    made.add_argument("--image_size", type=int, default=500, help="pixels of a side")
    made.add_argument("--batch_size", type=int, default=1)
    switch(made, "--nvprof", "start and stop CUDA's profiler")
    made.add_argument("--nvprof_epoch", type=int, default=1, help="the first is 1")
    made.add_argument(
        "--nvprof_start", type=int, default=4, help="the batch before which it starts"
    )
    made.add_argument("--nvprof_stop", type=int, default=9, help="the batch before which it stops")
    switch(made, "--channels_last", "the order of images; channels first needs a GPU")
    return made


def switch(made, name, what):
    made.add_argument(name, action=argparse.BooleanOptionalAction, default=False, help=what)


class CudaProfileCallback(tf.keras.callbacks.Callback):
    """Profiles some batches of an epoch, the first being 1, of a program that nvprof runs."""

    def __init__(self, profile_epoch, profile_batch_start, profile_batch_end, runtime=None):
        super().__init__()
        self._epoch = profile_epoch - 1
        self._start, self._stop = profile_batch_start, profile_batch_end
        self._runtime = runtime or _cuda_runtime()
        self._now = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self._now == self._epoch and batch == self._start:
            self._runtime.cudaProfilerStart()
        if self._now == self._epoch and batch == self._stop:
            self._runtime.cudaProfilerStop()


def _cuda_runtime():
    for name in filter(None, (ctypes.util.find_library("cudart"), *_RUNTIMES)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit(
        f"--nvprof cannot be used because none of {', '.join(_RUNTIMES)} is found; put the folder "
        "of CUDA's runtime on LD_LIBRARY_PATH"
    )


class Alone:
    """One process; what Horovod says where there are several."""

    rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 1)


def together():
    """Horovod where MPI has started the program, with a GPU for each process."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return Alone
    try:
        import horovod.tensorflow.keras as horovod
    except ImportError:
        sys.exit(
            "the program cannot train in several processes because MPI started it and Horovod is "
            "not installed; `pip install horovod`, or start it without MPI"
        )
    horovod.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = gpus[horovod.local_rank()]
        tf.config.experimental.set_memory_growth(mine, True)
        tf.config.set_visible_devices(mine, "GPU")
    return horovod


def train(options, callbacks, others, compiled=None):
    """Trains the model on noise; `compiled` are further options of `compile`."""
    if not (options.channels_last or tf.config.list_physical_devices("GPU")):
        print("Channels first needs a GPU, of which TensorFlow sees none: channels last.")
        options.channels_last = True
    order = "channels_last" if options.channels_last else "channels_first"
    tf.keras.backend.set_image_data_format(order)
    side = options.image_size
    shape = (side, side, 3) if options.channels_last else (3, side, side)
    make = getattr(tf.keras.applications, MODELS[options.model])
    model = make(weights=None, include_top=True, input_shape=shape, classes=CLASSES)
    optimizers = tf.keras.optimizers
    # For the graph of a session, Keras 2 has the older ones.
    optimizer = (optimizers if tf.executing_eagerly() else optimizers.legacy).RMSprop()
    if others is not Alone:
        optimizer = others.DistributedOptimizer(optimizer)
        callbacks = [others.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    model.compile(optimizer, "categorical_crossentropy", **(compiled or {}))
    draw = np.random.RandomState(others.rank())
    images = draw.rand(options.batch_size, *shape).astype("float32")
    labels = np.eye(CLASSES, dtype="float32")[draw.randint(CLASSES, size=options.batch_size)]
    steps = max(options.steps // others.size(), 1)
    given = tf.data.Dataset.from_tensors((images, labels)).repeat()
    if options.nvprof:
        numbers = options.nvprof_epoch, options.nvprof_start, options.nvprof_stop
        callbacks = [*callbacks, CudaProfileCallback(*numbers)]
    model.fit(
        given, epochs=options.epochs, steps_per_epoch=steps, callbacks=callbacks,
        verbose=2 if others.rank() == 0 else 0,
    )  # fmt: skip
