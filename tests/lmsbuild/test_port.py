# SPDX-License-Identifier: Apache-2.0
"""A series taken to another tag: each kind of drift, and kill -9 at every step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import lmsbuild_processes
import pytest
from lmsbuild_drift import commit, commit_called, make_drift
from lmsbuild_kill import Killer, snapshot
from lmsbuild_wheels import ENGINE, PYTHON, build_libraries, edit, make_wheel
from lmsbuild_world import (
    REPOSITORY,
    UPSTREAM,
    World,
    enter_world,
    examples_of,
    hook_files,
    leave,
    plain_git,
    small_disk,
    write,
)
from test_arrange import check_marks

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import SuiteError
from lmsbuild.checkout import port
from lmsbuild.checkout.newtag import record
from lmsbuild.checkout.verify import verify
from lmsbuild.places.environment import TEST_TOOLS
from lmsbuild.series.patchstate import NOT_REACHED
from lmsbuild.series.series import series_of
from lmsbuild.series.standing import ORDER
from lmsbuild.ship import trial
from lmsbuild.tags import official
from lmsbuild.tags.frameworks import Target, resolve

# Names of releases: a tag is ported to under the name of one.
RELEASES = {
    "v1.1-moved": "v1.1", "v1.2-merged": "v1.2", "v1.3-conflict": "v1.3", "v1.5-renamed": "v1.5",
    "v1.6-deleted": "v1.6", "v1.7-taken": "v1.7", "v1.8-in-the-way": "v1.8",
}  # fmt: skip


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    make_drift(folder)
    for tag, release in RELEASES.items():
        plain_git(folder / "upstream", "tag", release, tag)
    return folder


@pytest.fixture
def drift(drifted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(drifted, tmp_path, dirs_exist_ok=True, symlinks=True)
    return enter_world(tmp_path, monkeypatch)


class Porting:
    """lmsbuild in this process, and what it made."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = world
        self.capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        found = run([*arguments, "--json"])
        printed = self.capsys.readouterr()
        assert found == code, printed.err
        value = json.loads(printed.out)
        return value["error"] if code else value

    def port(self, tag: str, *more: str, code: int = 0) -> Any:
        source = ("--source", str(self.world.upstream))
        return self.run("port", "v1.0", tag, *source, *more, code=code)

    def checkout(self, tag: str) -> Path:
        return self.world.folder / f"work/alpha-{tag}/source"

    def target(self, tag: str) -> Target:
        return resolve(self.world.project, tag)


@pytest.fixture
def porting(drift: World, capsys: pytest.CaptureFixture[str]) -> Porting:
    return Porting(drift, capsys)


def states(value: Any) -> list[str]:
    return [patch["state"] for patch in value["patches"]]


def check_supported(porting: Porting, tag: str, patches: int) -> None:
    """The tag is one like any other: its patches are in order, and git takes them."""
    target = porting.target(tag)
    checkout = porting.checkout(tag)
    checked = verify(target, Console(json_mode=True), checkout)
    assert checked.problems == [] and checked.origin
    assert all(check.state == "ok" for check in checked.checks), checked
    files = [str(patch.path) for patch in series_of(target).patches]
    assert len(files) == patches
    clone = porting.world.clone("again")
    plain_git(clone, "checkout", "-q", "--detach", tag)
    plain_git(clone, "am", "-q", "--keep-cr", *files)
    trees = [plain_git(place, "rev-parse", "HEAD^{tree}") for place in (clone, checkout)]
    assert trees[0] == trees[1]
    assert plain_git(checkout, "status", "--porcelain") == ""
    assert not (checkout / ".git/lmsbuild/port.json").exists()


@pytest.mark.parametrize(
    ("tag", "wanted", "patches"),
    [
        ("v1.1", ["applied", "moved", "applied"], 3),
        ("v1.2", ["applied", "merged", "applied"], 3),
        ("v1.5", ["applied", "applied", "renamed"], 3),
        ("v1.7", ["applied", "already upstream", "applied"], 2),
    ],
)
def test_what_needs_nobody(porting: Porting, tag: str, wanted: list[str], patches: int) -> None:
    done = porting.port(tag)
    assert states(done) == wanted
    check_supported(porting, tag, patches)
    target = porting.target(tag)
    assert target.tag.commit == plain_git(porting.world.upstream, "rev-parse", f"{tag}^{{commit}}")
    assert target.tag.version == tag.removeprefix("v")
    # The wheel of another tag is not taken for that of this one.
    assert target.pythons == [] and any("wheels" in what for what in done["unknown"])
    # What is still as of the old tag is named as well.
    for kept in ("pins", "uses", "alone", "tools", "images", "full", "overlay"):
        assert any(f"`{kept}`" in what for what in done["unknown"])
    error = porting.run("wheel", tag, code=4)
    assert f"patches/alpha/{tag}/tag.toml records none" in error["message"]
    status = porting.run("status", tag)["checkouts"][0]
    assert [patch["state"] for patch in status["patches"]] == ["applied"] * patches
    assert status["next"].startswith(f"complete patches/alpha/{tag}/tag.toml"), status["next"]


