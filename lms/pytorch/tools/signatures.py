# SPDX-License-Identifier: Apache-2.0
"""The C++ signatures of aten's operators, as upstream's generated headers call them.

    python signatures.py OUTPUT ATen/Functions.h ATen/core/TensorMethods.h

writes one LMS_SIGNATURE(name, overload, return type(parameter types)) a line, or one
LMS_FUNCTION(schema, return type(parameter types)) where the operator has a table outside of the
dispatcher. Before PyTorch 1.6 a kernel can be called in no other way
(torch/csrc/lms/compat/interception_typed.cpp).
"""

import pathlib
import re
import sys

_OPERATOR = re.compile(
    r'findSchema(?:OrThrow)?\(\s*{?"(?P<name>aten::\w+)",\s*"(?P<overload>\w*)"}?\)'
)
# Before PyTorch 1.4, of an operator that has a table outside of the dispatcher.
_TABLE = re.compile(r'getOpTable\("(?P<schema>aten::[^"]+)"\)')
# Around what a build without names of dimensions has not, as that of PyTorch 1.2.
_OPTIONAL = "BUILD_NAMEDTENSOR"
_CONDITION = re.compile(r"^[ ]*#[ ]*(?P<what>if|endif)\w*[ ]*(?P<name>\w*)", re.MULTILINE)
_CALL = re.compile(r"\bcallUnboxed(?:Only)?<")
_CALL_OF_FUNCTION = re.compile(r"\bgetOp<(?P<signature>[^;]+?\))>\(")


def _parameters(text, begin):
    """The template's parameters from `begin` on: up to the bracket that closes them."""
    depth, parts, last = 1, [], begin
    for at in range(begin, len(text)):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(text[at], 0)
        if depth == 0 or (depth == 1 and text[at] == ","):
            parts.append(" ".join(text[last:at].split()))
            last = at + 1
        if depth == 0:
            return parts
    raise ValueError("a call of an operator has no end; are these ATen's headers?")


def _signature(text, begin):
    """Of the first call of an operator from `begin` on."""
    call = _CALL.search(text, begin)
    function = _CALL_OF_FUNCTION.search(text, begin)
    if function and not (call and call.start() < function.start()):
        return " ".join(function.group("signature").split())
    result, *parameters = _parameters(text, call.end())
    return f"{result}({', '.join(parameters)})"


def _optional_parts(text):
    """(begin, end) of each."""
    begun, parts = [], []
    for found in _CONDITION.finditer(text):
        if found.group("what") == "if":
            begun.append(found)
        else:
            begin = begun.pop()
            if begin.group("name") == _OPTIONAL:
                parts.append((begin.end(), found.start()))
    return parts


def optional(text):
    """What upstream knows the operators by that only a build with names of dimensions has."""
    return {
        operator.groups()
        for begin, end in _optional_parts(text)
        for pattern in (_OPERATOR, _TABLE)
        for operator in pattern.finditer(text, begin, end)
    }


def signatures(text):
    """What upstream knows an operator by -> its signature: (name, overload), or (schema,)."""
    found = {}
    for pattern in (_OPERATOR, _TABLE):
        for operator in pattern.finditer(text):
            key, signature = operator.groups(), _signature(text, operator.end())
            if found.setdefault(key, signature) != signature:
                raise ValueError(f"{'.'.join(key)} has two signatures; are these ATen's headers?")
    return found


def main(output, *headers):
    found, guarded = {}, set()
    for header in headers:
        text = pathlib.Path(header).read_text(encoding="utf-8")
        found.update(signatures(text))
        guarded |= optional(text)
    if not found:
        sys.exit(
            "no signature was found because none of "
            f"{', '.join(headers)} calls an operator; give ATen's generated headers"
        )
    with pathlib.Path(output).open("w", encoding="utf-8") as file:
        file.write("// Made by signatures.py.\n")
        for key, signature in sorted(found.items()):
            macro = "LMS_SIGNATURE" if len(key) == 2 else "LMS_FUNCTION"
            named = ", ".join(f'"{part}"' for part in key)
            line = f"{macro}({named}, {signature})\n"
            file.write(f"#ifdef {_OPTIONAL}\n{line}#endif\n" if key in guarded else line)


if __name__ == "__main__":
    main(*sys.argv[1:])
