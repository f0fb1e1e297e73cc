# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from filelock import FileLock
from lmsbuild_wheels import let_go
from lmsbuild_world import UPSTREAM, World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console, Task
from lmsbuild.base.errors import GitError, MismatchError, SourceError, TreeStateError
from lmsbuild.base.git import Git, Repository
from lmsbuild.base.hashing import sha256_file
from lmsbuild.checkout import debian
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import abandon, fetch, is_framework
from lmsbuild.series.series import series_of


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
    assert not plain_git(checkout.path, "status", "--porcelain")
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


def test_folder_of_something_else_is_not_imported(world: World, console: Console) -> None:
    tree = unpacked(world)
    (tree / "recognise.me").unlink()
    with pytest.raises(SourceError, match=r"alpha-1\.0 cannot be .* no alpha: it lacks recognise"):
        fetch(world.target, str(tree), None, console)


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
    with pytest.raises(SourceError, match=r"git: .* git says: .*debian: ") as caught:
        fetch(world.target, "auto", None, console)
    assert "disk" not in caught.value.message


def test_a_source_that_is_not_needed_is_looked_for(world: World, console: Console) -> None:
    """A name that was mistyped is told of although the checkout is there."""
    fetch(world.target, "git", None, console)
    with pytest.raises(SourceError, match="nonsense cannot be a source"):
        fetch(world.target, "nonsense", None, console)
    there = fetch(world.target, str(world.upstream), None, console)
    assert there.route == "present" and "was not looked at" in there.why
    assert fetch(world.target, "auto", None, console).why == "it is there already"
    clone = world.clone()
    there = fetch(world.target, "auto", None, console, clone)
    assert there.why == f"it is there already, and {clone} was not looked at"
    both = fetch(world.target, "git", None, console, clone)
    assert both.why.endswith(f"and git and {clone} were not looked at")
    with pytest.raises(SourceError, match="cannot be a reference because it is no git repo"):
        fetch(world.target, "auto", None, console, world.folder / "project")


@pytest.mark.parametrize("kind", ["url", "clone"])
def test_a_tag_that_the_source_lacks_is_named(world: World, console: Console, kind: str) -> None:
    """git says nothing of it, and the code of another tag differs somewhere."""
    plain_git(world.upstream, "tag", "-d", "v1.0")
    other = {"core/alloc.cpp": UPSTREAM["core/alloc.cpp"].replace("20;", "0;")}
    world.commit(world.upstream, other, "Later")
    clone = world.folder / "shallow"
    plain_git(world.folder, "clone", "-q", "--depth=1", world.upstream.as_uri(), str(clone))
    source = clone.as_uri() if kind == "url" else str(clone)
    words = "v1.0 cannot be had .* no such tag" if kind == "url" else "as it has no tag v1.0"
    with pytest.raises((SourceError, MismatchError), match=words) as caught:
        fetch(world.target, source, None, console)
    assert str(clone) in caught.value.message


def test_what_fails_leaves_nothing_beside(world: World, console: Console) -> None:
    """Neither the lock of a checkout that is not there nor the folders above."""
    shutil.rmtree(world.upstream)
    before = {path.name for path in world.folder.iterdir()}
    for place in ("new", "made/for/it", "work/alpha-v1.0/source"):
        with pytest.raises(SourceError):
            fetch(world.target, "git", world.folder / place, console)
    left = {path.name for path in world.folder.iterdir()} - before
    assert left <= {"cache", "work"} and not list((world.folder / "work").rglob(".*.lock"))


def test_a_fetch_leaves_what_another_makes_beside(world: World, console: Console) -> None:
    """Only what a killed one to the same place left goes."""
    for name in ("a", "a-b"):
        (world.folder / f".lmsbuild-new-{name}-12345678").mkdir()
    with FileLock(world.folder / ".a-b.lock"):
        path = fetch(world.target, "git", world.folder / "a", console).path
    left = [path.name for path in world.folder.glob(".lmsbuild-new-*")]
    assert is_framework(world.target, path) and left == [".lmsbuild-new-a-b-12345678"]


