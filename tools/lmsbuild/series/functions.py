# SPDX-License-Identifier: Apache-2.0
"""Which functions a source file has, and where: C++ and Python, also with errors in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

import tree_sitter_cpp
import tree_sitter_python
from tree_sitter import Language, Node, Parser

_SUFFIXES = {
    **dict.fromkeys((".cpp", ".cc", ".cu", ".cuh", ".h", ".hpp"), "cpp"),
    **dict.fromkeys((".py", ".pyi"), "python"),
}
_SCOPES = {
    "function_definition", "class_definition", "decorated_definition",
    "class_specifier", "struct_specifier", "union_specifier", "enum_specifier",
}  # fmt: skip
_NAMES = {
    "identifier", "field_identifier", "type_identifier", "qualified_identifier",
    "destructor_name", "operator_name", "operator_cast", "template_function",
}  # fmt: skip

# An export macro before a class's name would be taken for the name.
_MACRO = re.compile(rb"\b((?:class|struct|union)\s+)([A-Z][A-Z0-9_]+)(?=\s+[A-Za-z_])")


@dataclass(frozen=True)
class Span:
    """A function or class: its qualified name without namespaces, first and last line from 1."""

    name: str
    first: int
    last: int


@lru_cache
def _parser(language: str) -> Parser:
    module = tree_sitter_cpp if language == "cpp" else tree_sitter_python
    return Parser(Language(module.language()))


def spans(path: str, content: bytes) -> list[Span] | None:
    """The functions and classes of a file; None for a kind of file that cannot be read."""
    language = _SUFFIXES.get(PurePosixPath(path).suffix)
    if language is None:
        return None
    joint = "::" if language == "cpp" else "."
    if language == "cpp":
        content = _MACRO.sub(lambda match: match[1] + b" " * len(match[2]), content)
    return list(_walk(_parser(language).parse(content).root_node, "", joint))


def enclosing(found: list[Span], line: int) -> str:
    """The name of the innermost one that holds `line`, or ""."""
    holding = [span for span in found if span.first <= line <= span.last]
    return min(holding, key=lambda span: span.last - span.first).name if holding else ""


def _walk(node: Node, scope: str, joint: str) -> Iterator[Span]:
    for child in node.children:
        inner = scope
        if child.type in _SCOPES:
            named = _definition(child)
            name = _name(named)
            if name:
                inner = f"{scope}{joint}{name}" if scope else name
                yield Span(inner, child.start_point[0] + 1, child.end_point[0] + 1)
            if named is not child:  # a decorated one: its lines include the decorators
                yield from _walk(named, inner, joint)
                continue
        yield from _walk(child, inner, joint)


def _definition(node: Node) -> Node:
    inner = node.child_by_field_name("definition")
    return inner if inner is not None else node


def _name(node: Node) -> str:
    found = node.child_by_field_name("name") or node.child_by_field_name("declarator")
    while found is not None and found.type not in _NAMES:
        # Pointers, references and parameter lists are wrapped around a function's name.
        found = found.child_by_field_name("declarator") or next(
            (child for child in found.named_children if child.type.endswith("declarator")), None
        )
    return found.text.decode(errors="replace") if found is not None and found.text else ""
