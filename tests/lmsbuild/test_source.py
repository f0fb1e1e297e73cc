# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lmsbuild_world import UPSTREAM, World, plain_git, write

from lmsbuild import debian
from lmsbuild.checkout import fetch
from lmsbuild.console import Console
from lmsbuild.errors import MismatchError, SourceError, TreeStateError
from lmsbuild.git import Git
from lmsbuild.series import series_of


def unpacked(world: World, name: str = "alpha-1.0") -> Path:
    tree = world.folder / name
    write(tree, UPSTREAM)
    return tree


def tarball(world: World) -> Path:
    unpacked(world)
    file = world.folder / "alpha-1.0.tar.xz"
    subprocess.run(["tar", "-C", world.folder, "-cJf", file, "alpha-1.0"], check=True)
    return file


def route(world: World, name: str) -> str:
    if name in ("auto", "git"):
        return name
    made: dict[str, Callable[[], str]] = {
        "git url": world.upstream.as_uri,
        "clone": lambda: str(world.clone("source clone")),
        "tree": lambda: str(unpacked(world)),
        "tarball": lambda: str(tarball(world)),
        "tarball url": lambda: tarball(world).as_uri(),
    }
    return made[name]()


ROUTES = ["auto", "git", "git url", "clone", "tree", "tarball", "tarball url"]


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_gives_the_same_tree(world: World, console: Console, name: str) -> None:
    checkout = fetch(world.target, route(world, name), None, console)
    assert checkout.path == world.folder / "work/alpha-v1.0/source"
    expected = plain_git(world.upstream, "rev-parse", "v1.0^{tree}")
    assert plain_git(checkout.path, "rev-parse", "HEAD^{tree}") == expected
    assert not Git(checkout.path).changes()
    assert fetch(world.target, "auto", None, console).route == "present"


def test_imported_tree_has_the_same_commit_everywhere(world: World, console: Console) -> None:
    first = fetch(world.target, str(tarball(world)), world.folder / "one", console)
    second = fetch(world.target, str(unpacked(world)), world.folder / "two", console)
    assert first.commit == second.commit


@pytest.mark.parametrize("name", ["clone", "tree", "tarball"])
def test_other_code_is_refused_by_name(world: World, console: Console, name: str) -> None:
    source = Path(route(world, name))
    changed = {"python/api.py": "other\n"}
    if name == "clone":
        world.commit(source, changed, "Other")
        plain_git(source, "tag", "-d", "v1.0")
        shutil.rmtree(source / ".git")
        Git(source).run("init", "-q")
        world.commit(source, {}, "All")
    else:
        write(world.folder / "alpha-1.0", changed)
        if name == "tarball":
            source.unlink()
            subprocess.run(["tar", "-C", world.folder, "-cJf", source, "alpha-1.0"], check=True)
    with pytest.raises(MismatchError, match=r"python/api\.py"):
        fetch(world.target, str(source), None, console)
    assert not (world.folder / "work/alpha-v1.0/source").exists()


def test_moved_tag_is_refused(world: World, console: Console) -> None:
    world.commit(world.upstream, {"later": "1"}, "Later")
    plain_git(world.upstream, "tag", "-f", "v1.0")
    with pytest.raises(MismatchError, match="its tag is commit"):
        fetch(world.target, "git", None, console)


def test_damaged_tarball_is_named(world: World, console: Console) -> None:
    file = tarball(world)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(SourceError, match=file.name):
        fetch(world.target, str(file), None, console)


def test_missing_path_and_unreachable_git(world: World, console: Console) -> None:
    with pytest.raises(SourceError, match="no such file"):
        fetch(world.target, "nowhere", None, console)
    shutil.rmtree(world.upstream)
    with pytest.raises(SourceError, match=r"git: .*debian: "):
        fetch(world.target, "auto", None, console)


def test_folder_in_the_way_is_left_alone(world: World, console: Console) -> None:
    mine = world.folder / "mine"
    write(mine, {"file": "mine"})
    with pytest.raises(TreeStateError, match="--into"):
        fetch(world.target, "git", mine, console)
    assert (mine / "file").read_text() == "mine"


def test_users_clone_is_taken_with_and_without_the_series(world: World, console: Console) -> None:
    clone = world.clone()
    assert fetch(world.target, "auto", clone, console).route == "present"
    plain_git(
        clone, "am", "-q", "--keep-cr", *(str(p.path) for p in series_of(world.target).patches)
    )
    assert fetch(world.target, "auto", clone, console).route == "present"
    world.commit(clone, {"core/alloc.cpp": "other\n"}, "Other")
    with pytest.raises(TreeStateError, match=r"core/alloc\.cpp"):
        fetch(world.target, "auto", clone, console)


def test_cached_source_needs_no_upstream(world: World, console: Console) -> None:
    fetch(world.target, "git", world.folder / "one", console)
    shutil.rmtree(world.upstream)
    again = fetch(world.target, "auto", world.folder / "two", console)
    assert again.why == "in the cache; tag not signed"


DEB822 = """\
# main
Types: deb
URIs: http://one.invalid/debian http://two.invalid/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/a.gpg

Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://inline.invalid/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
"""


def test_configured_archives_are_read() -> None:
    found = debian.parse_deb822(DEB822)
    assert [archive.uri.split("/")[2] for archive in found] == [
        "one.invalid", "two.invalid", "inline.invalid",
    ]  # fmt: skip
    assert found[0].signed_by == "/usr/share/keyrings/a.gpg"
    assert found[2].signed_by is None
    line = "deb [arch=amd64 signed-by=/k.gpg] http://three.invalid/debian bookworm main # x\n"
    assert debian.parse_one_line(line) == [
        debian.Archive("http://three.invalid/debian", ["bookworm"], ["main"], "/k.gpg")
    ]


def test_archive_of_this_release_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.list").write_text("deb http://other.invalid/apt tool main\n")
    (tmp_path / "debian.sources").write_text(DEB822)
    monkeypatch.setattr(debian, "SOURCES_LIST", tmp_path / "none")
    monkeypatch.setattr(debian, "SOURCES_PARTS", tmp_path)
    found = debian.main_archive("bookworm")
    assert found is not None and found.uri == "http://one.invalid/debian"
    assert debian.main_archive("trixie") is None
