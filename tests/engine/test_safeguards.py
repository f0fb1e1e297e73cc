# SPDX-License-Identifier: Apache-2.0
"""Every safeguard names one place of the code, and a wrong entry is told what to correct."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_build
import lacking
import negative  # noqa: F401  (finds the module of the next line but one)
import pytest
import safeguards
from safeguards import Safeguard, SafeguardError

from lmsbuild.base.project import find_project
from lmsbuild.series.series import series_of
from lmsbuild.tags.frameworks import Target, resolve
from lmsbuild.tags.runtimefiles import runtime_files
from lmsbuild.wheel.plugin import CODE, source_files
from lmsbuild.wheel.plugin import resolve as resolve_plugin

TAGS = {"torch": "v2.6.0", "tensorflow": "v2.14.1"}
ENTRIES = [(kind, entry) for kind in safeguards.KINDS for entry in safeguards.load(kind)]
PROGRAM = """
struct Engine {
  void enter(int a) {
    pin(a);
    bring_in(a, true);
  }
  void leave(int a) { pin(a); }
};
void Engine_free() { unpin(7); }
"""


def hooked(target: Target, file: str) -> str:
    """What the patches of a tag show of a file of upstream's, as it is then."""
    return "\n".join(
        line.text
        for patch in series_of(target).patches
        for hunk in patch.hunks_of(file)
        for line in hunk.lines
        if line.kind != "-"
    )


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each kind a folder with the runtime's files at their places."""
    project = find_project()
    found = {kind: tmp_path_factory.mktemp(kind) for kind in safeguards.KINDS}
    contents: dict[str, dict[str, bytes]] = {
        "engine": {file.name: file.read_bytes() for file in core_build.CORE.iterdir()},
        "plugin": {
            path.removeprefix(f"{CODE}/"): content
            for path, content in source_files(resolve_plugin(project, "2.6.0")).items()
        },
    }
    for kind, tag in TAGS.items():
        files = runtime_files(resolve(project, tag))
        contents[kind] = {path: file.read_bytes() for path, file in files.items()}
    for kind, files_of_kind in contents.items():
        for path, content in files_of_kind.items():
            file = found[kind] / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return found


@pytest.mark.parametrize(
    ("kind", "safeguard"), ENTRIES, ids=[f"{kind}-{entry.id}" for kind, entry in ENTRIES]
)
def test_entry_fits_the_code(trees: dict[str, Path], kind: str, safeguard: Safeguard) -> None:
    root = trees[kind]
    if kind in TAGS and not (root / safeguard.file).exists():
        shown = hooked(resolve(find_project(), TAGS[kind]), safeguard.file)
        assert shown, f"{safeguard.id}: no patch of {TAGS[kind]} touches {safeguard.file}"
        # Whole, and so by its function, the file is only in a patched tree: there the suite
        # `negative` looks.
        for search in safeguard.search:
            assert "".join(search.split()) in "".join(shown.split()), safeguard.id
        return
    beside = [file for file in root.rglob("*") if file.is_file()]
    text = safeguards.without(safeguard, root, beside)
    assert text != (root / safeguard.file).read_text()


OLDER = resolve(find_project(), "v1.13.1")
# What 1.13 has, too, but no test of it there shows; and why.
NOT_SHOWN = {
    "schema-writes-drop-the-copy": "without a write barrier whatever is used drops its copy",
    "foreign-operators-write": "without a write barrier whatever is used drops its copy",
    "running-statistics-are-written": "without a write barrier whatever is used drops its copy",
    "extensions-are-found": "without a write barrier what has a copy has no known last use",
    "in-waits-for-clean-users": "without a write barrier nothing leaves without a copy",
    "later-streams-wait-for-who-left": "without a write barrier nothing leaves without a copy",
    "turning-off-waits-for-who-left": "without a write barrier nothing leaves without a copy",
    "turning-off-waits-for-who-left-elsewhere": (
        "without a write barrier nothing leaves without a copy"
    ),
    "dying-range-waits-for-in": "without a write barrier nothing leaves without a copy",
    "overwrite-waits-for-in": "without a write barrier nothing leaves without a copy",
    "storage-methods-bring-in": "they reach memory by operators alone",
    "storage-methods-pin-while-off": "no mode of dispatch sees what a storage reads from a file",
    "lists-that-are-refused-stay-whole": "the operator that shows it has no CPU kernel",
    "copies-dropped-when-off": "without a write barrier no pointer on the device is wrapped",
    "denied-only-under-the-lock": "no pointer refuses to be read",
    "captures-that-cannot-begin-end-no-process": "its generators are told of no graphs",
    "levels-are-reached-through": "it has no torch.func",
    "past-modes": "its modes of dispatch see other operators",
    "anew-with-another-signature": "no operator can be taken away",
    "lazy-clones-run-once": "it copies no storage on a write",
    "a-child-frees-nothing": "the class of its allocator has another name",
}


