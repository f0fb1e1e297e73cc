# SPDX-License-Identifier: Apache-2.0
"""The C++ signatures of aten's operators, as upstream's generated headers call them.

    python signatures.py OUTPUT ATen/Functions.h ATen/core/TensorMethods.h

writes one LMS_SIGNATURE(name, overload, return type(parameter types)) a line. Before PyTorch 1.6 a
kernel can be called in no other way (torch/csrc/lms/compat/interception_typed.cpp).
"""

import pathlib
import re
import sys

_OPERATOR = re.compile(
    r'findSchema(?:OrThrow)?\(\s*{?"(?P<name>aten::\w+)",\s*"(?P<overload>\w*)"}?\)'
)
_CALL = re.compile(r"\bcallUnboxed(?:Only)?<")


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


def signatures(text):
    """(name, overload) -> the signature."""
    found = {}
    for operator in _OPERATOR.finditer(text):
        call = _CALL.search(text, operator.end())
        result, *parameters = _parameters(text, call.end())
        name, signature = operator.group("name", "overload"), f"{result}({', '.join(parameters)})"
        if found.setdefault(name, signature) != signature:
            raise ValueError(f"{'.'.join(name)} has two signatures; are these ATen's headers?")
    return found


def main(output, *headers):
    found = {}
    for header in headers:
        with pathlib.Path(header).open(encoding="utf-8") as file:
            found.update(signatures(file.read()))
    if not found:
        sys.exit(
            "no signature was found because none of "
            f"{', '.join(headers)} calls an operator; give ATen's generated headers"
        )
    with pathlib.Path(output).open("w", encoding="utf-8") as file:
        file.write("// Made by signatures.py.\n")
        for (name, overload), signature in sorted(found.items()):
            file.write(f'LMS_SIGNATURE("{name}", "{overload}", {signature})\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
