# SPDX-License-Identifier: Apache-2.0
"""Without its safeguard, each test that names one fails."""

from __future__ import annotations

import core_build
import negative
import pytest

SAFEGUARDS = negative.load()


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.id)
def test_entry_matches_the_code(safeguard: negative.Safeguard) -> None:
    text = (core_build.CORE / safeguard.file).read_text()
    assert negative.mutate(safeguard, text) != text


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.id)
def test_safeguard(safeguard: negative.Safeguard) -> None:
    negative.check(safeguard)
