# SPDX-License-Identifier: Apache-2.0
"""Statistics of a pool that gives memory back to its device."""

import pytest
from conftest import version

MIB = 1 << 20


@pytest.mark.slow
def test_peak_of_reserved_bytes(builder):
    """It stays when the pool shrinks, and a reset takes it to what is reserved then."""
    if version() < (2, 14):
        pytest.skip("the allocator is made in another way on this version")
    sources = builder.runtime(without=("gpu.cc", "stream_transport.cc"))
    found = {name: int(number) for name, number in builder.run("statistics", sources).items()}
    assert found["released_peak_bytes_reserved"] >= 24 * MIB > found["released_bytes_reserved"]
    assert found["reset_peak_bytes_reserved"] == found["reset_bytes_reserved"] > 0
