# SPDX-License-Identifier: Apache-2.0
"""What a patch can hold beside text: binary files, modes, links, files that get another name; and
where it went upstream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmsbuild_kill import snapshot
from lmsbuild_world import REPOSITORY, World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.filenames import link_target
from lmsbuild.base.git import open_at
from lmsbuild.base.hashing import git_blob
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.verify import verify
from lmsbuild.series import binary
from lmsbuild.series.lint import lint
from lmsbuild.series.series import Patch, patch_files, series_of

PICTURE = bytes(range(256)) * 300  # more than a block


@pytest.fixture
def forms(world: World, console: Console) -> Path:
    """A checkout whose third hook has all of them."""
    clone = world.clone()
    apply(world.target, clone, console)
    (clone / "core/picture.bin").write_bytes(PICTURE)
    (clone / "core/link").symlink_to("../python/api.py")
    (clone / "core/alloc.h").chmod(0o755)
    plain_git(clone, "mv", "kept.generated", "moved.txt")
    plain_git(clone, "add", "-A", "-f")
    plain_git(clone, "commit", "-qm", "Have all forms\n\nBecause core/alloc.h must.")
    refresh(world.target, clone)
    return clone


def third(world: World) -> Path:
    return patch_files(world.target.tag_patches)[2]


def test_all_forms_go_there_and_back(world: World, forms: Path, console: Console) -> None:
    checked = verify(world.target, console, forms)
    assert checked.problems == [] and all(check.state == "ok" for check in checked.checks)
    fresh = world.clone("fresh")
    apply(world.target, fresh, console)
    trees = [plain_git(place, "rev-parse", "HEAD^{tree}") for place in (forms, fresh)]
    assert trees[0] == trees[1]
    assert (fresh / "core/picture.bin").read_bytes() == PICTURE
    assert str((fresh / "core/link").readlink()) == "../python/api.py"
    assert (fresh / "core/alloc.h").stat().st_mode & 0o100
    assert (fresh / "moved.txt").exists() and not (fresh / "kept.generated").exists()
    assert plain_git(fresh, "status", "--porcelain") == ""
    text = third(world).read_bytes()
    refresh(world.target, fresh)
    assert third(world).read_bytes() == text


def test_plain_git_takes_the_export(world: World, forms: Path) -> None:
    assert run(["export", "v1.0", "-o", "out.patch"]) == 0
    fresh = world.clone("fresh")
    plain_git(fresh, "am", "-q", str(world.folder / "out.patch"))
    trees = [plain_git(place, "rev-parse", "HEAD^{tree}") for place in (forms, fresh)]
    assert trees[0] == trees[1]


CRLF = (
    "first = 1\r\nsecond = 2\r\n=3D = 3\r\nFrom the start\r\n\r\n \t\r\nonly LF\ntrail  \r\n"
    + "é" * 600 + "\r\n.\r\n--- a/x\r\n-- \r\nCR alone\rhere\r\nno end\r"
)  # fmt: skip


@pytest.mark.parametrize("setting", ["", "am.keepcr=false", "apply.whitespace=nowarn"])
@pytest.mark.parametrize("piped", [False, True])
def test_plain_git_keeps_crlf(world: World, console: Console, setting: str, piped: bool) -> None:
    """`git am` without --keep-cr gives the tree that apply gives."""
    clone = world.clone()
    apply(world.target, clone, console)
    (clone / "python/windows.py").write_bytes(CRLF.encode())
    (clone / "python/new.bat").write_bytes(CRLF.encode())
    plain_git(clone, "add", "-A")
    plain_git(clone, "commit", "-qm", "Have lines of Windows\n\nBecause python/windows.py must.")
    refresh(world.target, clone)
    assert b"\r\n" in third(world).read_bytes()
    applied, plain = world.clone("applied"), world.clone("plain")
    assert run(["apply", "v1.0", "--into", str(applied)]) == 0
    command = [sys.executable, "-m", "lmsbuild", "export", "v1.0", "-o", "-" if piped else "x"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    said = subprocess.run(command, env=env, capture_output=True, check=True, cwd=world.folder)
    mail = said.stdout if piped else (world.folder / "x").read_bytes()
    user = ["-c", "user.name=User", "-c", "user.email=user@example.invalid"]
    user += ["-c", setting] if setting else []
    subprocess.run(["git", *user, "am", "-q"], cwd=plain, input=mail, check=True)
    trees = [plain_git(place, "rev-parse", "HEAD^{tree}") for place in (clone, applied, plain)]
    assert len(set(trees)) == 1
    assert (plain / "python/new.bat").read_bytes() == CRLF.encode()


LINK = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.invalid>
Date: Tue, 3 Feb 2026 04:05:06 +0000
Subject: [PATCH] Link it

Because.

---
diff --git a/core/out b/core/out
new file mode 120000
index 0000000000000000000000000000000000000000..{blob}
--- /dev/null
+++ b/core/out
@@ -0,0 +1 @@
+{target}
\\ No newline at end of file
"""


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "../.git/config", "a/../../../x"])
def test_a_link_out_of_the_tree_is_refused_by_each_command(
    world: World, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """Not only by verify; and nothing is changed or written."""
    blob = git_blob(target.encode())
    sound, hostile = world.target.tag_patches / "0003-Link-it.patch", world.folder / "x.mbox"
    hostile.write_text(LINK.format(blob=blob, target=target))
    clone = world.clone()
    assert run(["apply", "v1.0", "--into", str(clone)]) == 0
    before = snapshot(clone)
    assert run(["import", "v1.0", str(hostile), "--into", str(clone)]) != 0
    assert {**snapshot(clone), "index file": ""} == {**before, "index file": ""}
    sound.write_bytes(hostile.read_bytes())
    fresh = world.clone("fresh")
    before = snapshot(fresh)
    for command in (
        ["apply", "v1.0", "--into", str(fresh)],
        ["apply", "v1.0", "--to", "4", "--into", str(fresh)],
        ["apply", "v1.0", "--into", str(fresh), "--dry-run"],
        ["push", "v1.0", "--all", "--into", str(clone)],
        ["export", "v1.0", "-o", "out.patch"],
        ["export", "v1.0", "-o", "-"],
        ["export", "v1.0", "--dry-run"],
        ["verify", "v1.0"],
    ):
        capsys.readouterr()
        assert run(command) not in (0, 1), command
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err and "diff --git" not in shown.out
        assert "out" in shown.err + shown.out
    assert snapshot(fresh) == before and not (world.folder / "out.patch").exists()
    assert not (fresh / "core/out").is_symlink() and not (clone / "core/out").is_symlink()


def test_changes_and_removals_of_them(world: World, forms: Path, console: Console) -> None:
    (forms / "core/picture.bin").write_bytes(PICTURE[::-1])
    (forms / "core/link").unlink()
    (forms / "core/link").symlink_to("alloc.h")
    plain_git(forms, "commit", "-qam", "Change them\n\nBecause.")
    (forms / "core/picture.bin").unlink()
    (forms / "core/link").unlink()
    (forms / "core/alloc.h").chmod(0o644)
    plain_git(forms, "commit", "-qam", "Remove them\n\nBecause.")
    refresh(world.target, forms)
    assert verify(world.target, console, forms).problems == []
    into = ["--into", str(forms)]
    for count, link in ((5, None), (4, "alloc.h"), (3, "../python/api.py"), (2, None)):
        assert run(["apply", "v1.0", "--to", str(count), *into]) == 0
        path = forms / "core/link"
        assert (str(path.readlink()) if path.is_symlink() else None) == link
        assert (forms / "core/picture.bin").exists() == bool(link)
        assert bool((forms / "core/alloc.h").stat().st_mode & 0o100) == bool(link)
    assert run(["push", "v1.0", "--all", *into]) == 0
    assert plain_git(forms, "status", "--porcelain") == ""


def test_a_mode_alone_tells_whether_it_is_applied(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    (clone / "core/alloc.h").chmod(0o755)
    plain_git(clone, "commit", "-qam", "Let it run\n\nBecause core/alloc.h must.")
    refresh(world.target, clone)
    series = series_of(world.target)
    assert "index " in third(world).read_text().partition("new mode 100755\n")[2]
    fresh = world.clone("fresh")
    assert run(["apply", "v1.0", "--to", "2", "--into", str(fresh)]) == 0
    assert series.applied(open_at(fresh)) == 3
    assert len(apply(world.target, clone, console).patches) == 0
    assert series.applied(open_at(clone)) == 4


def test_a_patch_by_hand_is_held_to_what_it_says(
    world: World, forms: Path, console: Console
) -> None:
    path = third(world)
    text = path.read_bytes().decode()
    inner = text.index("literal")
    for old, new, words in (
        ("../python/api.py", "../../etc/passwd", "leads out of the tree"),
        ("../python/api.py", "/etc/passwd", "leads out of the tree"),
        ("\n\\ No newline at end of file\n", "\n", "ends with a line end"),
        (text[inner : inner + 40], "literal 3\nIc$}xx\n\n" + text[inner : inner + 40], "literals"),
    ):
        assert old in text
        path.write_bytes(text.replace(old, new, 1).encode())
        with pytest.raises(ConfigError, match=words):
            patch = Patch(path)
            _ = patch.changes
            patch.binary("core/picture.bin")
        assert run(["verify", "v1.0"]) != 0
    fresh = world.clone("fresh")
    packed = text.replace("new mode 100755", "new mode 100644")
    path.write_bytes(packed.replace("old mode 100644\n", "old mode 100755\n").encode())
    with pytest.raises(TreeStateError, match="its mode is 100644, not 100755"):
        apply(world.target, fresh, console)
    assert plain_git(fresh, "status", "--porcelain") == ""


def test_a_rename_of_git_is_refused_in_a_series(world: World, forms: Path) -> None:
    patch = third(world)
    (forms / "core/alloc.h").chmod(0o644)
    plain_git(forms, "commit", "-qa", "--amend", "--no-edit")
    patch.write_text(
        plain_git(forms, "format-patch", "-1", "-M", "--stdout", "--full-index") + "\n"
    )
    with pytest.raises(ConfigError, match="a rename"):
        _ = Patch(patch).changes


def test_lint_wants_a_reason_for_a_binary(world: World, forms: Path) -> None:
    def rules() -> list[str]:
        return [f.rule for f in lint(world.target) if f.file == "core/picture.bin"]

    assert rules() == ["binary"]
    assert not [f for f in lint(world.target) if f.file == "core/link"]
    message = plain_git(forms, "log", "-1", "--format=%B")
    why = "Binary: core/picture.bin because it is a picture"
    plain_git(forms, "commit", "-q", "--amend", "-m", f"{message}\n\n{why}")
    refresh(world.target, forms)
    assert rules() == []


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_binary_is_read_as_it_was_written(before: bytes, after: bytes) -> None:
    assert binary.read(binary.render(before, after)) == (before, after)


@pytest.mark.parametrize(
    ("path", "target", "good"),
    [
        ("a/link", "b", True), ("a/link", "../b", True), ("a/link", "../../b", False),
        ("link", "..", False), ("a/b/link", "..", True), ("link", "/b", False),
        ("a/b/link", "c/../d", False), ("link", ".git/config", False), ("link", "", False),
    ],
)  # fmt: skip
def test_where_a_link_may_lead(path: str, target: str, good: bool) -> None:
    if good:
        assert link_target(path, target) == target
    else:
        with pytest.raises(ValueError, match=r".+"):
            link_target(path, target)


def test_where_a_patch_went_upstream(
    world: World, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    address = "https://example.org/pull/7"
    for name, trailers in (
        ("a", f"Forwarded: {address}"),
        ("b", f"Forwarded: {address}\nApplied-Upstream: v1.1"),
        ("c", "Forwarded: not-needed"),
        ("d", "Forwarded: soon"),
    ):
        write(clone, {f"core/{name}.h": f"{name}\n"})
        plain_git(clone, "add", "-A")
        plain_git(clone, "commit", "-qm", f"Add {name}\n\nBecause.\n\n{trailers}")
    refresh(world.target, clone)
    capsys.readouterr()
    assert run(["status", "v1.0", "--into", str(clone)]) == 0
    shown = capsys.readouterr().out
    assert f"0003-Add-a.patch  (forwarded: {address})" in shown
    assert "0004-Add-b.patch  (upstream: v1.1)" in shown
    assert "0005-Add-c.patch  (not for upstream)" in shown
    assert run(["map", "v1.0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["whereabouts"] for row in rows} >= {"", "upstream: v1.1"}
    assert run(["map", "v1.0"]) == 0
    assert f"v1.0/0003-Add-a.patch: forwarded: {address}" in capsys.readouterr().out
    found = [finding for finding in lint(world.target) if finding.rule == "forwarded"]
    assert [finding.patch for finding in found] == ["v1.0/0006-Add-d.patch"]
