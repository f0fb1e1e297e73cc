# SPDX-License-Identifier: Apache-2.0
"""Patches of a checkout pushed, popped, folded, squashed, dropped and reordered; and kill -9."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmsbuild_processes
import pytest
from lmsbuild_kill import Killer, snapshot
from lmsbuild_world import (
    UPSTREAM,
    World,
    enter_world,
    examples_of,
    make_world,
    plain_git,
    write,
)

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.series.mail import Mail, joined
from lmsbuild.series.series import series_of
from lmsbuild.upkeep.cleaning import users_work

ALLOC = UPSTREAM["core/alloc.cpp"]
ONE = ALLOC.replace("line20 = 20", "line20 = 21")
# Beside the hooks of the small world: 3 is far from 1, and 4 changes the line that 1 changes.
MORE = {
    "Count what moves\n\nBecause somebody asks.\n\nTest: tests/a.py": ONE.replace("= 35", "= 36"),
    "Count it twice\n\nSo that it is sure.\n\nTest: tests/a.py\nTest: tests/b.py": ONE.replace(
        "= 35", "= 36"
    ).replace("line20 = 21", "line20 = 22"),
}
RUNTIME, CALL, SHOW, COUNT, TWICE = (
    "runtime/0001-Add-the-Large-Model-Support-runtime.patch",
    "v1.0/0001-Call-the-engine.patch",
    "v1.0/0002-Show-it-in-Python.patch",
    "v1.0/0003-Count-what-moves.patch",
    "v1.0/0004-Count-it-twice.patch",
)


@pytest.fixture(scope="module")
def arranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world whose series has four hooks, and a checkout `clone` with it."""
    folder = tmp_path_factory.mktemp("arranged")
    make_world(folder, UPSTREAM)
    with pytest.MonkeyPatch.context() as patched:
        world = enter_world(folder, patched)
        clone = world.clone()
        plain_git(clone, "checkout", "-q", "-b", "mine")
        apply(world.target, clone, Console(json_mode=True))
        for message, text in MORE.items():
            write(clone, {"core/alloc.cpp": text})
            plain_git(clone, "commit", "-qam", message)
        refresh(world.target, clone)
    return folder


