# SPDX-License-Identifier: Apache-2.0
"""Patch files are the same bytes on every version and under every configuration of git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import other_git
import pytest
from lmsbuild_world import REPOSITORY, UPSTREAM, World, plain_git, write

from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, FileError, SourceError
from lmsbuild.base.git import Git
from lmsbuild.base.project import Project
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh, runtime_patch
from lmsbuild.checkout.verify import verify
from lmsbuild.series.series import export, patch_files
from lmsbuild.tags.frameworks import targets

pytestmark = pytest.mark.default

# Functions with blank lines between them, where heuristics and algorithms of a diff disagree.
CODE = "".join(f"int f{n}()\n{{\n\n  return {n};\n\n}}\n\n" for n in range(12))
LATER = CODE.replace("return 4", "return 44").replace("return 5", "return 55").replace(
    "int f7()", "int g7()\n{\n\n  return 7;\n\n}\n\nint f7()"
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A project with its series, and the clone whose commits the series is."""

    world: World
    clone: Path

    def series(self) -> bytes:
        """What refresh would write now. Fails when that is not what is on the disk."""
        (self.world.project.work / ".made.json").unlink(missing_ok=True)  # it makes them anew
        done = refresh(self.world.target, self.clone, dry_run=True)
        assert (done.written, done.removed, done.runtime) == ([], [], [])
        return export(self.world.target)


