# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer of the size of GPT-2 to predict the next word.

--layers 48 --width 1600 --heads 25 is the largest of the four that were published.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from lmsstats import LMSStats
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, at_least, made_up, parse, parser, report, train, turn_on


def sized(what: str | None) -> argparse.ArgumentParser:
    """With the options that say how large the transformer is."""
    made = parser(what)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, size, text in (
        ("layers", 12, ""), ("width", 768, "of what stands for a word"),
        ("heads", 12, "of the attention; they divide the width"),
        ("words", 50257, "that there are"), ("tokens", 1024, "words in a row"),
    ):  # fmt: skip
        made.add_argument(f"--{name}", type=at_least(1), default=size, help=text)
    return made


def parse_sized(
    made: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    options = parse(made, arguments)
    if options.width % options.heads:
        made.error(f"--width {options.width} is no multiple of --heads {options.heads}")
    return options


# Of the mask, which PyTorch 1 looks at itself.
CAUSAL = {"is_causal": True} if hasattr(torch, "compile") else {}


class Transformer(nn.Module):
    """(batch, tokens) to (batch, tokens, words)."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        self.word = nn.Embedding(options.words, width)
        self.place = nn.Embedding(options.tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, options.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(
            layer, options.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, options.words, bias=False)
        nn.init.normal_(self.word.weight, std=0.02)
        self.head.weight = self.word.weight
        mask = nn.Transformer.generate_square_subsequent_mask(options.tokens)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.word(words) + self.place.weight
        return self.head(self.layers(x, mask=self.mask, **CAUSAL))


def text(options: argparse.Namespace) -> Batch:
    """Words, and those that follow each of them."""
    words = torch.randint(options.words, (options.batch_size, options.tokens + 1))
    return words[:, :-1], words[:, 1:]


def loss_of(output: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), wanted.flatten())


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options = parse_sized(sized(__doc__), arguments)
    turn_on(options)
    model = Transformer(options).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-4)
    stats = LMSStats()
    batches = made_up(options.steps, lambda: text(options))
    losses = train(model, batches, loss_of, optimiser, stats)
    report(losses, stats)
    return losses


if __name__ == "__main__":
    main()