@pytest.mark.parametrize("safeguard", safeguards.load("torch"), ids=lambda entry: entry.id)
def test_an_older_tag_has_what_an_entry_is_about(
    trees: dict[str, Path], safeguard: Safeguard
) -> None:
    """Its code, and what its test needs; or it says that it is for later versions."""
    shown = hooked(OLDER, safeguard.file)
    its_own = (trees["torch"] / safeguard.file).exists() or all(
        "".join(search.split()) in "".join(shown.split()) for search in safeguard.search
    )
    fits = its_own and lacking.of(f"tests/regression/{safeguard.test}") is None
    assert (safeguard.since <= (1, 13)) == (fits and safeguard.id not in NOT_SHOWN)
    assert fits or safeguard.id not in NOT_SHOWN


# What makes a stream, or the host, wait. Conditions of threads are not meant: without them nothing
# would be wrong but nobody woken.
WAIT = re.compile(
    r"(->wait\(\)|\bwait_fence(_at)?\(|\bwait_ready\(|(?<!::)\border\(|\bwait_for_(copies|one_)\("
    r"|\bcuda(Stream|Event)(Synchronize|WaitEvent)\()"
)
# Those that no safeguard names, and why.
UNGUARDED = {
    "copy->wait();": (
        "where the stream is captured, or an error stands: no graph of PyTorch's takes a block "
        "that has a copy under way, because its pool is its own"
    ),
    "wait_fence(device, stream, fence);": "is what `wait_fence_at` does, whose callers are named",
    "wait_fence_at(device, home, copy);": "is what `settle_copies` does, whose callers are named",
    "item.second->arrival->wait();": "is what `wait_for_copies` does, whose caller is named",
    "line.latest->wait();": (
        "where the program captures, past PyTorch, a stream with the handle of one that is gone, "
        "which no test has shown to fail without it"
    ),
    "set_mark(device, stream.stream())->wait();": (
        "where a graph is captured, before which the simulated device ends all that was queued"
    ),
    "C10_CUDA_CHECK(cudaStreamWaitEvent(stream, line.latest->event(), 0));": (
        "where CUDA gives a handle anew while the work of its first stream goes on, which the "
        "simulated device does not"
    ),
}


def waits(text: str) -> list[tuple[int, str]]:
    """The lines of a file that wait, by their number, without their comments."""
    lines = [line.split("//")[0].strip() for line in text.splitlines()]
    return [
        (number, line)
        for number, line in enumerate(lines, 1)
        if WAIT.search(line) and line.endswith((";", ")) {")) and not line.startswith("void ")
    ]


def test_every_wait_has_a_safeguard(trees: dict[str, Path]) -> None:
    """Or a reason why none is needed."""
    missing, reasons = [], set()
    for folder in ("c10/cuda/lms", "c10/cuda/lms/core"):
        for file in sorted((trees["torch"] / folder).glob("*.cpp")):
            text, named = file.read_text(), set()
            for kind, safeguard in ENTRIES:
                own = kind == "torch" and safeguard.file == f"{folder}/{file.name}"
                core = kind == "engine" and folder.endswith("core") and safeguard.file == file.name
                if own or core:
                    named |= safeguards.lines(safeguard, text)
            for number, line in waits(text):
                if number in named or number - 1 in named:  # or the condition above it is
                    continue
                reasons.add(line)
                if line not in UNGUARDED:
                    missing.append(f"{file.name}:{number}: {line}")
    assert missing == []
    assert reasons == UNGUARDED.keys()