def test_abort_leaves_what_another_makes_in_the_work_folder(world: World) -> None:
    made = [world.target.work / f".lmsbuild-new-{name}-12345678" for name in ("source", "other")]
    for folder in made:
        folder.mkdir(parents=True)
    with FileLock(world.target.work / ".other.lock"):
        assert abandon(world.target) == made[:1]
    assert abandon(world.target) == made[1:] and not made[1].exists()


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


# git: references, blobless fetches, signatures ---------------------------------------------------


def served(world: World) -> None:
    """Upstream as public hosts serve it: partial fetches, and objects by their ids."""
    plain_git(world.upstream, "config", "uploadpack.allowFilter", "true")
    plain_git(world.upstream, "config", "uploadpack.allowAnySHA1InWant", "true")


def bare_of(world: World) -> Path:
    (found,) = (world.folder / "cache/repositories").glob("*.git")
    return found


def is_whole(repository: Path) -> None:
    """Every object is there and sound, with nothing to borrow from or to ask."""
    assert not (repository / "objects/info/alternates").exists()
    plain_git(repository, "fsck", "--full", "--strict", "--no-dangling")
    listed = plain_git(repository, "rev-list", "--objects", "--missing=print", "--all")
    assert not [line for line in listed.splitlines() if line.startswith("?")]
    assert "origin" not in plain_git(repository, "remote")