@pytest.fixture(scope="module")
def original(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("bytes")
    shutil.copytree(template, folder, dirs_exist_ok=True, symlinks=True)
    world = World(Project(folder / "project"), folder / "upstream", folder)
    toml = world.framework_file
    toml.write_text(toml.read_text().replace("file:///of.upstream", world.upstream.as_uri()))
    clone = world.clone()
    git = Git(clone)
    for patch in patch_files(world.target.runtime_patches) + patch_files(world.target.tag_patches):
        git.run("am", "-q", "--keep-cr", str(patch))
    attributes = {".gitattributes": "*.cpp diff=cpp\n*.txt -diff\n"}
    world.commit(
        clone, {"core/code.cpp": CODE, "core/naïve name.txt": "é\n", **attributes}, "Add code"
    )
    write(clone, {"core/code.cpp": LATER, "core/moved.txt": UPSTREAM["core/alloc.h"]})
    git.run("add", "-A")
    git.run("rm", "-q", "core/alloc.h")
    env = {"GIT_AUTHOR_NAME": 'Jürgen "J." Müller', "GIT_AUTHOR_DATE": "2026-02-03T04:05:06+0530"}
    subject = "Ändere " + "den Quelltext " * 9
    message = f"{subject.strip()}\n\nWeil es so ist…\n\nReviewed-by: A <a@a.invalid>"
    Git(clone, env).run("commit", "-q", "-m", message)
    refresh(world.target, clone)
    return Made(world, clone)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A copy whose clone a test may spoil."""
    shutil.copytree(original.clone, tmp_path / "clone", symlinks=True)
    return Made(original.world, tmp_path / "clone")


def test_headers_are_plain_and_what_git_reads(made: Made) -> None:
    last = patch_files(made.world.target.tag_patches)[-1]
    text = last.read_text(encoding="utf-8")
    assert last.name == "0004-ndere-den-Quelltext-den-Quelltext-den-Quelltext-den.patch"
    assert '\nFrom: "Jürgen \\"J.\\" Müller" <maintainers@lms.invalid>\n' in text
    assert "\nDate: Tue, 3 Feb 2026 04:05:06 +0530\n" in text
    clone = made.world.clone("am")
    for patch in patch_files(made.world.target.runtime_patches):
        plain_git(clone, "am", "-q", "--keep-cr", str(patch))
    for patch in patch_files(made.world.target.tag_patches):
        plain_git(clone, "am", "-q", "--keep-cr", str(patch))
    form = "--format=%an|%ae|%ad|%B"
    for commit in ("HEAD", "HEAD~1", "HEAD~2"):
        assert plain_git(clone, "log", "-1", form, commit) == plain_git(
            made.clone, "log", "-1", form, commit
        )
    assert plain_git(clone, "rev-parse", "HEAD^{tree}") == plain_git(
        made.clone, "rev-parse", "HEAD^{tree}"
    )


EVIL = """
[diff "evil"]
    textconv = tr a-z A-Z <
    command = echo evil
    xfuncname = "^no.*thing$"
    binary = true
"""
CONFIGURATIONS = {
    "diff": """
[diff]
    algorithm = patience
    context = 9
    interHunkContext = 20
    indentHeuristic = true
    renames = copies
    mnemonicPrefix = true
    noprefix = true
    srcPrefix = x/
    dstPrefix = y/
    external = echo evil
    suppressBlankEmpty = true
    orderFile = ORDER
    submodule = log
    ignoreSubmodules = all
    relative = true
    colorMoved = zebra
    wsErrorHighlight = all
    wordRegex = .
    trustExitCode = true
    dirstat = lines
""",
    "format": """
[format]
    signature = evil
    subjectPrefix = EVIL
    numbered = true
    attach = evil
    thread = deep
    signOff = true
    headers = "X-Evil: 1\\n"
    to = evil@example.invalid
    cc = evil@example.invalid
    from = true
    forceInBodyFrom = true
    coverLetter = true
    notes = true
    suffix = .evil
    outputDirectory = /nowhere
    encodeEmailHeaders = true
    filenameMaxLength = 10
    useAutoBase = true
    noprefix = true
    pretty = oneline
    mboxrd = true
""",
    "core": """
[core]
    quotePath = false
    abbrev = 4
    autocrlf = true
    eol = crlf
    safecrlf = true
    bigFileThreshold = 1
    pager = false
    whitespace = trailing-space,cr-at-eol
    commentChar = C
    ignoreCase = true
    precomposeUnicode = true
    fsmonitor = false-monitor
    untrackedCache = true
    splitIndex = true
    alternateRefsCommand = false
    logAllRefUpdates = false
    attributesFile = ATTRIBUTES
[extensions]
    none = true
"""
    + EVIL,
    "color": """
[color]
    ui = always
    diff = always
    status = always
    branch = always
[color "diff"]
    old = yellow
[column]
    ui = always
[pager]
    diff = cat -n
    log = cat -n
""",
    "i18n": """
[i18n]
    commitEncoding = ISO-8859-1
    logOutputEncoding = UTF-16LE
""",
    "log": """
[log]
    showSignature = true
    mailmap = true
    follow = true
    decorate = full
    date = relative
    abbrevCommit = true
    diffMerges = separate
    showRoot = false
    excludeDecoration = *
[mailmap]
    file = MAILMAP
[notes]
    displayRef = *
[status]
    showUntrackedFiles = no
    relativePaths = true
[grep]
    fallbackToNoIndex = true
[alias]
    diff-tree = !echo evil
    cat-file = !echo evil
[apply]
    whitespace = fix
[am]
    threeWay = true
[commit]
    gpgSign = true
    cleanup = scissors
[mailinfo]
    scissors = true
""",
}
ENVIRONMENT = {
    "TZ": "Asia/Kathmandu",
    "LANG": "tr_TR.ISO-8859-9",
    "LC_ALL": "tr_TR.ISO-8859-9",
    "LANGUAGE": "de",
    "TERM": "dumb",
    "COLUMNS": "20",
    "EDITOR": "false",
    "PAGER": "false",
    "GIT_EXTERNAL_DIFF": "echo evil",
    "GIT_DIFF_OPTS": "-u0",
    "GIT_AUTHOR_NAME": "Evil",
    "GIT_AUTHOR_DATE": "2001-01-01T00:00:00+0000",
    "GIT_COMMITTER_EMAIL": "evil@example.invalid",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "diff.noprefix",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "diff.context",
    "GIT_CONFIG_VALUE_1": "0",
    "GIT_CONFIG_PARAMETERS": "'diff.algorithm=patience'",
    "GIT_NOTES_DISPLAY_REF": "refs/notes/*",
    "GIT_REPLACE_REF_BASE": "refs/evil/",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_DEFAULT_HASH": "sha256",
    "GIT_TEMPLATE_DIR": "/nowhere",
    "GIT_DIR": "/nowhere",
    "GIT_WORK_TREE": "/nowhere",
    "GIT_INDEX_FILE": "/nowhere",
    "GIT_OBJECT_DIRECTORY": "/nowhere",
    "GIT_NAMESPACE": "evil",
    "GIT_CEILING_DIRECTORIES": "/",
    "GIT_TRACE": "1",
    "GIT_ATTR_SOURCE": "HEAD",
}


def plain_format_patch(clone: Path) -> bytes:
    """What a user's own `git format-patch` gives."""
    done = subprocess.run(
        ["git", "format-patch", "--stdout", "v1.0..HEAD"],
        cwd=clone, capture_output=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations(
    made: Made, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the user's and as the repository's configuration at once."""
    expected, calm = made.series(), plain_format_patch(made.clone)
    write(
        tmp_path,
        {
            "order": "python/*\ncore/*\n",
            "attributes": "* diff=evil -text\n",
            "mailmap": "Evil <evil@example.invalid> <maintainers@lms.invalid>\n",
        },
    )
    text = CONFIGURATIONS[name]
    for word in ("ORDER", "ATTRIBUTES", "MAILMAP"):
        text = text.replace(f"= {word}", f"= {tmp_path / word.lower()}")
    write(tmp_path, {".gitconfig": text})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    with (made.clone / ".git/config").open("a") as config:
        config.write(text)
    assert made.series() == expected
    # The control: git itself is led astray, but for what only a terminal shows.
    assert plain_format_patch(made.clone) != calm or name in ("color", "log")


def _attributes(clone: Path) -> None:
    write(clone, {".git/info/attributes": "* diff=evil\n*.cpp -diff\n* ident\n"})
    with (clone / ".git/config").open("a") as config:
        config.write(EVIL)


def _replaced(clone: Path) -> None:
    """The last commit and one of its blobs stand for others."""
    other = plain_git(clone, "commit-tree", "-m", "Evil", "-p", "HEAD~1", "HEAD~1^{tree}")
    plain_git(clone, "replace", "HEAD", other)
    blobs = "HEAD:core/code.cpp", "HEAD~1:core/code.cpp"
    found = [plain_git(clone, "--no-replace-objects", "rev-parse", name) for name in blobs]
    plain_git(clone, "replace", "-f", *found)


def _grafted(clone: Path) -> None:
    write(clone, {".git/info/grafts": plain_git(clone, "rev-parse", "HEAD") + "\n"})


def _noted(clone: Path) -> None:
    plain_git(clone, "notes", "add", "-m", "Evil", "HEAD")
    plain_git(clone, "config", "format.notes", "true")


def _hooked(clone: Path) -> None:
    for name in ("post-commit", "reference-transaction", "post-index-change"):
        write(clone, {f".git/hooks/{name}": "#!/bin/sh\nexit 1\n"})
        (clone / f".git/hooks/{name}").chmod(0o755)


@pytest.mark.parametrize("spoil", [_attributes, _replaced, _grafted, _noted, _hooked])
def test_repositories(made: Made, spoil: Callable[[Path], None]) -> None:
    expected, calm = made.series(), plain_format_patch(made.clone)
    spoil(made.clone)
    assert made.series() == expected
    assert plain_format_patch(made.clone) != calm or spoil is _hooked


def test_environment(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, calm = made.series(), plain_format_patch(made.clone)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if hasattr(time, "tzset"):
        time.tzset()
    try:
        assert made.series() == expected
        assert plain_format_patch(made.clone) != calm
    finally:
        monkeypatch.undo()
        time.tzset()


def test_packed_and_borrowed_objects(made: Made, tmp_path: Path) -> None:
    """Deltas, a linked worktree, and a clone whose objects lie in another one."""
    expected = made.series()
    plain_git(made.clone, "gc", "-q", "--prune=now")
    plain_git(made.clone, "worktree", "add", "-q", str(tmp_path / "linked tree"), "HEAD")
    borrowing = tmp_path / "borrowing"
    plain_git(tmp_path, "clone", "-q", "--shared", str(made.clone), str(borrowing))
    for place in (made.clone, tmp_path / "linked tree", borrowing):
        assert Made(made.world, place).series() == expected


@pytest.mark.parametrize("reachable", [True, False])
def test_partial_clone(made: Made, tmp_path: Path, reachable: bool) -> None:
    """Blobs that are missing are fetched; where they cannot be, the file is named."""
    expected = made.series()
    plain_git(made.clone, "config", "uploadpack.allowFilter", "true")
    plain_git(made.clone, "config", "uploadpack.allowAnySHA1InWant", "true")
    partial = tmp_path / "partial"
    plain_git(tmp_path, "clone", "-q", "--filter=blob:none", made.clone.as_uri(), str(partial))
    assert "?" in plain_git(partial, "rev-list", "--objects", "--all", "--missing=print")
    if reachable:
        assert Made(made.world, partial).series() == expected
        return
    made.clone.rename(tmp_path / "gone")
    with pytest.raises(Exception, match=r"lacks the content of .* \(blob [0-9a-f]{40}\)"):
        Made(made.world, partial).series()


def test_export_command(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has IBM's name; `git am` of it gives the same tree, also from a pipe."""
    monkeypatch.setenv("LMSBUILD_ROOT", str(made.world.project.root))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "lmsbuild", "export", "v1.0"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*command, *arguments], env=env, capture_output=True, check=False)

    assert run("--dry-run").returncode == 0 and not list(tmp_path.glob("*.patch"))
    (tmp_path / "old.patch").write_text("old")
    for arguments in ([], ["-o", "old.patch"], ["-o", "new/"], ["-o", "a/b.patch"]):
        assert run(*arguments).returncode == 0
    name = "alpha_v1.0_large_model_support.patch"
    written = [
        tmp_path / name,
        tmp_path / "old.patch",
        tmp_path / "new" / name,
        tmp_path / "a/b.patch",
    ]
    piped = run("-o", "-")
    assert {file.read_bytes() for file in written} == {piped.stdout} == {made.series()}
    clone = made.world.clone(tmp_path.name)
    user = ["-c", "user.name=User", "-c", "user.email=user@example.invalid"]
    am = ["git", *user, "am", "-q"]
    subprocess.run(am, cwd=clone, input=piped.stdout, check=True)
    tree = plain_git(made.clone, "rev-parse", "HEAD^{tree}")
    assert plain_git(clone, "rev-parse", "HEAD^{tree}") == tree
    assert run("-o", "-", "--json").returncode == 2
    assert run("-o", "old.patch/x").returncode == FileError.exit_code
    patch = patch_files(made.world.target.tag_patches)[0]
    content = patch.read_bytes()
    try:
        patch.write_bytes(content.replace(b"index ", b"index 1", 1))
        assert run().returncode == ConfigError.exit_code
    finally:
        patch.write_bytes(content)


@pytest.fixture(scope="module", params=["bullseye", pytest.param("trixie", marks=pytest.mark.slow)])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a git of another version."""
    try:
        path = other_git.install(tmp_path_factory.mktemp("git") / "other", request.param)
    except SourceError as error:
        pytest.skip(f"no git of {request.param}: {error.message}")
    ours = subprocess.check_output(["git", "--version"], text=True).split()[2]
    if other_git.version(path) == ours:
        pytest.skip(f"git of {request.param} is this machine's: {ours}")
    return path


@pytest.fixture
def with_other(other: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PATH", f"{other}:{os.environ['PATH']}")
    yield other_git.version(other)


@pytest.mark.net
def test_other_version_gives_the_same_bytes(made: Made, with_other: str, console: Console) -> None:
    assert made.series()
    checked = verify(made.world.target, console, made.clone)
    assert not checked.problems and checked.origin
    clone = made.world.clone(f"clone-{with_other}")
    assert apply(made.world.target, clone, console).patches
    tree = plain_git(made.clone, "rev-parse", "HEAD^{tree}")
    assert plain_git(clone, "rev-parse", "HEAD^{tree}") == tree


@pytest.mark.net
def test_other_version_on_the_real_series(
    real_project: Project, with_other: str, console: Console
) -> None:
    """Regenerated from the trees of the tag's code where the cache has it."""
    for target in targets(real_project):
        (patch,) = patch_files(target.runtime_patches)
        assert runtime_patch(target) == {patch.name: patch.read_bytes()}
        assert verify(target, console).problems == []