@pytest.fixture
def entry(tmp_path: Path) -> Callable[..., Safeguard]:
    (tmp_path / "engine.cpp").write_text(PROGRAM)

    def make(**changed: Any) -> Safeguard:
        values = {"search": ("pin(a);",), "replace": ("",), "function": "Engine::enter", **changed}
        return Safeguard(**{"id": "a-b", "why": "", "file": "engine.cpp", "test": "t", **values})

    return make


def test_the_function_tells_equal_texts_apart(
    tmp_path: Path, entry: Callable[..., Safeguard]
) -> None:
    text = safeguards.without(entry(search=("pin( a )\n;",), replace=("hold(a);",)), tmp_path)
    assert text == PROGRAM.replace("pin(a);", "hold(a);", 1)
    text = safeguards.without(entry(function="Engine::leave"), tmp_path)
    assert text == PROGRAM.replace("{ pin(a); }", "{  }")


def test_two_places_of_one_safeguard(tmp_path: Path, entry: Callable[..., Safeguard]) -> None:
    both = entry(search=("pin(a);", "bring_in(a, true);"), replace=("", "pin(a);"))
    assert safeguards.without(both, tmp_path) == PROGRAM.replace("pin(a);", "", 1).replace(
        "bring_in(a, true);", "pin(a);"
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"function": ""}, "2 times instead of once in engine.cpp; .*name the function"),
        ({"search": ("unpin(7);",)}, "nowhere in Engine::enter of .*the text is in Engine_free$"),
        ({"search": ("unpin(8);",)}, "nowhere in Engine::enter of .*nearest there is 'pin"),
        ({"function": "Engine::entre", "search": ("x(a);",)}, "no such function.*Engine::enter"),
        ({"search": ("moved(a);",)}, "nowhere .*the text is in Moved::here of .*other.cpp"),
        ({"file": "gone.cpp", "search": ("moved(a);",)}, "no gone.cpp; .*Moved::here of .*other"),
    ],
    ids=["twice", "other-function", "nearest", "no-function", "moved", "no-file"],
)
def test_a_wrong_entry_is_told_what_to_correct(
    tmp_path: Path, entry: Callable[..., Safeguard], changed: dict[str, Any], says: str
) -> None:
    other = tmp_path / "other.cpp"
    other.write_text("void Moved::here() { moved(a); }\n")
    with pytest.raises(SafeguardError, match=f"(?s)^a-b: .*{says}"):
        safeguards.without(entry(**changed), tmp_path, [other])


@pytest.mark.parametrize(
    "wrong",
    ['id = "A"', 'id = "a"\nkind = "x"', 'id = "a"\nsearch = ["x", "y"]', 'id = "a"\nsearch = " "'],
    ids=["id", "field", "lists", "nothing"],
)
def test_a_file_with_errors(tmp_path: Path, wrong: str) -> None:
    rest = 'why = ""\nfile = "f"\nreplace = ""\ntest = "t"\n'
    rest += "" if "search" in wrong else 'search = "s"\n'
    (tmp_path / "torch.toml").write_text(f"[[safeguard]]\n{wrong}\n{rest}")
    with pytest.raises(SafeguardError, match=r"torch\.toml: "):
        safeguards.load("torch", tmp_path)


def test_how_a_suite_ended(tmp_path: Path) -> None:
    """Without an end it is stopped, and so is what it started."""

    def run(program: str, seconds: float) -> tuple[int | None, str]:
        command = [sys.executable, "-c", program]
        return safeguards.outcome(command, tmp_path, dict(os.environ), seconds)

    assert run("print('said'); raise SystemExit(3)", 60) == (3, "said\n")
    child = """if True:
        import pathlib, subprocess, time
        started = subprocess.Popen(["sleep", "600"])
        pathlib.Path("pid").write_text(str(started.pid))
        time.sleep(600)
    """
    assert run(child, 3) == (None, "no end")
    ended = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    for _ in range(200):  # killed, and soon gone
        if not ended.exists():
            break
        time.sleep(0.05)
    assert not ended.exists()
