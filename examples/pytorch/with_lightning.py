# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of gpt2.py with Lightning."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from gpt2 import Transformer, loss_of, parse_sized, sized, text
from lmsstats import LMSStats
from torch import Tensor
from torch.utils.data import DataLoader
from training import Batch, made_up, report, turn_on


class Task(lightning.LightningModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.model = Transformer(options)
        self.stats = LMSStats()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Batch, _: int) -> Tensor:
        given, wanted = batch
        loss = loss_of(self.model(given), wanted)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-4)

    def on_train_batch_start(self, *_: Any) -> None:
        self.stats.begin()

    def on_train_batch_end(self, *_: Any) -> None:
        self.stats.end()


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options = parse_sized(sized(__doc__), arguments)
    turn_on(options)  # the one line more: torch.cuda.lms.enable()
    task = Task(options)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = list(made_up(options.steps, lambda: text(options)))
    trainer.fit(task, DataLoader(batches, batch_size=None))
    losses = torch.stack(task.losses).cpu().tolist()
    report(losses, task.stats)
    return losses


if __name__ == "__main__":
    main()
