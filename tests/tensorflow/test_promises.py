# SPDX-License-Identifier: Apache-2.0
"""Operations begin together only when they fit into the pool together."""

import pytest

CASES = [
    "waits_for_room",
    "two_that_fit",
    "larger_than_the_pool",
    "in_the_order_of_asking",
    "not_for_one_that_may_wait",
    "for_one_that_computes",
    "not_for_one_that_looks_for_room",
    "when_none_ends",
]


@pytest.fixture(scope="module")
def found(builder):
    return builder.run("promises", arguments=CASES)


@pytest.mark.parametrize("case", CASES)
def test_promises(found, case):
    assert found[case] == "right"
