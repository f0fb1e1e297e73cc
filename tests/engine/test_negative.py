# SPDX-License-Identifier: Apache-2.0
"""Without its safeguard, each test that names one fails."""

from __future__ import annotations

import negative
import pytest
from safeguards import Safeguard

SAFEGUARDS = negative.load()


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.id)
def test_safeguard(safeguard: Safeguard) -> None:
    negative.check(safeguard)