class Tool:
    """lmsbuild in this process, on one checkout."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.capsys = world, capsys
        self.checkout = world.folder / "clone"
        self.into = ("--into", str(self.checkout))

    def run(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        found = run([*arguments, "--json"])
        printed = self.capsys.readouterr()
        assert found == code, printed.err
        value = json.loads(printed.out)
        return value["error"] if code else value

    def __call__(self, name: str, *arguments: str, code: int = 0) -> Any:
        return self.run(name, "v1.0", *arguments, *self.into, code=code)

    @property
    def subjects(self) -> list[str]:
        listed = plain_git(self.checkout, "log", "--reverse", "--format=%s", "origin/main..HEAD")
        return listed.splitlines()

    def text(self, name: str = "core/alloc.cpp") -> str:
        return (self.checkout / name).read_text()

    def edit(self, old: str, new: str, name: str = "core/alloc.cpp") -> None:
        text = self.text(name)
        assert old in text
        write(self.checkout, {name: text.replace(old, new)})

    @property
    def clean(self) -> bool:
        return plain_git(self.checkout, "status", "--porcelain") == ""

    def same(self, before: dict[str, str]) -> None:
        """The checkout is as it was, but for the times that the index has."""
        plain_git(self.checkout, "update-index", "-q", "--refresh")
        assert {**snapshot(self.checkout), "index file": ""} == {**before, "index file": ""}

    def resolve(self, *texts: tuple[str, str]) -> None:
        """Take what is between the marks away, and put `texts` there."""
        text = self.text()
        before, _, rest = text.partition("<<<<<<< HEAD\n")
        ours, _, rest = rest.partition("|||||||")
        after = rest.partition("\n>>>>>>> ")[2].partition("\n")[2]
        for old, new in texts:
            assert old in ours
            ours = ours.replace(old, new)
        write(self.checkout, {"core/alloc.cpp": f"{before}{ours}{after}"})
        plain_git(self.checkout, "add", "core/alloc.cpp")


@pytest.fixture
def tool(
    arranged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Tool:
    shutil.copytree(arranged, tmp_path, dirs_exist_ok=True, symlinks=True)
    made = Tool(enter_world(tmp_path, monkeypatch), capsys)
    plain_git(made.checkout, "update-index", "-q", "--refresh")
    return made


def states(value: Any) -> list[str]:
    return [each["state"] for each in value["patches"]]


def patches(value: Any) -> list[str]:
    return [each["patch"] for each in value["patches"]]


def test_to_a_patch_and_back(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    done = tool("apply", "--to", "2")
    assert patches(done) == [RUNTIME, CALL, SHOW, COUNT, TWICE]
    assert states(done) == ["applied"] * 3 + ["popped"] * 2
    assert done["popped"] == [COUNT, TWICE]
    assert "line20 = 21" in tool.text() and "= 35" in tool.text() and tool.clean
    status = tool("status")["checkouts"][0]
    assert status["popped"] == [COUNT, TWICE] and "push" in status["next"]
    assert states(status) == ["applied"] * 3 + ["popped"] * 2
    assert states(tool("apply", "--to", "count-what")) == ["applied"] * 4 + ["popped"]
    assert tool("push")["popped"] == []
    # The same commits as before, and nothing is left of the way there.
    now = snapshot(tool.checkout)
    assert plain_git(tool.checkout, "rev-parse", "mine") in before["refs"]
    assert {**now, "refs": "", "index file": ""} == {**before, "refs": "", "index file": ""}
    assert not (tool.checkout / ".git/lmsbuild/popped.json").exists()


def test_step_by_step_from_the_tags_own_code(tool: Tool) -> None:
    clone = tool.world.clone("fresh")
    into = ("--into", str(clone))
    assert tool.run("apply", "v1.0", "--to", "0", *into)["popped"] == [CALL, SHOW, COUNT, TWICE]
    assert (clone / "core/lms/engine.cpp").exists()
    assert tool.run("push", "v1.0", *into)["popped"] == [SHOW, COUNT, TWICE]
    assert tool.run("push", "v1.0", "--all", *into)["popped"] == []
    whole = tool.world.clone("whole")
    tool.run("apply", "v1.0", "--into", str(whole))
    heads = [plain_git(place, "rev-parse", "HEAD") for place in (clone, whole)]
    assert heads[0] == heads[1]
    assert tool.run("apply", "v1.0", *into)["patches"] == []
    assert tool.run("pop", "v1.0", "--all", *into)["popped"][0] == RUNTIME
    assert plain_git(clone, "rev-parse", "HEAD") == plain_git(clone, "rev-parse", "origin/main")
    assert tool.run("apply", "v1.0", *into)["already"] == 5
    assert plain_git(clone, "rev-parse", "HEAD") == heads[1]


def test_push_and_pop_at_the_ends(tool: Tool) -> None:
    assert "all 5 patches are on" in tool("push", code=2)["message"]
    tool("pop", "--all")
    assert "no patch is on" in tool("pop", code=2)["message"]
    for words in (("fold", "x.diff"), ("import", "x.mbox"), ("refresh", "--patch", "1")):
        assert "no patch is on" in tool(*words, code=2)["message"]
    tool("apply", "--to", "1")
    for line in ("fold x --patch 2", "import x --after 2", "refresh --patch 2", "squash 2 1"):
        assert "it is popped" in tool(*line.split(), code=2)["message"]


def test_what_is_committed_between_lies_below(tool: Tool) -> None:
    tool("apply", "--to", "2")
    tool.edit("line5 = 5", "line5 = 6")
    plain_git(tool.checkout, "commit", "-qam", "Between\n\nBecause.")
    done = tool("push", "--all")
    assert states(done) == ["applied"] * 4 + ["applied"] * 2
    assert tool.subjects[2:] == [
        "Show it in Python", "Between", "Count what moves", "Count it twice"
    ]  # fmt: skip
    assert "line5 = 6" in tool.text() and "line20 = 22" in tool.text()
    tool("refresh")
    names = [patch.path.name for patch in series_of(tool.world.target).patches]
    assert names[3:] == [
        "0003-Between.patch", "0004-Count-what-moves.patch", "0005-Count-it-twice.patch"
    ]  # fmt: skip


def test_nothing_is_written_or_built_while_patches_are_popped(tool: Tool) -> None:
    tool("pop")
    assert "push --all" in tool.run("refresh", "v1.0", *tool.into, code=8)["message"]
    assert "push --all" in tool("wheel", code=8)["message"]
    assert tool("apply", "--dry-run")["dry_run"]
    assert len(tool.subjects) == 4
    assert tool("apply")["already"] == 5


def test_clean_keeps_a_checkout_with_popped_patches(tool: Tool) -> None:
    fresh = tool.world.clone("fresh")
    plain_git(fresh, "remote", "remove", "origin")
    into = ("--into", str(fresh))
    tool.run("apply", "v1.0", "--to", "2", *into)
    assert f"popped patches ({COUNT})" in users_work(fresh)
    tool.run("push", "v1.0", "--all", *into)
    assert users_work(fresh) == ""


def test_a_patch_by_its_name(tool: Tool) -> None:
    for spec, wanted in (("TWICE", 0), ("v1.0/0003", 1), ("Show it", 2), ("runtime", 4)):
        assert len(tool("apply", "--to", spec)["popped"]) == wanted
    for spec, why in (("9", "no patch is called so"), ("count", "several patches"), ("x", SHOW)):
        assert why in tool("apply", "--to", spec, code=2)["message"]


def test_drop(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    assert states(tool("drop", "count-what", "--dry-run")) == ["dropped"] + ["applied"] * 4
    assert snapshot(tool.checkout) == before
    done = tool("drop", "3")
    assert states(done) == ["dropped"] + ["applied"] * 4
    assert tool.subjects[1:] == ["Call the engine", "Show it in Python", "Count it twice"]
    assert "= 35" in tool.text() and "line20 = 22" in tool.text() and tool.clean
    done = tool("undo")
    tool.same(before)
    tool("drop", "3")
    assert tool("refresh")["removed"] == [COUNT, TWICE]
    assert "made from lms/" in tool("drop", "0", code=2)["message"]
    assert "PATCH is missing" in tool("drop", code=2)["message"]


def test_undo_is_of_one_and_names_where_the_others_are(tool: Tool) -> None:
    tool("drop", "3")
    left = plain_git(tool.checkout, "rev-parse", "HEAD").strip()
    tool("drop", "2")
    tool("undo")
    assert "`git reflog`" in tool("undo", code=8)["message"]
    reflog = plain_git(tool.checkout, "reflog", "--format=%H %gs").splitlines()
    assert f"{left} lmsbuild drop v1.0 3" in reflog


def test_reorder(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    done = tool("reorder", "3", "2", "--before", "1")
    # Called as their files will be.
    assert [name.rpartition("/")[2][:9] for name in patches(done)[1:]] == [
        "0001-Coun", "0002-Show", "0003-Call", "0004-Coun"
    ]  # fmt: skip
    assert tool.subjects[1:] == [
        "Count what moves", "Show it in Python", "Call the engine", "Count it twice"
    ]  # fmt: skip
    assert "line20 = 22" in tool.text() and tool.clean
    tool("undo")
    tool.same(before)
    tool("apply", "--to", "2")
    # To the side of the one that it is put beside.
    assert (
        tool("reorder", "4", "--after", "2")["popped"] == ["v1.0/0003-Count-what-moves.patch"]
        or tool.subjects[-1] == "Count it twice"
    )
    for words in (("1",), ("1", "--after", "2", "--before", "3")):
        assert "give one of --before" in tool("reorder", *words, code=2)["message"]
    assert "beside itself" in tool("reorder", "1", "--after", "1", code=2)["message"]
    assert "before the runtime" in tool("reorder", "1", "--before", "0", code=2)["message"]


def test_squash(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    done = tool("squash", "1", "3", "4")
    assert states(done) == ["folded", "folded", "applied", "changed", "applied"]
    assert tool.subjects[1:] == ["Call the engine", "Show it in Python"]
    text = plain_git(tool.checkout, "log", "-1", "--format=%B", "HEAD~1")
    assert text.splitlines() == [
        "Call the engine", "", "Because it must be called.", "", "Count what moves", "",
        "Because somebody asks.", "", "Count it twice", "", "So that it is sure.", "",
        "Test: tests/a.py", "Test: tests/b.py",
    ]  # fmt: skip
    assert plain_git(tool.checkout, "diff", "--stat", "mine@{1}", "mine") == ""
    tool("undo")
    tool.same(before)
    assert "named twice" in tool("squash", "1", "1", code=2)["message"]
    assert "a second PATCH is missing" in tool("squash", "1", code=2)["message"]


def test_squash_with_a_message(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    wording = "Call the engine and count\n\nBoth are needed at once.\n\nTest: tests/b.py"
    done = tool("squash", "1", "3", "4", "--message", wording)
    assert patches(done)[3] == "v1.0/0001-Call-the-engine-and-count.patch"
    text = plain_git(tool.checkout, "log", "-1", "--format=%B", "HEAD~1")
    assert text.splitlines() == [
        "Call the engine and count", "", "Both are needed at once.", "",
        "Test: tests/b.py", "Test: tests/a.py",
    ]  # fmt: skip
    tool("undo")
    tool.same(before)
    for bad, why in (
        (" \n", "it is empty"),
        ("One\n\n---\nTwo", "'---'"),
        ("caf\udce9", "it is not UTF-8"),
    ):
        assert why in tool("squash", "1", "3", "-m", bad, code=2)["message"]
        tool.same(before)


def test_messages_are_joined() -> None:
    def mail(message: str) -> Mail:
        return Mail("A", "a@b", "Thu, 1 Jan 2026 00:00:00 +0000", message)

    assert joined([mail("One"), mail("Two\n\nTest: x"), mail("Three\n\nWhy.\n\nTest: x\n  y")]) == (
        "One\n\nTwo\n\nThree\n\nWhy.\n\nTest: x\nTest: x\n  y"
    )


def test_refresh_one_patch(tool: Tool) -> None:
    tool.edit("line5 = 5", "line5 = 6")
    write(tool.checkout, {"core/new.cpp": "int added;\n", "notes.txt": "mine\n"})
    plain_git(tool.checkout, "add", "core/new.cpp")
    before = snapshot(tool.checkout)
    assert "does not track notes.txt" in tool("refresh", "--patch", "1", code=8)["message"]
    tool.same(before)
    (tool.checkout / "notes.txt").unlink()
    before = snapshot(tool.checkout)
    wanted = ["applied", "changed", *["applied"] * 3]
    assert states(tool("refresh", "--patch", "1", "--dry-run")) == wanted
    tool.same(before)
    done = tool("refresh", "--patch", "call")
    assert done["written"] == [CALL, COUNT, TWICE]
    text = (tool.world.project.patches / "alpha" / CALL).read_text()
    assert "+int line5 = 6;" in text and "+int added;" in text
    assert tool.subjects[1] == "Call the engine" and len(tool.subjects) == 5 and tool.clean
    # Undone, the changes are uncommitted again.
    tool.run("undo", "--refresh")
    tool("undo")
    assert "line5 = 6" in tool.text()
    assert plain_git(tool.checkout, "diff", "HEAD", "--name-only").split() == [
        "core/alloc.cpp", "core/new.cpp"
    ]  # fmt: skip
    tool.same({**before, "refs": snapshot(tool.checkout)["refs"]})  # it notes what it took


@pytest.fixture
def freshly(tool: Tool) -> Tool:
    """On a checkout that no `refresh` has taken anything from."""
    tool.checkout = tool.world.clone("fresh")
    tool.into = ("--into", str(tool.checkout))
    tool("apply")
    return tool


def test_a_file_that_no_patch_has_touched(freshly: Tool) -> None:
    """The series ends where it did, in all files that it knew, and is another all the same."""
    freshly.edit("int upstream();", "int upstream(int);", "core/alloc.h")
    assert freshly("refresh", "--patch", "1")["written"] == [CALL]
    text = (freshly.world.project.patches / "alpha" / CALL).read_text()
    assert "+int upstream(int);" in text


def test_what_goes_from_one_patch_to_another(freshly: Tool) -> None:
    """All of them together still leave the same files, under the same subjects."""
    series = series_of(freshly.world.target)
    part = freshly.world.folder / "part.diff"
    part.write_text(series.patches[2].part("python/api.py"))
    assert states(freshly("fold", str(part), "--patch", "1"))[1] == "changed"
    assert freshly("refresh")["written"] == [CALL, SHOW]
    again = series_of(freshly.world.target)
    assert "python/api.py" in [change.path for change in again.patches[1].changes]
    assert again.after() == series.after()


def test_what_is_saved_while_one_patch_is_refreshed_is_kept(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.edit("line5 = 5", "line5 = 6")
    meanwhile(tool, monkeypatch, lambda: tool.edit("line5 = 6", "line5 = 7"))
    message = tool("refresh", "--patch", "1", code=8)["message"]
    assert "core/alloc.cpp changed meanwhile; run the command again" in message
    assert "line5 = 7" in tool.text()
    tool("refresh", "--patch", "1")
    assert "line5 = 7" in tool.text() and tool.clean


def test_refresh_of_one_patch_with_nothing_changed(tool: Tool) -> None:
    assert "no file that git tracks" in tool("refresh", "--patch", "1", code=2)["message"]


def test_split_as_a_maintainer_does(tool: Tool) -> None:
    tool("apply", "--to", "1")
    plain_git(tool.checkout, "reset", "-q", "HEAD~")
    plain_git(tool.checkout, "add", "core/alloc.cpp")
    plain_git(tool.checkout, "commit", "-qm", "Call the engine\n\nBecause it must be called.")
    plain_git(tool.checkout, "commit", "-qam", "Build the engine\n\nBecause it must be built.")
    assert states(tool("push", "--all")) == ["applied"] * 6
    assert len(tool("refresh")["written"]) == 5
    fresh = tool.world.clone("fresh")
    assert len(tool.run("apply", "v1.0", "--into", str(fresh))["patches"]) == 6


def test_fold_a_diff(tool: Tool) -> None:
    fresh = tool.world.clone("fresh")
    write(fresh, {"core/alloc.h": "#pragma once\nint upstream(int);\n"})
    diff = tool.world.folder / "fix.diff"
    diff.write_text(plain_git(fresh, "diff") + "\n")
    before = snapshot(tool.checkout)
    done = tool("fold", str(diff), "--patch", "2")
    assert states(done) == ["applied"] * 2 + ["changed"] + ["applied"] * 2
    assert len(tool.subjects) == 5
    files = plain_git(tool.checkout, "show", "--name-only", "--format=", "HEAD~2").split()
    assert "core/alloc.h" in files
    tool("undo")
    tool.same(before)
    diff.write_text("nothing\n")
    assert "no diff" in tool("fold", str(diff), code=9)["message"]
    diff.write_bytes(b"--- a/n\xff.cpp\n+++ b/n\xff.cpp\n@@ -1 +1 @@\n-a\n+b\n")
    message = tool("fold", str(diff), code=9)["message"]
    assert r"the name 'n\udcff.cpp' is not UTF-8; rename that file" in message
    tool.same(before)
    assert "cannot be read" in tool("fold", "/none.diff", code=18)["message"]


def test_import_an_mbox(tool: Tool) -> None:
    """With a rename, a mode, an encoding of its own and code that moved."""
    sender = tool.world.clone("sender")
    write(sender, {"core/alloc.h": "#pragma once\nint upstream(int);\n"})
    plain_git(sender, "mv", "recognise.me", "kept.me")
    write(sender, {"recognise.me": "alpha\n"})
    plain_git(sender, "add", "-A")
    plain_git(sender, "commit", "-qm", "Grüße\n\nBecause of the \u20ac.", "--author=Ä B <a@b.c>")
    write(sender, {"core/alloc.cpp": ALLOC.replace("line38 = 38", "line38 = 39")})
    plain_git(sender, "commit", "-qam", "Second\n\nBecause.")
    box = tool.world.folder / "box"
    box.write_text(plain_git(sender, "format-patch", "--stdout", "-M", "origin/main") + "\n")
    done = tool("import", str(box))
    assert states(done) == ["applied"] * 6 + ["merged"]
    assert tool.subjects[5:] == ["Grüße", "Second"]
    assert plain_git(tool.checkout, "log", "-1", "--format=%an %ae", "HEAD~") == "Ä B a@b.c"
    assert (tool.checkout / "kept.me").read_text() == "alpha\n"
    assert "line38 = 39" in tool.text() and "line20 = 22" in tool.text()
    tool("undo")
    assert len(tool.subjects) == 5
    assert tool("import", str(box), "--after", "0", "--dry-run")["dry_run"]
    tool("import", str(box), "--after", "1")
    assert tool.subjects[2:4] == ["Grüße", "Second"]
    box.write_text("diff --git a/x b/x\n")
    assert "no author" in tool("import", str(box), code=9)["message"]


def test_a_mail_from_a_pipe_and_an_empty_one(tool: Tool) -> None:
    """As of `import TAG <(curl ...)`: it can be read once."""
    box, pipe = tool.world.folder / "box", tool.world.folder / "pipe"
    sender = tool.world.clone("sender")
    write(sender, {"core/alloc.h": "#pragma once\nint upstream(int);\n"})
    plain_git(sender, "commit", "-qam", "Fix it\n\nBecause.")
    box.write_text(plain_git(sender, "format-patch", "--stdout", "origin/main") + "\n")
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", box, pipe]):
        tool("import", str(pipe))
    assert tool.subjects[-1] == "Fix it"
    for text in ("", "\n \n"):
        box.write_text(text)
        message = tool("import", str(box), code=9)["message"]
        assert "cannot be taken because it is empty" in message


def test_mails_of_other_encodings(tool: Tool) -> None:
    """What the mail says of its charset holds for names, subject and text; one that came with
    carriage returns at all line ends has none of its own."""
    part = series_of(tool.world.target).patches[3].part("core/alloc.cpp")
    tool("drop", "3", "4")
    box = tool.world.folder / "box"
    head = (
        "From: =?{0}?q?J=FCrgen?= <j@example.invalid>\nDate: Thu, 1 Jan 2026 00:00:00 +0000\n"
        "Subject: [PATCH] =?{0}?q?Gr=FC=DFe?=\nContent-Type: text/plain; charset={0}\n"
        "Content-Transfer-Encoding: 8bit\n\nWeil \xfc.\n---\n"
    ).format("iso-8859-1")
    for data in (head + part, (head + part).replace("\n", "\r\n")):
        box.write_bytes(data.encode("latin-1"))
        tool("import", str(box))
        said = plain_git(tool.checkout, "log", "-1", "--encoding=UTF-8", "--format=%an|%s|%b")
        assert said == "Jürgen|Grüße|Weil ü."
        tool("undo")
    box.write_bytes(head.replace("2026", "1960").encode("latin-1"))
    message = tool("import", str(box), code=9)["message"]
    assert "date 'Thu, 1 Jan 1960 00:00:00 +0000' is before 1970" in message


def test_a_pipe_that_nobody_writes_is_not_waited_for(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmsbuild.checkout.incoming._PATIENCE", 0.2)
    before = snapshot(tool.checkout)
    pipe = tool.world.folder / "pipe"
    os.mkfifo(pipe)
    for command in ("import", "fold"):
        message = tool(command, str(pipe), code=18)["message"]
        assert str(pipe) in message and "no program writes to that pipe" in message
    assert snapshot(tool.checkout) == before
    # One that has it open, and takes longer to write, is waited for.
    tool.edit("line30 = 30", "line30 = 31")
    diff = plain_git(tool.checkout, "diff")
    plain_git(tool.checkout, "checkout", "-q", ".")
    late = ["sh", "-c", 'exec 3>"$0"; sleep 1; echo "$1" >&3', str(pipe), diff]
    with subprocess.Popen(late):
        tool("fold", str(pipe))
    assert "line30 = 31" in tool.text()


def test_mails_that_git_does_not_read_and_files_that_never_end(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    box = tool.world.folder / "box"
    head = "From: A <a@example.invalid>\nDate: Thu, 1 Jan 2026 00:00:00 +0000\n"
    box.write_text(
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n{head}Subject: =?utf-8?q?a=00b?=\n\n"
    )
    message = tool("import", str(box), code=9)["message"]
    assert f"mail 1 of {box} cannot be taken because git says: " in message and "NUL" in message
    box.write_text(f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n{head}Subject: a\n\nb\0c\n---\n")
    message = tool("import", str(box), code=9)["message"]
    assert f"mail 1 of {box} cannot be taken because its message has a NUL byte" in message
    for command in ("import", "fold"):
        message = tool(command, "/dev/zero", code=9)["message"]
        assert "cannot be taken because it has over 256 MiB" in message
        message = tool(command, "/", code=9)["message"]
        assert message == "/ cannot be taken because it is a folder; name the files in it"
    assert snapshot(tool.checkout) == before


def conflict(tool: Tool) -> dict[str, str]:
    """Dropping 1 leaves 4, which changes the same line, without its context."""
    before = snapshot(tool.checkout)
    error = tool("drop", "1", code=9)
    assert states(error) == ["dropped", "applied", "applied", "applied", "conflict"]
    assert "apply --continue" in error["message"] and "line20 = 21" in error["message"]
    assert error["files"] == ["core/alloc.cpp"]
    assert "UU core/alloc.cpp" in plain_git(tool.checkout, "status", "--porcelain")
    return before


def test_apply_keeps_what_no_patch_file_has_yet(tool: Tool) -> None:
    """It puts on what was popped, and says where the edited patches are to go."""
    tool.edit("line20 = 22", "line20 = 29")
    plain_git(tool.checkout, "commit", "-qam", "Count it thrice")
    assert tool("pop")["popped"] == ["v1.0/0005-Count-it-thrice.patch"]
    assert states(tool("apply")) == ["applied"] * 6 and "line20 = 29" in tool.text()
    before = snapshot(tool.checkout)
    error = tool("apply", code=8)
    assert "run `lmsbuild refresh` if its commits are a change" in error["message"]
    assert snapshot(tool.checkout) == before


def test_a_conflict_is_foreseen(tool: Tool) -> None:
    before = snapshot(tool.checkout)
    done = tool("reorder", "4", "--before", "1", "--dry-run")
    assert states(done) == ["applied", "conflict", *["not reached"] * 3]
    assert snapshot(tool.checkout) == before


def check_marks(checkout: Path, refusal: Callable[[], str]) -> None:
    """Each of the marks is found when it is the only one left, where it is."""
    whole = (checkout / "core/alloc.cpp").read_text()
    lines = whole.splitlines()
    marks = [line for line in lines if line[:7] in ("<<<<<<<", "|||||||", ">>>>>>>")]
    assert len(marks) == 3
    for mark in marks:
        kept = [line for line in lines if line == mark or line not in marks]
        write(checkout, {"core/alloc.cpp": "\n".join(kept) + "\n"})
        plain_git(checkout, "add", "core/alloc.cpp")
        where = (
            f"core/alloc.cpp still has the marks of a conflict, as in line {kept.index(mark) + 1};"
        )
        assert where in refusal(), mark
    write(checkout, {"core/alloc.cpp": whole})
    plain_git(checkout, "add", "core/alloc.cpp")


def test_a_conflict_and_continue(tool: Tool) -> None:
    before = conflict(tool)
    status = tool("status")["checkouts"][0]
    assert "--continue" in status["next"] and status["under_way"]
    assert "under way" in tool("pop", code=8)["message"]
    assert "still in conflict" in tool("apply", "--continue", code=8)["message"]
    plain_git(tool.checkout, "add", "core/alloc.cpp")
    assert "marks of a conflict" in tool("apply", "--continue", code=8)["message"]
    check_marks(tool.checkout, lambda: tool("apply", "--continue", code=8)["message"])
    tool.resolve(("line20 = 20", "line20 = 22"))
    done = tool("apply", "--continue")
    assert states(done)[-1] == "resolved"
    assert tool.subjects[1:] == ["Show it in Python", "Count what moves", "Count it twice"]
    assert "line20 = 22" in tool.text() and tool.clean
    # The whole of it is one step for undo.
    assert tool("undo")["command"] == "drop v1.0 1"
    tool.same(before)


def test_a_line_of_seven_equals_signs_is_no_mark(tool: Tool) -> None:
    """It underlines titles, and who has one to commit could not go on: git's mark of that look has
    no name, the other three have."""
    conflict(tool)
    tool.resolve(("line20 = 20;", "line20 = 22;\n======="))
    tool("apply", "--continue")
    assert "line20 = 22;\n=======\n" in tool.text()


def test_a_conflict_and_abort(tool: Tool) -> None:
    before = conflict(tool)
    write(tool.checkout, {"python/api.py": "mine\n"})
    assert "python/api.py" in tool("apply", "--abort", code=8)["message"]
    plain_git(tool.checkout, "checkout", "python/api.py")
    tool("apply", "--abort")
    tool.same(before)
    assert "no patch needs a person" in tool("apply", "--continue", code=2)["message"]


def test_a_conflict_and_skip(tool: Tool) -> None:
    conflict(tool)
    assert states(tool("apply", "--skip"))[-1] == "skipped"
    assert tool.subjects[1:] == ["Show it in Python", "Count what moves"] and tool.clean


def test_a_conflict_keeps_what_is_popped_and_changed(tool: Tool) -> None:
    """What was not committed is there again after --abort, and what was popped is popped."""
    tool("pop")
    tool.edit("line35 = 36", "line35 = 37")
    before = snapshot(tool.checkout)
    error = tool("refresh", "--patch", "1", code=9)
    assert states(error)[-1] == "conflict"
    tool("apply", "--abort")
    assert tool.text().count("line35 = 37") == 1
    tool.same(before)
    assert tool("status")["checkouts"][0]["popped"] == [TWICE]
    tool("refresh", "--patch", "1", code=9)
    tool.resolve()
    plain_git(tool.checkout, "add", "-u")
    error = tool("apply", "--continue", code=8)
    assert "nothing of v1.0/0001-Call-the-engine.patch is staged" in error["message"]
    tool("apply", "--skip")
    assert "line35 = 36" in tool.text()
    # Undone, the change is there again.
    tool("undo")
    tool.same(before)


def test_an_import_that_needs_a_person(tool: Tool) -> None:
    sender = tool.world.clone("sender")
    write(sender, {"core/alloc.cpp": ALLOC.replace("line20 = 20", "line20 = 99")})
    plain_git(sender, "commit", "-qam", "Ninety-nine\n\nBecause.")
    box = tool.world.folder / "box"
    box.write_text(plain_git(sender, "format-patch", "--stdout", "origin/main") + "\n")
    before = snapshot(tool.checkout)
    error = tool("import", str(box), code=9)
    assert states(error)[-1] == "conflict" and "<<<<<<< HEAD" in tool.text()
    tool.resolve(("line20 = 22", "line20 = 99"))
    assert states(tool("apply", "--continue"))[-1] == "resolved"
    assert tool.subjects[-1] == "Ninety-nine"
    tool("undo")
    tool.same(before)
    text = box.read_text()
    index = next(line for line in text.splitlines() if line.startswith("index "))
    box.write_text(text.replace(index, "index 1234567..89abcde 100644"))
    assert "lacks the blobs" in tool("import", str(box), code=9)["message"]
    tool.same(before)


def test_not_clean_is_refused_and_another_branch_named(tool: Tool) -> None:
    tool.edit("line5 = 5", "line5 = 6")
    assert "core/alloc.cpp" in tool("drop", "3", code=8)["message"]
    plain_git(tool.checkout, "checkout", "core/alloc.cpp")
    conflict(tool)
    plain_git(tool.checkout, "checkout", "-qf", "-b", "other")
    assert "switch to that first" in tool("apply", "--continue", code=8)["message"]


def meanwhile(tool: Tool, monkeypatch: pytest.MonkeyPatch, other: str | Callable[[], None]) -> None:
    """Have another lmsbuild, or `other` itself, come between the next look at the checkout and its
    lock."""
    begin = CheckoutTransaction.begin

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(CheckoutTransaction, "begin", begin)
        if isinstance(other, str):
            name, *words = other.split()
            code, _, err = lmsbuild_processes.run(name, "v1.0", *words, *tool.into)
            assert code == 0, err
        else:
            other()
        return begin(*given, **more)

    monkeypatch.setattr(CheckoutTransaction, "begin", late)


@pytest.mark.parametrize(
    ("words", "other"), [(("reorder", "4", "--before", "2"), "pop"), (("undo",), "push")]
)
def test_a_command_that_ended_meanwhile(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], other: str
) -> None:
    """A checkout is looked at without the lock, and when that is had it may be another one."""
    if other == "push":
        tool("apply", "--to", "2")
    meanwhile(tool, monkeypatch, other)
    message = tool(*words, code=16)["message"]
    assert "it moved to another commit meanwhile; run the command again" in message
    assert tool.clean


@pytest.mark.parametrize("words", ["drop 3", "reorder 3 --before 2", "undo"])
def test_a_command_that_moved_no_commit_meanwhile(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """What is popped is arranged beside HEAD, which stays."""
    tool("apply", "--to", "1")
    tool("drop", "3")
    head = plain_git(tool.checkout, "rev-parse", "HEAD")
    meanwhile(tool, monkeypatch, "drop 2")
    message = tool(*words.split(), code=16)["message"]
    assert "another lmsbuild worked on it meanwhile; run the command again" in message
    assert plain_git(tool.checkout, "rev-parse", "HEAD") == head
    tool("push", "--all")
    assert tool.subjects[1:] == ["Call the engine", "Count it twice"]


def test_an_edited_patch_file_is_not_pushed(tool: Tool) -> None:
    clone = tool.world.clone("fresh")
    patch = tool.world.project.patches / "alpha" / CALL
    patch.write_text(patch.read_text().replace("+int line20 = 21;", "+int line20 = 29;"))
    into = ("--into", str(clone))
    assert "did not come out" in tool.run("apply", "v1.0", "--to", "1", *into, code=9)["message"]
    assert plain_git(clone, "rev-parse", "HEAD") == plain_git(clone, "rev-parse", "origin/main")


def test_text_for_people(tool: Tool) -> None:
    assert run(["pop", "v1.0", *tool.into]) == 0
    printed = tool.capsys.readouterr().out
    assert "popped" in printed and "lmsbuild push" in printed
    # What is on it then is what the patches say, also when they were made of its commits.
    refresh = "next: lmsbuild refresh"
    assert run(["push", "v1.0", *tool.into]) == 0
    assert refresh not in tool.capsys.readouterr().out
    tool.edit("line5 = 5", "line5 = 6")
    plain_git(tool.checkout, "commit", "-qam", "Later\n\nBecause.")
    tool("pop")
    assert run(["push", "v1.0", *tool.into]) == 0
    assert refresh in tool.capsys.readouterr().out
    tool("refresh")
    tool("pop", "--all")
    assert run(["push", "v1.0", "--all", *tool.into]) == 0
    assert refresh not in tool.capsys.readouterr().out
    assert run(["drop", "v1.0", "5", *tool.into]) == 0
    assert refresh in tool.capsys.readouterr().out
    assert run(["undo", "v1.0", *tool.into]) == 0


# kill -9

KILLED = {
    "pop": ["pop", "v1.0"],
    "push": ["push", "v1.0"],
    "drop": ["drop", "v1.0", "3"],
    "conflict": ["drop", "v1.0", "1"],
    "continue": ["apply", "v1.0", "--continue"],
    "abort": ["apply", "v1.0", "--abort"],
    "squash": ["squash", "v1.0", "1", "3"],
    "reorder": ["reorder", "v1.0", "3", "--before", "1"],
    "amend": ["refresh", "v1.0", "--patch", "3"],
    "undo": ["undo", "v1.0"],
}
SOME = ("pop", "conflict", "continue", "amend")  # in the default tier, at one step each


class Killing:
    def __init__(self, tool: Tool, name: str) -> None:
        self.tool, self.name = tool, name
        self.words = [*KILLED[name], *tool.into]
        folder = tool.world.folder / "killer"
        folder.mkdir()
        self.killer = Killer(folder, tool.checkout)
        if name in ("push", "amend"):
            tool("pop")
        if name == "amend":
            tool.edit("line35 = 36", "line35 = 37")
        if name in ("continue", "abort"):
            conflict(tool)
        if name == "continue":
            tool.resolve(("line20 = 20", "line20 = 22"))
        if name == "undo":
            tool("drop", "3")
        self.saved = tool.world.folder / "saved"
        shutil.copytree(tool.checkout, self.saved, symlinks=True)

    def fresh(self) -> dict[str, str]:
        shutil.rmtree(self.tool.checkout)
        shutil.copytree(self.saved, self.tool.checkout, symlinks=True)
        plain_git(self.tool.checkout, "status")  # which refreshes the index
        return self.state

    @property
    def state(self) -> dict[str, str]:
        """What a user has, and what is noted of popped patches and conflicts."""
        notes = self.tool.checkout / ".git/lmsbuild"
        found = {**snapshot(self.tool.checkout), "index file": ""}
        for name in ("popped", "arranging"):
            path = notes / f"{name}.json"
            found[name] = path.read_text() if path.exists() else ""
        found["staged"] = plain_git(self.tool.checkout, "ls-files", "-s")
        return found

    def check(self, before: dict[str, str], after: dict[str, str], where: str) -> None:
        """status explains, abort leaves all or nothing, and the command goes to its end."""
        tool = self.tool
        tool("status")
        tool("abort")
        git = tool.checkout / ".git"
        assert not (git / "lmsbuild/work").exists(), where
        assert not list(git.rglob("*.lock")) and not list(git.parent.rglob(".*.lmsbuild-new"))
        plain_git(tool.checkout, "status")
        now = self.state
        assert now in (before, after), where
        if now == before:
            run([*self.words, "--json"])
            plain_git(tool.checkout, "status")
            assert self.state == after, where


@pytest.mark.default
@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, False) for name in SOME),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in KILLED),
    ],
)
def test_killed_at_a_change_of_a_file(tool: Tool, name: str, every: bool) -> None:
    killing = Killing(tool, name)
    killing.fresh()
    killing.killer.at_file(0, killing.words, tool.world.folder)
    steps = (killing.killer.folder / "files.log").read_text().splitlines()
    after = killing.state
    switching = [n for n, step in enumerate(steps, 1) if "os.rename" in step and "/work/" in step]
    numbers = range(1, len(steps) + 1) if every else switching[-1:]
    assert numbers
    for number in numbers:
        before = killing.fresh()
        where = f"{name} {number}: {steps[number - 1]}"
        assert killing.killer.at_file(number, killing.words, tool.world.folder), where
        killing.check(before, after, where)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("name", KILLED)
def test_killed_at_a_git_call(tool: Tool, name: str, mode: str) -> None:
    killing = Killing(tool, name)
    killing.fresh()
    log = killing.killer.folder / "git.log"
    killing.killer.at_git(0, "", killing.words, tool.world.folder)
    after = killing.state
    steps = [line for line in log.read_text().splitlines() if line.startswith("-")]
    for number in range(1, len(steps) + 1):
        before = killing.fresh()
        where = f"{name} {mode} {number}: {steps[number - 1]}"
        assert killing.killer.at_git(number, mode, killing.words, tool.world.folder), where
        killing.check(before, after, where)


@pytest.mark.parametrize("name", ["push", "pop", "drop", "squash", "reorder", "fold", "import"])
def test_the_examples_of_help_are_run(
    tool: Tool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line, as it stands but for the tag and a name."""
    monkeypatch.chdir(tool.checkout)
    sender = tool.world.clone("sender")
    write(sender, {"core/alloc.h": "#pragma once\nint upstream(int);\n"})
    for file in ("fix.diff", "review.diff"):
        (tool.world.folder / file).write_text(plain_git(sender, "diff") + "\n")
    plain_git(sender, "commit", "-qam", "Fix it\n\nBecause.")
    for file in ("review.mbox", "0001-Fix-it.patch"):
        text = plain_git(sender, "format-patch", "--stdout", "origin/main")
        (tool.world.folder / file).write_text(text + "\n")
    lines = examples_of(name)
    assert len(lines) >= 2
    for line in lines:
        words = [{"v2.6.0": "v1.0", "offer-large": "twice"}.get(word, word) for word in line]
        arguments = [
            str(tool.world.folder / word) if "." in word and word != "v1.0" else word
            for word in words
        ]
        if name == "push" and not tool.run("status")["checkouts"][0]["popped"]:
            tool("apply", "--to", "2")
        tool.run(*arguments)
        if "--dry-run" not in arguments and name != "push":
            tool("undo")


