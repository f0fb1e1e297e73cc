# SPDX-License-Identifier: Apache-2.0
"""Training what does not fit gives every loss and parameter of training that does, bit for bit."""

from __future__ import annotations

import itertools
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
