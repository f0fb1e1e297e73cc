# SPDX-License-Identifier: Apache-2.0
"""Signatures of operators, read from upstream's generated headers, and the header made of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmsbuild.base.console import Console
from lmsbuild.base.errors import WheelError
from lmsbuild.wheel import headers
from lmsbuild.wheel.toolchain import Roots

PROGRAM = Path(__file__).parents[2] / "lms/pytorch/tools/signatures.py"

# As upstream's generator writes them, of operators that nobody has.
FUNCTIONS = """
static inline Tensor & mix_out(Tensor & out, const Tensor & self, Scalar by) {
#ifdef USE_STATIC_DISPATCH
    return TypeDefault::mix_out(out, self, by);
#else
    static c10::OperatorHandle op = c10::Dispatcher::singleton()
        .findSchemaOrThrow("aten::mix", "out");
    return op.callUnboxed<Tensor &, Tensor &, const Tensor &, Scalar>(out, self, by);
#endif
}
static inline std::tuple<Tensor,Tensor> halve(const Tensor & self, std::array<bool,2> at) {
    static c10::OperatorHandle op = c10::Dispatcher::singleton()
        .findSchemaOrThrow("aten::halve", "");
    return op.callUnboxed<std::tuple<Tensor,Tensor>, const Tensor &, std::array<bool,2>>(self, at);
}
"""
METHODS = """
inline int64_t Tensor::rank() const {
    static c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::rank", "");
    return op.callUnboxed<int64_t, const Tensor &>(const_cast<Tensor&>(*this));
}
"""
# As in PyTorch 1.4.
BEFORE = """
static inline Tensor & mix_out(Tensor & out, const Tensor & self, Scalar by) {
    static c10::OperatorHandle op = c10::Dispatcher::singleton()
        .findSchema({"aten::mix", "out"}).value();
    return c10::Dispatcher::singleton().callUnboxedOnly<Tensor &, Tensor &, const Tensor &, Scalar>(
        op, out, self, by);
}
static inline int64_t rank(const Tensor & self) {
    static c10::OperatorHandle op = c10::Dispatcher::singleton()
        .findSchema({"aten::rank", ""}).value();
    return c10::Dispatcher::singleton().callUnboxed<int64_t, const Tensor &>(
        op, self);
}
"""

# As in PyTorch 1.3 and 1.2, of operators whose tables are outside of the dispatcher.
TABLES = """
static inline Tensor & mix_out(Tensor & out, const Tensor & self, Scalar by) {
    static auto table = globalATenDispatch().getOpTable("aten::mix.out(Tensor self, Tensor out)");
    return table->callUnboxed<Tensor &, Tensor &, const Tensor &, Scalar>(out, self, by);
}
inline int64_t Tensor::rank() const {
    static auto table = globalATenDispatch().getOpTable("aten::rank(Tensor self) -> int");
    return table->getOp<int64_t (const Tensor &)>(backend(*this), is_variable())(*this);
}
#ifdef BUILD_NAMEDTENSOR
static inline Tensor name(const Tensor & self, Dimname to) {
#ifdef USE_STATIC_DISPATCH
    return TypeDefault::name(self, to);
#else
    static auto table = globalATenDispatch().getOpTable("aten::name(Tensor self, Dimname to)");
    return table->getOp<Tensor (const Tensor &, Dimname)>(backend(self), is_variable())(self, to);
#endif
}
#endif
static inline std::tuple<Tensor,Tensor> halve(const Tensor & self, std::array<bool,2> at) {
    static auto table = globalATenDispatch().getOpTable("aten::halve(Tensor self, bool[2] at)");
    return table->getOp<std::tuple<Tensor,Tensor> (const Tensor &, std::array<bool,2>)>(
        at::detail::infer_backend(self), false)(self, at);
}
"""

# As in PyTorch 1.1, where they are virtual functions.
TYPE = """
struct CAFFE2_API Type {
  virtual bool is_cuda() const = 0;
  virtual void backward(
      Tensor& self) const = 0;
  // example
  // virtual Tensor * add(Tensor & a, Tensor & b) = 0;
  virtual Tensor half(const Tensor & self, std::array<bool,2> at) const = 0;
  virtual std::vector<Tensor> halves(const Tensor & self, TensorList others) const = 0;
  virtual Tensor & fill_(Tensor & self, Generator * generator) const = 0;
  virtual void drop(Storage storage, SparseTensorRef mask) const = 0;
};
"""
EXTENDED = """
struct CAFFE2_API TypeExtendedInterface : public Type {
  virtual std::tuple<Tensor &,Tensor &> mix_out(Tensor & a, Tensor & b, Scalar by) const = 0;
  virtual std::tuple<Tensor,double> s__th_mix(const Tensor & self) const = 0;
  virtual Tensor _th_half(const Tensor & self) const = 0;
  virtual Tensor _th_and(const Tensor & self) const = 0;
};
"""
SCHEMAS = """
- func: half(Tensor(a) self, bool[2] at) -> Tensor(a)
  matches_jit_signature: True
