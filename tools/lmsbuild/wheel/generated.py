# SPDX-License-Identifier: Apache-2.0
"""Members of a wheel that upstream's build generates from files that a series touches.

Public API modules get the imports that `tf_export` asks for. A protocol buffer's Python module
keeps its official text but for the fields that the series adds.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import Message

from lmsbuild.base.errors import CompileError, MismatchError, WheelError

_EXPORT = "tf_export"


# Public API --------------------------------------------------------------------------------------


def exports(source: bytes, file: str) -> dict[str, str]:
    """Public name (without the root) -> symbol, of everything in a Python file under tf_export."""
    found: dict[str, str] = {}
    for node in ast.parse(source, file).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == _EXPORT:
                    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
                    found.update(dict.fromkeys(map(str, names), node.name))
    return found


def api_imports(new: Mapping[str, str], file: str, root: str) -> dict[str, list[str]]:
    """Member of the wheel -> import lines, for the names that `file` exports anew below `root`."""
    module = file.removesuffix(".py").replace("/", ".")
    lines: dict[str, list[str]] = {}
    for name, symbol in new.items():
        *folders, last = name.split(".")
        alias = "" if last == symbol else f" as {last}"
        member = "/".join([root, *folders, "__init__.py"])
        lines.setdefault(member, []).append(f"from {module} import {symbol}{alias}\n")
    return lines


def with_imports(official: bytes, lines: list[str], member: str) -> bytes:
    """An API module with more imports, where its own are. Raises WheelError."""
    text = official.decode()
    own = list(re.finditer(r"^from \S+ import .*(\n|$)", text, re.M))
    if not own:
        raise WheelError(
            f"{member} cannot offer {lines[0].split()[-1]} because it imports nothing; correct "
            "`generated.api` in tag.toml"
        )
    before, after = text[: own[-1].end()], text[own[-1].end() :]
    if not before.endswith("\n"):
        before += "\n"
    return (before + "".join(sorted(lines)) + after).encode()


# Protocol buffers --------------------------------------------------------------------------------


def descriptor(tree: Path, file: str, content: bytes | None = None) -> FileDescriptorProto:
    """What protoc makes of a .proto file of the tree, or of other `content` for it.

    Raises CompileError with protoc's own words.
    """
    # Imported late: it takes a while and most commands have no use for it.
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out, first = Path(folder) / "set", Path(folder) / "first"
        paths = [f"--proto_path={tree}"]
        if content is not None:
            (first / file).parent.mkdir(parents=True)
            (first / file).write_bytes(content)
            paths.insert(0, f"--proto_path={first}")
        well_known = Path(protoc.__file__).parent / "_proto"
        code = protoc.main(
            ["protoc", *paths, f"--proto_path={well_known}", f"--descriptor_set_out={out}", file]
        )
        if code != 0:
            raise CompileError(
                f"{file} does not compile because protoc ended with code {code}; correct the file, "
                "its messages are above"
            )
        (made,) = FileDescriptorSet.FromString(out.read_bytes()).file
    _forget_json_names(made)
    return made


def _forget_json_names(file: FileDescriptorProto) -> None:
    # Generated code is made without them.
    for _, message in _messages(file):
        for one in [*message.field, *message.extension]:
            one.ClearField("json_name")


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """All messages with their full names."""

    def below(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        name = f"{prefix}.{message.name}"
        yield name, message
        for inner in message.nested_type:
            yield from below(name, inner)

    for message in file.message_type:
        yield from below(file.package, message)


def _places(file: FileDescriptorProto) -> list[tuple[int, int]]:
    """Where each message and enumeration is in the file's bytes, in a fixed order."""
    whole = file.SerializeToString(deterministic=True)
    parts: list[Message] = [*file.enum_type]
    for _, message in _messages(file):
        parts += [message, *message.enum_type]
    found = []
    for part in parts:
        data = part.SerializeToString(deterministic=True)
        start = whole.find(data)
        found.append((start, start + len(data)))
    return found


_LITERAL = (
    r"(?:b'(?:[^'\\\n]|\\.)*'|b\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
)
_SERIALIZED = re.compile(rf"(AddSerializedFile\(|serialized_pb=_b\(|serialized_pb=)({_LITERAL})")


def proto_module(
    official: bytes, before: FileDescriptorProto, after: FileDescriptorProto, member: str
) -> bytes:
    """The official Python module of a .proto file with the fields that `after` adds to `before`.

    Works on the text of every protoc since 3.8. Raises MismatchError when the module was not made
    of `before`, WheelError for a change that is more than new bool fields.
    """
    text = official.decode()
    found = _SERIALIZED.search(text)
    literal = ast.literal_eval(found[2]) if found else b""
    embedded = literal.encode("latin1") if isinstance(literal, str) else literal
    if not found or embedded != before.SerializeToString(deterministic=True):
        raise MismatchError(
            f"{member} of the wheel was not made of {before.name} of this tag because it holds "
            "another descriptor; the overlay cannot be made"
        )
    added = _added(before, after, member)
    moved = {}
    for old, new in zip(_places(before), _places(after), strict=True):
        moved.update({("start", old[0]): new[0], ("end", old[1]): new[1]})
    fresh = repr(after.SerializeToString(deterministic=True))
    quoted = fresh if found[2].startswith("b") else fresh[1:]
    text = text[: found.start(2)] + quoted + text[found.end(2) :]
    text = re.sub(
        r"(serialized_(start|end)\s*=\s*)(\d+)",
        lambda match: f"{match[1]}{moved[match[2], int(match[3])]}",
        text,
    )
    # Until protoc 3.19 the module also wrote every field out.
    if "_descriptor.FieldDescriptor(" in text:
        for name, number, field in added:
            text = _written_out(text, name, number, field)
    return text.encode()


def _added(
    before: FileDescriptorProto, after: FileDescriptorProto, member: str
) -> list[tuple[str, int, FieldDescriptorProto]]:
    """New fields with the message's full name and their place in it."""
    found = []
    old = dict(_messages(before))
    rest = FileDescriptorProto()
    rest.CopyFrom(after)
    for name, message in _messages(rest):
        known = {field.name for field in old[name].field} if name in old else set()
        for number, field in reversed(list(enumerate(message.field))):
            if field.name not in known and field.type == FieldDescriptorProto.TYPE_BOOL:
                copy = FieldDescriptorProto()
                copy.CopyFrom(field)
                found.append((name, number, copy))
                del message.field[number]
    if rest != before or not found:
        raise WheelError(
            f"{member} cannot be made because the series does more to {before.name} than to add "
            "bool fields; extend lmsbuild.generated"
        )
    return found[::-1]


def _written_out(text: str, message: str, number: int, field: FieldDescriptorProto) -> str:
    block = text.index(f"full_name='{message}',")
    end = text.index("\n  ],\n  extensions=[", block)
    entry = f"""
    _descriptor.FieldDescriptor(
      name='{field.name}', full_name='{message}.{field.name}', index={number},
      number={field.number}, type=8, cpp_type=7, label=1,
      has_default_value=False, default_value=False,
      message_type=None, enum_type=None, containing_type=None,
      is_extension=False, extension_scope=None,
      serialized_options=None, file=DESCRIPTOR),"""
    return text[:end] + entry + text[end:]
