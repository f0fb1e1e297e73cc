# SPDX-License-Identifier: Apache-2.0
"""What the examples share: the options, turning Large Model Support on, and a loop of training."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

import torch
from lmsstats import LMSStats
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def parser(what: str | None) -> argparse.ArgumentParser:
    """With the options that are about Large Model Support."""
    made = argparse.ArgumentParser(description=what)
    group = made.add_argument_group("Large Model Support")
    group.add_argument(
        "--lms", action=argparse.BooleanOptionalAction, default=True,
        help="train with it, or find out what happens without (default: with it)",
    )  # fmt: skip
    group.add_argument(
        "--lms-limit", type=at_least(0), default=0, metavar="MB",
        help="make way beyond this much device memory (default: none, the device is filled first)",
    )  # fmt: skip
    return made


def parse(
    made: argparse.ArgumentParser, arguments: Sequence[str] | None, *, batch_size: int = 1
) -> argparse.Namespace:
    """With the options of a run on made-up data."""
    made.add_argument("--steps", type=at_least(1), default=5)
    made.add_argument("-b", "--batch-size", type=at_least(1), default=batch_size)
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args(arguments)
    torch.manual_seed(options.seed)
    return options


def turn_on(options: argparse.Namespace) -> None:
    """All that a program needs to train beyond the memory of its GPU."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "nothing can be trained because PyTorch finds no GPU; without one, run this on the "
            "simulated device: python -m simcuda --dry --profile v100-32gb-pcie3 PROGRAM"
        )
    if not options.lms:
        return
    if not hasattr(torch.cuda, "lms"):
        try:
            import torch_lms  # noqa: F401  (gives torch.cuda what a patched PyTorch has)
        except ImportError as error:
            raise SystemExit(
                f"PyTorch {torch.__version__} has no Large Model Support because it is not the "
                f"patched wheel, and torch_lms cannot be imported beside it ({error}); install "
                "the wheel of `lmsbuild wheel TAG`, or the one of `lmsbuild plugin "
                f"v{torch.__version__.partition('+')[0]}`, or train without it: --no-lms"
            ) from None
    torch.cuda.set_limit_lms(options.lms_limit << 20)
    torch.cuda.set_enabled_lms(True)


def made_up(steps: int, make: Callable[[], Batch]) -> Iterator[Batch]:
    return (make() for _ in range(steps))


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    stats: LMSStats,
) -> list[float]:
    """The loss of each batch. None is read before the end, so the device waits for nobody."""
    losses = []
    for given, wanted in batches:
        with stats:
            given, wanted = given.cuda(non_blocking=True), wanted.cuda(non_blocking=True)
            loss = loss_of(model(given), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().tolist()


def report(losses: Sequence[float], stats: LMSStats) -> None:
    print("losses", *(f"{loss:.4f}" for loss in losses))
    print(
        f"a step (median): {median(stats.column('seconds')):.3f} s, "
        f"{median(stats.column('reclaimed_mib')):.1f} MiB moved out; "
        f"at the peak {math.ceil(max(stats.column('reserved_peak_mib')))} MiB of the device"
    )
