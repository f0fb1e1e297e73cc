# SPDX-License-Identifier: Apache-2.0
"""What the process of fork_server.py imports: torch on the device that its environment names."""

import simcuda

simcuda.load(for_forks=True)
import torch  # noqa: E402

torch.set_num_threads(1)


def ready() -> None:
    simcuda.settle()
