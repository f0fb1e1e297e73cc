# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "default: in the default tier, but not in the fast one")
