# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pool
from lmsbuild_world import write

from lmsbuild.base.errors import CompileError, MismatchError, WheelError
from lmsbuild.wheel.generated import api_imports, descriptor, exports, proto_module, with_imports

BEFORE = """syntax = "proto3";
package p;
message Outer {
  message Inner {
    bool first = 1;
    enum Kind { NONE = 0; SOME = 1; }
  }
  Inner inner = 1;
  map<string, int32> counts = 2;
}
message Last { string name = 1; }
"""
AFTER = BEFORE.replace("bool first = 1;\n", "bool first = 1;\n    bool lms = 26700001;\n")


def old_module(data: bytes) -> bytes:
    """In the manner of protoc 3.8, whose modules wrote every field out."""
    return f"""from google.protobuf import descriptor as _descriptor
DESCRIPTOR = _descriptor.FileDescriptor(
  serialized_pb=_b({data.decode("latin1")!r})
)
_OUTER_INNER = _descriptor.Descriptor(
  full_name='p.Outer.Inner',
  fields=[
    _descriptor.FieldDescriptor(
      name='first', full_name='p.Outer.Inner.first', index=0,
      serialized_options=None, file=DESCRIPTOR),
  ],
  extensions=[
  ],
  serialized_start={data.index(b"Inner") - 2},
  serialized_end={{end}},
)
""".encode()


def new_module(data: bytes, start: int, end: int) -> bytes:
    return (
        f"DESCRIPTOR = pool.AddSerializedFile({data!r})\n"
        f"_LAST._serialized_start={start}\n_LAST._serialized_end={end}\n"
    ).encode()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, {"p/config.proto": AFTER})
    return tmp_path


def test_module_of_today_gets_the_field(tree: Path) -> None:
    before = descriptor(tree, "p/config.proto", BEFORE.encode())
    after = descriptor(tree, "p/config.proto")
    data, fresh = before.SerializeToString(), after.SerializeToString()
    last = before.message_type[1].SerializeToString()
    start = data.index(last)
    made = proto_module(new_module(data, start, start + len(last)), before, after, "config_pb2.py")
    pool = descriptor_pool.DescriptorPool()
    module = ModuleType("made")
    last_type = module.__dict__["_LAST"] = ModuleType("last")
    module.__dict__["pool"] = pool
    exec(made, module.__dict__)
    inner = pool.FindMessageTypeByName("p.Outer.Inner")
    assert inner.fields_by_name["lms"].number == 26700001
    assert fresh[last_type._serialized_start : last_type._serialized_end] == last


def test_module_of_old_writes_the_field_out(tree: Path) -> None:
    before = descriptor(tree, "p/config.proto", BEFORE.encode())
    after = descriptor(tree, "p/config.proto")
    data, fresh = before.SerializeToString(), after.SerializeToString()
    inner, new = (
        file.message_type[0].nested_type[0].SerializeToString() for file in (before, after)
    )
    start = data.index(inner)
    text = old_module(data).decode().replace("{end}", str(start + len(inner)))
    text = text.replace(f"serialized_start={data.index(b'Inner') - 2}", f"serialized_start={start}")
    made = proto_module(text.encode(), before, after, "config_pb2.py").decode()
    assert "full_name='p.Outer.Inner.lms', index=1,\n      number=26700001" in made
    begin = fresh.index(new)
    assert f"serialized_start={begin},\n  serialized_end={begin + len(new)}," in made
    compile(made, "config_pb2.py", "exec")


def test_module_of_another_proto_is_refused(tree: Path) -> None:
    before = descriptor(tree, "p/config.proto", BEFORE.encode())
    after = descriptor(tree, "p/config.proto")
    with pytest.raises(MismatchError, match=r"config_pb2\.py .* another descriptor"):
        proto_module(new_module(after.SerializeToString(), 0, 0), before, after, "config_pb2.py")


def test_other_changes_of_a_proto_are_refused(tree: Path) -> None:
    before = descriptor(tree, "p/config.proto", BEFORE.encode())
    after = descriptor(tree, "p/config.proto", BEFORE.replace("string name", "bytes name").encode())
    with pytest.raises(WheelError, match=r"more to p/config\.proto than to add bool fields"):
        proto_module(new_module(before.SerializeToString(), 0, 0), before, after, "config_pb2.py")


def test_proto_that_does_not_compile(tree: Path) -> None:
    with pytest.raises(CompileError, match=r"p/config\.proto does not compile"):
        descriptor(tree, "p/config.proto", b"message {")


SOURCE = b"""
@tf_export("config.experimental.set_lms", "lms.switch")
def set_lms(on):
    pass

@deprecated()
def other():
    pass
"""


def test_exported_names_are_imported() -> None:
    found = exports(SOURCE, "lms.py")
    assert found == {"config.experimental.set_lms": "set_lms", "lms.switch": "set_lms"}
    assert api_imports(found, "a/b/lms.py", "api/v2") == {
        "api/v2/config/experimental/__init__.py": ["from a.b.lms import set_lms\n"],
        "api/v2/lms/__init__.py": ["from a.b.lms import set_lms as switch\n"],
    }


@pytest.mark.parametrize("end", ["\n", "", "\n\ndel _print_function\n"])
def test_imports_go_where_imports_are(end: str) -> None:
    official = f"import sys as _sys\n\nfrom a.b import c{end}".encode()
    made = with_imports(
        official, ["from a.lms import y\n", "from a.lms import x\n"], "m.py"
    ).decode()
    lines = made.splitlines()
    at = lines.index("from a.b import c")
    assert lines[at + 1 : at + 3] == ["from a.lms import x", "from a.lms import y"]
    assert made.endswith("del _print_function\n") == ("del" in end)


def test_module_without_imports_is_refused() -> None:
    with pytest.raises(WheelError, match=r"m\.py cannot offer x because it imports nothing"):
        with_imports(b"import sys\n", ["from a.lms import x\n"], "m.py")