@pytest.mark.parametrize("words", examples_of("apply"), ids=" ".join)
def test_the_examples_of_apply_are_run(
    tool: Tool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tool.world.clone("pytorch")
    monkeypatch.setenv("HOME", str(place.parent))
    monkeypatch.chdir(place)
    before = None
    if words[1].startswith("--"):
        monkeypatch.chdir(tool.checkout)
        before = conflict(tool)
        if "--continue" in words:
            tool.resolve(("line20 = 20", "line20 = 22"))
    done = tool.run(*(word.replace("v2.6.0", "v1.0") for word in words))
    on = plain_git(place, "log", "--format=%s", "origin/main..HEAD").splitlines()
    wanted = {"--to": 3, "--into": 0}.get(words[2], 5) if len(words) > 2 else 5
    if before is None:
        assert len(on) == wanted and len(done["patches"]) == 5
    elif "--abort" in words:
        tool.same(before)
    else:
        state = {"--continue": "resolved", "--skip": "skipped"}[words[1]]
        assert states(done)[-1] == state and tool.clean


@pytest.mark.parametrize("words", examples_of("refresh"), ids=" ".join)
def test_the_examples_of_refresh_are_run(
    tool: Tool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tool.checkout)
    monkeypatch.setenv("HOME", str(tool.world.folder))
    (tool.world.folder / "pytorch").symlink_to(tool.checkout)
    patches = {file: file.read_bytes() for file in tool.world.project.patches.rglob("*.patch")}
    write(tool.world.project.root, {"lms/core/engine.h": "#pragma once\nint engine(int);\n"})
    tool.edit("def memory():", "def memory():  # of it", "python/api.py")
    if "--patch" not in words:
        plain_git(tool.checkout, "commit", "-qam", "Say what of\n\nBecause python/api.py did not.")
    tool.run(*(word.replace("v2.6.0", "v1.0") for word in words))
    changed = {file.name[:4] for file, data in patches.items() if file.read_bytes() != data}
    if "--dry-run" in words:
        assert not changed
    else:
        runtime = next(file for file in patches if file.parent.name == "runtime")
        assert b"int engine(int)" in runtime.read_bytes()
        show = next(file for file in patches if file.name.startswith("0002-Show"))
        assert (b"# of it" in show.read_bytes()) == ("--patch" in words)


def listed(tool: Tool) -> list[tuple[str, str, str, bool]]:
    (found,) = tool("status")["checkouts"]
    keys = "patch", "state", "file", "differs"
    return [tuple(patch[key] for key in keys) for patch in found["patches"]]


def said(tool: Tool) -> str:
    tool.capsys.readouterr()
    assert run(["status", "v1.0", *tool.into]) == 0
    return tool.capsys.readouterr().out


def test_status_has_the_numbers_that_drop_takes(tool: Tool) -> None:
    """Until `refresh` the checkout is ahead of the files, and commands are about the checkout."""
    whole = [(name, "applied", name, False) for name in (RUNTIME, CALL, SHOW, COUNT, TWICE)]
    assert listed(tool) == whole
    tool("drop", "2")
    third, fourth = (
        name.replace("0003", "0002").replace("0004", "0003") for name in (COUNT, TWICE)
    )
    now = [*whole[:2], (third, "applied", COUNT, False), (fourth, "applied", TWICE, False)]
    assert listed(tool) == [*now, (SHOW, "file only", SHOW, False)]
    text = said(tool)
    assert f"applied      {third}  (in the files as {COUNT})" in text
    assert f"file only    {SHOW}\n" in text and "next: lmsbuild refresh v1.0" in text
    tool("drop", "3")  # what status calls so: TWICE
    assert [name for name, state, *_ in listed(tool) if state == "applied"] == [
        RUNTIME, CALL, third,
    ]  # fmt: skip
    tool.run("refresh", "v1.0", "--from", str(tool.checkout))
    assert listed(tool) == [*whole[:2], (third, "applied", third, False)]


def test_status_tells_a_split_and_a_changed_patch(tool: Tool) -> None:
    tool("apply", "--to", "2")
    plain_git(tool.checkout, "reset", "-q", "HEAD~")
    plain_git(tool.checkout, "commit", "-qam", "Show it in Python")
    plain_git(tool.checkout, "add", "-A")
    plain_git(tool.checkout, "commit", "-qm", "Show more of it\n\nForwarded: no")
    tool("push", "--all")
    more, count, twice = (
        "v1.0/0003-Show-more-of-it.patch",
        COUNT.replace("0003", "0004"),
        TWICE.replace("0004", "0005"),
    )
    assert listed(tool) == [
        (RUNTIME, "applied", RUNTIME, False),
        (CALL, "applied", CALL, False),
        (SHOW, "applied", SHOW, True),
        (more, "applied", "", False),
        (count, "applied", COUNT, False),
        (twice, "applied", TWICE, False),
    ]
    text = said(tool)
    assert f"{SHOW}  (in the files otherwise)" in text and f"{more}  (in no file yet)" in text
    tool("pop")
    assert listed(tool)[-1] == (twice, "popped", TWICE, False)
    tool("reorder", "4", "--before", "1")
    assert listed(tool)[1][0] == "v1.0/0001-Count-what-moves.patch"


def test_status_of_a_commit_that_changes_nothing(tool: Tool) -> None:
    plain_git(tool.checkout, "commit", "-q", "--allow-empty", "-m", "Nothing")
    assert listed(tool)[-1] == ("v1.0/0005-Nothing.patch", "empty", "", False)
    assert "0005-Nothing.patch  (becomes no patch)" in said(tool)
    tool("drop", "5")
    assert len(listed(tool)) == 5


@pytest.mark.parametrize("text", ["", "no mail"])
def test_a_note_of_popped_patches_that_is_damaged(tool: Tool, text: str) -> None:
    """And not the patch file of that name, which has nothing to do with it."""
    tool("pop")
    note = tool.checkout / ".git/lmsbuild/popped.json"
    value = json.loads(note.read_text())
    value["steps"][0]["text"] = text
    note.write_text(json.dumps(value))
    for words in (["status"], ["push"], ["drop", "1"]):
        assert "popped.json cannot be understood" in tool(*words, code=17)["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wanted", []), ("refs", {}), ("refs", {"base": "x", "applied": "y", "before": "z"}),
        ("tip", "--output=x"), ("start", "HEAD"), ("base", ""), ("before", [{"name": "a"}]),
        ("laid", ["../x"]),
    ],
)  # fmt: skip
def test_a_note_of_an_arrangement_that_is_damaged(tool: Tool, name: str, value: Any) -> None:
    tool("drop", "1", code=9)
    note = tool.checkout / ".git/lmsbuild/arranging.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), name: value}))
    before = snapshot(tool.checkout)
    for step in ("--continue", "--skip", "--abort"):
        message = tool.run("apply", step, *tool.into, code=17)["message"]
        assert "arranging.json cannot be understood" in message
    assert snapshot(tool.checkout) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value["data"].pop("head"),
        lambda value: value["data"]["arranged"].pop("changes"),
        lambda value: value["data"]["arranged"]["refs"].pop("base"),
        lambda value: value["data"].update(arranged=[1]),
        lambda value: value.update(refs=[]),
        lambda value: value.update(refs={"a": ["b"]}),
        lambda value: value.update(data=3),
        lambda value: value.update(command=5),
        lambda value: value["steps"].append({"path": 5, "before": None, "after": None}),
    ],
)
def test_a_journal_that_is_damaged(tool: Tool, damage: Callable[[Any], object]) -> None:
    tool("drop", "3")
    file = tool.checkout / ".git/lmsbuild/last/journal.json"
    value = json.loads(file.read_text())
    damage(value)
    file.write_text(json.dumps(value))
    before = snapshot(tool.checkout)
    for words in (["status"], ["undo", "v1.0"]):
        assert (
            "journal.json cannot be understood" in tool.run(*words, *tool.into, code=17)["message"]
        )
    assert snapshot(tool.checkout) == before


