# SPDX-License-Identifier: Apache-2.0
"""The least pool of a program, of docs/tensorflow.md: what its largest operation needs, and a 32nd
more."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_least.py")
MIB = 1 << 20


@pytest.mark.parametrize("name", ["gan", "densenet", "ragged"])
def test_the_largest_operation_and_a_32nd_is_enough(programs, eager_moves, name):
    def run(pool, wheel="lms"):
        arguments = [name] + (["lms"] if wheel == "lms" else [])
        said = programs.run(PROGRAM, wheel, pool, {"TF_LMS": "1"}, arguments=arguments)
        return json.loads(said.splitlines()[-1])

    found, most = run(4096)
    assert found == run(None, "stock")[0]
    for _ in range(2):  # where room abounds, more than the operation's own counts as needed
        again, most = run(-(-most * 33 // (32 * MIB)))
        assert again == found
