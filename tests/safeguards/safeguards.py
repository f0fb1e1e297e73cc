# SPDX-License-Identifier: Apache-2.0
"""The safeguards of one kind, and what a source file is like without one of them.

An entry names a function and a text within it, so that it fits as long as that text stands in that
function once; white space does not count.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
try:
    from lmsbuild.series.functions import spans
except ImportError:  # an installed lmsbuild, seen from another environment: we are in its package
    _spec = importlib.util.spec_from_file_location(
        "functions", HERE.parents[2] / "series/functions.py"
    )
    assert _spec and _spec.loader
    _functions_of = importlib.util.module_from_spec(_spec)
    sys.modules["functions"] = _functions_of
    _spec.loader.exec_module(_functions_of)
    spans = _functions_of.spans
KINDS = ("engine", "torch", "plugin", "tensorflow")


class SafeguardError(Exception):
    """An entry that is wrong, or whose test does not fail."""


@dataclass(frozen=True)
class Safeguard:
    id: str
    why: str
    file: str
    search: tuple[str, ...]
    replace: tuple[str, ...]
    test: str
    function: str = ""
    since: tuple[int, ...] = ()
    build: str = "plain17"
    options: tuple[str, ...] = ()
    # Without it nothing fails, but the test does not end; else a test without an end shows nothing.
    hangs: bool = False


def load(kind: str, folder: Path = HERE) -> list[Safeguard]:
    """The entries of `kind`, in the file's order. Raises SafeguardError."""
    path = folder / f"{kind}.toml"
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["safeguard"]
    lists = {field.name for field in fields(Safeguard) if str(field.type).startswith("tuple")}
    result: list[Safeguard] = []
    for entry in entries:
        try:
            values: dict[str, Any] = {k: _tuple(v) if k in lists else v for k, v in entry.items()}
            made = Safeguard(**values)
        except TypeError as error:
            raise SafeguardError(f"{path.name}: {entry.get('id')}: {error}") from error
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", made.id):
            raise SafeguardError(f"{path.name}: {made.id!r} is no lower-case hyphenated id")
        if len(made.search) != len(made.replace) or not all(map(str.strip, made.search)):
            raise SafeguardError(f"{path.name}: {made.id} lacks a text or its replacement")
        if any(made.id == other.id for other in result):
            raise SafeguardError(f"{path.name}: the id {made.id} occurs twice")
        result.append(made)
    return result


def without(safeguard: Safeguard, root: Path, beside: Iterable[Path] = ()) -> str:
    """The content of the safeguard's file below `root` without it.

    Raises SafeguardError when the entry does not name one place; its message says where the text is
    in the file or in those `beside` it, or what is most like it.
    """
    file = root / safeguard.file
    text = file.read_text() if file.is_file() else ""
    for search, replace in zip(safeguard.search, safeguard.replace, strict=True):
        places = _find(safeguard, search, text)
        if len(places) != 1:
            wrong = _wrong(safeguard, search, places) if text else f"there is no {safeguard.file}"
            advice = _advice(safeguard, search, text, places, beside)
            raise SafeguardError(f"{safeguard.id}: {wrong}; correct the entry: {advice}")
        first, last = places[0]
        text = text[:first] + replace + text[last:]
    return text


def lines(safeguard: Safeguard, text: str) -> set[int]:
    """The numbers of the lines that it changes in its file."""
    return {
        number
        for search in safeguard.search
        for first, last in _find(safeguard, search, text)
        for number in range(text.count("\n", 0, first) + 1, text.count("\n", 0, last) + 2)
    }


def outcome(
    command: list[str], folder: Path, environment: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """Exit status of a pytest (None: no end within so many seconds), and the end of its output."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, "no end"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # programs of its tests, too
        process.wait()
    return process.returncode, output[-3000:]


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _wrong(safeguard: Safeguard, search: str, places: list[tuple[int, int]]) -> str:
    where = f"{safeguard.function} of {safeguard.file}" if safeguard.function else safeguard.file
    found = f"{len(places)} times instead of once" if places else "nowhere"
    return f"{search!r} is {found} in {where}"


def _find(safeguard: Safeguard, search: str, text: str) -> list[tuple[int, int]]:
    """Where the searched text begins and ends within the function, in characters of `text`."""
    everywhere = _occurrences(text, search)
    if not safeguard.function:
        return everywhere
    ranges = [
        (first, last) for name, first, last in _functions(safeguard.file, text)
        if name == safeguard.function
    ]  # fmt: skip
    return [p for p in everywhere if any(a <= p[0] and p[1] <= b for a, b in ranges)]


@lru_cache(maxsize=8)  # of one file many safeguards are looked for
def _functions(file: str, text: str) -> list[tuple[str, int, int]]:
    """Each function's and class's name, and the range of its lines in `text`."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(min(starts[-1] + len(line) + 1, len(text)))
    found = spans(file, text.encode()) or []
    return [(span.name, starts[span.first - 1], starts[span.last]) for span in found]


def _occurrences(text: str, search: str) -> list[tuple[int, int]]:
    places, packed = _packed(text)
    wanted = "".join(search.split())
    hits = [hit.start() for hit in re.finditer(f"(?={re.escape(wanted)})", packed)]
    return [(places[hit], places[hit + len(wanted) - 1] + 1) for hit in hits]


@lru_cache(maxsize=8)
def _packed(text: str) -> tuple[list[int], str]:
    """What is no space, and where in `text` it is."""
    places = [place for place, character in enumerate(text) if not character.isspace()]
    return places, "".join(text[place] for place in places)


def _advice(
    safeguard: Safeguard,
    search: str,
    text: str,
    places: list[tuple[int, int]],
    beside: Iterable[Path],
) -> str:
    functions = _functions(safeguard.file, text)
    if len(places) > 1:
        return "name the function, or more of the text"
    if here := _occurrences(text, search):
        return f"the text is in {_names(functions, here)}"
    for file in beside:
        other = file.read_text(errors="replace")
        if there := _occurrences(other, search):
            return f"the text is in {_names(_functions(file.name, other), there)} of {file}"
    names = list(dict.fromkeys(name for name, _, _ in functions))
    if safeguard.function and safeguard.function not in names:
        near = difflib.get_close_matches(safeguard.function, names, n=3, cutoff=0.3)
        return f"there is no such function; near ones: {', '.join(near) or 'none'}"
    inside = [text[a:b] for name, a, b in functions if name == safeguard.function] or [text]
    size = search.count("\n") + 1
    lines = "\n".join(inside).splitlines()
    windows = ["\n".join(lines[i : i + size]) for i in range(len(lines))]
    nearest = max(windows, key=lambda w: _likeness(w, search), default="")
    return f"the nearest there is {nearest.strip()!r}"


def _names(functions: list[tuple[str, int, int]], places: list[tuple[int, int]]) -> str:
    found = []
    for first, last in places:
        holding = [(b - a, name) for name, a, b in functions if a <= first and last <= b]
        found.append(min(holding)[1] if holding else "no function")
    return ", ".join(dict.fromkeys(found))


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, "".join(one.split()), "".join(other.split())).ratio()
