# SPDX-License-Identifier: Apache-2.0
"""The rules for a patch of a series: what `git am` does not mind and a maintainer does.

CONTRIBUTING.md says why each rule is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from lmsbuild.series.series import LINK_MODE, NO_BLOB, Hunk, Line, Patch, series_of
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.runtimefiles import runtime_files

SUBJECT_LENGTH = 72
BODY_WORDS = 8
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENCE_LINES = 3  # the licence stands in one of the first
MESSAGE = "(message)"

_REASON = re.compile(
    r"\b(because|so|since|hence|thus|therefore|otherwise|must|cannot|needs?|needed|without|unless|"
    r"until|why|avoids?|instead|would)\b",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Finding:
    patch: str
    file: str  # path in the framework, or MESSAGE
    line: int  # in the file as the patch leaves it, or in the patch file for MESSAGE
    rule: str
    problem: str
    todo: str

    def __str__(self) -> str:
        return f"{self.patch} {self.file}:{self.line}: {self.rule}: {self.problem}; {self.todo}"


@dataclass(frozen=True)
class _Context:
    """What a rule may look at."""

    target: Target
    patch: Patch
    earlier: tuple[Patch, ...]

    def message(self, rule: str, problem: str, todo: str, near: str = "") -> Finding:
        head = self.patch.text[: self.patch.diff_start].split("\n")
        wanted = near or "Subject: "
        line = next((n for n, text in enumerate(head, 1) if wanted in text), 1)
        return Finding(self.patch.name, MESSAGE, line, rule, problem, todo)

    def at(self, hunk: Hunk, line: Line, rule: str, problem: str, todo: str) -> Finding:
        number = line.target or line.source or hunk.target_start
        return Finding(self.patch.name, hunk.path, number, rule, problem, todo)

    @property
    def new_files(self) -> set[str]:
        return {change.path for change in self.patch.changes if change.before == NO_BLOB}

    @property
    def links(self) -> set[str]:
        return {change.path for change in self.patch.changes if change.mode == LINK_MODE}


def lint(target: Target) -> list[Finding]:
    """Every break of a rule in the series of a tag. Raises ConfigError for a patch that cannot be
    read (`lmsbuild verify` tells more)."""
    patches = series_of(target).patches
    return [
        finding
        for number, patch in enumerate(patches)
        for rule in RULES
        for finding in rule(_Context(target, patch, tuple(patches[:number])))
    ]


def _subject(context: _Context) -> Iterator[Finding]:
    subject = context.patch.subject
    todo = "reword the commit and refresh"
    if len(subject) > SUBJECT_LENGTH:
        problem = f"the subject has {len(subject)} characters, more than {SUBJECT_LENGTH}"
        yield context.message("subject", problem, todo)
    if not re.match(r"[A-Z][a-z]+ ", subject):
        problem = f"the subject {subject!r} does not begin with a capitalised verb"
        yield context.message("subject", problem, f"say what the patch does ('Let ...'); {todo}")
    if subject.endswith("."):
        yield context.message("subject", "the subject ends with a full stop", todo)


def _reason(context: _Context) -> Iterator[Finding]:
    prose = re.sub(r"^[A-Z][A-Za-z-]*: .*(\n[ \t].*)*", "", context.patch.mail.body, flags=re.M)
    words = prose.split()
    if len(words) < BODY_WORDS or not _REASON.search(prose):
        yield context.message(
            "reason",
            "the message does not say why the patch is there",
            "add a body that does (because ..., so that ..., must ...) and refresh",
        )


def _upstream(context: _Context) -> Iterator[Finding]:
    touched = {c.path for c in context.patch.changes} - context.new_files
    if not touched:
        return
    message = context.patch.mail.message
    words = {name for path in touched for name in _names(path)}
    for hunk in context.patch.hunks:
        if hunk.path in touched:
            for text in (hunk.section, *hunk.texts(" ", "-")):
                words |= {w for w in _IDENTIFIER.findall(text) if _telling(w)}
    said = set(_IDENTIFIER.findall(message))
    if not any(w in said if w.isidentifier() else w in message for w in words):
        yield context.message(
            "upstream",
            f"the message names no code of upstream, such as {sorted(touched)[0]}",
            "name a file, function or class that the patch changes (one that is also a word of "
            "English, as Storage, does not count) and refresh",
        )


def _names(path: str) -> set[str]:
    pure = PurePosixPath(path)
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return {path, pure.name, pure.stem, dotted} - {"__init__"}


def _telling(word: str) -> bool:
    """An identifier that is no English word: snake_case, camelCase, CONSTANT or with a digit."""
    return len(word) > 3 and not (word[1:].isalpha() and word[1:].islower())


def _whitespace(context: _Context) -> Iterator[Finding]:
    for hunk in context.patch.hunks:
        if hunk.path in context.links:
            continue
        old = [t for h in context.patch.hunks_of(hunk.path) for t in h.texts(" ", "-")]
        tabs = any(text.startswith("\t") for text in old)
        spaces = any(text.startswith("  ") for text in old)
        for line in hunk.lines:
            text = line.text.removesuffix("\r")
            if line.kind != "+":
                continue
            indent = text[: len(text) - len(text.lstrip())]
            if text != text.rstrip():
                yield context.at(
                    hunk, line, "whitespace", "the line ends with a space or tab", "remove it"
                )
            elif "\t" in indent and not tabs and PurePosixPath(hunk.path).name != "Makefile":
                yield context.at(
                    hunk, line, "whitespace",
                    "the line is indented with a tab", "indent it with spaces",
                )  # fmt: skip
            elif indent.startswith("  ") and tabs and not spaces:
                yield context.at(
                    hunk, line, "whitespace",
                    "the line is indented with spaces in a file that has tabs", "use tabs",
                )  # fmt: skip
        for before, line in zip(hunk.lines, hunk.lines[1:], strict=False):
            if line.kind == "\\" and before.kind == "+":
                yield context.at(
                    hunk, before, "whitespace",
                    "the last line has no line end", "end the file with a newline",
                )  # fmt: skip
        last = hunk.lines[-1]
        if hunk.path in context.new_files and last.kind == "+" and not last.text.strip():
            yield context.at(
                hunk, last, "whitespace", "the file ends with an empty line", "remove it"
            )


def _line_ends(context: _Context) -> Iterator[Finding]:
    for hunk in context.patch.hunks:
        for line in hunk.lines:
            if line.kind == "+" and "\r" in line.text:
                yield context.at(
                    hunk, line, "line-ends",
                    "the line has a carriage return, which mail loses", "end lines with LF",
                )  # fmt: skip
                break  # one for each hunk is enough to find them


def _binary(context: _Context) -> Iterator[Finding]:
    said = _because(context, "Binary")
    for change in context.patch.changes:
        part = context.patch.part(change.path)
        binary = re.search(r"^(GIT binary patch|Binary files )", part, re.MULTILINE)
        if (binary or "\0" in part) and not said.get(change.path):
            yield Finding(
                context.patch.name, change.path, 1, "binary",
                "the file is binary and cannot be reviewed",
                f"leave it out, or add the line 'Binary: {change.path} because ...' to the message",
            )  # fmt: skip


def _because(context: _Context, key: str) -> dict[str, str]:
    """The reasons that lines `key: FILE because REASON` give."""
    reasons = {}
    for value in context.patch.mail.trailers(key):
        file, _, reason = value.partition(" because ")
        reasons[file.strip()] = reason.strip()
    return reasons


def _forwarded(context: _Context) -> Iterator[Finding]:
    """Where the patch went is a place that can be looked at."""
    for value in context.patch.mail.trailers("Forwarded"):
        if value not in ("no", "not-needed") and not re.match(r"https?://\S+$", value):
            yield context.message(
                "forwarded",
                f"'Forwarded: {value}' names no place",
                "give an address, or no, or not-needed",
                "Forwarded: ",
            )


def _line_length(context: _Context) -> Iterator[Finding]:
    own = runtime_files(context.target)  # the project's own formatter looks after those
    limits = context.target.framework.line_length
    for hunk in context.patch.hunks:
        limit = next((n for glob, n in limits.items() if fnmatch(hunk.path, glob)), None)
        if limit is None or hunk.path in own:
            continue
        for line in hunk.lines:
            length = len(line.text.removesuffix("\r"))
            if line.kind == "+" and length > limit:
                yield context.at(
                    hunk, line, "line-length",
                    f"the line has {length} characters, upstream allows {limit}", "break it",
                )  # fmt: skip


def _licence(context: _Context) -> Iterator[Finding]:
    for hunk in context.patch.hunks:
        first = hunk.texts("+")[:LICENCE_LINES]
        if hunk.path in context.new_files - context.links and not any(
            LICENCE in text for text in first
        ):
            yield context.at(
                hunk, hunk.lines[0], "licence",
                "the new file does not say its licence",
                f"begin it with a comment {LICENCE!r}",
            )  # fmt: skip


def _again(context: _Context) -> Iterator[Finding]:
    """A file in two patches makes the series hard to port: say why."""
    reasons = _because(context, "Touches-again")
    for change in context.patch.changes:
        first = next(
            (p for p in context.earlier if any(c.path == change.path for c in p.changes)), None
        )
        if first is not None and not reasons.get(change.path):
            yield Finding(
                context.patch.name, change.path, 1, "touched-again",
                f"{first.name} touches the file already",
                "join the two patches, or add the line 'Touches-again: "
                f"{change.path} because ...' to the message",
            )  # fmt: skip
        if first is not None:
            reasons.pop(change.path, None)
    for file in reasons:
        yield context.message(
            "touched-again",
            f"'Touches-again: {file}' is stale: no earlier patch and this one both touch it",
            "remove the line",
            f"Touches-again: {file}",
        )


def _test(context: _Context) -> Iterator[Finding]:
    """Each patch names the tests that fail without it."""
    named = context.patch.mail.trailers("Test")
    if not named:
        yield context.message(
            "test",
            "the message names no test that covers the patch",
            "add a line 'Test: tests/...py::test_...' to its end",
        )
    project = context.target.project
    for value in named:
        # A package carries the suites that it runs, not every test of the project.
        problem = "" if project.installed else missing_test(project.root, value)
        if problem:
            yield context.message(
                "test", f"{value} does not exist: {problem}", "name one that does", value
            )


def missing_test(root: Path, value: str) -> str:
    """Why `value` (tests/file.py::test or Class::test, or a file) is no test, or ""."""
    name, _, test = value.partition("::")
    file = root / name
    if not name.startswith("tests/") or ".." in PurePosixPath(name).parts or not file.is_file():
        return f"there is no file {name} below tests/"
    text = file.read_text(encoding="utf-8")
    if not test:
        return ""
    if file.suffix != ".py":
        return "" if re.search(rf"\b{re.escape(test)}\b", text) else f"{name} has no {test}"
    scope: list[ast.stmt] = ast.parse(text).body
    for part in test.split("[")[0].split("::"):
        found = [
            node
            for node in scope
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == part
        ]
        if not found:
            return f"{name} has no {part}"
        scope = found[-1].body
    return ""


Rule = Callable[[_Context], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    _subject, _reason, _upstream, _test, _again, _licence, _whitespace, _line_ends, _line_length,
    _binary, _forwarded,
)  # fmt: skip
