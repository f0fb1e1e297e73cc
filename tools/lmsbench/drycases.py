# SPDX-License-Identifier: Apache-2.0
"""What the benchmark on the dry device measures."""

from __future__ import annotations

from dataclasses import dataclass

FACTORS = (1.5, 2.0, 3.0, 4.0, 5.6, 7.5, 10.0)
METHODS = ("lms", "plugin", "ibm", "ibm-ahead", "save_on_cpu", "checkpoint", "both")
# Those that are Large Model Support as another environment has it, and whose that is.
ELSEWHERE = {"plugin": "plugin", "ibm": "ibm", "ibm-ahead": "ibm"}
# What it is told there: lms/baseline/ibm.cpp.
VARIABLES = {"ibm-ahead": {"LMS_IBM_SPECULATE": "1"}}
WARMUP, STEPS = 2, 6  # it learns in the first ones when its weights are used again
_RATIO = 1.1  # of the elements of a size that is tried, to those of the next smaller one


@dataclass(frozen=True)
class Model:
    """A workload of lmsbench.models, and a size of it that suits the profiles' GPUs."""

    workload: str
    grows: str  # what the size is
    size: int
    step: int  # sizes are multiples of it
    power: int  # a size is worth size ** power elements
    amp: bool = False  # fp16 by autocast, else fp32

    def sizes(self) -> list[int]:
        """Those among which the largest that trains is looked for."""
        exact = (self.size * _RATIO ** (k / self.power) for k in range(-32, 48))
        return sorted({max(round(size / self.step), 1) * self.step for size in exact})


MODELS = {
    "resnet50": Model("resnet50", "image side", 4096, 32, 2),
    "resnet50-224": Model("resnet50-224", "batch", 320, 1, 1),
    "deeplabv3": Model("deeplabv3", "image side", 1792, 32, 2),
    "unet3d": Model("unet3d", "volume side", 192, 16, 3),
    "gpt2-small": Model("gpt2-small", "batch", 24, 1, 1),
    "gpt2": Model("gpt2", "batch", 16, 1, 1),
    "gpt2-amp": Model("gpt2", "batch", 16, 1, 1, amp=True),
    "gpt130": Model("gpt130", "batch", 4, 1, 1),
}


@dataclass(frozen=True)
class Case:
    """`factor`: what it needs without a limit, by what the device has; 0: no limit; None: the
    memory of the profile's GPU. The method `bound` is what no swapper could do better."""

    profile: str
    model: str
    size: int
    method: str
    factor: float | None

    @property
    def key(self) -> str:
        factor = "whole" if self.factor is None else f"{self.factor:g}"
        return f"{self.profile}/{self.model}/{self.size}/{self.method}/{factor}"
