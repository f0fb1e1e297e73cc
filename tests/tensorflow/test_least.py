# SPDX-License-Identifier: Apache-2.0
"""The least pool of a program, of docs/tensorflow.md: what its largest operation needs, and a 32nd
more."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_least.py")
MIB = 1 << 20


def run(programs, name, pool, wheel="lms"):
    """What came of the program, and what its operation with the most needed."""
    arguments = [name] + (["lms"] if wheel == "lms" else [])
    said = programs.run(PROGRAM, wheel, pool, {"TF_LMS": "1"}, arguments=arguments)
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    ["gan", *(pytest.param(name, marks=pytest.mark.slow) for name in ("densenet", "ragged"))],
)
def test_the_largest_operation_and_a_32nd_is_enough(programs, eager_moves, name):
    found, most = run(programs, name, 4096)
    assert found == run(programs, name, None, "stock")[0]
    for _ in range(2):  # where room abounds, more than the operation's own counts as needed
        again, most = run(programs, name, -(-most * 33 // (32 * MIB)))
        assert again == found


def test_what_fits_in_32_fits_in_more(programs, eager_moves):
    """One operand of an operation lay where it left the other no room on either side."""
    found = run(programs, "ragged", 32)[0]
    assert {pool: run(programs, "ragged", pool)[0] for pool in range(33, 38)} == dict.fromkeys(
        range(33, 38), found
    )


@pytest.mark.slow
def test_a_loop_in_the_least_pool_that_the_page_tells(programs, eager_moves):
    assert run(programs, "loop", 53)[0] == run(programs, "loop", None, "stock")[0]
