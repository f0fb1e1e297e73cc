# SPDX-License-Identifier: Apache-2.0
"""The C++ signatures of aten's operators, as upstream's generated headers call them.

    python signatures.py OUTPUT ATen/Functions.h ATen/core/TensorMethods.h
    python signatures.py OUTPUT ATen/core/Type.h ATen/TypeExtendedInterface.h native_functions.yaml

writes one LMS_SIGNATURE(name, overload, return type(parameter types)) a line, or one
LMS_FUNCTION(schema, return type(parameter types)) where the operator has a table outside of the
dispatcher. Before PyTorch 1.6 a kernel can be called in no other way
(torch/csrc/lms/compat/interception_typed.cpp). In PyTorch 1.1 operators are virtual functions: one
LMS_METHOD(class, name, schema, return type(parameter types)) each. There the schema is made of the
declaration, which tells what is written; the file of schemas tells which results are views.
"""

import keyword
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

# In PyTorch 1.1, a class and an operator of it.
_CLASS = re.compile(r"^struct CAFFE2_API (?P<name>\w+) [:{]", re.MULTILINE)
_METHOD = re.compile(
    r"^  virtual (?P<result>\S.*?) (?P<name>\w+)\((?P<parameters>.*)\) const = 0;$", re.MULTILINE
)
# What calls of Type itself stand before.
_FIRST_METHOD = "// virtual Tensor * add("
_SCHEMA = re.compile(r"^- func: (?P<name>\w+)\(.*\) -> (?P<result>.*)$", re.MULTILINE)
# Of upstream's own layers below an operator.
_LAYER = re.compile(r"^(?:s_)?(?:_th_)?")
_TYPES = {
    "Generator *": "Generator?",
    "SparseTensorRef": "Tensor",
    "Storage": "Tensor",  # schemas have no name for it
    "Tensor": "Tensor",
    "TensorList": "Tensor[]",
    "bool": "bool",
    "const Tensor &": "Tensor",
    "std::vector<Tensor>": "Tensor[]",
}


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


def _split(parts):
    """The list of a template's or a function's parameters, which has no end."""
    return [part for part in _parameters(parts + ">", 0) if part]


def _schema(name, result, parameters, views):
    """As upstream writes them. Of a type that holds no tensor any other will do."""
    view = name in views
    written = iter("abcdefgh")
    own, outs = [], []
    for parameter in parameters:
        kind, called = re.fullmatch(r"(.*\W) ?(\w+)", parameter).groups()
        kind = kind.strip()
        if kind == "Tensor &":
            made = f"Tensor({next(written)}!) {called}"
            (outs if name.endswith("_out") and len(own) == 0 else own).append(made)
        else:
            first = view and kind == "const Tensor &" and not own
            own.append(f"Tensor(v) {called}" if first else f"{_TYPES.get(kind, 'int')} {called}")
    results = re.fullmatch(r"std::tuple<(.*)>", result)
    made = []
    written = iter("abcdefgh")
    for kind in _split(results.group(1)) if results else [result] if result != "void" else []:
        if kind == "Tensor &":
            made.append(f"Tensor({next(written)}!)")
        else:
            held = _TYPES.get(kind, "int")
            made.append(held.replace("Tensor", "Tensor(v)") if view else held)
    arguments = ", ".join([*own, *(["*", *outs] if outs else [])])
    whole = name[: -len("_out")] if outs else name
    operator = _LAYER.sub("", whole, count=1)
    if keyword.iskeyword(operator):  # no name for upstream's parser
        operator = whole
    return f"aten::{operator}({arguments}) -> ({', '.join(made)})"


def methods(text, views):
    """Of one header: (class, name, schema) -> signature."""
    declared = _CLASS.search(text)
    if declared is None:
        return {}
    found = {}
    for method in _METHOD.finditer(text, max(text.find(_FIRST_METHOD), 0)):
        name, result = method.group("name", "result")
        parameters = _split(method.group("parameters"))
        kinds = [re.sub(r" ?\w+$", "", parameter) for parameter in parameters]
        schema = _schema(name, result, parameters, {*views, *(f"_th_{view}" for view in views)})
        found[(declared.group("name"), name, schema)] = f"{result}({', '.join(kinds)})"
    return found


def views(text):
    """The operators that a file of schemas says to return views of an argument."""
    schemas = [found.groups() for found in _SCHEMA.finditer(text)]
    others = {name for name, result in schemas if not re.search(r"Tensor\(\w+\)", result)}
    return {name for name, _ in schemas} - others


def main(output, *headers):
    found, guarded = {}, set()
    view = views("".join(pathlib.Path(header).read_text(encoding="utf-8") for header in headers))
    for header in headers:
        text = pathlib.Path(header).read_text(encoding="utf-8")
        found.update({**signatures(text), **methods(text, view)})
        guarded |= optional(text)
    if not found:
        sys.exit(
            "no signature was found because none of "
            f"{', '.join(headers)} calls an operator; give ATen's generated headers"
        )
    with pathlib.Path(output).open("w", encoding="utf-8") as file:
        file.write("// Made by signatures.py.\n")
        for key, signature in sorted(found.items()):
            *names, last = key
            macro = ("LMS_FUNCTION", "LMS_SIGNATURE", "LMS_METHOD")[len(names)]
            named = [*(names if len(names) == 2 else [f'"{part}"' for part in names]), f'"{last}"']
            line = f"{macro}({', '.join(named)}, {signature})\n"
            file.write(f"#ifdef {_OPTIONAL}\n{line}#endif\n" if key in guarded else line)


if __name__ == "__main__":
    main(*sys.argv[1:])