def test_a_renamed_file_is_patched_under_its_new_name(porting: Porting) -> None:
    done = porting.port("v1.5")
    assert "memory.py" in done["patches"][2]["notes"][0]
    assert commit_called(porting.world, "v1.5", "Rename the file")[:12] in str(done["patches"])
    assert (porting.checkout("v1.5") / "python/memory.py").read_text().endswith("return 1\n")
    assert "python/memory.py" in porting.target("v1.5").tag.preimage
    assert not (porting.checkout("v1.5") / "python/api.py").exists()


def again(porting: Porting, because: str) -> None:
    """The series with a trailer in its last patch, which upstream's renamed file is in."""
    patch = series_of(porting.world.target).patches[2].path
    head, mark, diff = patch.read_bytes().partition(b"\ndiff --git ")
    patch.write_bytes(head.rstrip() + f"\n\n{because}\n".encode() + mark + diff)


@pytest.mark.parametrize("tag", ["v1.5", "v1.9"])
def test_a_trailer_names_the_file_as_it_is_called_there(porting: Porting, tag: str) -> None:
    """Also where a person had to resolve what else upstream did to it."""
    again(porting, "Touches-again: python/api.py because of it\nTest: python/api.py")
    if tag == "v1.9":
        upstream = porting.world.upstream
        plain_git(upstream, "checkout", "-q", "--detach", "v1.5")
        commit(upstream, {"python/memory.py": "def memory():\n    return 7\n"}, "Seven")
        plain_git(upstream, "tag", tag)
        assert "expects `return 0`" in porting.port(tag, code=9)["message"]
        checkout = porting.checkout(tag)
        write(checkout, {"python/memory.py": "def memory():\n    return 8\n"})
        plain_git(checkout, "add", "-A")
        porting.run("port", "--continue")
    else:
        porting.port(tag)
    (message,) = [
        patch.mail.message
        for patch in series_of(porting.target(tag)).patches
        if patch.subject == "Show it in Python"
    ]
    assert message.endswith("Touches-again: python/memory.py because of it\nTest: python/api.py")


def test_the_licence_of_a_ported_tag_is_its_first_line(porting: Porting) -> None:
    toml = porting.world.tag_file
    toml.write_text(f"# SPDX-License-Identifier: Apache-2.0\n# By hand.\n\n{toml.read_text()}")
    porting.port("v1.1")
    made = porting.world.project.patches / "alpha/v1.1/tag.toml"
    first, second, third, fourth, *_ = made.read_text().splitlines()
    assert (first, second, third) == ("# SPDX-License-Identifier: Apache-2.0", "# By hand.", "#")
    assert fourth.startswith("# Ported from v1.0. ")
    # From there it goes on without what was said of the first port.
    porting.run("port", "v1.1", "v1.2", "--source", str(porting.world.upstream))
    text = (made.parents[1] / "v1.2/tag.toml").read_text()
    assert text.startswith(
        "# SPDX-License-Identifier: Apache-2.0\n# By hand.\n#\n# Ported from v1.1"
    )
    assert "v1.0" not in text


def test_a_source_of_the_overlay_that_is_gone_is_named(porting: Porting) -> None:
    write(porting.world.project.root, {})
    toml = porting.world.tag_file
    text = toml.read_text().replace('"core/alloc.cpp", ', '"core/alloc.cpp", "python/api.py", ')
    toml.write_text(text)
    done = porting.port("v1.5")
    assert any("not there: python/api.py" in what for what in done["unknown"])


def conflict(porting: Porting) -> Path:
    """A port that stopped at its second patch."""
    error = porting.port("v1.3", code=9)
    checkout = porting.checkout("v1.3")
    assert states(error) == ["applied", "conflict"]
    assert error["files"] == ["core/CMakeLists.txt", "core/alloc.cpp"]
    for part in ("`int line20 = 20;`", "Change the line", str(checkout), "port --continue"):
        assert part in error["message"]
    return checkout


def resolve_conflict(checkout: Path) -> None:
    text = (checkout / "core/alloc.cpp").read_text()
    before, _, rest = text.partition("<<<<<<< upstream\n")
    after = rest.partition("\n>>>>>>> ")[2].partition("\n")[2]
    (checkout / "core/alloc.cpp").write_text(f"{before}int line20 = 78;\n{after}")
    plain_git(checkout, "add", "core/alloc.cpp")


def test_a_conflict_is_laid_out_as_git_does(porting: Porting) -> None:
    checkout = conflict(porting)
    listed = plain_git(checkout, "status", "--porcelain").splitlines()
    assert [line.split() for line in listed] == [
        ["M", "core/CMakeLists.txt"],
        ["UU", "core/alloc.cpp"],
    ]
    text = (checkout / "core/alloc.cpp").read_text()
    assert "<<<<<<< upstream\nint line20 = 77;\n" in text and "int line20 = 21;\n>>>>>>>" in text
    stages = plain_git(checkout, "ls-files", "-u").splitlines()
    contents = [plain_git(checkout, "cat-file", "blob", line.split()[1]) for line in stages]
    assert [("20 = 20;" in c, "20 = 77;" in c, "20 = 21;" in c) for c in contents] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    (status,) = porting.run("status")["checkouts"]
    assert status["path"] == str(checkout)
    assert "port" in status["under_way"] and "--continue" in status["next"]
    assert status["other"] is None
    # Of the tag that it goes to, and of the patches that are ported, not of those of another tag.
    assert status["tag"] == "alpha:v1.3" and status["port_of"] == "alpha:v1.0"
    assert states(status) == ["applied", "conflict", NOT_REACHED]
    assert [each["patch"] for each in status["patches"]] == [
        patch.name for patch in series_of(porting.world.target).patches
    ]
    for spec in ("v1.3", "1.3", "alpha:v1.3"):
        assert porting.run("status", spec)["checkouts"] == [status]
    assert porting.run("status", "v1.2", code=3)["kind"] == "UnknownTagError"
    porting.capsys.readouterr()
    assert run(["status"]) == 0
    head = f"alpha:v1.3 (a port of alpha:v1.0) {checkout}\n"
    assert head in porting.capsys.readouterr().out


