# SPDX-License-Identifier: Apache-2.0
"""Trains a U-Net on made-up images. It knows nothing of Large Model Support.

python demo_train.py                     # out of memory where the network does not fit
PYTORCH_LMS=1 python demo_train.py       # the same program, with Large Model Support
"""

from __future__ import annotations

import argparse
import hashlib
import json
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Convolutions that keep the size of the image: (N, inside, H, W) to (N, outside, H, W)."""

    def __init__(self, inside: int, outside: int, depth: int) -> None:
        super().__init__()
        widths = [inside] + [outside] * depth
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


class UNet(nn.Module):
    """(N, 3, H, W) to (N, 1, H, W); H and W divisible by 2 ** (levels - 1)."""

    def __init__(self, width: int, levels: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(Block(a, b, depth) for a, b in pairwise([3, *widths]))
        ups = list(reversed(range(levels - 1)))
        self.narrow = nn.ModuleList(nn.Conv2d(widths[i + 1], widths[i], 1) for i in ups)
        self.up = nn.ModuleList(Block(2 * widths[i], widths[i], depth) for i in ups)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else functional.max_pool2d(x, 2))
            skipped.append(x)
        skipped.pop()
        for narrow, block in zip(self.narrow, self.up, strict=True):
            x = functional.interpolate(narrow(x), scale_factor=2.0)
            x = block(torch.cat([x, skipped.pop()], dim=1))
        return self.head(x)


def train(options: argparse.Namespace) -> dict[str, object]:
    """Train and give the losses (exact, as hexadecimal floats) and a hash of the parameters."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = UNet(options.width, options.levels, options.depth)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    model.to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(options.steps):
        shape = (options.batch, 3, options.size, options.size)
        image = torch.rand(shape, generator=generator).to(options.device)
        wanted = (image.mean(dim=1, keepdim=True) > 0.5).float()
        loss = functional.binary_cross_entropy_with_logits(model(image), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step + 1}/{options.steps}: loss {losses[-1]:.6f}", flush=True)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(bytes(value.cpu().reshape(-1).view(torch.uint8).tolist()))
    return {"losses": [loss.hex() for loss in losses], "parameters": digest.hexdigest()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=192, help="height and width of the images")
    parser.add_argument("--width", type=int, default=16, help="channels of the first level")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--depth", type=int, default=12, help="convolutions per block")
    parser.add_argument("--output", type=Path, help="JSON file for the losses")
    options = parser.parse_args()
    result = train(options)
    if options.output:
        options.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
