# SPDX-License-Identifier: Apache-2.0
"""Covering arrays: few combinations in which every pair of values of two factors occurs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairs_of(combination: Sequence[Any]) -> set[tuple[int, Any, int, Any]]:
    numbered = enumerate(combination)
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(numbered, 2)}


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Greedy: always the combination that adds the most pairs, the first of equals."""
    combinations = list(itertools.product(*factors))
    missing = set().union(*(pairs_of(c) for c in combinations))
    chosen = []
    while missing:
        best = max(combinations, key=lambda c: len(pairs_of(c) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen
