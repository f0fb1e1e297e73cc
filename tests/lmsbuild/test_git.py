# SPDX-License-Identifier: Apache-2.0
"""The one way to git: what GitPython says through it is what git says of the same place."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from git.exc import UnsafeOptionError
from lmsbuild_world import REPOSITORY, World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base import log
from lmsbuild.base.console import Console, Task
from lmsbuild.base.errors import (
    FileError,
    GitError,
    MissingToolError,
    SourceError,
    TreeStateError,
)
from lmsbuild.base.git import (
    Git,
    Repository,
    changed,
    checkout_git,
    entries,
    folder,
    open_at,
)
from lmsbuild.base.transaction import Journal
from lmsbuild.checkout.apply import apply, undo
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.switch import CheckoutTransaction, Seen, state_of
from lmsbuild.series.scratch import scratch


@pytest.fixture
def clone(world: World) -> Path:
    return world.clone()


@pytest.fixture
def opened(clone: Path) -> Iterator[Repository]:
    found = checkout_git(clone)
    assert found is not None
    with found:
        yield found


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


NAMES = (
    "index", "HEAD", "config", "objects", "objects/pack", "shallow", "packed-refs", "lmsbuild",
    "rebase-apply", "MERGE_HEAD", "info/attributes", "hooks/pre-commit", "refs/heads/main",
    "refs/worktree/lmsbuild/base", "refs/bisect/bad", "refs/rewritten/x",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["main", "linked", "bare", "submodule"])
def test_files_are_where_git_keeps_them(world: World, clone: Path, kind: str) -> None:
    place = clone
    if kind == "linked":
        place = world.folder / "linked tree"
        plain_git(clone, "worktree", "add", "-q", "--detach", str(place))
    if kind == "bare":
        place = world.folder / "bare.git"
        plain_git(world.folder, "clone", "-q", "--bare", str(clone), str(place))
    if kind == "submodule":
        place = clone / "sub"
        allowed = ("-c", "protocol.file.allow=always")
        plain_git(clone, *allowed, "submodule", "add", "-q", str(world.upstream), "sub")
    with open_at(place) as found:
        for name in NAMES:
            asked = plain_git(place, "rev-parse", "--path-format=absolute", "--git-path", name)
            assert found.file(name) == Path(asked), name


def test_trees_are_those_of_git(world: World, clone: Path, opened: Repository) -> None:
    world.commit(clone, {"core/naïve name.txt": "é\n", "core.txt": "a\n", "core-x/y": "b\n"}, "One")
    (clone / "link").symlink_to("core.txt")
    (clone / "core-x" / "y").chmod(0o755)
    world.commit(clone, {"z": "z\n"}, "Two")
    (clone / "core.txt").unlink()
    world.commit(clone, {"core.txt/inner": "a folder now\n"}, "Three")
    listed = {}
    for line in plain_git(clone, "ls-tree", "-rz", "HEAD").split("\0")[:-1]:
        meta, path = line.split("\t")
        listed[path] = (meta.split()[0], meta.split()[2])
    found = entries(opened, "HEAD")
    assert {path: (e.mode, e.blob) for path, e in found.items()} == listed
    assert list(entries(opened, "HEAD", ["z", "core", "nothing", "core/none", "link"])) == [
        "z",
        "link",
    ]
    assert set(folder(opened, "HEAD", "core-x")) == {"y"} and not folder(opened, "HEAD", "none/at")
    for before in ("HEAD~3", "HEAD~2", "HEAD~1"):
        raw = plain_git(clone, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev",
                        before, "HEAD").split("\0")[:-1]  # fmt: skip
        theirs = [
            (path, *meta[1:].split()[:4]) for meta, path in zip(raw[::2], raw[1::2], strict=True)
        ]
        ours = [
            (r.path, r.before.mode, r.after.mode, r.before.blob, r.after.blob)
            for r in changed(opened, before, "HEAD")
        ]
        assert ours == theirs


def test_one_process_reads_and_ends(opened: Repository) -> None:
    before = children()
    for path, entry in entries(opened, "HEAD").items():
        assert opened.blob(entry.blob) == (opened.path / path).read_bytes()
    assert opened.commit_id("refs/tags/v1.0") == opened.tip()
    assert opened.commit_id("no such name") is None and opened.commit_id("a\nb") is None
    assert len(children() - before) == 1
    opened.close()
    assert children() == before
    assert opened.tip()  # it is started again
    opened.close()


def test_objects_that_come_later_are_found(clone: Path, opened: Repository, world: World) -> None:
    first = opened.tip()
    world.commit(clone, {"new": "new\n"}, "New")
    plain_git(clone, "gc", "-q", "--prune=now")
    assert opened.tip() == plain_git(clone, "rev-parse", "HEAD") != first
    assert opened.blob(entries(opened, "HEAD", ["new"])["new"].blob) == b"new\n"


def test_a_reader_that_was_ended_is_started_again(opened: Repository) -> None:
    """As after a signal, when what was begun is rolled back."""
    tip = opened.tip()
    readers = [child for child in psutil.Process().children() if child.name() == "git"]
    for reader in readers:
        reader.terminate()
        reader.wait()
    assert readers and opened.tip() == tip


@pytest.mark.parametrize("most", [20, 45, 48, 60])  # of the header all but this, or of the bytes
def test_a_reader_that_ends_in_the_middle_is_an_error(
    clone: Path, opened: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    whole = opened.git.read("HEAD:core/alloc.cpp")
    assert whole is not None and len(whole[2]) > 60
    opened.git.clear_cache()
    git = shutil.which("git")
    script = (
        f'#!/bin/bash\n[[ " $* " == *" cat-file "* ]] && exec {git} "$@" > >(head -c {most})\n'
        f'exec {git} "$@"\n'
    )
    write(tmp_path / "bin", {"git": script})
    (tmp_path / "bin/git").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        with pytest.raises(GitError):
            opened.git.read("HEAD:core/alloc.cpp")
    opened.git.clear_cache()
    assert opened.git.read("HEAD:core/alloc.cpp") == whole


def test_damaged_object_is_an_error_and_not_a_missing_one(clone: Path, opened: Repository) -> None:
    blob = plain_git(clone, "hash-object", "-w", "--stdin")
    file = clone / ".git/objects" / blob[:2] / blob[2:]
    file.chmod(0o644)
    file.write_bytes(b"no object")
    with pytest.raises(GitError) as failure:
        opened.blob(blob)
    assert blob in failure.value.output
    assert opened.tip()


def test_no_reader_is_left_after_a_command(world: World, clone: Path, console: Console) -> None:
    before = children()
    apply(world.target, clone, console)
    assert children() == before


def test_transaction_is_free_while_a_reader_runs(
    world: World, clone: Path, console: Console
) -> None:
    """The process that reads does not hold the lock of a transaction that is over."""
    user = checkout_git(clone)
    assert user is not None
    with CheckoutTransaction.on(user, "one", since=Seen.of(user)) as transaction:
        assert transaction.user.tip()
        reader = transaction.user.git.cat_file_all
        assert reader is not None
        running = reader.proc
        held = [str(fd.readlink()) for fd in Path(f"/proc/{running.pid}/fd").iterdir()]
        assert not any(name.endswith("/lock") for name in held)
    assert Journal.load(state_of(user) / "work") is None
    apply(world.target, clone, console)


def test_scratch_makes_git_s_own_objects(world: World, clone: Path, opened: Repository) -> None:
    """Blobs and trees that GitPython stores have the ids that git gives, and git takes them."""
    with scratch(opened) as room:
        assert room.tree({}) == plain_git(clone, "hash-object", "-t", "tree", "/dev/null")
        whole = room.tree(room.entries(opened.tip()))
        assert whole == plain_git(clone, "rev-parse", "HEAD^{tree}")
        blob = room.add_blob(b"\0text\n")
        assert room.repository.git.run("cat-file", "blob", blob).stdout == b"\0text\n"
        assert room.repository.git.ok("fsck", "--strict")


def test_everything_is_in_the_log(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path / "work"))
    log.start(["status"])
    try:
        with open_at(clone) as found:
            found.tip()
            list(found.iter_commits("HEAD"))
            found.git.run("nonsense", check=False)
        file = log.path()
        assert file is not None
        text = file.read_text()
    finally:
        log.stop()
    for words in ("git rev-parse ", "git cat-file --batch", "git rev-list ", "git nonsense"):
        assert f"$ {words}" in text
    assert "exit code 1" in text


HOSTILE = {
    "GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_COMMON_DIR": "/nowhere",
    "GIT_OBJECT_DIRECTORY": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "GIT_NAMESPACE": "evil",
    "GIT_PYTHON_GIT_EXECUTABLE": "/bin/false", "GIT_PYTHON_REFRESH": "nonsense",
    "GIT_CONFIG_GLOBAL": "{config}", "GIT_CONFIG_SYSTEM": "{config}", "GIT_PYTHON_TRACE": "full",
}  # fmt: skip


def test_gitpython_itself_believes_nothing(clone: Path, tmp_path: Path) -> None:
    """Its import runs no git, and its classes look at no variable and no file of the user's."""
    (tmp_path / "config").write_text("[broken\n")
    env = {name: value.format(config=tmp_path / "config") for name, value in HOSTILE.items()}
    program = (
        "from pathlib import Path; from lmsbuild.base.git import checkout_git; import sys;"
        "r = checkout_git(Path(sys.argv[1]));"
        "print(r.git_dir, r.common_dir, r.working_tree_dir, r.bare, r.remote().url,"
        " r.index.path, len(list(r.iter_commits('HEAD'))), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(clone)], capture_output=True, text=True, check=True,
        env={**os.environ, **env, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "tools")},
    )  # fmt: skip
    url = plain_git(clone, "remote", "get-url", "origin")
    assert done.stdout.splitlines() == [
        f"{clone}/.git", f"{clone}/.git", str(clone), "False", url, f"{clone}/.git/index", "1",
    ]  # fmt: skip
    assert done.stderr == ""


def test_without_git_there_is_no_traceback(world: World, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "tools")}
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "apply", "v1.0", "--into", str(world.upstream)],
        capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 5 and "git cannot be run because it is not installed" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "tags"], capture_output=True, text=True, env=env,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0


def test_other_object_names_are_refused_by_name(tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q", "--object-format=sha256")
    with pytest.raises(TreeStateError, match="SHA256 ids and those of the patches are SHA-1"):
        checkout_git(tmp_path)


def test_fetch_shows_git_s_progress(world: World, tmp_path: Path) -> None:
    write(world.upstream, {f"many/{number}": f"{number}\n" * 50 for number in range(3000)})
    plain_git(world.upstream, "add", "-A")
    plain_git(world.upstream, "-c", "user.name=U", "-c", "user.email=u@e", "commit", "-qm", "Many")
    told: list[tuple[float, float | None]] = []

    class Watched(Task):
        def update(self, done: float, total: float | None = None) -> None:
            told.append((done, total))

    with Repository.create(tmp_path / "made.git") as made:
        made.create_remote("origin", world.upstream.as_uri())
        made.fetch("origin", "refs/heads/main", Watched("fetching", None), depth=1)
        assert made.commit_id("FETCH_HEAD") == plain_git(world.upstream, "rev-parse", "HEAD")
    assert any(total and total >= 3000 and 0 < done <= total for done, total in told)


@pytest.mark.parametrize("url", ["ext::sh -c 'touch PWNED' ://", "ext://sh -c 'touch PWNED'"])
def test_an_address_that_runs_a_program_is_refused(
    world: World, console: Console, url: str, tmp_path: Path
) -> None:
    # The second form is git's to refuse where GitPython is older than 3.2.
    with pytest.raises(SourceError, match=r"address runs a program|transport 'ext' not allowed"):
        fetch(world.target, url.replace("PWNED", str(tmp_path / "pwned")), None, console)
    assert not (tmp_path / "pwned").exists()


UNSAFE: dict[str, Callable[[Repository, str], object]] = {
    "our fetch": lambda r, program: r.fetch(
        "origin", "refs/heads/main", Task("fetching", None), upload_pack=program
    ),
    "fetch": lambda r, program: r.remote().fetch(upload_pack=program),
    "pull": lambda r, program: r.remote().pull(upload_pack=program),
    "push": lambda r, program: r.remote().push(receive_pack=program),
    "clone": lambda r, program: r.clone(f"{r.path}-2", upload_pack=program),
    "options of a clone": lambda r, program: r.clone(
        f"{r.path}-2", multi_options=[f"--upload-pack={program}"]
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_an_option_that_runs_a_program_is_refused(
    clone: Path, opened: Repository, tmp_path: Path, name: str
) -> None:
    """By GitPython's own checks, which hold for what goes through our classes."""
    with pytest.raises(UnsafeOptionError):
        UNSAFE[name](opened, f"touch {tmp_path / 'pwned'}; git-upload-pack")
    assert not (tmp_path / "pwned").exists() and not Path(f"{clone}-2").exists()


# What is fed to a git that does not read, a git that is none, odd names, odd limits ---------------


def put_first(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A `git` of our own on PATH; $GIT is the real one."""
    write(folder / "bin", {"git": f"#!/bin/sh\nGIT={shutil.which('git')}\n{script}\n"})
    (folder / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    return folder / "bin/git"


@pytest.mark.parametrize("command", ["fetch --progress", "unpack-objects", "update-index"])
def test_a_git_that_ends_before_it_reads_is_told(
    world: World, clone: Path, monkeypatch: pytest.MonkeyPatch, command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    plain_git(world.upstream, "config", "uploadpack.allowFilter", "true")
    plain_git(world.upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    if command.startswith("fetch"):  # more than a pipe holds
        write(world.upstream, {f"many/{number}": f"{number}\n" for number in range(2000)})
        plain_git(world.upstream, "add", "-A")
        identity = ("-c", "user.name=U", "-c", "user.email=u@e")
        plain_git(world.upstream, *identity, "commit", "-qm", "Many")
        plain_git(world.upstream, "tag", "-f", "-a", "v1.0", "-m", "x")
        commit = plain_git(world.upstream, "rev-parse", "HEAD")
        text = world.tag_file.read_text().replace(world.target.tag.commit, commit)
        world.tag_file.write_text(text)
    script = (
        f'case "$*" in *"{command}"*) echo "fatal: enough" >&2; exit 128;; esac\nexec $GIT "$@"'
    )
    put_first(world.folder, monkeypatch, script)
    if command.startswith("fetch"):
        code = run(["fetch", "v1.0", "--source", "git"])
        assert code == SourceError.exit_code
    else:
        code = run(["apply", "v1.0", "--into", str(clone)])
        assert code == GitError.exit_code
    assert "git says: fatal: enough" in capsys.readouterr().err


@pytest.mark.parametrize("says", ["echo hello", "true", 'echo on; exec $GIT "$@"'])
def test_a_git_that_is_another_program_is_named(
    world: World, clone: Path, monkeypatch: pytest.MonkeyPatch, says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    program = put_first(world.folder, monkeypatch, says)
    for command in (["apply", "v1.0", "--into", str(clone)], ["fetch", "v1.0"], ["status"],
                    ["refresh", "v1.0", "--runtime"], ["verify", "v1.0"]):  # fmt: skip
        if command == ["status"]:
            monkeypatch.chdir(clone)
        assert run(command) == MissingToolError.exit_code
        said = capsys.readouterr().err
        assert f"git cannot be run because {program} is another program (`git --version`" in said


@pytest.mark.parametrize("name", ["two\nlines", "page\fbreak", "next\x85line", "end\n", 'a"b\\c\n'])
def test_line_breaks_in_paths(world: World, clone: Path, console: Console, name: str) -> None:
    place = world.folder / name
    clone.rename(place)
    plain_git(place, "worktree", "add", "-q", "--detach", str(world.folder / f"{name}tree"))
    for checkout in (place, world.folder / f"{name}tree"):
        assert apply(world.target, checkout, console).head
        opened = checkout_git(checkout)
        assert opened is not None and opened.path == checkout
        undo(opened, console)
    bare = world.folder / f"bare{name}"
    plain_git(world.folder, "clone", "-q", "--bare", str(place), str(bare))
    for number, source in enumerate((place, bare)):
        there = world.folder / f"{name}{number}"
        assert fetch(world.target, str(source), there, console).path == there
    shutil.rmtree(world.upstream)
    there = world.folder / f"{name}by reference"
    assert fetch(world.target, "git", there, console, reference=bare).path == there


def test_names_in_a_tree_that_look_like_answers(world: World, console: Console) -> None:
    """Git's lists are cut at line feeds only."""
    names = {f"a{mark}?{'1' * 40}": "x\n" for mark in ("\f", "\x85", "\u2028", "\x1c")}
    world.commit(world.upstream, names, "Odd names")
    plain_git(world.upstream, "tag", "-f", "v1.0")
    plain_git(world.upstream, "config", "uploadpack.allowFilter", "true")
    commit = plain_git(world.upstream, "rev-parse", "HEAD")
    text = world.tag_file.read_text().replace(world.target.tag.commit, commit)
    world.tag_file.write_text(text)
    done = fetch(world.target, "git", None, console)
    assert all((done.path / name).exists() for name in names)
    assert fetch(world.target, str(world.upstream), world.folder / "x", console).route == "path"


@pytest.mark.parametrize("limit", [5, 8, 10, 13, 16])
def test_few_open_files_are_named(world: World, clone: Path, limit: int) -> None:
    before = plain_git(clone, "rev-parse", "HEAD")
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "apply", "v1.0", "--into", str(clone)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}, capture_output=True, text=True,
        check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip
    if done.returncode == 0:
        return
    assert done.returncode == FileError.exit_code, done.stderr
    assert "Too many open files; raise the limit on open files (ulimit -n)" in done.stderr
    assert plain_git(clone, "rev-parse", "HEAD") == before
    assert plain_git(clone, "status", "--porcelain") == ""


BROKEN = {
    "[broken\n": "bad config line 1 in file {}",
    "[core]\nautocrlf = maybe\n": "bad boolean config value 'maybe' for 'core.autocrlf'",
    "[include]\npath = config\n": "exceeded maximum include depth (10) while including {}",
    "[core]\nattributesFile\n": "bad config variable 'core.attributesfile' in file '{}' at line 2",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_setting_of_the_user_is_the_cause(
    world: World, clone: Path, monkeypatch: pytest.MonkeyPatch, text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(["apply", "v1.0", "--into", str(clone)]) == 0
    write(world.folder, {"config": text})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(world.folder / "config"))
    why = BROKEN[text].format(world.folder / "config")
    write(clone, {"core/alloc.h": "mine\n"})
    other = world.clone("other")
    for command in (["status", "--into", str(clone)], ["apply", "v1.0", "--into", str(other)],
                    ["apply", "v1.0", "--into", str(clone)], ["refresh", "v1.0", "--from",
                    str(clone)]):  # fmt: skip
        capsys.readouterr()
        assert run(command) == GitError.exit_code, command
        said = capsys.readouterr().err
        assert f"because a setting of git is wrong (git says: fatal: {why}); correct it" in said


def test_an_id_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of paths are asked for in the tree of one commit; a name may move meanwhile."""
    plain_git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, {"one": "1\n"})
    plain_git(tmp_path, "add", "-A")
    plain_git(tmp_path, "commit", "-qm", "One")
    read: list[str] = []

    class Noted(Git):
        def read(self, name: str) -> tuple[str, str, bytes] | None:
            read.append(name)
            return super().read(name)

    monkeypatch.setattr(Repository, "GitCommandWrapperType", Noted)
    monkeypatch.setattr("lmsbuild.base.git.repository.Git", Noted)
    with open_at(tmp_path) as repository:
        tip = repository.tip()
        assert repository.line(tip, tip) == [] and repository.holds(tip, tip)
        read.clear()
        assert len({repository.tree_id(tip) for _ in range(5)}) == 1
        assert read == [f"{tip}^{{tree}}"]
        before = repository.tree_id("HEAD")
        write(tmp_path, {"two": "2\n"})
        plain_git(tmp_path, "add", "-A")
        plain_git(tmp_path, "commit", "-qm", "Two")
        assert repository.tree_id("HEAD") != before
        assert repository.line(tip, repository.tip()) == repository.commits(tip, "HEAD")
        assert repository.line(repository.tip(), tip) is None
