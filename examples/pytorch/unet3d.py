# SPDX-License-Identifier: Apache-2.0
"""Trains a 3D U-Net to segment volumes: activations grow with the third power of the side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lmsstats import LMSStats
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, at_least, made_up, parse, parser, report, train, turn_on

CLASSES = 4


def convolutions(inside: int, outside: int) -> nn.Sequential:
    """Two, which keep the size of the volume."""
    return nn.Sequential(
        *(
            nn.Sequential(
                nn.Conv3d(channels, outside, 3, padding=1, bias=False),
                nn.InstanceNorm3d(outside, affine=True),
                nn.ReLU(inplace=True),
            )
            for channels in (inside, outside)
        )
    )


class Level(nn.Module):
    """A level of the U: the way down, the levels below at half the side, and the way up again."""

    def __init__(self, inside: int, width: int, below: int) -> None:
        super().__init__()
        self.down = convolutions(inside, width)
        self.below = Level(width, 2 * width, below - 1) if below else None
        if self.below:
            self.grow = nn.ConvTranspose3d(2 * width, width, 2, 2)
            self.up = convolutions(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        if self.below is None:
            return x
        deep = self.grow(self.below(functional.max_pool3d(x, 2)))
        return self.up(torch.cat([x, deep], dim=1))


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options_of = parser(__doc__)
    options_of.add_argument("--size", type=at_least(1), default=192, help="side of the volumes")
    options_of.add_argument("--width", type=at_least(1), default=32, help="of the first level")
    options_of.add_argument("--levels", type=at_least(1), default=5)
    options = parse(options_of, arguments)
    if options.size % (grain := 1 << options.levels - 1):
        options_of.error(f"--size {options.size} is no multiple of {grain}, which the levels halve")
    turn_on(options)
    model = nn.Sequential(
        Level(1, options.width, options.levels - 1), nn.Conv3d(options.width, CLASSES, 1)
    ).cuda()
    shape = (options.batch_size, *[options.size] * 3)

    def volume() -> Batch:
        return torch.randn(shape).unsqueeze(1), torch.randint(CLASSES, shape)

    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    stats = LMSStats()
    batches = made_up(options.steps, volume)
    losses = train(model, batches, functional.cross_entropy, optimiser, stats)
    report(losses, stats)
    return losses


if __name__ == "__main__":
    main()
