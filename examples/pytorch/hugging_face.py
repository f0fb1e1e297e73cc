# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 with the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from gpt2 import parse_sized, sized
from lmsstats import LMSStats
from torch import Tensor
from torch.utils.data import Dataset
from training import report, turn_on
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Text(Dataset[dict[str, Tensor]]):
    """Made up."""

    def __init__(self, words: int, tokens: int, rows: int) -> None:
        self.rows = torch.randint(words, (rows, tokens))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[row], "labels": self.rows[row]}


class Measured(TrainerCallback):
    def __init__(self, stats: LMSStats) -> None:
        self.stats = stats

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.stats.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.stats.end()


def main(arguments: Sequence[str] | None = None) -> list[float]:
    options = parse_sized(sized(__doc__), arguments)
    turn_on(options)  # the one line more: torch.cuda.lms.enable()
    config = GPT2Config(
        n_layer=options.layers, n_embd=options.width, n_head=options.heads,
        n_positions=options.tokens, vocab_size=options.words, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    stats = LMSStats()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder, max_steps=options.steps, per_device_train_batch_size=options.batch_size,
                seed=options.seed, logging_steps=1, save_strategy="no", report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Text(options.words, options.tokens, options.steps * options.batch_size),
            callbacks=[Measured(stats)],
        )  # fmt: skip
        trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    report(losses, stats)
    return losses


if __name__ == "__main__":
    main()
