# SPDX-License-Identifier: Apache-2.0
"""The state of each patch, and what is said of one that does not apply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import UPSTREAM, World, hook_files, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import LmsbuildError, PatchError, TreeStateError
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.series.patchstate import APPLIED, CONFLICT, EMPTY, NOT_REACHED, Conflict
from lmsbuild.series.patchstate import UPSTREAM as ALREADY
from lmsbuild.series.series import series_of

ALLOC = UPSTREAM["core/alloc.cpp"]


def failure(world: World, console: Console, clone: Path) -> LmsbuildError:
    before = snapshot(clone)
    with pytest.raises(LmsbuildError) as raised:
        apply(world.target, clone, console)
    assert snapshot(clone) == before
    return raised.value


def states(error: LmsbuildError) -> list[str]:
    found = error.details["states"]
    assert isinstance(found, list)
    return [state.state for state in found]


def conflict_of(error: LmsbuildError) -> Conflict:
    assert isinstance(error, PatchError)
    found = error.details["conflict"]
    assert isinstance(found, Conflict)
    return found


@pytest.mark.parametrize("fetched", [False, True])
def test_conflict_names_patch_file_hunk_and_both_sides(
    world: World, console: Console, fetched: bool
) -> None:
    """The tree's line differs, and lies three lines further down than the patch says."""
    clone = fetch(world.target, "git", None, console).path if fetched else world.clone()
    other = "// one\n// two\n// three\n" + ALLOC.replace("line20 = 20", "line20 = 77")
    world.commit(clone, {"core/alloc.cpp": other}, "Change upstream")
    error = failure(world, console, clone)
    assert states(error) == [APPLIED, CONFLICT, NOT_REACHED]
    found = conflict_of(error)
    assert (found.patch, found.file, found.hunk) == (
        series_of(world.target).patches[1].name, "core/alloc.cpp", 1,
    )  # fmt: skip
    assert [(x.number, x.text) for x in found.expected if x.differs] == [(20, "int line20 = 20;")]
    assert [(x.number, x.text) for x in found.found if x.differs] == [(23, "int line20 = 77;")]
    for part in (found.patch, "hunk 1 of core/alloc.cpp", "`int line20 = 20;`", "in line 23", "; "):
        assert part in error.message
    assert "lmsbuild apply v1.0 --into" in error.message


@pytest.mark.parametrize(
    ("old", "new", "why", "expected", "found"),
    [
        # Lines that are there still, though further down, are no reason.
        ("int line20", "int between;\nint line20", "expects nothing between `int line19 = 19;` and "
         "the line after it, where the tree has `int between;` in line 20", [], [20]),
        ("int line18 = 18;\n", "int a;\nint b;\nint line18 = 18;\n// gone\n",
         "has `int a;` in line 18", [], [18, 19, 21]),
        ("int line18 = 18;\nint line19 = 19;\n", "int a;\nint line18 = 18;\nint line19 = 91;\n",
         "expects `int line19 = 19;` where the tree has `int line19 = 91;` in line 20", [19],
         [18, 20]),
        ("int line22 = 22;\n", "", "expects `int line22 = 22;` where the tree has `int line23 = "
         "23;` in line 22", [22], []),
    ],
)  # fmt: skip
def test_a_line_that_only_moved_is_no_reason(
    world: World, console: Console, old: str, new: str, why: str, expected: list[int],
    found: list[int],
) -> None:  # fmt: skip
    clone = world.clone()
    world.commit(clone, {"core/alloc.cpp": ALLOC.replace(old, new, 1)}, "Change upstream")
    conflict = conflict_of(failure(world, console, clone))
    assert why in conflict.why
    assert [line.number for line in conflict.expected if line.differs] == expected
    assert [line.number for line in conflict.found if line.differs] == found


@pytest.mark.parametrize("place", ["beginning", "end"])
def test_what_goes_to_an_end_of_a_file_does_not_move(
    world: World, console: Console, place: str
) -> None:
    """git takes a hunk without lines before it at the first line alone, likewise at the end."""
    patch = series_of(world.target).patches[1].path
    clone = world.clone("develop")
    plain_git(clone, "am", "-q", "--keep-cr", str(series_of(world.target).patches[0].path))
    ours, theirs = "int ours;\n", "int theirs;\n"
    first = place == "beginning"
    changed = ours + ALLOC if first else ALLOC + ours
    world.commit(clone, {"core/alloc.cpp": changed}, "Call the engine\n\nThere.")
    patch.write_text(plain_git(clone, "format-patch", "-1", "--full-index", "--stdout") + "\n")
    tree = world.clone()
    moved = theirs + ALLOC if first else ALLOC + theirs
    world.commit(tree, {"core/alloc.cpp": moved}, "Other")
    found = conflict_of(failure(world, console, tree))
    assert f"expects its lines at the {place} of the file, where the tree has more" in found.why