def test_blobs_come_in_two_requests(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees first; then the touched files, which are checked; then everything else."""
    served(world)
    asked: list[int] = []
    fetch_blobs = Repository.fetch_blobs

    def counted(self: Repository, remote: str, blobs: Sequence[str], task: Task) -> None:
        asked.append(len(blobs))
        fetch_blobs(self, remote, blobs, task)

    monkeypatch.setattr(Repository, "fetch_blobs", counted)
    checkout = fetch(world.target, "git", None, console)
    touched = {b for b in series_of(world.target).before.values() if b != "0" * 40}
    assert asked[0] == len(touched)
    assert sum(asked) == len({*plain_git(world.upstream, "rev-list", "--objects", "v1.0")
                              .splitlines()}) - len(trees(world))  # fmt: skip
    is_whole(bare_of(world))
    assert not plain_git(checkout.path, "status", "--porcelain")


def trees(world: World) -> list[str]:
    listing = plain_git(world.upstream, "ls-tree", "-r", "-t", "v1.0").splitlines()
    commit_root_and_tag = ["commit", "root", "tag"]
    return [line for line in listing if " tree " in line] + commit_root_and_tag


def test_wrong_code_is_seen_before_the_rest_is_had(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(world)
    toml = world.tag_file
    wrong = toml.read_text()
    blob = plain_git(world.upstream, "rev-parse", "v1.0:python/api.py")
    toml.write_text(wrong.replace(blob, "1" * 40))
    with pytest.raises(MismatchError, match=r"python/api\.py has blob"):
        fetch(world.target, "git", None, console)
    assert not list((world.folder / "cache/repositories").glob("*.git"))


@pytest.mark.default
@pytest.mark.parametrize("kind", ["full", "shallow", "older"])
def test_reference_may_be_deleted(world: World, console: Console, kind: str) -> None:
    served(world)
    reference = world.folder / "my clone"
    options = ["--depth=1"] if kind == "shallow" else []
    plain_git(world.folder, "clone", "-q", *options, world.upstream.as_uri(), str(reference))
    if kind == "older":
        world.commit(world.upstream, {"later.txt": "later\n"}, "Later")
        plain_git(world.upstream, "tag", "-f", "-a", "v1.0", "-m", "moved")
        commit = plain_git(world.upstream, "rev-parse", "v1.0^{commit}")
        toml = world.tag_file
        old = world.target.tag.commit
        toml.write_text(toml.read_text().replace(old, commit))
    fetch(world.target, "git", world.folder / "one", console, reference)
    shutil.rmtree(reference)
    is_whole(bare_of(world))
    shutil.rmtree(world.upstream)
    checkout = fetch(world.target, "git", world.folder / "two", console)
    assert not plain_git(checkout.path, "status", "--porcelain")
    assert (checkout.path / "later.txt").exists() == (kind == "older")


def test_reference_serves_when_upstream_does_not(world: World, console: Console) -> None:
    reference = world.clone("reference")
    shutil.rmtree(world.upstream)
    done = fetch(world.target, "git", None, console, reference)
    assert "taken from the reference" in done.why
    shutil.rmtree(reference)
    is_whole(bare_of(world))
    with pytest.raises(SourceError, match="cannot be a reference"):
        fetch(world.target, "git", world.folder / "two", console, world.folder / "work")


@pytest.mark.parametrize("upstream", ["answers", "is gone"])
def test_a_shallow_clone_of_several_tags_is_a_reference(
    world: World, console: Console, upstream: str
) -> None:
    """Whose history ends at each of them, not at the one alone that is taken."""
    served(world)
    for version in ("0.9", "1.1"):
        plain_git(world.upstream, "switch", "-q", "-C", f"of-{version}", "v1.0")
        for number in range(2):
            world.commit(world.upstream, {"later.txt": f"{version} {number}\n"}, f"Later {number}")
        plain_git(world.upstream, "tag", f"v{version}")
    plain_git(world.folder, "init", "-q", "--bare", "several")
    reference = world.folder / "several"
    names = [f"refs/tags/v{version}:refs/tags/v{version}" for version in ("0.9", "1.0", "1.1")]
    plain_git(reference, "fetch", "-q", "--depth=1", world.upstream.as_uri(), *names)
    assert len((reference / "shallow").read_text().split()) >= 2
    if upstream == "is gone":
        shutil.rmtree(world.upstream)
    done = fetch(world.target, "git", None, console, reference)
    shutil.rmtree(reference)
    is_whole(bare_of(world))
    assert len(apply(world.target, done.path, console).patches) == 3


def test_a_clone_that_lacks_what_is_of_its_history_alone_serves_without_that(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = world.clone("damaged")
    before = plain_git(clone, "rev-parse", "HEAD:kept.generated")
    world.commit(clone, {"kept.generated": "anew\n"}, "Later")
    lose(clone, "kept.generated", "HEAD~")
    for marker in (clone / ".git/objects/pack").glob("*.promisor"):
        marker.unlink()
    toml = world.tag_file
    commit = plain_git(clone, "rev-parse", "HEAD")
    toml.write_text(toml.read_text().replace(world.target.tag.commit, commit))
    done = fetch(world.target, str(clone), None, Console(json_mode=True))
    told = " ".join(capsys.readouterr().err.split())
    assert (
        f"the checkout of alpha:v1.0 will have no history because {clone} lacks object "
        f"{before} of it; give a full clone if it should have one"
    ) in told
    assert plain_git(done.path, "rev-list", "--all").split() == [commit]
    assert not plain_git(done.path, "status", "--porcelain")
    assert len(apply(world.target, done.path, Console(json_mode=True)).patches) == 3


def lose(clone: Path, path: str, revision: str = "HEAD") -> None:
    """Make the clone a partial one that lacks the content of a file."""
    blob = plain_git(clone, "rev-parse", f"{revision}:{path}")
    listed = plain_git(clone, "rev-list", "--objects", "--all").splitlines()
    objects = clone / ".git" / "objects"
    kept = "".join(f"{line.split()[0]}\n" for line in listed if line.split()[0] != blob)
    command = ["git", "pack-objects", "-q", "pack"]
    pack = subprocess.run(
        command, cwd=clone, input=kept, text=True, check=True, capture_output=True
    )
    shutil.rmtree(objects)
    (objects / "pack").mkdir(parents=True)
    for file in clone.glob(f"pack-{pack.stdout.strip()}.*"):
        file.rename(objects / "pack" / file.name)
    (objects / "pack" / f"pack-{pack.stdout.strip()}.promisor").touch()


def test_clone_that_lacks_a_file_serves_without_it(world: World, console: Console) -> None:
    reference = world.clone("reference")
    lose(reference, "kept.generated")
    shutil.rmtree(world.upstream)
    done = fetch(world.target, "git", None, console, reference)
    shutil.rmtree(reference)
    assert not (done.path / "kept.generated").exists()
    assert not plain_git(done.path, "status", "--porcelain")
    applied = apply(world.target, done.path, console)
    assert len(applied.patches) == 3 and not plain_git(done.path, "status", "--porcelain")
    again = fetch(world.target, "git", world.folder / "again", console)
    assert not (again.path / "kept.generated").exists()


def test_clone_that_lacks_a_touched_file_is_refused(world: World, console: Console) -> None:
    reference = world.clone("reference")
    lose(reference, "core/alloc.cpp")
    shutil.rmtree(world.upstream)
    with pytest.raises(SourceError, match=r"lacks .*core/alloc\.cpp"):
        fetch(world.target, "git", None, console, reference)


@pytest.fixture
def gpg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A keyring with one key, at a path short enough for gpg's socket."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    with tempfile.TemporaryDirectory(prefix="k") as home:
        monkeypatch.setenv("GNUPGHOME", home)
        command = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key"]
        subprocess.run([*command, "Signer <s@e.invalid>"], check=True, capture_output=True)
        yield Path(home)
        subprocess.run(["gpgconf", "--kill", "all"], check=False)


@pytest.mark.default
def test_signature_of_the_tag_is_told(
    world: World, console: Console, gpg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_git(world.upstream, "-c", "user.signingkey=Signer", "tag", "-f", "-s", "v1.0", "-m", "x")
    done = fetch(world.target, "git", world.folder / "one", console)
    assert done.why.endswith("; tag signed by Signer <s@e.invalid>")
    shutil.rmtree(world.folder / "cache")
    let_go()
    with tempfile.TemporaryDirectory(prefix="k") as empty:
        monkeypatch.setenv("GNUPGHOME", empty)
        done = fetch(world.target, "git", world.folder / "two", console)
    assert "not checked" in done.why


# Debian: a small archive of our own, signed or not -----------------------------------------------


@pytest.fixture
def archive(world: World, gpg: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("apt-get") is None:
        pytest.skip("apt is not installed")
    folder = world.folder / "archive"
    index = folder / "dists/trixie/main/source"
    index.mkdir(parents=True)
    pool = folder / "pool"
    pool.mkdir()
    orig = pool / "alpha_1.0.orig.tar.xz"
    tarball(world).rename(orig)
    dsc = pool / "alpha_1.0-1.dsc"
    dsc.write_text(
        "Format: 3.0 (quilt)\nSource: alpha\nBinary: alpha\nArchitecture: any\nVersion: 1.0-1\n"
        f"Checksums-Sha256:\n {sha256_file(orig)} {orig.stat().st_size} {orig.name}\n"
    )
    sums = "".join(f"\n {sha256_file(f)} {f.stat().st_size} {f.name}" for f in (dsc, orig))
    (index / "Sources").write_text(
        "Package: alpha\nBinary: alpha\nVersion: 1.0-1\nArchitecture: any\nFormat: 3.0 (quilt)\n"
        f"Directory: pool\nChecksums-Sha256:{sums}\n"
    )
    sources = index / "Sources"
    release = folder / "dists/trixie/Release"
    release.write_text(
        "Origin: test\nSuite: trixie\nCodename: trixie\nComponents: main\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
        f" {sha256_file(sources)} {sources.stat().st_size} main/source/Sources\n"
    )
    subprocess.run(
        ["gpg", "--batch", "--yes", "--clearsign", "-o", release.with_name("InRelease"), release],
        check=True, capture_output=True,
    )  # fmt: skip
    keys = folder / "keys.gpg"
    exported = subprocess.run(["gpg", "--export"], check=True, capture_output=True).stdout
    keys.write_bytes(exported)
    toml = world.tag_file
    entry = '\n[debian]\npackage = "alpha"\nsuite = "trixie"\n'
    entry += f'version = "1.0"\ntarball = "{orig.name}"\nsha256 = "{sha256_file(orig)}"\n'
    toml.write_text(toml.read_text() + entry)
    found = debian.Archive(folder.as_uri(), ["trixie"], ["main"], str(keys))
    monkeypatch.setattr(debian, "main_archive", lambda release: found)
    monkeypatch.setattr(debian, "codename", lambda: "bookworm")
    # apt's own user must reach it when the tests run as root.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.mark.default
def test_debian_package_is_verified_by_apt(world: World, console: Console, archive: Path) -> None:
    done = fetch(world.target, "debian", None, console)
    expected = plain_git(world.upstream, "rev-parse", "v1.0^{tree}")
    assert plain_git(done.path, "rev-parse", "HEAD^{tree}") == expected
    assert f"archive signature checked by apt with {archive}/keys.gpg" in done.why


@pytest.mark.default
@pytest.mark.parametrize("what", ["unsigned", "changed", "other key"])
def test_archive_without_a_good_signature_is_refused(
    world: World, console: Console, archive: Path, what: str
) -> None:
    release = archive / "dists/trixie/InRelease"
    if what == "unsigned":
        release.unlink()
    elif what == "changed":
        release.write_text(release.read_text().replace("Origin: test", "Origin: other"))
    else:
        (archive / "keys.gpg").write_bytes(b"")
    with pytest.raises(SourceError, match="apt-get says"):
        fetch(world.target, "debian", None, console)
    assert not (world.folder / "cache/downloads/alpha_1.0.orig.tar.xz").exists()


def partial(world: World, *kept: str) -> Path:
    """A real partial clone that has the content of `kept` alone, and can get no more."""
    served(world)
    clone = world.folder / "partial clone"
    url = world.upstream.as_uri()
    options = ("--filter=blob:none", "--no-checkout")
    plain_git(world.folder, "clone", "-q", *options, url, str(clone))
    for path in kept:
        plain_git(clone, "cat-file", "blob", f"v1.0:{path}")
    world.upstream.rename(world.folder / "gone")
    missing = plain_git(clone, "rev-list", "--objects", "--missing=print", "v1.0")
    assert missing.count("?") == len(UPSTREAM) - len(kept)
    return clone


@pytest.mark.parametrize("way", ["--source", "LMSBUILD_MIRROR"])
def test_partial_clone_serves_without_what_no_patch_touches(
    world: World, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    touched = list(world.target.tag.preimage)
    clone = partial(world, *touched)
    console = Console(json_mode=True)
    if way == "--source":
        done = fetch(world.target, str(clone), None, console)
        assert done.route == "url" and done.why.startswith("asked for, at ")
    else:
        done = fetch(world.target, "git", None, console, reference=clone)
    told = "".join(capsys.readouterr().err.split())
    shutil.rmtree(clone)
    there = {path for path in UPSTREAM if (done.path / path).exists()}
    assert there == set(touched)
    for path in set(UPSTREAM) - there:
        assert path in told
    assert not plain_git(done.path, "status", "--porcelain")
    assert len(apply(world.target, done.path, console).patches) == 3


@pytest.mark.parametrize("way", ["--source", "LMSBUILD_MIRROR"])
def test_object_that_a_partial_clone_lacks_is_named(
    world: World, console: Console, way: str
) -> None:
    lost, *kept = sorted(world.target.tag.preimage)
    clone = partial(world, *kept)
    with pytest.raises(SourceError) as failure:
        if way == "--source":
            fetch(world.target, str(clone), None, console)
        else:
            fetch(world.target, "git", None, console, reference=clone)
    blob = world.target.tag.preimage[lost]
    assert failure.value.message == (
        f"{clone} cannot give the source of alpha:v1.0 because it lacks blob {blob}, the content "
        f"of {lost}, which a patch touches; run `git -C '{clone}' cat-file -p {blob}` to fetch it, "
        "or use another clone"
    )
    assert not (world.target.work / "source").exists()


def test_full_clone_is_used_where_it_is(world: World, console: Console) -> None:
    done = fetch(world.target, str(world.clone("full")), None, console)
    assert done.route == "path" and not (world.folder / "cache/repositories").exists()


@pytest.mark.parametrize(
    "said",
    [
        "fatal: could not fetch {} from promisor remote",
        "error: Could not read {}\nfatal: revision walk setup failed",
        "fatal: unable to read {}",
        "fatal: missing blob object '{}'",
        "error: remote did not send all necessary objects\nfatal: bad object {}",
    ],
)
def test_git_s_word_of_a_missing_object_is_understood(said: str) -> None:
    blob = "0123456789" * 4
    message = GitError(("checkout",), said.format(blob), Path("/clone")).message
    assert f"because /clone lacks object {blob}" in message and "disk" not in message
    assert "git -C /clone cat-file -p" in message
    theirs = "\n".join(f"remote: {line}" for line in said.format(blob).splitlines())
    theirs += "\nerror: git upload-pack: git-pack-objects died with error."
    message = GitError(("fetch", "origin"), theirs, Path("/clone")).message
    assert f"because what it reads from lacks object {blob}" in message
    assert message.endswith("; use a full clone")


# A user's clone is only read ----------------------------------------------------------------------


def contents(repository: Path) -> dict[str, bytes]:
    """Every file of a repository, and so every object."""
    return {
        str(file.relative_to(repository)): file.read_bytes()
        for file in repository.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("kind", ["tree:0", "blob:none"])
def test_nothing_is_fetched_into_a_clone_that_is_read(
    world: World, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although it could be: its remote answers."""
    served(world)
    clone = world.folder / "partial clone"
    options = (f"--filter={kind}", "--no-checkout")
    plain_git(world.folder, "clone", "-q", *options, world.upstream.as_uri(), str(clone))
    before = contents(clone / ".git")
    tree = plain_git(world.upstream, "rev-parse", "v1.0^{tree}")
    lost = sorted(world.target.tag.preimage)[0]
    blob = world.target.tag.preimage[lost]
    named = f"lacks tree {tree}; run `git -C '{clone}' ls-tree -r " if kind == "tree:0" else blob
    assert run(["fetch", "v1.0", "--source", str(clone)]) == SourceError.exit_code
    assert named in capsys.readouterr().err
    for command in ("verify", "map"):
        assert run([command, "v1.0", "--from", str(clone)])
        assert (tree if kind == "tree:0" else blob) in capsys.readouterr().err
    assert contents(clone / ".git") == before
    # It lends what it has, and upstream gives the rest.
    done = fetch(world.target, "git", None, Console(json_mode=True), reference=clone)
    assert contents(clone / ".git") == before
    assert not plain_git(done.path, "status", "--porcelain")
    shutil.rmtree(clone)
    is_whole(bare_of(world))


def test_the_advice_for_a_treeless_clone_helps(world: World, console: Console) -> None:
    served(world)
    clone = world.folder / "treeless"
    options = ("--filter=tree:0", "--no-checkout")
    plain_git(world.folder, "clone", "-q", *options, world.upstream.as_uri(), str(clone))
    with pytest.raises(SourceError) as failure:
        fetch(world.target, str(clone), None, console)
    plain_git(clone, *failure.value.message.split("`")[1].split()[3:])
    for path in world.target.tag.preimage:
        plain_git(clone, "cat-file", "blob", f"v1.0:{path}")
    assert len(apply(world.target, fetch(world.target, str(clone), None, console).path, console)
               .patches) == 3  # fmt: skip


def test_verify_goes_on_to_code_that_is_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standing in a partial clone that lacks files of the tag, it downloads nothing."""
    assert run(["fetch", "v1.0"]) == 0
    served(world)
    clone = world.folder / "partial"
    options = ("--filter=tree:0", "--sparse")
    plain_git(world.folder, "clone", "-q", *options, world.upstream.as_uri(), str(clone))
    before = contents(clone / ".git")
    monkeypatch.chdir(clone)
    assert run(["verify", "v1.0"]) == 0 and "not checked" not in capsys.readouterr().out
    assert run(["map", "v1.0"]) == 0
    assert contents(clone / ".git") == before


def test_what_a_checkout_lacks_for_gc_is_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = partial(world, *world.target.tag.preimage)
    made = fetch(world.target, str(clone), None, Console(json_mode=True)).path
    told = " ".join(capsys.readouterr().err.split())
    with pytest.raises(subprocess.CalledProcessError):
        plain_git(made, "repack", "-a", "-d", "-q")
    assert (
        "but `git gc` refuses there until `git fetch --refetch --depth=1 origin tag v1.0`" in told
    )
    (world.folder / "gone").rename(world.upstream)
    alone = ("-c", "maintenance.auto=false")
    plain_git(made, *alone, "fetch", "-q", "--refetch", "--depth=1", "origin", "tag", "v1.0")
    plain_git(made, "gc", "-q")
    plain_git(made, "fsck", "--full", "--strict", "--no-dangling")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("way", ["path", "bare", "url", "LMSBUILD_MIRROR", "into"])
def test_a_clone_of_another_user_serves(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    theirs = world.folder / "their clone"
    bare = ["--bare"] if way == "bare" else []
    plain_git(world.folder, "clone", "-q", *bare, str(world.upstream), str(theirs))
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 12345, 12345)
    with pytest.raises(subprocess.CalledProcessError):
        plain_git(world.folder, "ls-remote", theirs.as_uri())  # git itself refuses
    into = None
    if way == "LMSBUILD_MIRROR":
        shutil.rmtree(world.upstream)
        monkeypatch.setenv("LMSBUILD_MIRROR", "their clone")
        assert run(["fetch", "v1.0", "--source", "git"]) == 0
    elif way == "into":
        into = theirs
        assert fetch(world.target, "auto", into, console).route == "present"
    else:
        fetch(world.target, theirs.as_uri() if way == "url" else str(theirs), None, console)
    made = into or world.target.work / "source"
    assert len(apply(world.target, made, console).patches) == 3


# Paths as people give them ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize("name", ["mirror", "./sub/../mirror", "~/mirror"])
def test_a_reference_is_found_from_where_the_user_stands(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    home = world.folder / "home"
    (home / "sub").mkdir(parents=True)
    world.clone("mirror").rename(home / "mirror")
    shutil.rmtree(world.upstream)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(world.folder if name.startswith("~") else home)
    given = [f"--reference={name}"] if way == "option" else []
    if way == "variable":
        monkeypatch.setenv("LMSBUILD_MIRROR", name)
    assert run(["fetch", "v1.0", "--source", "git", *given]) == 0
    assert (world.target.work / "source/recognise.me").exists()


def test_home_folder_in_options_and_variables(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = world.folder / "home"
    home.mkdir()
    world.clone("clone").rename(home / "clone")
    monkeypatch.setenv("HOME", str(home))
    for name in ("LMSBUILD_WORK", "LMSBUILD_CACHE"):
        monkeypatch.setenv(name, f"~/{name}")
    for command in (
        ["fetch", "--source=~/clone", "--into=~/fetched"], ["apply", "--into=~/clone"],
        ["verify", "--from=~/clone"], ["refresh", "--from=~/clone"], ["export", "-o~/x.mbox"],
    ):  # fmt: skip
        assert run([command[0], "v1.0", *command[1:]]) == 0, capsys.readouterr().err
    assert {path.name for path in home.iterdir()} >= {"clone", "fetched", "x.mbox"}
    assert not list(world.folder.rglob("~*"))
    # Nobody's home: a folder of that name, which is not there.
    assert run(["fetch", "v1.0", "--source=~no such user/x"]) == SourceError.exit_code
    assert run(["fetch", "v1.0", "--into=~no such user"]) == 0
    assert (world.folder / "~no such user/recognise.me").exists()


def test_a_bad_variable_is_called_by_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LMSBUILD_MIRROR", "nowhere")
    assert run(["fetch", "v1.0"]) == 2
    assert "error: LMSBUILD_MIRROR cannot be used because path 'nowhere'" in capsys.readouterr().err
    assert run(["fetch", "v1.0", "--reference=nowhere"]) == 2
    assert "error: --reference cannot be used because path 'nowh" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--into", "--source", "--reference"])
def test_an_empty_path_is_not_the_current_folder(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """As of a variable that is not set."""
    monkeypatch.chdir(world.clone())
    assert run(["fetch", "v1.0", option, ""]) in (2, SourceError.exit_code)
    said = capsys.readouterr().err
    assert f"error: {option} cannot be used because it is empty" in said or (
        "error: '' cannot be a source" in said
    )
    assert not (world.target.work / "source").exists()


def test_what_is_no_file_is_not_read(world: World, console: Console, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(SourceError, match="it is neither a file nor a folder"):
            fetch(world.target, name, None, console)