def test_what_was_dropped_does_not_come_back(tool: Tool) -> None:
    """The last one of the files: without it the checkout has what they begin with."""
    tool("drop", "4")
    assert tool("drop", "3")["popped"] == []
    assert [state for _, state, *_ in listed(tool)] == ["applied"] * 3 + ["file only"] * 2
    tool.run("refresh", "v1.0", "--from", str(tool.checkout))
    assert [name for name, *_ in listed(tool)] == [RUNTIME, CALL, SHOW]


def test_status_of_a_conflict_names_what_is_left(tool: Tool) -> None:
    tool("drop", "1", code=9)
    states = {name.rpartition("/")[2][5:]: state for name, state, *_ in listed(tool)}
    assert states["Count-it-twice.patch"] == "conflict"
    assert states["Show-it-in-Python.patch"] == "applied"


def test_a_patch_that_the_files_have_since_is_to_be_applied(tool: Tool) -> None:
    """Nothing of the user's lies on the checkout: so it is the older one."""
    tool.run("refresh", "v1.0", "--from", str(tool.checkout))
    tool("apply")
    aside = tool.world.clone("aside")
    apply(tool.world.target, aside, Console(json_mode=True))
    write(aside, {"core/alloc.h": "#pragma once\nint upstream(int);\n"})
    plain_git(aside, "commit", "-qam", "Ask for a number")
    refresh(tool.world.target, aside)
    name = "v1.0/0005-Ask-for-a-number.patch"
    assert listed(tool)[-1] == (name, "not applied", name, False)
    assert "next: lmsbuild apply v1.0" in said(tool)