def test_continue_takes_what_is_staged(porting: Porting, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = conflict(porting)
    assert "still in conflict" in porting.run("port", "--continue", code=8)["message"]
    plain_git(checkout, "add", "core/alloc.cpp")
    assert "marks of a conflict" in porting.run("port", "--continue", code=8)["message"]
    check_marks(checkout, lambda: porting.run("port", "--continue", code=8)["message"])
    resolve_conflict(checkout)
    write(checkout, {"python/api.py": "def memory():\n    return 9\n"})
    assert "not staged" in porting.run("port", "--continue", code=8)["message"]
    plain_git(checkout, "checkout", "python/api.py")
    monkeypatch.chdir(checkout)
    done = porting.run("port", "--continue")
    assert states(done) == ["applied", "resolved", "applied"]
    check_supported(porting, "v1.3", 3)
    subject = plain_git(checkout, "log", "-1", "--format=%s", "HEAD~1")
    assert subject == series_of(porting.world.target).patches[1].subject


def test_continue_takes_what_the_user_committed(porting: Porting) -> None:
    checkout = conflict(porting)
    resolve_conflict(checkout)
    plain_git(checkout, "commit", "-q", "-m", "Call it my way\n\nBecause I can.")
    assert states(porting.run("port", "--continue")) == ["applied", "resolved", "applied"]
    assert "0001-Call-it-my-way.patch" in {
        patch.path.name for patch in series_of(porting.target("v1.3")).patches
    }


def test_skip_leaves_the_patch_out(porting: Porting) -> None:
    checkout = conflict(porting)
    write(checkout, {"core/alloc.cpp": "half done\n"})
    done = porting.run("port", "--skip")
    assert states(done) == ["applied", "skipped", "applied"]
    assert "int line20 = 77;" in (checkout / "core/alloc.cpp").read_text()
    # Upstream's build does not list the runtime without that patch, which `verify` tells.
    patches = [patch.subject for patch in series_of(porting.target("v1.3")).patches]
    assert patches[1:] == ["Show it in Python"]


class Stopped(BaseException):
    pass


def test_nothing_goes_between_a_port_and_its_end(
    porting: Porting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag is written down as the last step, be it after a kill, of what is still there."""
    checkout = conflict(porting)
    into = ("--into", str(checkout))
    abort: list[tuple[int, str, str]] = []

    def late(*given: Any) -> list[str]:
        abort.append(lmsbuild_processes.run("port", "--abort", *into))
        if len(abort) == 1:
            raise Stopped
        return record(*given)

    monkeypatch.setattr(port, "record", late)
    with pytest.raises(Stopped):
        run(["port", "--skip", *into])
    assert states(porting.run("port", "--continue", *into)) == ["applied", "skipped", "applied"]
    for code, _, err in abort:
        assert code == 16 and "`lmsbuild port alpha:v1.0 v1.3` (process" in err
    assert plain_git(checkout, "log", "-1", "--format=%s") == "Show it in Python"
    assert series_of(porting.target("v1.3")).patches


def test_the_clone_may_be_gone_since(porting: Porting) -> None:
    clone = porting.world.clone("lent")
    porting.run("port", "v1.0", "v1.3", "--source", str(clone), code=9)
    shutil.rmtree(clone)
    resolve_conflict(porting.checkout("v1.3"))
    assert states(porting.run("port", "--continue")) == ["applied", "resolved", "applied"]
    check_supported(porting, "v1.3", 3)


def test_abort_gives_back_the_checkout(porting: Porting) -> None:
    clone = porting.world.clone("mine")
    plain_git(clone, "checkout", "-q", "-b", "work", "v1.3")
    before = snapshot(clone)
    porting.port("v1.3", "--into", str(clone), code=9)
    assert snapshot(clone) != before
    assert porting.run("port", "--abort", "--into", str(clone))["head"]
    plain_git(clone, "update-index", "-q", "--refresh")
    assert {**snapshot(clone), "index file": ""} == {**before, "index file": ""}
    assert plain_git(clone, "status", "--porcelain") == ""
    assert not (porting.world.project.patches / "alpha/v1.3").exists()
    porting.port("v1.3", "--into", str(clone), code=9)


@pytest.mark.parametrize(
    ("name", "value"), [("refs", {}), ("tip", "--output=x"), ("start", "HEAD"), ("todo", [])]
)
def test_its_note_that_is_damaged(porting: Porting, name: str, value: Any) -> None:
    note = conflict(porting) / ".git/lmsbuild/port.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), name: value}))
    for step in ("--abort", "--skip", "--continue"):
        assert "is damaged" in porting.run("port", step, code=17)["message"]


@pytest.mark.parametrize("what", ["laid", "tag", "todo"])
def test_its_note_reaches_nothing_outside(porting: Porting, what: str) -> None:
    checkout = conflict(porting)
    victim = checkout.parent.parent / "victim"
    victim.write_text("mine\n")
    note = checkout / ".git/lmsbuild/port.json"
    value = json.loads(note.read_text())
    value[what] = "../../victim" if what == "tag" else [*value[what], "../../victim"]
    note.write_text(json.dumps(value))
    for step in ("--abort", "--skip", "--continue"):
        assert "is damaged" in porting.run("port", step, code=17)["message"]
    assert victim.read_text() == "mine\n"


def test_the_examples_of_port_are_run(porting: Porting, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other; TO is one that needs a person."""
    source = porting.world.folder / "src"
    source.mkdir()
    (source / "pytorch").symlink_to(porting.world.upstream)
    monkeypatch.setenv("HOME", str(porting.world.folder))
    lines = examples_of("port")
    assert any("--continue" in words for words in lines)
    for words in lines:
        if "--continue" in words:
            resolve_conflict(porting.checkout("v1.3"))
        names = {"v2.6.0": "v1.0", "v2.7.0": "v1.3"}
        begins = "--continue" not in words and "--dry-run" not in words
        porting.run(*(names.get(word, word) for word in words), code=9 if begins else 0)
    check_supported(porting, "v1.3", 3)


def test_what_is_not_of_the_port_is_kept(porting: Porting) -> None:
    checkout = conflict(porting)
    write(checkout, {"python/api.py": "mine\n"})
    for step in ("--abort", "--skip"):
        assert "python/api.py" in porting.run("port", step, code=8)["message"]
    assert (checkout / "python/api.py").read_text() == "mine\n"


def test_a_deleted_file_is_laid_out_as_git_does(porting: Porting) -> None:
    error = porting.port("v1.6", code=9)
    assert states(error) == ["applied", "applied", "deleted"]
    assert commit_called(porting.world, "v1.6", "Remove the file")[:12] in error["message"]
    checkout = porting.checkout("v1.6")
    assert "DU python/windows.py" in plain_git(checkout, "status", "--porcelain")
    assert (checkout / "python/windows.py").read_bytes() == b"first = 1\r\nsecond = 3\r\n"
    plain_git(checkout, "rm", "-q", "--cached", "python/windows.py")
    (checkout / "python/windows.py").unlink()
    assert states(porting.run("port", "--continue")) == ["applied", "applied", "resolved"]
    check_supported(porting, "v1.6", 3)


def test_a_new_file_that_is_there_already(porting: Porting) -> None:
    error = porting.port("v1.8", code=9)
    assert states(error) == ["conflict"]
    checkout = porting.checkout("v1.8")
    assert "AA core/lms/engine.cpp" in plain_git(checkout, "status", "--porcelain")
    assert (checkout / "core/lms/engine.h").exists()


@pytest.mark.parametrize("link", [True, False])
def test_where_the_tag_is_written_down_is_no_folder(porting: Porting, link: bool) -> None:
    """Told before anything is fetched; what a link leads to is not written to."""
    place, outside = porting.world.project.patches / "alpha/v1.1", porting.world.folder / "outside"
    outside.mkdir()
    if link:
        place.symlink_to(outside)
    else:
        place.write_text("a file")
    assert "is no folder; remove it" in porting.port("v1.1", code=2)["message"]
    assert not [*outside.iterdir()] and not porting.checkout("v1.1").exists()


def another_kind(world: World, kind: str) -> str:
    """A release in which something stands where a file of the last patch goes."""
    plain_git(world.upstream, "checkout", "-q", "--detach", "v1.0")
    if kind == "submodule":
        head = plain_git(world.upstream, "rev-parse", "HEAD").strip()
        plain_git(world.upstream, "rm", "-q", "python/api.py")
        entry = f"160000,{head},python/api.py"
        plain_git(world.upstream, "update-index", "--add", "--cacheinfo", entry)
        plain_git(world.upstream, "commit", "-qm", "Make it a submodule")
    elif kind == "folder":
        commit(world.upstream, {"python/api.py": None}, "Remove it")
        commit(world.upstream, {"python/api.py/inner.py": "x = 1\n"}, "Make it a folder")
    elif kind == "new":
        commit(world.upstream, {"python/lms.py/x": "x = 1\n"}, "Have such a folder")
    plain_git(world.upstream, "tag", "v2.0")
    plain_git(world.upstream, "checkout", "-qf", "main")
    return {"new": "python/lms.py"}.get(kind, "python/api.py")


@pytest.mark.parametrize("kind", ["submodule", "folder", "new"])
def test_where_no_file_can_be(porting: Porting, kind: str) -> None:
    """It is told, as in a survey; what is there stays, and nothing is lost on the way."""
    path = another_kind(porting.world, kind)
    source = ("--source", str(porting.world.upstream))
    found = porting.run("survey", "v1.0", *source, "--tags", "v2.0")
    assert [row["state"] for row in found["surveyed"]] == ["applied", "applied", "conflict"]
    what = f"{path} is a {'submodule' if kind == 'submodule' else 'folder'} there"
    error = porting.port("v2.0", code=9)
    assert states(error) == ["applied", "applied", "conflict"] and what in error["message"]
    assert path not in error["files"] and "python/windows.py" in error["files"]
    told = porting.run("port", "--continue", code=8)["message"]
    assert what in told and "make room" in told
    checkout = porting.checkout("v2.0")
    before = plain_git(porting.world.upstream, "rev-parse", "v2.0^{commit}")
    porting.run("port", "--abort")
    assert plain_git(checkout, "rev-parse", "HEAD") == before
    assert plain_git(checkout, "status", "--porcelain") == ""
    porting.port("v2.0", code=9)
    if kind == "submodule":  # no patch can replace one; what the user commits has the rest
        plain_git(checkout, "commit", "-qm", "Show it in Python\n\nWithout the submodule.")
    else:
        plain_git(checkout, "rm", "-q", "-r", "--cached", path)
        shutil.rmtree(checkout / path)
        write(checkout, {path: "def memory():\n    return 1\n"})
        plain_git(checkout, "add", path)
    assert states(porting.run("port", "--continue"))[2] == "resolved"
    check_supported(porting, "v2.0", 3)


def test_a_file_where_the_runtimes_folder_goes(porting: Porting) -> None:
    world = porting.world
    plain_git(world.upstream, "checkout", "-q", "--detach", "v1.0")
    commit(world.upstream, {"core/lms": "a file\n"}, "Have a file")
    plain_git(world.upstream, "tag", "v2.0")
    plain_git(world.upstream, "checkout", "-qf", "main")
    error = porting.port("v2.0", code=9)
    assert "core/lms is no folder there" in error["message"]
    porting.run("port", "--abort")
    assert (porting.checkout("v2.0") / "core/lms").read_text() == "a file\n"


def test_a_file_that_ends_without_a_line_break(porting: Porting) -> None:
    world = porting.world
    plain_git(world.upstream, "checkout", "-q", "--detach", "v1.0")
    commit(world.upstream, {"python/api.py": "def memory():\n    return 0"}, "Cut it")
    plain_git(world.upstream, "tag", "v2.0")
    plain_git(world.upstream, "checkout", "-qf", "main")
    error = porting.port("v2.0", code=9)
    assert (
        "expects a line break at the end of the file, where the tree has none" in error["message"]
    )


def drifted_to(porting: Porting, files: dict[str, str | None]) -> str:
    """A tag of upstream's, `v2.0`, which is v1.0 with these files."""
    upstream = porting.world.upstream
    plain_git(upstream, "checkout", "-q", "--detach", "v1.0")
    commit(upstream, files, "Drift")
    plain_git(upstream, "tag", "v2.0")
    plain_git(upstream, "checkout", "-qf", "main")
    return "v2.0"


def test_a_file_of_a_patch_that_is_upstream_already_is_named(porting: Porting) -> None:
    hooks = next(iter(hook_files().values()))
    tag = drifted_to(porting, {"core/alloc.cpp": hooks["core/alloc.cpp"]})
    done = porting.port(tag)
    assert states(done) == ["applied", "applied", "applied"]
    assert done["patches"][1]["notes"] == ["core/alloc.cpp has its change already"]
    check_supported(porting, tag, 3)


def test_a_hunk_that_is_upstream_already(porting: Porting) -> None:
    """And one in the same file that is not."""
    world = porting.world
    clone = world.clone("develop")
    files = [str(patch.path) for patch in series_of(world.target).patches]
    plain_git(clone, "am", "-q", "--keep-cr", *files)
    text = (clone / "core/alloc.cpp").read_text().replace("line2 = 2", "line2 = 22")
    write(clone, {"core/alloc.cpp": text.replace("line38 = 38", "line38 = 83")})
    plain_git(clone, "commit", "-qam", "Change two")
    made = plain_git(clone, "format-patch", "-1", "--full-index", "--stdout") + "\n"
    (world.tag_file.parent / "0003-Change-two.patch").write_text(made)
    taken = UPSTREAM["core/alloc.cpp"].replace("line2 = 2;", "line2 = 22;")
    tag = drifted_to(porting, {"core/alloc.cpp": taken})
    assert states(porting.port(tag)) == ["applied", "applied", "applied", "merged"]
    text = (porting.checkout(tag) / "core/alloc.cpp").read_text()
    assert text.count("line2 = 22;") == text.count("line38 = 83;") == 1
    check_supported(porting, tag, 4)


def test_a_file_that_is_split_goes_on_in_its_larger_part(porting: Porting) -> None:
    parts = {"python/one.py": "def memory():\n", "python/two.py": "    return 0\n"}
    tag = drifted_to(porting, {"python/api.py": None, **parts})
    error = porting.port(tag, code=9)
    assert states(error) == ["applied", "applied", "conflict"]
    by = commit_called(porting.world, tag, "Drift")[:12]
    where = f"python/api.py is called python/one.py there: commit {by}"
    assert where in "; ".join(error["patches"][2]["notes"])
    assert "UU python/one.py" in plain_git(porting.checkout(tag), "status", "--porcelain")


def test_other_line_ends_are_a_conflict(porting: Porting) -> None:
    """What a merge would make of them, nobody has seen."""
    tag = drifted_to(porting, {"core/alloc.cpp": UPSTREAM["core/alloc.cpp"].replace("\n", "\r\n")})
    error = porting.port(tag, code=9)
    assert "`'int line17 = 17;'` where the tree has 'int line17 = 17;\\r'" in error["message"]
    checkout = porting.checkout(tag)
    write(checkout, {"core/alloc.cpp": "resolved = 1\r\n"})
    plain_git(checkout, "add", "core/alloc.cpp")
    porting.run("port", "--continue")
    assert (checkout / "core/alloc.cpp").read_bytes() == b"resolved = 1\r\n"
    check_supported(porting, tag, 3)


@pytest.mark.parametrize("line", ["line19 = 19", "line18 = 18"], ids=["applied", "merged"])
def test_a_mode_of_upstreams_is_kept(porting: Porting, line: str) -> None:
    upstream = porting.world.upstream
    plain_git(upstream, "checkout", "-q", "--detach", "v1.0")
    (upstream / "core/alloc.cpp").chmod(0o755)
    text = UPSTREAM["core/alloc.cpp"]
    if "18" in line:
        text = text.replace(line, line.replace(" =", "="))
    write(upstream, {"core/alloc.cpp": text})
    plain_git(upstream, "commit", "-qam", "Let it run")
    plain_git(upstream, "tag", "v2.0")
    plain_git(upstream, "checkout", "-qf", "main")
    done = porting.port("v2.0")
    assert states(done) == ["applied", "merged" if "18" in line else "applied", "applied"]
    listed = plain_git(porting.checkout("v2.0"), "ls-files", "-s", "core/alloc.cpp")
    assert listed.startswith("100755 ")
    check_supported(porting, "v2.0", 3)


def test_a_full_disk_leaves_the_port_as_it_was(porting: Porting) -> None:
    """At its beginning and in its middle; with room it goes on."""
    source = ("--source", str(porting.world.upstream))
    with small_disk(porting.world.folder / "disk", "3m") as disk:
        place = ("--into", str(disk / "source"))
        leave(disk, 60_000)
        error = porting.run("port", "v1.0", "v1.3", *source, *place, code=18)
        assert "No space left" in error["message"]
        assert [path.name for path in disk.iterdir()] == ["filler"]
        leave(disk, 500_000)
        porting.run("port", "v1.0", "v1.3", *source, *place, code=9)
        before = porting.run("status", *place)
        leave(disk, 0)
        porting.run("port", "--skip", *place, code=18)
        assert porting.run("status", *place) == before
        leave(disk, 500_000)
        assert states(porting.run("port", "--skip", *place)) == ["applied", "skipped", "applied"]


def test_an_empty_patch_is_left_out(porting: Porting) -> None:
    patch = series_of(porting.world.target).patches[1].path
    patch.write_text(patch.read_text().split("\ndiff --git ")[0] + "\n")
    assert states(porting.port("v1.1")) == ["applied", "empty", "applied"]


def test_from_a_tree_without_history(porting: Porting) -> None:
    """A tarball's: upstream's commit is not known, and pre-images are found all the same."""
    tree = porting.world.folder / "tree"
    listed = f"git -C {porting.world.upstream} archive v1.1 | tar x -C {tree}"
    tree.mkdir()
    subprocess.run(["sh", "-c", listed], check=True)
    done = porting.run("port", "v1.0", "v1.1", "--source", str(tree))
    assert states(done) == ["applied", "moved", "applied"]
    target = porting.target("v1.1")
    assert target.tag.commit == "0" * 40 and "upstream's commit" in done["unknown"][0]
    assert len(target.tag.preimage) == 4


def test_dry_run_changes_nothing(porting: Porting) -> None:
    before = snapshot(porting.world.upstream)
    assert states(porting.port("v1.3", "--dry-run")) == ["applied", "conflict", "applied"]
    assert snapshot(porting.world.upstream) == before
    assert not porting.checkout("v1.3").exists()
    assert not (porting.world.project.patches / "alpha/v1.3").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["v1.0", "v1.0"], 2, "supported already"),
        (["v1.0", "main"], 2, "the name of no release"),
        (["v1.0", "../v1.1"], 2, "the name of no release"),
        (["v1.0", "beta:v1.1"], 2, "another framework"),
        (["v1.0", "v9.9"], 6, "no such tag"),
        (["v1.0"], 2, "FROM or TO is missing"),
        (["--continue"], 2, "no port is under way"),
        (["--abort", "v1.0"], 2, "leave it out"),
        (["--skip", "--dry-run"], 2, "leave it out"),
    ],
)
def test_wrong_use(porting: Porting, words: list[str], code: int, message: str) -> None:
    found = porting.run("port", *words, "--source", str(porting.world.upstream), code=code)
    assert message in found["message"]


