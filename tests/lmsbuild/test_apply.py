# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from lmsbuild_world import World, full_disk, plain_git, write

from lmsbuild.base.console import Console
from lmsbuild.base.errors import LmsbuildError, PatchError, TreeStateError
from lmsbuild.base.git import Git, checkout_git
from lmsbuild.base.transaction import fingerprint
from lmsbuild.checkout import switch
from lmsbuild.checkout.apply import apply, undo
from lmsbuild.checkout.checkout import fetch, standing_in
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.series.series import export, export_name, series_of


def bare_am(world: World) -> Path:
    """The tree that the patches give with git alone."""
    clone = world.clone("bare")
    patches = [str(patch.path) for patch in series_of(world.target).patches]
    plain_git(clone, "am", "-q", "--keep-cr", *patches)
    return clone


def tree_of(path: Path) -> str:
    return plain_git(path, "rev-parse", "HEAD^{tree}")


def untouched(path: Path, head: str) -> bool:
    """No commit, no change, nothing under way."""
    now = plain_git(path, "rev-parse", "HEAD"), plain_git(path, "status", "--porcelain", "-uall")
    return now == (head, "") and not (path / ".git/rebase-apply").exists()


def test_undo_takes_back_an_apply_that_was_not_cleaned_up(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()
    head = plain_git(clone, "rev-parse", "HEAD")
    with monkeypatch.context() as patch:
        patch.setattr(CheckoutTransaction, "finish", full_disk)
        apply(world.target, clone, console)
    user = checkout_git(clone)
    assert user is not None
    for dry_run in (True, False):
        assert undo(user, console, dry_run=dry_run).head == head
    assert untouched(clone, head)


def test_a_file_that_goes_while_it_is_looked_at(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()

    def looked_at(path: Path) -> str | None:
        found = fingerprint(path)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(switch, "fingerprint", looked_at)
    with pytest.raises(TreeStateError, match="is not as its commit has it"):
        apply(world.target, clone, console, dry_run=True)


def test_gives_the_tree_of_a_bare_git_am(world: World, console: Console) -> None:
    clone = world.clone()
    done = apply(world.target, clone, console)
    assert len(done.patches) == 3
    assert tree_of(clone) == tree_of(bare_am(world))
    assert (clone / "python/windows.py").read_bytes() == b"first = 1\r\nsecond = 3\r\n"
    assert (clone / "python/lms.py").read_text() == "# new   \n"


def test_second_time_changes_nothing(world: World, console: Console) -> None:
    clone = world.clone()
    first = apply(world.target, clone, console)
    second = apply(world.target, clone, console)
    assert (second.patches, second.already, second.head) == ([], 3, first.head)


def test_partly_applied_is_completed(world: World, console: Console) -> None:
    clone = world.clone()
    Git(clone).run("am", "-q", "--keep-cr", str(series_of(world.target).patches[0].path))
    done = apply(world.target, clone, console)
    assert (len(done.patches), done.already) == (2, 1)
    assert tree_of(clone) == tree_of(bare_am(world))


def test_dry_run_changes_nothing(world: World, console: Console) -> None:
    clone = world.clone()
    head = plain_git(clone, "rev-parse", "HEAD")
    assert len(apply(world.target, clone, console, dry_run=True).patches) == 3
    assert untouched(clone, head)


@pytest.mark.parametrize("name", ["core/alloc.cpp", "untracked.txt"])
def test_refuses_a_tree_that_is_not_clean(world: World, console: Console, name: str) -> None:
    clone = world.clone()
    write(clone, {name: "mine\n"})
    with pytest.raises(TreeStateError, match=name):
        apply(world.target, clone, console)
    assert (clone / name).read_text() == "mine\n"


def test_names_patch_file_and_hunk_and_restores(world: World, console: Console) -> None:
    """The recorded blob fits the tree, but a hunk's context does not: a damaged patch."""
    patch = series_of(world.target).patches[1]
    patch.path.write_bytes(
        patch.path.read_bytes().replace(b" int line18 = 18;", b" int line18 = 0;")
    )
    clone = world.clone()
    head = plain_git(clone, "rev-parse", "HEAD")
    with pytest.raises(PatchError) as failure:
        apply(world.target, clone, console)
    assert failure.value.details["patch"] == patch.name
    assert failure.value.details["file"] == "core/alloc.cpp"
    assert failure.value.details["hunk"] == 1
    assert "@@ -17,7 +17,7 @@" in failure.value.message
    assert untouched(clone, head)


def test_wrong_result_is_taken_off(world: World, console: Console) -> None:
    """A patch whose text applies but does not give the blob that it promises."""
    patch = series_of(world.target).patches[1]
    patch.path.write_bytes(
        patch.path.read_bytes().replace(b"+int line20 = 21;", b"+int line20 = 22;")
    )
    clone = world.clone()
    head = plain_git(clone, "rev-parse", "HEAD")
    with pytest.raises(PatchError, match="did not come out"):
        apply(world.target, clone, console)
    assert untouched(clone, head)


def test_refuses_other_code(world: World, console: Console) -> None:
    clone = world.clone()
    world.commit(clone, {"core/alloc.cpp": "other\n"}, "Change upstream")
    with pytest.raises(LmsbuildError, match=r"core/alloc\.cpp"):
        apply(world.target, clone, console)


def test_refuses_another_repository_and_no_repository(world: World, console: Console) -> None:
    other = world.folder / "other"
    other.mkdir()
    with pytest.raises(TreeStateError, match="no git checkout"):
        apply(world.target, other, console)
    Git(other).run("init", "-q")
    world.commit(other, {"a": "a"}, "A")
    with pytest.raises(TreeStateError, match="no clone of alpha"):
        apply(world.target, other, console)


def test_refuses_while_am_is_under_way(world: World, console: Console) -> None:
    clone = world.clone()
    (clone / ".git/rebase-apply").mkdir()
    with pytest.raises(TreeStateError, match="under way"):
        apply(world.target, clone, console)


HOSTILE = """
[apply]
    whitespace = fix
    ignoreWhitespace = change
[am]
    threeWay = true
    keepcr = false
[commit]
    gpgSign = true
[gpg]
    program = /bin/false
[core]
    autocrlf = true
    hooksPath = {hooks}
    editor = false
    fsmonitor = /bin/false
[user]
    name = Somebody
    email = somebody@example.invalid
[diff]
    noprefix = true
    renames = copies
[format]
    signature = hello
    subjectPrefix = HELLO
    numbered = true
    attach = true
[i18n]
    commitEncoding = ISO-8859-1
"""


def hostile(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    hooks = world.folder / "hooks"
    hooks.mkdir()
    for name in (
        "pre-commit",
        "applypatch-msg",
        "pre-applypatch",
        "post-applypatch",
        "post-commit",
    ):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    text = HOSTILE.format(hooks=hooks)
    config = world.folder / "gitconfig"
    config.write_text(text)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(world.folder / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(world.folder / "noindex"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    return text


def test_hostile_configuration_gives_the_same_patches(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    text = hostile(world, monkeypatch)
    with (clone / ".git/config").open("a") as config:
        config.write(text)
    done = refresh(world.target, clone)
    assert (done.written, done.removed, len(done.unchanged)) == ([], [], 3)


@pytest.mark.parametrize("kind", ["space", "detached", "worktree", "subfolder"])
def test_unusual_checkouts(
    world: World, console: Console, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone("a clone" if kind == "space" else "clone")
    if kind == "detached":
        plain_git(clone, "checkout", "-q", "--detach")
    if kind == "worktree":
        plain_git(clone, "worktree", "add", "-q", "../linked", "v1.0")
        clone = world.folder / "linked"
    if kind == "subfolder":
        monkeypatch.chdir(clone / "core")
        found = standing_in(world.target)
        assert found == clone.resolve()
    apply(world.target, clone, console)
    assert tree_of(clone) == tree_of(bare_am(world))


def test_own_older_version_is_replaced(world: World, console: Console) -> None:
    path = fetch(world.target, "git", None, console).path
    apply(world.target, path, console)
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 2; }\n"})
    refresh(world.target, None)
    assert apply(world.target, path, console).replaced
    assert (path / "core/lms/engine.cpp").read_text() == "int engine() { return 2; }\n"
    assert tree_of(path) == tree_of(bare_am(world))


def test_users_commits_on_an_older_version_are_kept(world: World, console: Console) -> None:
    path = fetch(world.target, "git", None, console).path
    apply(world.target, path, console)
    world.commit(path, {"mine.txt": "mine\n"}, "Mine")
    head = plain_git(path, "rev-parse", "HEAD")
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 2; }\n"})
    refresh(world.target, None)
    with pytest.raises(TreeStateError, match="engine"):
        apply(world.target, path, console)
    assert untouched(path, head)


def test_patch_of_an_mbox_applies_with_git_alone(world: World) -> None:
    file = world.folder / export_name(world.target)
    file.write_bytes(export(world.target))
    assert file.name == "alpha_v1.0_large_model_support.patch"
    clone = world.clone()
    plain_git(clone, "am", "-q", str(file))
    assert tree_of(clone) == tree_of(bare_am(world))
    assert (
        max(len(line) for line in file.read_bytes().split(b"\n")) > 76
    )  # only what must be quoted


def test_a_head_that_is_no_utf8_is_exported_as_it_is(world: World) -> None:
    """Beside lines that end in CRLF, for which the mail is written anew."""
    (patch,) = [file for file in world.target.patches if b"\r\n" in file.read_bytes()]
    head, _, rest = patch.read_bytes().partition(b"\n\n")
    patch.write_bytes(head + b", \xe0 la carte\n\n" + rest)
    assert b", \xe0 la carte\n" in export(world.target)


def test_interrupt_restores(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of `am`: a hook-free way is a failing check after it."""
    clone = world.clone()
    head = plain_git(clone, "rev-parse", "HEAD")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lmsbuild.checkout.apply._check_result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply(world.target, clone, console)
    assert untouched(clone, head)
