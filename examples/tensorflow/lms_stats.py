# SPDX-License-Identifier: Apache-2.0
"""Callbacks that write what Large Model Support did, step by step or on average, as CSV."""

import csv
import time
from pathlib import Path

import tensorflow as tf

# Statistics of TensorFlow that only grow, of which a step's share is told, and those of the moment.
COUNTED = (
    "num_allocs",
    "num_single_reclaims",
    "num_full_reclaims",
    "num_defragmentations",
    "bytes_reclaimed",
    "bytes_defragged",
)
LEVELS = (
    *("bytes_limit", "bytes_in_use", "peak_bytes_in_use", "bytes_active", "peak_bytes_active"),
    *("bytes_inactive", "current_bytes_reclaimed", "peak_bytes_reclaimed"),
)
MEASURED = ("seconds", *COUNTED, *LEVELS)
STEP = ("phase", "epoch", "step", *MEASURED)


class Steps:
    """Measures steps, one after the other."""

    def __init__(self, gpu_id=0):
        self._gpu = gpu_id
        self.rows = []

    def _read(self, names):
        return {name: getattr(tf.experimental, f"get_{name}")(self._gpu) for name in names}

    def begin(self):
        self._before, self._began = self._read(COUNTED), time.perf_counter()

    def end(self):
        seconds = time.perf_counter() - self._began
        counted = {name: now - self._before[name] for name, now in self._read(COUNTED).items()}
        self.rows.append({"seconds": seconds, **counted, **self._read(LEVELS)})
        return self.rows[-1]

    def average(self):
        """Nothing without a step."""
        count = len(self.rows)
        return {name: sum(row[name] for row in self.rows) / count for name in MEASURED if count}


class Table:
    """A CSV file that is whole after each row."""

    def __init__(self, path, columns):
        self._path, self._columns = Path(path), columns
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="") as file:
            csv.DictWriter(file, columns).writeheader()

    def add(self, row):
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)


class LMSStatsLogger(tf.keras.callbacks.Callback):
    """A row for each step: phase `t` trains, `v` validates."""

    def __init__(self, logfile, gpu_id=0):
        super().__init__()
        self._table, self._steps = Table(logfile, STEP), Steps(gpu_id)
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self._steps.begin()

    def on_train_batch_end(self, batch, logs=None):
        self._write("t", batch)

    def on_test_batch_begin(self, batch, logs=None):
        self._steps.begin()

    def on_test_batch_end(self, batch, logs=None):
        self._write("v", batch)

    def _write(self, phase, batch):
        where = {"phase": phase, "epoch": self._epoch, "step": batch}
        self._table.add({**where, **self._steps.end()})


class LMSStatsLoggerRunHook(tf.compat.v1.train.SessionRunHook):
    """The same for a session or an Estimator."""

    def __init__(self, logfile, gpu_id=0):
        self._table, self._steps = Table(logfile, STEP), Steps(gpu_id)
        self._step = 0

    def before_run(self, run_context):
        self._steps.begin()

    def after_run(self, run_context, run_values):
        where = {"phase": "t", "epoch": 0, "step": self._step}
        self._table.add({**where, **self._steps.end()})
        self._step += 1


class _Averages(tf.keras.callbacks.Callback):
    """Measures training steps from one of an epoch on; earlier ones, which begin, do not count."""

    def __init__(self, gpu_id, start_epoch, start_batch):
        super().__init__()
        self._steps = Steps(gpu_id)
        self._start, self._epoch = (start_epoch, start_batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def _counts(self, batch):
        first, from_batch = self._start
        return self._epoch > first or (self._epoch == first and batch >= from_batch)

    def on_train_batch_begin(self, batch, logs=None):
        if self._counts(batch):
            self._steps.begin()

    def on_train_batch_end(self, batch, logs=None):
        if self._counts(batch):
            self._steps.end()


class LMSStatsTrainingStepsAverage(_Averages):
    """Prints the averages of all steps but the first."""

    def __init__(self, gpu_id=0):
        super().__init__(gpu_id, 0, 1)

    def on_train_end(self, logs=None):
        print("LMS statistics, average of a step:", self._steps.average())


class LMSStatsAverage(_Averages):
    """Writes one row of averages, with the size of the images and their rate."""

    COLUMNS = (
        *("image_size", "megapixels", "batch_size", "steps", "images_per_second"),
        *MEASURED,
    )

    def __init__(
        self, logfile, image_size, image_dimensions=2, gpu_id=0, batch_size=1, start_epoch=0,
        start_batch=2,
    ):  # fmt: skip
        super().__init__(gpu_id, start_epoch, start_batch)
        self._table = Table(logfile, self.COLUMNS)
        self._about = {
            "image_size": image_size,
            "megapixels": image_size**image_dimensions / 1e6,
            "batch_size": batch_size,
        }

    def on_train_end(self, logs=None):
        average = self._steps.average()
        if average:
            rate = self._about["batch_size"] / average["seconds"]
            more = {"steps": len(self._steps.rows), "images_per_second": rate}
            self._table.add({**self._about, **more, **average})
