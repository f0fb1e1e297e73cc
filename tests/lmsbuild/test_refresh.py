# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lmsbuild_world import UPSTREAM, World, hook_files, plain_git, write

from lmsbuild.apply import apply
from lmsbuild.console import Console
from lmsbuild.errors import ConfigError, TreeStateError
from lmsbuild.format import format_patches, mail_of
from lmsbuild.git import Git
from lmsbuild.hashing import git_blob
from lmsbuild.refresh import refresh, runtime_patch
from lmsbuild.series import series_of


def snapshot(world: World) -> dict[str, bytes]:
    root = world.project.patches
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


def test_round_trip_gives_the_same_bytes(world: World, console: Console) -> None:
    before = snapshot(world)
    clone = world.clone()
    apply(world.target, clone, console)
    done = refresh(world.target, clone)
    assert not done.written and not done.removed
    assert snapshot(world) == before


def test_records_the_pre_image_of_upstream_files_only(world: World) -> None:
    touched = {name for files in hook_files().values() for name in files} & set(UPSTREAM)
    expected = {name: git_blob(UPSTREAM[name].encode()) for name in touched}
    assert world.target.tag.preimage == expected


def test_edit_in_lms_changes_the_runtime_patch_alone(world: World) -> None:
    hooks = {n: c for n, c in snapshot(world).items() if "/v1.0/" in n}
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 7; }\n"})
    done = refresh(world.target, None)
    assert len(done.written) == 1 and done.written[0].startswith("runtime/")
    assert {n: c for n, c in snapshot(world).items() if "/v1.0/" in n} == hooks


def test_dry_run_writes_nothing(world: World) -> None:
    write(world.project.root, {"lms/core/engine.cpp": "changed\n"})
    before = snapshot(world)
    assert refresh(world.target, None, dry_run=True).written
    assert snapshot(world) == before


def test_renamed_hook_removes_the_old_patch(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    plain_git(clone, "commit", "-q", "--amend", "-m", "Another name")
    done = refresh(world.target, clone)
    assert [name for name in done.removed if "Show-it" in name]
    assert [name for name in done.written if "Another-name" in name]


def test_refuses_an_edit_of_a_runtime_file(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    world.commit(clone, {"core/lms/engine.cpp": "edited\n"}, "Edit the engine")
    with pytest.raises(TreeStateError, match=r"core/lms/engine\.cpp"):
        refresh(world.target, clone)


def test_refuses_a_checkout_without_the_runtime(world: World) -> None:
    with pytest.raises(TreeStateError, match="runtime"):
        refresh(world.target, world.clone())


def test_refuses_two_files_for_one_path(world: World) -> None:
    toml = world.project.frameworks_file
    toml.write_text(
        toml.read_text().replace(
            "[[frameworks.alpha.layout]]",
            '[[frameworks.alpha.layout]]\nsource = "lms/other"\ntarget = "core/lms"\n'
            'patterns = ["*.cpp"]\n\n[[frameworks.alpha.layout]]',
            1,
        )
    )
    write(world.project.root, {"lms/other/engine.cpp": ""})
    with pytest.raises(ConfigError, match="both go to"):
        refresh(world.target, None)


def test_patch_without_full_ids_is_refused(world: World) -> None:
    patch = series_of(world.target).patches[1].path
    text = patch.read_bytes().decode()
    line = next(line for line in text.splitlines() if line.startswith("index "))
    patch.write_bytes(text.replace(line, "index 1234567..89abcde 100644").encode())
    with pytest.raises(ConfigError, match="full"):
        _ = series_of(world.target).before


def test_stable_over_places(world: World) -> None:
    assert runtime_patch(world.target) == runtime_patch(world.target)


lines = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=12
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=lines, new=lines, message=st.text("abc Z-[]:\n", min_size=1))
def test_any_text_survives_patch_and_am(
    tmp_path: Path, old: list[str], new: list[str], message: str
) -> None:
    """format-patch then am gives the same tree, whatever the bytes of a file."""
    before, after = "\n".join(old).encode(), "\n".join(new).encode()
    if before == after:
        after += b"\nmore"
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    root.mkdir()
    git = Git(root)
    git.run("init", "-q")
    commits: list[str] = []
    for content in (before, after):
        blob = git.run("hash-object", "-w", "--stdin", stdin=content).stdout.decode().strip()
        git.run("update-index", "--add", "--cacheinfo", f"100644,{blob},file")
        tree = git.text("write-tree")
        parents = ["-p", commits[-1]] if commits else []
        subject = f"Subject {message}".encode()
        made = git.run("commit-tree", tree, *parents, "-F", "-", stdin=subject)
        commits.append(made.stdout.decode().strip())
    git.run("reset", "-q", "--hard", commits[0])
    assume(not mail_of(git, commits[1]).hazard())
    for content in format_patches(git, commits[0], commits[1]).values():
        (root / ".git/the.patch").write_bytes(content)
        git.run("am", "-q", "--keep-cr", "--keep-non-patch", ".git/the.patch")
    assert git.text("rev-parse", "HEAD^{tree}") == git.text("rev-parse", f"{commits[1]}^{{tree}}")
