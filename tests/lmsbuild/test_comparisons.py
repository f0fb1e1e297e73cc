# SPDX-License-Identifier: Apache-2.0
"""What the code of a caller tells of a pointer (torch.cuda.lms.comparisons), on each Python there
is: versions spell it differently."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lmsbuild.base.errors import MissingToolError
from lmsbuild.places.environment import interpreter

SOURCE = Path(__file__).parents[2] / "lms" / "pytorch" / "python" / "lms" / "comparisons.py"

COMPARED = (
    "a.data_ptr() == b.data_ptr()",
    "1 == a.data_ptr()",
    "a.data_ptr() == p",
    "a.data_ptr() in seen",
    "a.data_ptr() not in o.seen",
    "a.untyped_storage().data_ptr() != b.weight.data.untyped_storage().data_ptr()",
    "1 if a.data_ptr() == b.data_ptr() else 2",
    "a.data_ptr() != 0 and p",
    "f(a.data_ptr() == b.data_ptr())",
    "a.data_ptr() < b.data_ptr()",
    "[t for t in [a] if t.data_ptr() == p]",
    "len(seen) == a.data_ptr()",
)
# The first pointer is kept, may be, or another one is while it waits to be compared.
KEPT = (
    "a.data_ptr()",
    "p + a.data_ptr()",
    "f(a.data_ptr())",
    "(a.data_ptr(), 1)",
    "{a.data_ptr()}",
    "d[a.data_ptr()]",
    "seen.add(a.data_ptr())",
    "a.data_ptr() % 16 == 0",
    "a.data_ptr() or 1",
    "lambda: a.data_ptr()",
    "a.data_ptr() <= p <= b.data_ptr()",
    "a.data_ptr() == b.data_ptr() + 1",
    "a.data_ptr() == f(b)",
    "a.data_ptr() == o.get()",
    "a.data_ptr() in {b.data_ptr()}",
    "list(map(type(a).data_ptr, [a]))",
    "asks(a) == 1",
    "type(a).data_ptr(a) == 1",
)

PROGRAM = """
import importlib.util, sys, types
spec = importlib.util.spec_from_file_location("comparisons", sys.argv[1])
comparisons = importlib.util.module_from_spec(spec)
spec.loader.exec_module(comparisons)

class Tensor:
    def __init__(self):
        self.seen = []
    def data_ptr(self):
        caller = sys._getframe(1)
        self.seen.append(comparisons.compares(caller.f_code, caller.f_lasti))
        return 1
    untyped_storage = weight = data = property(lambda self: self)
    def __call__(self):
        return self

def asks(x):
    return x.data_ptr()

for line in sys.argv[2:]:
    a, b = Tensor(), Tensor()
    space = dict(a=a, b=b, p=1, d={1: 1}, seen={1}, f=lambda x: 1, asks=asks)
    space["o"] = types.SimpleNamespace(seen={1}, get=lambda: 1)
    names = ", ".join(space)
    exec("def run(%s):\\n    return %s" % (names, line), space)
    made = space["run"](*[space[name] for name in names.split(", ")])
    if callable(made):
        made()
    print(int(bool(a.seen) and all(a.seen)))
"""


@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(7, 15)])
def test_a_comparison_is_told_from_what_keeps_a_pointer(version: str) -> None:
    try:
        python = interpreter(version)
    except MissingToolError:
        pytest.skip(f"there is no Python {version}")
    done = subprocess.run(
        [python, "-c", PROGRAM, str(SOURCE), *COMPARED, *KEPT],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1"] * len(COMPARED) + ["0"] * len(KEPT)
