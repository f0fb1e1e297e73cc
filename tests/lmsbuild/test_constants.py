# SPDX-License-Identifier: Apache-2.0
"""Each tuning constant of the runtime says what it trades: what more of it costs, and what less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "lms"
PLACES = ("core/*.[hc]*", "tensorflow/csrc/*.[hc]*", "pytorch/**/*.[hc]*", "plugin/csrc/*.[hc]*")
# Neither larger nor smaller would do: marks of no value, layouts, and what upstream has.
FIXED = {
    "core/crowd.h": ("kBegun",),
    "core/demand.h": ("kUnknown",),
    "core/host_memory.cpp": ("kBits", "kReserved"),
    "core/host_memory.h": ("kAnyNode",),
    "core/host_share.cpp": ("kNone",),
    "core/reclaim.h": ("kRoutes",),
    "core/rhythm.h": ("kUnknown",),
    "core/turns.cpp": ("kExpedited", "kRegisterExpedited", "kLooks"),
    "core/turns.h": ("kDependent",),
    "core/victims.cpp": ("kNever",),
    "plugin/csrc/Allocator.cpp": (
        *("kMinBlock", "kSmall", "kSmallSegment", "kMinLarge", "kRoundLarge", "kExabyte"),
        "kNoRoom",
    ),
    "plugin/csrc/Unseen.h": ("kTypes", "kActive", "kOfBlocks", "kStats"),
    "pytorch/c10/Fences.h": ("kWaits",),
    "pytorch/c10/State.h": ("kSmallBytes",),
    "pytorch/c10/Statistics.cpp": ("kGranule",),
    "tensorflow/csrc/switch.cc": ("kEnabledField",),
}
# A number, or a time; not text, nor a definition outside of the class that has the comment.
CONSTANT = re.compile(r"^ *(?:static )?constexpr (?!bool)[\w:<> ]+ (k[A-Z]\w*)(?: = |\{)(?!\{?$)")
TRADE = re.compile(
    r"\b(more|less|few|fewer|larger|smaller|longer|shorter|short|long|trades|costs?|rather)\b", re.I
)


def constants(text: str) -> Iterator[tuple[str, str]]:
    """Each, and the comment above it, or above those that it follows."""
    comment: list[str] = []
    above = False
    for line in text.splitlines():
        found = CONSTANT.match(line)
        if found:
            yield found[1], " ".join(comment)
            above = False
        elif line.lstrip().startswith("//"):
            comment = [*(comment if above else []), line.strip(" /")]
            above = True
        else:
            comment, above = [], False


FOUND = [
    (path.relative_to(RUNTIME).as_posix(), name, comment)
    for place in PLACES
    for path in sorted(RUNTIME.glob(place))
    if "__pycache__" not in path.parts
    for name, comment in constants(path.read_text())
]
TUNED = [entry for entry in FOUND if entry[1] not in FIXED.get(entry[0], ())]


@pytest.mark.parametrize(("file", "name", "comment"), TUNED, ids=[f"{f}-{n}" for f, n, _ in TUNED])
def test_a_tuning_constant_says_what_it_trades(file: str, name: str, comment: str) -> None:
    assert TRADE.search(comment), f"{file}: {name} says {comment!r}"


def test_the_constants_are_found() -> None:
    names = {name for _, name, _ in FOUND}
    assert {"kStuck", "kSegmentBytes", "kPatience", "kFirstGrace", "kMost", "kYoung"} <= names
    fixed = {(file, name) for file, names in FIXED.items() for name in names}
    assert fixed <= {(file, name) for file, name, _ in FOUND}, "FIXED names what is gone"


def test_how_a_comment_is_found() -> None:
    text = (
        "// Old.\n\n// Trades a\n// for b.\nconstexpr int kA = 1;\nconstexpr Time kB{2};\nint x;\n"
    )
    text += "constexpr int kC = 3;\nconstexpr int Class::kA;\nconstexpr Words kWords = {\n"
    assert list(constants(text)) == [
        ("kA", "Trades a for b."),
        ("kB", "Trades a for b."),
        ("kC", ""),
    ]
