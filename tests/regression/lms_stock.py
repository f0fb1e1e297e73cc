# SPDX-License-Identifier: Apache-2.0
"""Runs training jobs on the stock torch, one JSON object a line: what ours is compared with.

Job: {"model", "optimiser", "device", "limit" (bytes of device memory, 0: all)}. Answer: a Result.
"""

from __future__ import annotations

import dataclasses
import json
import sys

import lms_device
import older_torch
import torch
from lms_models import Result, train


def run(job: dict[str, str | int]) -> Result:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    lms_device.device.reset()
    if job["limit"]:
        lms_device.device.limit(int(job["limit"]))
    try:
        return train(str(job["model"]), str(job["optimiser"]), str(job["device"]))
    except torch.OutOfMemoryError as error:
        return Result(oom=str(error))


def main() -> None:
    torch.set_num_threads(1)
    if hasattr(torch.cuda, "lms"):
        sys.exit(f"{sys.executable} has a patched torch; --stock must name one with the official")
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(run(json.loads(line)))), flush=True)


lms_device.use(sys.argv[1])
older_torch.name()
main()