def test_another_commit_than_the_tag_is_refused(porting: Porting) -> None:
    clone = porting.world.clone("mine")
    error = porting.port("v1.3", "--into", str(clone), code=8)
    assert "git checkout v1.3" in error["message"]


def test_no_other_command_goes_between(porting: Porting) -> None:
    checkout = str(conflict(porting))
    assert "under way" in porting.port("v1.3", code=8)["message"]
    assert "lmsbuild port" in porting.run("apply", "v1.0", "--into", checkout, code=8)["message"]


def test_a_series_that_changes_meanwhile(porting: Porting) -> None:
    checkout = conflict(porting)
    resolve_conflict(checkout)
    patch = series_of(porting.world.target).patches[2].path
    patch.write_bytes(patch.read_bytes().replace(b"return 1", b"return 2"))
    assert "changed since it began" in porting.run("port", "--continue", code=7)["message"]


def test_the_page_has_a_word_for_every_standing() -> None:
    page = (REPOSITORY / "docs/porting.md").read_text(encoding="utf-8")
    assert [state for state in ORDER if state not in page] == [NOT_REACHED]


# built and tried


SUITE = {
    "tests/regression/conftest.py": """
def pytest_addoption(parser):
    for name in ("--device", "--stock", "--tier", "--shard"):
        parser.addoption(name)
""",
    "tests/regression/test_api.py": """
from alpha import api

def test_memory():
    assert api.memory() == 1
""",
}


