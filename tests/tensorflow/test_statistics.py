# SPDX-License-Identifier: Apache-2.0
"""What a pool takes of its device, and gives back: by its statistics."""

import pytest
from conftest import version

MIB = 1 << 20


@pytest.fixture(scope="module")
def pool(builder):
    if version() < (2, 14):
        pytest.skip("the allocator is made in another way on this version")
    sources = builder.runtime(without=("gpu.cc", "stream_transport.cc"))
    return {name: int(number) for name, number in builder.run("pool", sources).items()}


@pytest.mark.slow
def test_peak_of_reserved_bytes(pool):
    """It stays when the pool shrinks, and a reset takes it to what is reserved then."""
    assert pool["released_peak_bytes_reserved"] >= 24 * MIB > pool["released_bytes_reserved"]
    assert pool["reset_peak_bytes_reserved"] == pool["reset_bytes_reserved"] > 0


@pytest.mark.slow
def test_what_comes_in_ahead_of_need(pool):
    """It takes no more of a hole than it needs, and nothing beyond the device limit."""
    assert pool["ahead_hole_is_all"] == pool["ahead_arrived"] == 1
    assert pool["ahead_taken"] == 8 * MIB
    assert pool["ahead_arrived_beyond_limit"] == 0
