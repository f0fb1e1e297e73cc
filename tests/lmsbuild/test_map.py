# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
from lmsbuild_world import World

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.touches import series_map
from lmsbuild.series.functions import Span, enclosing, spans

CPP = b"""\
namespace a {
class A_API Outer : public Base {
 public:
  Outer() {}
  ~Outer();
  const char* name(int x) const {
    return x ? "a" : "b";
  }
  struct Inner {
    bool operator==(const Inner& other) const { return true; }
  };
};
template <class T>
std::vector<T>& Outer::find(T value) {
  auto inner = [&](int x) { return x; };
  return inner(value);
}
BROKEN_MACRO(a b c)
void last() {
}
}
"""
PYTHON = b"""\
class A:
    @property
    def b(self):
        def inner():
            return 1
        return inner

async def c(): ...
"""


def test_functions_of_cpp() -> None:
    found = spans("a/b.cpp", CPP)
    assert found is not None
    assert {span.name for span in found} >= {
        "Outer", "Outer::Outer", "Outer::name", "Outer::Inner", "Outer::Inner::operator==",
        "Outer::find", "last",
    }  # fmt: skip
    lines = {7: "Outer::name", 10: "Outer::Inner::operator==", 3: "Outer", 15: "Outer::find"}
    assert {line: enclosing(found, line) for line in lines} == lines
    assert enclosing(found, 1) == "" and enclosing(found, 19) == "last"


def test_functions_of_python() -> None:
    assert spans("a.py", PYTHON) == [
        Span("A", 1, 6), Span("A.b", 2, 6), Span("A.b.inner", 4, 5), Span("c", 8, 8),
    ]  # fmt: skip


def test_other_files_have_none() -> None:
    assert spans("CMakeLists.txt", b"set(A b)\n") is None


def test_functions_come_from_the_code_when_it_is_there(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    new = "def memory():\n    return 2\n\n\ndef more():\n    return 3\n"
    world.commit(clone, {"python/api.py": new}, "Add more")
    refresh(world.target, clone)
    by_file = {
        (one.patch[5:9], one.file): one for one in series_map(world.target, console, place=clone)
    }
    api = by_file["0003", "python/api.py"]
    assert (api.kind, api.added, api.removed) == ("changed", 5, 1)
    assert (api.functions, api.new_functions) == (["memory"], ["more"])
    assert by_file["0001", "core/CMakeLists.txt"].functions == []
    new_file = by_file["0002", "python/lms.py"]
    assert (new_file.kind, new_file.functions) == ("new", [])


def test_hunk_headers_tell_without_the_code(world: World, console: Console) -> None:
    (alloc,) = series_map(world.target, console, "core/alloc.cpp")
    assert alloc.patch == "v1.0/0001-Call-the-engine.patch"
    assert alloc.functions == ["int line16 = 16;"] and len(alloc.hunks) == 1


def test_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["map", "v1.0"]) == 0
    shown = capsys.readouterr().out
    assert "v1.0/0001" in shown and "core/alloc.cpp" in shown and "runtime/0001" in shown
    assert run(["map", "--file", "core/alloc.cpp"]) == 0
    assert "@@ -17,7 +17,7 @@ int line16" in capsys.readouterr().out
    assert run(["map", "v1.0", "--file", "core/alloc.c"]) == 2
    assert "near ones: core/alloc.cpp" in capsys.readouterr().err
    assert run(["map", "v1.0", "--file", ""]) == 2
    assert "'' cannot be mapped because no patch" in capsys.readouterr().err
    assert run(["map", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["file"] for one in found} >= {"core/alloc.cpp", "python/lms.py"}
