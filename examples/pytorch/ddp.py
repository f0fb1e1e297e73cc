# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of gpt2.py on several GPUs, with a process for each:

torchrun --nproc_per_node 2 ddp.py

Each process turns Large Model Support on for itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from gpt2 import Transformer, loss_of, parse_sized, sized, text
from lmsstats import LMSStats
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from training import made_up, report, train, turn_on


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options_of = sized(__doc__)
    options_of.add_argument("--dist-backend", choices=("nccl", "gloo"), default="nccl")
    options = parse_sized(options_of, arguments)
    if "LOCAL_RANK" not in os.environ:
        options_of.error("it is to be started by torchrun, which says which process this one is")
    local = int(os.environ["LOCAL_RANK"])
    turn_on(options)
    if local >= torch.cuda.device_count():
        options_of.error(f"process {local} has no GPU, as there are {torch.cuda.device_count()}")
    torch.cuda.set_device(local)
    distributed.init_process_group(options.dist_backend)
    model = DistributedDataParallel(Transformer(options).cuda(), [local])
    torch.manual_seed(options.seed + distributed.get_rank())  # each has text of its own
    optimiser = torch.optim.AdamW(model.parameters(), 3e-4)
    stats = LMSStats()
    batches = made_up(options.steps, lambda: text(options))
    losses = train(model, batches, loss_of, optimiser, stats)
    for rank in range(distributed.get_world_size()):
        if rank == distributed.get_rank():
            print(f"process {rank}:", end=" ")
            report(losses, stats)
        distributed.barrier()
    distributed.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
