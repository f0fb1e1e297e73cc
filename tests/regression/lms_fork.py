# SPDX-License-Identifier: Apache-2.0
"""What the process of fork_server.py imports, and what its forks do before their program."""

import simcuda

simcuda.load(order="report", for_forks=True)
import older_torch  # noqa: E402
import torch  # noqa: E402

older_torch.name()


def ready() -> None:
    """Reads from the environment what the import had read."""
    simcuda.settle()
    torch.cuda.lms.environment.read()
