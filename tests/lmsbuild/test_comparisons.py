# SPDX-License-Identifier: Apache-2.0
"""What the code of a caller tells of a pointer (torch.cuda.lms.comparisons), on each Python there
is: versions spell it differently."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.base.errors import MissingToolError
from lmsbuild.places.environment import interpreter

SOURCE = Path(__file__).parents[2] / "lms" / "pytorch" / "python" / "lms" / "comparisons.py"

COMPARED = (
    "a.data_ptr() == b.data_ptr()",
    "1 == a.data_ptr()",
    "a.data_ptr() == p",
    "a.data_ptr() == o.seen",
    "a.untyped_storage().data_ptr() != b.weight.data.untyped_storage().data_ptr()",
    "1 if a.data_ptr() == b.data_ptr() else 2",
    "a.data_ptr() != 0 and p",
    "f(a.data_ptr() == b.data_ptr())",
    "[t for t in [a] if t.data_ptr() == p][0]",
    "len(seen) == a.data_ptr()",
    "a[0].data_ptr() == b[-1].data_ptr()",
    "a.data_ptr() == d[1]",
    "a.data_ptr() == b[p:].data_ptr()",
    "a.data_ptr() == b[1:2][p].weight.data_ptr()",
    "a.view(-1).data_ptr() != b.view(-1).data_ptr()",
    "a.data_ptr() == b.narrow(0, p, 1).view_as(a.view(1)).data_ptr()",
    "a.data_ptr() % 16 == 0",
    "1 if a.data_ptr() % p else 2",
    "f(a.data_ptr() % (2 * o.factor))",
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
    "16 % a.data_ptr()",
    "a.data_ptr() % (16 + p)",
    "a.data_ptr() % f(16)",
    "2 * a.data_ptr() % 16",
    "a.data_ptr() // 16",
    "a.data_ptr() or 1",
    "lambda: a.data_ptr()",
    "a.data_ptr() < b.data_ptr()",
    "p >= a.data_ptr()",
    "a.data_ptr() <= p <= b.data_ptr()",
    "a.data_ptr() == b.data_ptr() + 1",
    "a.data_ptr() == f(b)",
    "a.data_ptr() == o.get()",
    "a.data_ptr() == b[f(1)].data_ptr()",
    "a.data_ptr() == b.view(a.data_ptr() + 1).data_ptr()",
    "a.data_ptr() == b.copy_(a).data_ptr()",
    "a.data_ptr() == p * 1",
    "a.data_ptr() == p - 1",
    "d[a.data_ptr()] == p",
    "b.view(a.data_ptr()).data_ptr() == p",
    "b[a.data_ptr():] == p",
    "a.data_ptr() in seen",
    "a.data_ptr() not in o.seen",
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
    def view(self, *_):
        return self
    narrow = view_as = copy_ = __getitem__ = view

def asks(x):
    return x.data_ptr()

for line in sys.argv[2:]:
    a, b = Tensor(), Tensor()
    space = dict(a=a, b=b, p=1, d={1: 1}, seen={1}, f=lambda x: 1, asks=asks)
    space["o"] = types.SimpleNamespace(seen={1}, get=lambda: 1, factor=2)
    names = ", ".join(space)
    exec("def run(%s):\\n    return %s" % (names, line), space)
    made = space["run"](*[space[name] for name in names.split(", ")])
    if callable(made):
        made()
    print(a.seen[0])
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
    assert done.stdout.split() == ["True"] * len(COMPARED) + ["False"] * len(KEPT)


def test_long_code_is_not_read_and_not_kept() -> None:
    """Only what is around the call; and code is forgotten when it ends, by whatever name."""
    name = "lmsbuild_comparisons"
    spec = importlib.util.spec_from_file_location(name, SOURCE)
    assert spec is not None and spec.loader is not None
    comparisons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(comparisons)
    names = "".join(f"    name{i} = {i}.5\n" for i in range(3000))  # more than fit an argument
    space: dict[str, Any] = {}
    exec(f"def run(a, b):\n{names}    return a.data_ptr() == b.data_ptr()\n", space)
    tell = []

    class Pointer:
        def data_ptr(self) -> int:
            caller = sys._getframe(1)
            tell.append(comparisons.compares(caller.f_code, caller.f_lasti))
            return 1

    assert space["run"](Pointer(), Pointer()) and tell == [True, True]
    assert len(comparisons._known) == 1
    space.clear()
    gc.collect()
    assert not comparisons._known
