# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own databases of operators, modules and optimisers give the same results, to the bit,
when everything leaves between calls. What launches a kernel past the operators is found so."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lms_device
import pytest

PROGRAM = Path(__file__).with_name("lms_operators.py").read_text()

# Not to be compared: memory that nobody has written, a copy to the host that the host does not wait
# for, and what needs a compiler.
UNTOLD = ("empty", "new_empty", "to.", "jiterator")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.values,
    pytest.mark.skipif(
        find_spec("torch.testing._internal.common_optimizers") is None,
        reason="2.1 and before lack one of them",
    ),
]

# Of each operator and kind of number; more are many sizes of the same.
SAMPLES = 3


def said(program: Any, kind: str, mode: str) -> dict[str, str]:
    env = {"PYTHONHASHSEED": "0", **({"LMS_DEBUG": "chaos"} if mode == "chaos" else {})}
    out = program(
        PROGRAM,
        *(kind, str(SAMPLES), mode),
        memory=256 * lms_device.MIB,
        mode="immediate" if mode == "off" else "lazy",
        env=env,
        timeout=3000,
        fresh=True,
    )
    found: dict[str, str] = json.loads(out.strip().splitlines()[-1])
    return {name: result for name, result in found.items() if not name.startswith(UNTOLD)}


@pytest.mark.parametrize(
    ("kind", "least"), [("operators", 3000), ("modules", 300), ("optimisers", 100)]
)
def test_results_are_the_same(program: Any, kind: str, least: int) -> None:
    right = said(program, kind, "off")
    assert len(right) > least
    errors = [result for result in right.values() if ":" in result]
    assert len(errors) < len(right) // 20
    for mode in ("chaos", "reclaim"):
        found = said(program, kind, mode)
        assert found.keys() == right.keys()
        assert {n: (right[n], found[n]) for n in right if right[n] != found[n]} == {}, mode
