# SPDX-License-Identifier: Apache-2.0
"""What a word of the tags' data may be that reaches a command line, a Dockerfile or a file's name.

The data comes with pull requests, and CI builds with it: no value may be an option where a name is
expected, end the quotes that it stands in, or have a compiler or a package manager run a program.
What is code by its purpose is listed in CONTRIBUTING.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator

from lmsbuild.base.filenames import file_name, inner_path

DATA = "{data}"  # the data folder of a wheel, whose name has the version


def _like(pattern: str, what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.match(rf"(?:{pattern})\Z", text):  # compiled when it is first needed
            raise ValueError(f"{text!r} is no {what}")
        return text

    return check


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is no version") from error
    return text


def _requirement(text: str) -> str:
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is no requirement of a Python package") from error
    if found.url:  # pip would run what lies there to learn its name
        raise ValueError(f"{text!r} names an address, not a package of the index")
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is no range of versions") from error
    return text


def _inner(text: str) -> str:
    if text.startswith("-"):
        raise ValueError(f"{text!r} would be taken for an option")
    return inner_path(text)


def _folder(text: str) -> str:
    return text and _inner(text)


def _folder_of_wheel(text: str) -> str:
    rest = text.removeprefix(f"{DATA}/")
    if rest != DATA and set("{}") & set(rest):
        raise ValueError(f"{text!r} has other braces than a {DATA} at its beginning")
    return _folder(text)


def _include(text: str) -> str:
    root, colon, folder = text.partition(":")
    if not colon or not re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", root):
        raise ValueError(f"{text!r} is no tree:FOLDER or wheel:FOLDER")
    _folder_of_wheel(folder)
    return text


# Flags of g++ that decide how code is compiled, and nothing else. Others load plug-ins, choose the
# programs that a compilation is made of, read or write files, or pass options on.
_FLAG = _like(
    r"-O[0-3s]|-g[0-3]?|-pthread|-w|-D[A-Za-z_]\w*(=[\w.+-]*)?|-U[A-Za-z_]\w*"
    r"|-W(no-)?[a-z][a-z0-9+-]*(=[a-z0-9-]+)?|-m(arch|cpu|tune|fpmath)=[\w.+-]+|-m(no-)?[a-z0-9.-]+"
    r"|-f(no-)?(PIC|PIE|pic|pie|aligned-new|asynchronous-unwind-tables|common|coroutines"
    r"|data-sections|delete-null-pointer-checks|exceptions|fast-math|finite-math-only"
    r"|function-sections|gnu-unique|inline(-[a-z-]+)?|math-errno|merge-constants"
    r"|omit-frame-pointer|openmp(-simd)?|permissive|plt|reciprocal-math|rounding-math|rtti"
    r"|semantic-interposition|signed-char|signed-zeros|sized-deallocation|stack-clash-protection"
    r"|stack-protector(-strong|-all)?|strict-aliasing|strict-overflow|threadsafe-statics"
    r"|trapping-math|tree-[a-z-]+|unroll-loops|unsigned-char|unwind-tables"
    r"|visibility-inlines-hidden|wrapv)"
    r"|-f(abi-version=[0-9]+|cf-protection=[a-z]+|fp-contract=[a-z]+|visibility=[a-z]+)",
    "flag that is known to decide how code is compiled and nothing else",
)
_HEADER = _like(r"[A-Za-z_][\w.]*", "header of the language")


def flags(words: list[str]) -> list[str]:
    """`words` themselves, flags of g++. Raises ValueError naming the first that may not be."""
    rest = iter(words)
    for word in rest:
        if word == "-include":
            _HEADER(next(rest, ""))
        else:
            _FLAG(word)
    return words


_FILLED = r"\{(?:python|nodot|cuda)\}"  # what stands for something in an image's names
_NAME = rf"(?:[A-Za-z0-9]|{_FILLED})(?:[A-Za-z0-9_.-]|{_FILLED})*"
_reference = _like(
    rf"{_NAME}(?::[0-9]+)?(?:/{_NAME})*(?::{_NAME})?(?:@sha256:[0-9a-f]{{64}})?",
    "name of a container image",
)


def image_reference(text: str) -> str:
    """`text` itself, the name of an image in a registry. Raises ValueError."""
    return _reference(text)


VersionText = Annotated[str, AfterValidator(_version)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Requirements = list[Annotated[str, AfterValidator(_requirement)]]
_url = _like(
    r"(https?|ssh|git|file)://[^\s\x00-\x1f\"$\\`]+", "address of http, https, ssh, git or file"
)
Url = Annotated[str, AfterValidator(_url)]
FileName = Annotated[str, AfterValidator(file_name)]
InnerPath = Annotated[str, AfterValidator(_inner)]
Folder = Annotated[str, AfterValidator(_folder)]  # "" for the root
FolderOfWheel = Annotated[str, AfterValidator(_folder_of_wheel)]
Include = Annotated[str, AfterValidator(_include)]
Prefix = Annotated[str, AfterValidator(_like(r"(/[\w.+-]+)+", "absolute path of plain letters"))]
# The linker takes commas for the end of one of its options.
LibraryPath = Annotated[InnerPath, AfterValidator(_like(r"[\w./+-]+", "path of plain letters"))]
Suffix = Annotated[str, AfterValidator(_like(r"\.[A-Za-z0-9_]+", "suffix of files"))]
check_word = _like(r"[A-Za-z0-9][A-Za-z0-9+._~-]*", "name of a package")
Word = Annotated[str, AfterValidator(check_word)]
CondaSpec = Annotated[
    str,
    AfterValidator(
        _like(r"[a-z0-9_][a-z0-9_.-]*( [\w.*,<>=!|+]+){0,2}", "package of conda and its versions")
    ),
]
PythonVersion = Annotated[str, AfterValidator(_like(r"3\.[0-9]{1,2}", "version X.Y of Python"))]
CudaVersion = Annotated[str, AfterValidator(_like(r"cpu|[0-9]+(\.[0-9]+)*", "version of CUDA"))]
CxxStandard = Annotated[str, AfterValidator(_like(r"|(c|gnu)\+\+[0-9][0-9a-z]", "standard of C++"))]
Flags = Annotated[list[str], AfterValidator(flags)]
Define = Annotated[
    str, AfterValidator(_like(r"[A-Za-z_]\w*(=[\w.+-]*)?", "macro with a plain value"))
]
Symbol = Annotated[str, AfterValidator(_like(r"[A-Za-z_$*?][\w$.*?]*", "symbol"))]  # with *
ImageReference = Annotated[str, AfterValidator(_reference)]
Machine = Annotated[str, AfterValidator(_like(r"[a-z0-9_]+", "machine as `uname -m` says it"))]
Program = Annotated[
    str, AfterValidator(_like(r"/?[A-Za-z0-9_](?:[\w./+-]|\{python\})*", "name of a program"))
]
# apt-get would take away what ends with "-".
SystemPackage = Annotated[
    str,
    AfterValidator(
        _like(
            rf"[A-Za-z0-9](?:[A-Za-z0-9+._-]|{_FILLED})*(?<!-)",
            "name of a package of the system",
        )
    ),
]
# What the loader reads would have any program load a library; PATH is the image's own.
VariableName = Annotated[
    str, AfterValidator(_like(r"(?!LD_|PATH\Z)[A-Za-z_]\w*", "name of a variable that may be set"))
]
# Between double quotes, where these would end or be filled in.
QuotedValue = Annotated[
    str, AfterValidator(_like(r'[^"\\$`\x00-\x1f\x7f]*', "value without quotes, $, \\ or `"))
]
# Of a command: one argument, one line.
Argument = Annotated[str, AfterValidator(_like(r"[^\x00-\x1f\x7f]*", "argument of one line"))]