def test_the_second_hunk_is_counted(world: World, console: Console) -> None:
    patch = series_of(world.target).patches[1].path
    clone = world.clone("develop")
    plain_git(clone, "am", "-q", "--keep-cr", str(series_of(world.target).patches[0].path))
    changed = ALLOC.replace("line3 = 3", "line3 = 4").replace("line35 = 35", "line35 = 36")
    world.commit(clone, {"core/alloc.cpp": changed}, "Call the engine\n\nTwice.")
    made = plain_git(clone, "format-patch", "-1", "--full-index", "--stdout") + "\n"
    patch.write_text(made)
    tree = world.clone()
    world.commit(tree, {"core/alloc.cpp": ALLOC.replace("line35 = 35", "line35 = 77")}, "Other")
    found = conflict_of(failure(world, console, tree))
    assert (found.hunk, found.file) == (2, "core/alloc.cpp")
    assert "`int line35 = 35;`" in found.why


def test_already_upstream(world: World, console: Console) -> None:
    """Upstream took the second patch and changed something of the third's file."""
    clone = world.clone()
    taken = next(iter(hook_files().values()))
    world.commit(clone, {**taken, "python/api.py": "def memory():\n    return 2\n"}, "Take it")
    assert states(failure(world, console, clone)) == [APPLIED, ALREADY, CONFLICT]


def test_everything_upstream(world: World, console: Console) -> None:
    """Nothing conflicts, but this is not the tag's code: refused, with the states."""
    clone = world.clone()
    taken = next(iter(hook_files().values()))
    world.commit(clone, {**taken, "core/alloc.h": "#pragma once\n"}, "Take it")
    error = failure(world, console, clone)
    assert isinstance(error, TreeStateError)
    assert states(error) == [APPLIED, ALREADY, APPLIED]


def test_empty(world: World, console: Console) -> None:
    patch = series_of(world.target).patches[1].path
    head = patch.read_text().split("\ndiff --git ")[0]
    patch.write_text(head + "\n")
    error = failure(world, console, world.clone())
    assert states(error) == [NOT_REACHED, EMPTY, NOT_REACHED]
    assert error.details["patch"] == series_of(world.target).patches[1].name
    assert "is empty; " in error.message
    patch.write_bytes(bytes(range(256)))
    assert "it is no mail with a diff; " in failure(world, console, world.clone("2")).message


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("core/lms/engine.cpp", "theirs\n", "core/lms/engine.cpp already exists"),
        ("core/alloc.cpp", None, "core/alloc.cpp"),
    ],
)
def test_whole_files(world: World, console: Console, name: str, text: str | None, why: str) -> None:
    clone = world.clone()
    if text is None:
        plain_git(clone, "rm", "-q", name)
        write(clone, {"core/alloc.cpp.in": "moved\n"})
        plain_git(clone, "add", "-A")
        plain_git(clone, "commit", "-q", "-m", "Move")
        with pytest.raises(LmsbuildError, match="alloc"):
            apply(world.target, clone, console)
        return
    world.commit(clone, {name: text}, "Theirs")
    error = failure(world, console, clone)
    assert conflict_of(error).file == name
    assert why in error.message
    assert states(error) == [CONFLICT, NOT_REACHED, NOT_REACHED]


def test_white_space_that_differs_is_shown(world: World, console: Console) -> None:
    clone = world.clone()
    world.commit(clone, {"core/alloc.cpp": ALLOC.replace("\n", "\r\n")}, "Change line ends")
    assert r"'int line17 = 17;\r'" in failure(world, console, clone).message


def test_a_damaged_patch(world: World, console: Console) -> None:
    patch = series_of(world.target).patches[1].path
    patch.write_bytes(patch.read_bytes().replace(b"-int line20 = 20;\n", b""))
    error = failure(world, console, world.clone())
    assert isinstance(error, PatchError)
    assert error.details["patch"] == series_of(world.target).patches[1].name
    assert "corrupt patch" in error.message


def test_screen_and_log(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The screen has a table of states and both sides, the log git's own text."""
    clone = world.clone()
    other = ALLOC.replace("line20 = 20", "line20 = 77")
    world.commit(clone, {"core/alloc.cpp": other}, "Change upstream")
    assert run(["apply", "v1.0", "--into", str(clone)]) == PatchError.exit_code
    out, err = capsys.readouterr()
    for words in (["Call-the-engine.patch", CONFLICT], ["Show-it-in-Python.patch", NOT_REACHED]):
        assert any(all(word in line for word in words) for line in out.splitlines()), out
    for line in ("the patch expects:", ">    20  int line20 = 20;", ">    20  int line20 = 77;"):
        assert line in out
    assert "patch failed" not in out + err
    path = log.path()
    assert path is not None and "patch failed: core/alloc.cpp:17" in path.read_text()
    assert run(["apply", "v1.0", "--into", str(clone), "--json"]) == PatchError.exit_code
    value = json.loads(capsys.readouterr().out)["error"]
    assert [state["state"] for state in value["states"]] == [APPLIED, CONFLICT, NOT_REACHED]
    assert {"number": 20, "text": "int line20 = 77;", "differs": True} in value["conflict"]["found"]
