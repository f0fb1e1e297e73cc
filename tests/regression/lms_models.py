# SPDX-License-Identifier: Apache-2.0
"""The models and optimisers of the training tests, and the run that is compared.

Tensors are kept at or below 1 MiB, but for the wide network: PyTorch's allocator reserves 20 MiB at
a time for those between 1 and 10 MiB, which a device of a few MiB cannot give. Models are deep and
their operators small, so that at a quarter of the peak each single operator still fits.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lms_device  # noqa: F401  (puts lmsbench on the path)
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmsbench.models import Bottleneck

STEPS = 3


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for _ in range(28):
        layers += [nn.Conv2d(width, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        width = 16
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))


def resnet50() -> nn.Module:
    """The 50 layers of ResNet-50, an eighth as wide."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
    ]
    width = 8
    for inner, blocks, stride in ((8, 3, 1), (16, 4, 2), (32, 6, 2), (64, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(width, inner, stride if block == 0 else 1))
            width = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class UNet3d(nn.Module):
    """A 3D U-Net of three levels, `base` channels on the first, `depth` convolutions in each."""

    def __init__(self, base: int = 8, depth: int = 6) -> None:
        super().__init__()
        widths = [base, 2 * base, 4 * base]

        def level(a: int, b: int) -> nn.Module:
            layers: list[nn.Module] = []
            for i in range(depth):
                layers.append(nn.Conv3d(a if i == 0 else b, b, 3, padding=1))
                layers.append(nn.GroupNorm(4, b) if i % 2 else nn.InstanceNorm3d(b, affine=True))
                layers.append(nn.LeakyReLU(0.01, inplace=bool(i % 2)))
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(level(a, b) for a, b in zip([1, *widths], widths, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(widths)
        )
        self.merge = nn.ModuleList(level(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(base, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for i, level in enumerate(self.down):
            x = level(x if i == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in reversed(list(zip(self.up, self.merge, strict=False))):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 128, layers: int = 6, words: int = 256) -> None:
        super().__init__()
        self.token = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.token(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def wide() -> nn.Module:
    """Activations of 2 MiB: blocks of the large pool, split from segments of 20 MiB."""
    layers: list[nn.Module] = [nn.Linear(64, 1024)]
    for _ in range(56):
        layers += [nn.LayerNorm(1024), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(8, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (8,), generator=generator),
    )


def volumes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(4, 1, 16, 16, 16, generator=generator),
        torch.randint(0, 4, (4, 16, 16, 16), generator=generator),
    )


def text(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 256, (8, 64), generator=generator)
    return x, x.roll(-1, 1)


def rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(512, 64, generator=generator),
        torch.randint(0, 10, (512,), generator=generator),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Any]]] = {
    "cnn": (cnn, images),
    "resnet50": (resnet50, images),
    "unet3d": (UNet3d, volumes),
    "gpt": (GPT, text),
    "wide": (wide, rows),
}

# Those of CPUs are from 2.4 on.
FUSED = "fused" in inspect.signature(torch.optim.SGD).parameters
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd-single": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adam-single": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
}


@dataclass
class Result:
    """What one run gave: the loss of each step, and the SHA-256 of each parameter's and buffer's
    bytes. `oom` is the message if it ran out of memory. Sizes are bytes."""

    losses: list[float] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    peak: int = 0
    oom: str = ""


def digest(tensor: Tensor) -> str:
    host = tensor.detach().cpu().contiguous()
    return hashlib.sha256(host.numpy().tobytes()).hexdigest()


def train(
    model: str,
    optimiser: str,
    device: str,
    steps: int = STEPS,
    done: Callable[[], None] = lambda: None,
) -> Result:
    """Train on `device`. `done` is called after the last step, before any result is fetched."""
    torch.manual_seed(0)
    build, batch = MODELS[model]
    generator = torch.Generator().manual_seed(1)
    result = Result()
    net = build().to(device)
    optim = OPTIMISERS[optimiser](net.parameters())
    losses = []
    for _ in range(steps):
        x, y = batch(generator)
        if device == "cuda":
            x = x.pin_memory().to(device, non_blocking=True)
            y = y.pin_memory().to(device, non_blocking=True)
        optim.zero_grad()
        out = net(x)
        if model == "gpt":
            out, y = out.flatten(0, 1), y.flatten()
        loss = F.cross_entropy(out, y)
        loss.backward()
        optim.step()
        losses.append(loss.detach())
    if device == "cuda":
        torch.cuda.synchronize()
        result.peak = torch.cuda.max_memory_allocated()
    done()
    result.losses = [loss.item() for loss in losses]
    result.digests = {name: digest(value) for name, value in net.state_dict().items()}
    return result
