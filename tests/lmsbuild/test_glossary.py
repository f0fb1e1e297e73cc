# SPDX-License-Identifier: Apache-2.0
"""The code and the pages that describe it use the words of docs/glossary.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
GLOSSARY = PROJECT / "docs/glossary.md"
# The engine and its adaptors. The tool's own words are not the engine's: a matrix has cells.
PLACES = (
    *("lms/core/*.h", "lms/core/*.cpp", "lms/pytorch/**/*.h", "lms/pytorch/**/*.cpp"),
    *("lms/plugin/csrc/*", "lms/tensorflow/csrc/*", "tests/engine/*.cpp", "tests/engine/*.h"),
    *("tests/tensorflow/*.cpp", "lms/pytorch/python/lms/*.py", "lms/tensorflow/python/*.py"),
    *("README.md", "docs/*.md"),
)
# Pages of the tool, of what rewrites graphs beside TensorFlow, and of the simulated device; and the
# table itself.
ELSEWHERE = {f"docs/{name}.md" for name in ("cli", "porting", "shipping", "tflms", "glossary")}
KEPT = "handed_out_bytes"  # a key of TensorFlow's statistics that programs may read


def retired() -> list[str]:
    table = GLOSSARY.read_text().split("## Not used")[1]
    first = re.findall(r"^\| (`.*?) \| \w", table, re.MULTILINE)
    return [word for cell in first for word in re.findall(r"`([\w ]+)`", cell)]


def uses(word: str, text: str) -> list[str]:
    """The lines of `text` with `word`, alone or as a part of an identifier."""
    # As a word of its own, of snake_case or of CamelCase; not within another ("tighten", "excell").
    plain = word.lower().replace(" ", "[_ ]")
    forms = rf"(?<![a-z]){plain}s?(?![a-z])|(?<![A-Z]){word[0].upper()}{word[1:]}s?(?![a-z])"
    lines = text.replace("std::promise", "").splitlines()
    return [line.strip() for line in lines if re.search(forms, line)]


def test_the_glossary_names_what_is_not_used() -> None:
    assert "promise" in retired() and len(retired()) >= 9


@pytest.mark.parametrize("word", retired())
def test_a_retired_word_is_not_used(word: str) -> None:
    files = {
        path.relative_to(PROJECT).as_posix(): path
        for place in PLACES
        for path in PROJECT.glob(place)
        if path.is_file()
    }
    assert len(files) > 100 and set(files) > ELSEWHERE
    found = {
        name: lines
        for name, path in files.items()
        if name not in ELSEWHERE and (lines := uses(word, path.read_text().replace(KEPT, "")))
    }
    assert not found, f"docs/glossary.md has another word for {word}"


def engines_words() -> list[str]:
    """Those of the tables of what the engine does."""
    text = GLOSSARY.read_text().split("## The series")[0].split("## What moves")[1]
    cells = re.findall(r"^\| (\*\*.*?) \|", text, re.MULTILINE)
    return [word for cell in cells for word in re.findall(r"\*\*([\w -]+)\*\*", cell)]


@pytest.mark.parametrize("word", engines_words())
def test_a_word_of_the_engine_is_used_in_its_code(word: str) -> None:
    code = [path for place in PLACES if place.startswith("lms/") for path in PROJECT.glob(place)]
    code += (PROJECT / "lms/baseline").iterdir()
    parts = re.split(r"[ -]", word.removeprefix("to ").removesuffix(" mark"))  # HighWater; evicting
    form = re.compile(r"[-_ ]?".join(part.removesuffix("e") + r"\w*" for part in parts), re.I)
    texts = (f"{path.relative_to(PROJECT)}\n{path.read_text()}" for path in code)
    assert any(form.search(text) for text in texts), f"{word} is in no code"


def test_how_a_word_is_found() -> None:
    assert uses("cell", "struct Cell {") and uses("cell", "idle_cell(8)")
    assert uses("cell", "IdleCells x") and uses("TakeBack", "runtime.TakeBack(buffer)")
    assert uses("HandOut", "HandOutForGood(x)") and uses("handed out", 'put("handed_out_bytes")')
    assert not uses("cell", "cancelled; excellent; SpaceLell") and not uses("tight", "tighten")