def offer_releases(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Official wheels of alpha 1.1 and 1.3, that only the index tells of."""
    folder = world.folder / "index"
    folder.mkdir()
    for version in ("1.1", "1.3"):
        make_wheel(folder, build_libraries(folder), f"cp{PYTHON.replace('.', '')}", version)
    monkeypatch.setattr(official, "PYTHONS", (PYTHON,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    edit(world, ENGINE)
    return folder


def check_built(porting: Porting, done: Any, tag: str) -> None:
    assert Path(done["wheel"]).name.startswith(f"alpha-{tag.removeprefix('v')}+lms.1-cp3")
    with zipfile.ZipFile(done["wheel"]) as made:
        assert b"engine" in made.read("alpha/lib/libcore.so")
    assert porting.target(tag).wheel.sha256.keys() == {PYTHON}


def how(porting: Porting, tag: str) -> str:
    found = porting.target(tag).tag.verified
    assert found and found.on == date.today()
    return found.how


@pytest.mark.default
def test_a_port_is_compiled_at_its_end(porting: Porting, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_releases(porting.world, monkeypatch)
    done = porting.port("v1.1", "--wheel")
    check_built(porting, done, "v1.1")
    assert how(porting, "v1.1") == "built" and done["suites"] is None


@pytest.mark.default
@pytest.mark.parametrize("step", ["--continue", "--skip"])
def test_a_port_that_goes_on_is_compiled_at_its_end(
    porting: Porting, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also when it was not asked for at the beginning."""
    offer_releases(porting.world, monkeypatch)
    checkout = conflict(porting)
    if step == "--continue":
        resolve_conflict(checkout)
        check_built(porting, porting.run("port", step, "--wheel"), "v1.3")
        assert how(porting, "v1.3") == "built"
    else:  # the hook that lists the engine is left out, so the wheel cannot be made
        error = porting.run("port", step, "--wheel", code=4)
        assert "make the two lists equal" in error["message"]
        assert how(porting, "v1.3") == "applied"


def test_what_was_only_ported_is_applied(porting: Porting) -> None:
    porting.port("v1.1")
    assert how(porting, "v1.1") == "applied"


SOME_TOOLS = [word for word in TEST_TOOLS if "tree-sitter" not in word]


@pytest.fixture(scope="module")
def wheels_of_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder)]
    subprocess.run([*command, *SOME_TOOLS, "numpy"], check=True)
    return folder


