# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of torchvision on made-up images of any size, with the options of the program
of this name that came with IBM's Large Model Support.

An epoch is 12 batches. --log steps writes a row for each to ARCH-SIZE.csv; --log summary adds one
row, of all but the first two, to ARCH-summary.csv.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import torch
from lmsstats import LMSStats, LMSStatsLogger, LMSStatsSummary
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import models
from training import at_least, parser, report, train, turn_on

CLASSES = 1000
BATCHES = 12
# Those that were made for one size of images alone are left out.
NAMES = [name for name in models.list_models(module=models) if "vit" not in name]


class Noise(Dataset[tuple[Tensor, int]]):
    """One image, however often it is asked for: to make large ones anew would take the time."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.image = torch.rand(3, size, size)
        self.labels = torch.randint(CLASSES, (count,)).tolist()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.image, self.labels[index]


def loss_of(output: object, wanted: Tensor) -> Tensor:
    # Of GoogLeNet and Inception while they train, the results of their side branches come along.
    logits = getattr(output, "logits", output)
    return nn.functional.cross_entropy(logits, wanted)


def options_of() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument(
        "-a", "--arch", choices=NAMES, default="resnet18", metavar="ARCH",
        help=f"a model of torchvision (default: resnet18): {', '.join(NAMES)}",
    )  # fmt: skip
    made.add_argument("--image-size", type=at_least(1), default=500, help="side of the images")
    made.add_argument(
        "--log", choices=("steps", "summary"), default="steps",
        help="what to write to a CSV file (default: steps)",
    )  # fmt: skip
    made.add_argument("-j", "--workers", type=at_least(0), default=4, help="that load the data")
    made.add_argument("--epochs", type=at_least(1), default=1)
    made.add_argument(
        "-b", "--batch-size", type=at_least(1), default=1,
        help="of all GPUs that this machine trains on (default: 1)",
    )  # fmt: skip
    made.add_argument("--lr", "--learning-rate", type=float, default=0.1)
    made.add_argument("--momentum", type=float, default=0.9)
    made.add_argument("--wd", "--weight-decay", type=float, default=1e-4)
    made.add_argument("--pretrained", action="store_true", help="begin with published weights")
    made.add_argument("--seed", type=int, help="make the run repeatable")
    made.add_argument("--gpu", type=at_least(0), help="train on this one alone")
    group = made.add_argument_group("several GPUs or machines")
    group.add_argument("--world-size", type=int, default=-1, help="processes; machines, with --mu")
    group.add_argument("--rank", type=int, default=-1, help="of this process, or machine")
    group.add_argument("--dist-url", default="tcp://127.0.0.1:23456", help="where they meet")
    group.add_argument("--dist-backend", default="nccl")
    group.add_argument(
        "--multiprocessing-distributed", action="store_true",
        help="start a process for each GPU of this machine",
    )  # fmt: skip
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = options_of()
    options = made.parse_args(arguments)
    if options.gpu is not None and options.multiprocessing_distributed:
        made.error("--gpu names one GPU and --multiprocessing-distributed takes all: choose one")
    if options.gpu is not None and options.gpu >= torch.cuda.device_count() > 0:
        made.error(f"--gpu {options.gpu} is not there, as there are {torch.cuda.device_count()}")
    return options


def stats_of(options: argparse.Namespace, *, first: bool) -> LMSStats:
    """What --log asks for, of the `first` process."""
    megapixels = options.batch_size * options.image_size**2 / 1e6
    if options.log == "steps" and first:
        return LMSStatsLogger(f"{options.arch}-{options.image_size}.csv", megapixels)
    if options.log == "summary" and first:
        about = {
            "arch": options.arch, "image_size": options.image_size,
            "batch_size": options.batch_size, "lms": options.lms,
        }  # fmt: skip
        return LMSStatsSummary(f"{options.arch}-summary.csv", megapixels, about)
    return LMSStats(megapixels)


def work(local: int, options: argparse.Namespace, processes: int) -> list[float]:
    """Of one process, on the GPU of number `local`."""
    if options.seed is not None:
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        torch.backends.cudnn.deterministic = True
    turn_on(options)
    torch.cuda.set_device(local)
    rank, together = options.rank, options.world_size > 1 or processes > 1
    if options.multiprocessing_distributed:
        rank = max(options.rank, 0) * processes + local
    if together:
        distributed.init_process_group(
            options.dist_backend, options.dist_url, rank=rank,
            world_size=max(options.world_size, 1) * processes,
        )  # fmt: skip
    model: nn.Module = models.get_model(
        options.arch, weights="DEFAULT" if options.pretrained else None
    ).cuda()
    if together:
        model = DistributedDataParallel(model, [local])
    each = max(options.batch_size // processes, 1)
    data = Noise(
        BATCHES * each * (distributed.get_world_size() if together else 1), options.image_size
    )
    sampler = DistributedSampler(data) if together else None
    loader = DataLoader(
        data, each, shuffle=sampler is None, sampler=sampler, num_workers=options.workers,
        pin_memory=True,
    )  # fmt: skip
    optimiser = torch.optim.SGD(
        model.parameters(), options.lr, options.momentum, weight_decay=options.wd
    )
    stats = stats_of(options, first=not together or rank == 0)
    losses = []
    for epoch in range(options.epochs):
        stats.epoch = epoch
        if sampler:
            sampler.set_epoch(epoch)
        losses += train(model, loader, loss_of, optimiser, stats)
    stats.finish()
    if not together or rank == 0:
        report(losses, stats)
    if together:
        distributed.destroy_process_group()
    return losses


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """The losses of this process; none if it started others."""
    options = parse(arguments)
    if not options.multiprocessing_distributed:
        return work(options.gpu or 0, options, 1)
    processes = torch.cuda.device_count()
    multiprocessing.spawn(work, (options, processes), nprocs=processes)
    return []


if __name__ == "__main__":
    main()