- func: halves(Tensor(a) self, Tensor[] others) -> Tensor(a)[]
- func: and(Tensor(a) self) -> Tensor(a)
- func: and(Tensor self, Scalar other) -> Tensor
- func: fill_(Tensor(a!) self) -> Tensor(a!)
"""


def program() -> Any:
    spec = importlib.util.spec_from_file_location("signatures", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_is_the_whole_signature_of_one_operator(tmp_path: Path) -> None:
    functions, methods, out = (tmp_path / name for name in ("Functions.h", "Methods.h", "made.inc"))
    functions.write_text(FUNCTIONS)
    methods.write_text(METHODS)
    subprocess.run([sys.executable, PROGRAM, out, functions, methods], check=True)
    assert out.read_text().splitlines()[1:] == [
        'LMS_SIGNATURE("aten::halve", "", '
        "std::tuple<Tensor,Tensor>(const Tensor &, std::array<bool,2>))",
        'LMS_SIGNATURE("aten::mix", "out", Tensor &(Tensor &, const Tensor &, Scalar))',
        'LMS_SIGNATURE("aten::rank", "", int64_t(const Tensor &))',
    ]


def test_the_headers_of_an_older_version_say_the_same() -> None:
    now = program().signatures(FUNCTIONS + METHODS)
    before = program().signatures(BEFORE)
    assert before == {name: now[name] for name in (("aten::mix", "out"), ("aten::rank", ""))}


def test_a_table_is_known_by_its_whole_schema(tmp_path: Path) -> None:
    header, out = tmp_path / "Functions.h", tmp_path / "made.inc"
    header.write_text(TABLES)
    subprocess.run([sys.executable, PROGRAM, out, header], check=True)
    assert out.read_text().splitlines()[1:] == [
        'LMS_FUNCTION("aten::halve(Tensor self, bool[2] at)", '
        "std::tuple<Tensor,Tensor> (const Tensor &, std::array<bool,2>))",
        'LMS_FUNCTION("aten::mix.out(Tensor self, Tensor out)", '
        "Tensor &(Tensor &, const Tensor &, Scalar))",
        "#ifdef BUILD_NAMEDTENSOR",
        'LMS_FUNCTION("aten::name(Tensor self, Dimname to)", Tensor (const Tensor &, Dimname))',
        "#endif",
        'LMS_FUNCTION("aten::rank(Tensor self) -> int", int64_t (const Tensor &))',
    ]


def test_a_virtual_function_has_a_schema_of_its_declaration(tmp_path: Path) -> None:
    """What is written, is given for a result, or is a view of an argument; nothing else counts."""
    names = ("Type.h", "TypeExtendedInterface.h", "native_functions.yaml", "made.inc")
    *inputs, out = (tmp_path / name for name in names)
    for file, text in zip(inputs, (TYPE, EXTENDED, SCHEMAS), strict=True):
        file.write_text(text)
    subprocess.run([sys.executable, PROGRAM, out, *inputs], check=True)
    assert out.read_text().splitlines()[1:] == [
        'LMS_METHOD(Type, drop, "aten::drop(Tensor storage, Tensor mask) -> ()", '
        "void(Storage, SparseTensorRef))",
        'LMS_METHOD(Type, fill_, "aten::fill_(Tensor(a!) self, Generator? generator) -> '
        '(Tensor(a!))", Tensor &(Tensor &, Generator *))',
        'LMS_METHOD(Type, half, "aten::half(Tensor(v) self, int at) -> (Tensor(v))", '
        "Tensor(const Tensor &, std::array<bool,2>))",
        'LMS_METHOD(Type, halves, "aten::halves(Tensor(v) self, Tensor[] others) -> '
        '(Tensor(v)[])", std::vector<Tensor>(const Tensor &, TensorList))',
        'LMS_METHOD(TypeExtendedInterface, _th_and, "aten::_th_and(Tensor self) -> (Tensor)", '
        "Tensor(const Tensor &))",
        'LMS_METHOD(TypeExtendedInterface, _th_half, "aten::half(Tensor(v) self) -> '
        '(Tensor(v))", Tensor(const Tensor &))',
        'LMS_METHOD(TypeExtendedInterface, mix_out, "aten::mix(int by, *, Tensor(a!) a, '
        'Tensor(b!) b) -> (Tensor(a!), Tensor(b!))", '
        "std::tuple<Tensor &,Tensor &>(Tensor &, Tensor &, Scalar))",
        'LMS_METHOD(TypeExtendedInterface, s__th_mix, "aten::mix(Tensor self) -> (Tensor, int)", '
        "std::tuple<Tensor,double>(const Tensor &))",
    ]


def test_an_operator_has_one_signature() -> None:
    other = METHODS.replace("callUnboxed<int64_t,", "callUnboxed<double,")
    with pytest.raises(ValueError, match=r"aten::rank\. has two signatures"):
        program().signatures(METHODS + other)


def test_a_call_without_an_end_is_told() -> None:
    with pytest.raises(ValueError, match="has no end"):
        program().signatures(METHODS[: METHODS.index(">(const_cast")])


def test_headers_without_operators_are_told(tmp_path: Path) -> None:
    header = tmp_path / "other.h"
    header.write_text("int f();\n")
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "made.inc", header],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "no signature was found because none of" in done.stderr
    assert not (tmp_path / "made.inc").exists()


def inputs_with(tmp_path: Path, made: dict[str, list[str]]) -> tuple[Any, Roots]:
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    (wheel / "Functions.h").write_text(FUNCTIONS)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "signatures.py").write_bytes(PROGRAM.read_bytes())
    overlay = SimpleNamespace(generated=SimpleNamespace(headers=made))
    target = SimpleNamespace(tag=SimpleNamespace(overlay=overlay), label="pytorch:v1.5.0")
    inputs = SimpleNamespace(target=target, tree=tree)
    return cast(Any, inputs), Roots(tree, {"wheel": wheel})


def test_what_is_made_goes_into_a_root_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    made = {"a/b.inc": ["tree:signatures.py", "wheel:Functions.h"]}
    inputs, roots = inputs_with(tmp_path, made)
    folder = headers._make_headers(inputs, roots, Console())
    assert "aten::halve" in (folder / "a/b.inc").read_text()
    assert not list(inputs.tree.rglob("*.inc"))


def test_a_program_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    made = {"b.inc": ["tree:signatures.py", "wheel:signatures.py"]}
    inputs, roots = inputs_with(tmp_path, made)
    (roots.fixed["wheel"] / "signatures.py").write_text("")
    with pytest.raises(WheelError, match=r"b\.inc cannot be made because tree:signatures\.py says"):
        headers._make_headers(inputs, roots, Console())