@pytest.mark.net
@pytest.mark.parametrize(
    "good", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["pass", "fail"]
)
def test_the_suites_are_run_at_its_end(
    porting: Porting, wheels_of_tools: Path, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    offer_releases(porting.world, monkeypatch)
    shutil.copytree(wheels_of_tools, porting.world.folder / "index", dirs_exist_ok=True)
    monkeypatch.setattr(trial, "TEST_TOOLS", SOME_TOOLS)
    write(porting.world.project.root, SUITE)
    if not good:
        write(porting.world.project.root, {"tests/regression/test_bad.py": "def test(): assert 0"})
    done = porting.port("v1.1", "--test", code=0 if good else SuiteError.exit_code)
    if good:
        check_built(porting, done, "v1.1")
        assert (done["suites"]["passed"], done["suites"]["failed"]) == (1, 0)
    else:
        assert "1 of 2 tests failed, " in done["message"] and len(done["failures"]) == 1
    assert how(porting, "v1.1") == ("trained" if good else "built")


# kill -9


class Killing:
    """Copies of a checkout and of a project, and lmsbuild killed on them."""

    def __init__(self, porting: Porting) -> None:
        self.porting, self.world = porting, porting.world
        self.root = self.world.folder / "run"
        self.checkout = self.root / "checkout"
        self.project = self.world.folder / "pristine-project"
        shutil.copytree(self.world.project.root, self.project)
        folder = self.world.folder / "killer"
        folder.mkdir()
        self.killer = Killer(folder, self.root)
        self.into = ("--into", str(self.checkout))

    def fresh(self, tag: str) -> dict[str, str]:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        plain_git(self.root, "clone", "-q", str(self.world.upstream), "checkout")
        plain_git(self.checkout, "checkout", "-q", "-b", "mine", tag)
        shutil.rmtree(self.world.project.root)
        shutil.copytree(self.project, self.world.project.root)
        return snapshot(self.checkout)

    def begin(self, tag: str) -> list[str]:
        return ["port", "v1.0", tag, "--source", str(self.world.upstream), *self.into]

    def settle(self, where: str) -> None:
        """After a kill `status` and `abort` work, and nothing of ours is left locked."""
        self.porting.run("status", *self.into)
        self.porting.run("abort", *self.into)
        self.porting.run("abort")
        assert not (self.checkout / ".git/lmsbuild/work").exists(), where
        assert not list((self.checkout / ".git").rglob("*.lock")), where
        assert not list(self.checkout.rglob(".*.lmsbuild-new")), where

    @property
    def under_way(self) -> bool:
        return (self.checkout / ".git/lmsbuild/port.json").exists()

    def finish(self, where: str) -> None:
        if self.under_way and plain_git(self.checkout, "ls-files", "-u"):
            resolve_conflict(self.checkout)
        if self.under_way:
            self.porting.run("port", "--continue", *self.into)
        target = self.porting.target("v1.3")
        assert len(series_of(target).patches) == 3, where
        assert "line20 = 78" in (self.checkout / "core/alloc.cpp").read_text(), where
        assert plain_git(self.checkout, "status", "--porcelain") == "", where


@pytest.fixture
def killing(porting: Porting) -> Killing:
    return Killing(porting)


TIERS = [False, pytest.param(True, marks=pytest.mark.slow)]
# In the default tier those that write most.
STEPS = ("begin", "continue", *(pytest.param(s, marks=pytest.mark.slow) for s in ("skip", "abort")))


def some(steps: list[str], every: bool) -> list[int]:
    """Numbers (from 1) of all steps, or of some, those of the switch among them."""
    numbers = list(range(1, len(steps) + 1))
    matching = [n for n in numbers if "rename" in steps[n - 1] or "update-ref" in steps[n - 1]]
    return numbers if every else sorted({*numbers[:: len(numbers) // 4], *matching[::4]})


@pytest.mark.parametrize("every", TIERS)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_change_of_a_file(killing: Killing, step: str, every: bool) -> None:
    def ready() -> dict[str, str]:
        before = killing.fresh("v1.3")
        if step != "begin":
            killing.porting.run(*killing.begin("v1.3"), code=9)
        if step == "continue":
            resolve_conflict(killing.checkout)
        return before

    words = killing.begin("v1.3") if step == "begin" else ["port", f"--{step}", *killing.into]
    ready()
    steps = (
        killing.killer.file_steps(words, killing.world.folder)
        if step != "begin"
        else (begun(killing, words))
    )
    for number in some(steps, every):
        before = ready()
        where = f"{number}: {steps[number - 1]}"
        assert killing.killer.at_file(number, words, killing.world.folder), where
        killing.settle(where)
        check_after(killing, step, words, before, where)


def begun(killing: Killing, words: list[str]) -> list[str]:
    """The steps of a port that stops at a conflict."""
    killing.killer.at_file(0, words, killing.world.folder)
    return (killing.killer.folder / "files.log").read_text().splitlines()


# In the default tier those two, each in one of the modes.
@pytest.mark.parametrize("every", TIERS)
@pytest.mark.parametrize(
    ("step", "mode"),
    [
        pytest.param(step, mode, marks=() if (i, j) in ((0, 0), (1, 1)) else pytest.mark.slow)
        for i, step in enumerate(("begin", "continue", "skip", "abort"))
        for j, mode in enumerate(("before", "after"))
    ],
)
def test_killed_at_a_git_call(killing: Killing, step: str, mode: str, every: bool) -> None:
    def ready() -> dict[str, str]:
        before = killing.fresh("v1.3")
        if step != "begin":
            killing.porting.run(*killing.begin("v1.3"), code=9)
        if step == "continue":
            resolve_conflict(killing.checkout)
        return before

    words = killing.begin("v1.3") if step == "begin" else ["port", f"--{step}", *killing.into]
    ready()
    log = killing.killer.folder / "git.log"
    log.unlink(missing_ok=True)
    killing.killer.at_git(0, "", words, killing.world.folder)
    # A line that is looked for in the history has line breaks around it.
    steps = [line for line in log.read_text().splitlines() if line.startswith("-")]
    for number in some(steps, every):
        before = ready()
        where = f"{mode} {number}: {steps[number - 1]}"
        assert killing.killer.at_git(number, mode, words, killing.world.folder), where
        killing.settle(where)
        check_after(killing, step, words, before, where)


def check_after(
    killing: Killing, step: str, words: list[str], before: dict[str, str], where: str
) -> None:
    """All of the step or nothing of it; and the port goes on to its end, or away."""
    porting = killing.porting
    if step == "begin":
        if not killing.under_way:
            assert snapshot(killing.checkout) == before, where
            porting.run(*words, code=9)
        killing.finish(where)
    elif step == "continue":
        killing.finish(where)
    elif step == "skip":
        if killing.under_way:
            again = "--skip" if plain_git(killing.checkout, "ls-files", "-u") else "--continue"
            porting.run("port", again, *killing.into)
        assert len(series_of(porting.target("v1.3")).patches) == 2, where
        assert plain_git(killing.checkout, "status", "--porcelain") == "", where
    else:
        if killing.under_way:
            porting.run("port", "--abort", *killing.into)
        plain_git(killing.checkout, "update-index", "-q", "--refresh")
        now = snapshot(killing.checkout)
        assert {**now, "index file": ""} == {**before, "index file": ""}, where
        assert not (porting.world.project.patches / "alpha/v1.3").exists(), where
