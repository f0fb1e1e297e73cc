# SPDX-License-Identifier: Apache-2.0
"""Trains DeepLabV3 of torchvision to segment images that are not cut into tiles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lmsstats import LMSStats
from torch import Tensor
from torch.nn import functional
from torchvision.models import segmentation
from training import Batch, at_least, made_up, parse, parser, report, train, turn_on

CLASSES = 21
BACKBONES = ("resnet101", "resnet50", "mobilenet_v3_large")


def loss_of(output: dict[str, Tensor], wanted: Tensor) -> Tensor:
    return functional.cross_entropy(output["out"], wanted)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options_of = parser(__doc__)
    options_of.add_argument("--size", type=at_least(32), default=2048, help="side of the images")
    options_of.add_argument("--backbone", choices=BACKBONES, default=BACKBONES[0])
    # Pooled over the whole image, one image has one value, of which there is no variance.
    options = parse(options_of, arguments, batch_size=2)
    if options.batch_size < 2:
        options_of.error("--batch-size must be 2 or more, because it normalises over the batch")
    turn_on(options)
    build = getattr(segmentation, f"deeplabv3_{options.backbone}")
    model = build(weights=None, weights_backbone=None, num_classes=CLASSES).cuda()
    shape = (options.batch_size, options.size, options.size)

    def image() -> Batch:
        count, *sides = shape
        return torch.rand(count, 3, *sides), torch.randint(CLASSES, shape)

    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    stats = LMSStats(options.batch_size * options.size**2 / 1e6)
    losses = train(model, made_up(options.steps, image), loss_of, optimiser, stats)
    report(losses, stats)
    return losses


if __name__ == "__main__":
    main()
