# SPDX-License-Identifier: Apache-2.0
"""Training what does not fit gives every loss and parameter of training that does, bit for bit."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_models import FUSED, MODELS, OPTIMISERS, train
from lms_pairwise import pairs_of, pairwise

FACTORS = (1.5, 2, 3, 4)
MATRIX = (tuple(MODELS), tuple(OPTIMISERS), FACTORS, lms_device.device.modes)
CHOSEN = pairwise(*MATRIX)


def test_the_selection_covers_every_pair() -> None:
    everything = set().union(*(pairs_of(c) for c in itertools.product(*MATRIX)))
    assert set().union(*(pairs_of(c) for c in CHOSEN)) == everything
    assert len(CHOSEN) <= len(list(itertools.product(*MATRIX))) / 4


def cases() -> list[Any]:
    return [
        pytest.param(
            *combination,
            id="-".join(map(str, combination)),
            marks=() if combination in CHOSEN else pytest.mark.slow,
        )
        for combination in sorted(itertools.product(*MATRIX), key=lambda c: c not in CHOSEN)
    ]


@pytest.mark.parametrize(("model", "optimiser", "factor", "mode"), cases())
def test_oversubscribed(
    device: Any, stock: Any, model: str, optimiser: str, factor: float, mode: str
) -> None:
    expected = stock.train(model, optimiser, device.reference)
    peak = stock.train(model, optimiser, "cuda").peak
    limit = int(peak / factor)
    assert "out of memory" in stock.train(model, optimiser, "cuda", limit).oom

    device.mode(mode)
    device.limit(limit)
    torch.cuda.lms.enable(min_size=0)
    before = device.counters()
    after: dict[str, int] = {}
    result = train(model, optimiser, "cuda", done=lambda: after.update(device.counters()))
    assert result.losses == expected.losses
    assert result.digests == expected.digests
    assert result.peak <= limit
    assert after["d2h_bytes"] - before["d2h_bytes"] >= peak - limit


PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugin.md"
NAMES = {"CNN": "cnn", "3D U-Net": "unet3d", "wide network": "wide", "GPT": "gpt"}


def told() -> list[tuple[str, float, float]]:
    """Model, factor, and the MB that leave beside this torch."""
    text = PAGE.read_text() if PAGE.is_file() else ""
    found = []
    for name, *columns in re.findall(
        r"^\| ([\w -]+?)(?: \(.*)? \| (\d[\d., ]+) \| (\d[\d., ]+) \|$", text, re.MULTILINE
    ):
        figures = columns[lms_device.is_plugin()].split(", ")
        for factor, megabytes in zip((1.5, 2, 3), figures, strict=True):
            found.append((NAMES[name], factor, float(megabytes)))
    assert not text or len(found) == 3 * len(NAMES)
    return found


@pytest.mark.slow
@pytest.mark.values  # and so not on a dry device, whose peak may be another
@pytest.mark.skipif(not torch.__version__.startswith("2.6."), reason="the page tells 2.6's")
@pytest.mark.parametrize(("model", "factor", "megabytes"), told())
def test_the_page_tells_what_leaves(
    device: Any, stock: Any, model: str, factor: float, megabytes: float
) -> None:
    device.limit(int(stock.train(model, "adam", "cuda").peak / factor))
    torch.cuda.lms.enable(min_size=0)
    before = device.counters()["d2h_bytes"]
    after: dict[str, int] = {}
    train(model, "adam", "cuda", done=lambda: after.update(device.counters()))
    assert (after["d2h_bytes"] - before) / 1e6 == pytest.approx(megabytes, rel=0.03)


# In the default tier each model in every other mode, and each mode with every other model.
@pytest.mark.parametrize(
    ("mode", "model"),
    [
        pytest.param(mode, model, marks=[pytest.mark.slow] if (i + j) % 2 else [])
        for i, mode in enumerate(lms_device.device.modes)
        for j, model in enumerate(MODELS)
    ],
)
def test_chaos(device: Any, stock: Any, model: str, mode: str) -> None:
    """Everything leaves after every operator, with no pointer left behind."""
    optimiser = "adam-fused" if FUSED else "adam"
    expected = stock.train(model, optimiser, device.reference)
    device.mode(mode)
    torch.cuda.lms.api.load().set_chaos(True)
    torch.cuda.lms.enable(min_size=0)
    result = train(model, optimiser, "cuda")
    assert result.losses == expected.losses
    assert result.digests == expected.digests
    assert torch.cuda.lms.stats()["lms.paged_out"] > 500
