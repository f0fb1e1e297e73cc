# SPDX-License-Identifier: Apache-2.0
"""No setting of a user, a repository or an environment changes what `apply` makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.git import checkout_git
from lmsbuild.checkout.apply import apply, undo
from lmsbuild.series.series import series_of

pytestmark = pytest.mark.default

# name -> settings, as they stand in a configuration file; {folder} has the helpers below.
SETTINGS = {
    "whitespace": """
        [apply]
        whitespace = fix
        ignoreWhitespace = change
        [am]
        threeWay = true
        keepcr = false
        messageId = true
        [core]
        whitespace = trailing-space,tab-in-indent,cr-at-eol
        [mailinfo]
        scissors = true""",
    "signing": """
        [commit]
        gpgSign = true
        template = {folder}/template
        cleanup = strip
        verbose = true
        [tag]
        gpgSign = true
        forceSignAnnotated = true
        [gpg]
        program = /bin/false
        format = ssh
        [user]
        name = Somebody
        email = somebody@example.invalid
        useConfigOnly = true
        [author]
        name = Some Author
        [committer]
        name = Some Committer""",
    "line ends: autocrlf": """
        [core]
        autocrlf = true
        safecrlf = true""",
    "line ends: input": """
        [core]
        autocrlf = input
        eol = crlf
        safecrlf = true""",
    "hooks": """
        [core]
        hooksPath = {folder}/hooks
        fsmonitor = {folder}/false
        fsmonitorHookVersion = 2
        editor = /bin/false
        pager = /bin/false
        askPass = /bin/false
        sshCommand = /bin/false
        [sequence]
        editor = /bin/false
        [init]
        templateDir = {folder}/hooks
        [rerere]
        enabled = true
        autoUpdate = true""",
    "filters: failing": """
        [core]
        attributesFile = {folder}/attributes
        [filter "hostile"]
        clean = /bin/false
        smudge = /bin/false
        process = /bin/false
        required = true
        [diff "hostile"]
        textconv = /bin/false
        command = /bin/false
        [merge "hostile"]
        driver = /bin/false""",
    "filters: changing": """
        [core]
        attributesFile = {folder}/attributes
        [filter "hostile"]
        clean = tr A-Z a-z
        smudge = tr a-z A-Z""",
    "diff": """
        [diff]
        noprefix = true
        mnemonicPrefix = true
        external = /bin/false
        renames = copies
        algorithm = patience
        ignoreSubmodules = all
        orderFile = {folder}/template
        context = 0
        interHunkContext = 9
        suppressBlankEmpty = true
        colorMoved = zebra
        wsErrorHighlight = all
        relative = true
        submodule = log
        [color]
        ui = always
        [column]
        ui = always
        [status]
        short = true
        branch = true
        showStash = true
        showUntrackedFiles = no
        relativePaths = true
        [format]
        signature = hello
        subjectPrefix = HELLO
        numbered = true
        attach = true
        pretty = oneline
        [log]
        showSignature = true
        decorate = full
        date = relative
        mailmap = true""",
    "encodings": """
        [i18n]
        commitEncoding = ISO-8859-1
        logOutputEncoding = UTF-16
        [core]
        quotePath = false
        abbrev = 4
        precomposeUnicode = true
        protectHFS = true
        protectNTFS = true""",
    "index": """
        [core]
        splitIndex = true
        untrackedCache = true
        ignoreStat = true
        trustctime = false
        checkStat = minimal
        fileMode = false
        preloadIndex = false
        logAllRefUpdates = false
        compression = 0
        [index]
        version = 4
        threads = 2
        [feature]
        manyFiles = true
        [splitIndex]
        maxPercentChange = 100
        [gc]
        auto = 1
        autoPackLimit = 1
        [maintenance]
        auto = true
        [transfer]
        fsckObjects = true
        unpackLimit = 1
        [pack]
        writeReverseIndex = true
        packSizeLimit = 1m""",
    "aliases and includes": """
        [alias]
        am = !false
        status = !false
        rev-parse = !false
        update-ref = !false
        [include]
        path = {folder}/included
        [includeIf "gitdir:/"]
        path = {folder}/included
        [url "file:///nowhere/"]
        insteadOf = file://
        [protocol]
        allow = never
        [safe]
        bareRepository = explicit
        [submodule]
        recurse = true
        [checkout]
        workers = 4
        [advice]
        detachedHead = true
        [help]
        autocorrect = immediate""",
}
ATTRIBUTES = "* filter=hostile diff=hostile merge=hostile\n"
HOOKS = (
    "pre-commit", "applypatch-msg", "pre-applypatch", "post-applypatch", "post-commit",
    "commit-msg", "prepare-commit-msg", "reference-transaction", "post-checkout", "post-rewrite",
    "post-index-change", "fsmonitor-watchman", "pre-auto-gc",
)  # fmt: skip


def helpers(world: World) -> Path:
    folder = world.folder / "hostile files"
    scripts = {
        f"hooks/{name}": f"#!/bin/sh\ntouch '{folder}/ran-{name}'\nexit 1\n" for name in HOOKS
    }
    write(
        folder,
        {
            **scripts,
            "false": "#!/bin/sh\nexit 1\n",
            "template": "core/alloc.cpp\n",
            "attributes": ATTRIBUTES,
            "included": "[core]\n\tautocrlf = true\n[apply]\n\twhitespace = fix\n",
        },
    )
    for script in [folder / "false", *(folder / "hooks").iterdir()]:
        script.chmod(0o755)
    return folder


def tracked(checkout: Path) -> dict[str, bytes]:
    return {
        path.relative_to(checkout).as_posix(): path.read_bytes()
        for path in checkout.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(checkout).parts
    }


@pytest.fixture
def calm(world: World, console: Console) -> tuple[str, dict[str, bytes]]:
    """The commit and the files that a neutral run gives."""
    clone = world.clone("calm")
    return apply(world.target, clone, console).head, tracked(clone)


# The user's files are shut out as a whole: there all settings at once are enough by default.
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("repository", name) for name in SETTINGS),
        ("user", "everything"),
        *(pytest.param("user", name, marks=pytest.mark.slow) for name in SETTINGS),
    ],
)
def test_settings(
    world: World,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    calm: tuple[str, dict[str, bytes]],
    place: str,
    name: str,
) -> None:
    clone = world.clone()
    folder = helpers(world)
    chosen = SETTINGS.values() if name == "everything" else [SETTINGS[name]]
    text = "".join(chosen).format(folder=folder)
    if place == "user":
        write(folder, {"config": text})
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "config"))
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(folder / "config"))
    else:
        with (clone / ".git/config").open("a") as config:
            config.write(text)
        for script in (folder / "hooks").iterdir():
            (clone / ".git/hooks" / script.name).symlink_to(script)
    # Times that say nothing: every file must be looked at.
    for path in tracked(clone):
        os.utime(clone / path, (1, 1))
    before = tracked(clone)
    assert apply(world.target, clone, console).head == calm[0]
    assert tracked(clone) == calm[1]
    assert not list(folder.glob("ran-*"))
    user = checkout_git(clone)
    assert user is not None
    undo(user, console)
    assert tracked(clone) == before
    assert not list(folder.glob("ran-*"))


def replaced(world: World, clone: Path) -> None:
    """Replace refs and grafts show other code and other history."""
    other = plain_git(clone, "commit-tree", "HEAD:core", "-m", "other")
    plain_git(clone, "replace", "HEAD", other)
    write(clone, {"other.txt": "other\n"})
    blob = plain_git(clone, "hash-object", "-w", "other.txt")
    (clone / "other.txt").unlink()
    plain_git(clone, "replace", "HEAD:core/alloc.cpp", blob)
    write(clone, {".git/info/grafts": f"{plain_git(clone, 'rev-parse', 'HEAD')} {other}\n"})


def bare(world: World, clone: Path) -> None:
    plain_git(clone, "config", "core.bare", "true")


def elsewhere(world: World, clone: Path) -> None:
    plain_git(clone, "config", "core.worktree", str(world.folder))


def nowhere(world: World, clone: Path) -> None:
    plain_git(clone, "config", "core.worktree", "/nowhere")


def sparse_flag(world: World, clone: Path) -> None:
    """Sparse checkout is on, but its patterns were never written."""
    plain_git(clone, "config", "core.sparseCheckout", "true")


def crlf_attributes(world: World, clone: Path) -> None:
    write(clone, {".git/info/attributes": "* text=auto eol=crlf\n"})


def encoded_attributes(world: World, clone: Path) -> None:
    write(clone, {".git/info/attributes": "* text working-tree-encoding=UTF-16 ident\n"})


def odd_attributes(world: World, clone: Path) -> None:
    write(clone, {".git/info/attributes": "[attr]binary -text\n* binary whitespace=fix -merge\n"})


def excludes(world: World, clone: Path) -> None:
    write(clone, {".git/info/exclude": "*\n"})


def packed(world: World, clone: Path) -> None:
    plain_git(clone, "gc", "-q", "--aggressive", "--prune=now")
    plain_git(clone, "pack-refs", "--all")


def split_index(world: World, clone: Path) -> None:
    plain_git(clone, "update-index", "--split-index")
    plain_git(clone, "update-index", "--untracked-cache", "--force-untracked-cache")


REPOSITORIES: list[Callable[[World, Path], None]] = [
    replaced, bare, elsewhere, nowhere, sparse_flag, crlf_attributes, encoded_attributes,
    odd_attributes, excludes, packed, split_index,
]  # fmt: skip


@pytest.mark.parametrize("spoil", REPOSITORIES, ids=lambda spoil: spoil.__name__)
def test_repositories(
    world: World,
    console: Console,
    calm: tuple[str, dict[str, bytes]],
    spoil: Callable[[World, Path], None],
) -> None:
    clone = world.clone()
    spoil(world, clone)
    before = tracked(clone)
    assert apply(world.target, clone, console).head == calm[0]
    assert tracked(clone) == calm[1]
    user = checkout_git(clone)
    assert user is not None
    undo(user, console)
    assert tracked(clone) == before


ENVIRONMENTS = {
    "places": {
        "GIT_DIR": "{folder}/nowhere",
        "GIT_WORK_TREE": "{folder}",
        "GIT_INDEX_FILE": "{folder}/noindex",
        "GIT_OBJECT_DIRECTORY": "{folder}/objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": "{folder}",
        "GIT_COMMON_DIR": "{folder}",
        "GIT_NAMESPACE": "space",
        "GIT_CEILING_DIRECTORIES": "/",
        "GIT_SHALLOW_FILE": "{folder}/template",
        "GIT_GRAFT_FILE": "{folder}/template",
        "GIT_REPLACE_REF_BASE": "refs/heads/",
        "GIT_PREFIX": "core/",
        "GIT_QUARANTINE_PATH": "{folder}",
        "GIT_INTERNAL_SUPER_PREFIX": "super/",
        "GIT_TEMPLATE_DIR": "{folder}/hooks",
        "GIT_ATTR_SOURCE": "HEAD",
        "GIT_DEFAULT_HASH": "sha256",
    },
    "settings": {
        "GIT_CONFIG": "{folder}/included",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "apply.whitespace",
        "GIT_CONFIG_VALUE_0": "fix",
        "GIT_CONFIG_KEY_1": "core.hooksPath",
        "GIT_CONFIG_VALUE_1": "{folder}/hooks",
        "GIT_CONFIG_PARAMETERS": "'core.autocrlf=true'",
        "GIT_LITERAL_PATHSPECS": "0",
        "GIT_ICASE_PATHSPECS": "1",
        "GIT_NOGLOB_PATHSPECS": "1",
        "GIT_NO_REPLACE_OBJECTS": "0",
        "GIT_INDEX_VERSION": "3",
    },
    "people": {
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_AUTHOR_EMAIL": "some@body.invalid",
        "GIT_AUTHOR_DATE": "1 1",
        "GIT_COMMITTER_NAME": "Somebody",
        "GIT_COMMITTER_EMAIL": "some@body.invalid",
        "GIT_COMMITTER_DATE": "2000-01-01",
        "EMAIL": "some@body.invalid",
        "TZ": "Pacific/Chatham",
        "HOME": "/nowhere",
        "XDG_CONFIG_HOME": "/nowhere",
    },
    "programs": {
        "GIT_EXTERNAL_DIFF": "/bin/false",
        "GIT_DIFF_OPTS": "-u0",
        "GIT_EDITOR": "/bin/false",
        "GIT_SEQUENCE_EDITOR": "/bin/false",
        "GIT_PAGER": "/bin/false",
        "PAGER": "/bin/false",
        "EDITOR": "/bin/false",
        "GIT_TRACE": "1",
        "GIT_TRACE2": "{folder}/trace2",
        "GIT_TRACE_SETUP": "2",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "tr_TR.UTF-8",
        "LANGUAGE": "fr",
        "POSIXLY_CORRECT": "1",
        "COLUMNS": "1",
        "TERM": "dumb",
    },
}


@pytest.mark.parametrize("name", list(ENVIRONMENTS))
def test_environments(
    world: World,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    calm: tuple[str, dict[str, bytes]],
    name: str,
) -> None:
    clone = world.clone()
    folder = helpers(world)
    before = snapshot(clone)
    for key, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(key, value.format(folder=folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    user = checkout_git(clone)
    assert user is not None
    assert apply(world.target, clone, console).head == calm[0]
    assert tracked(clone) == calm[1]
    undo(user, console)
    monkeypatch.undo()
    after = snapshot(clone)
    assert {**after, "index file": ""} == {**before, "index file": ""}


def test_umask(world: World, console: Console, calm: tuple[str, dict[str, bytes]]) -> None:
    clone = world.clone()
    old = os.umask(0o077)
    try:
        assert apply(world.target, clone, console).head == calm[0]
    finally:
        os.umask(old)
    assert (clone / "core/lms/engine.cpp").stat().st_mode & 0o777 == 0o600
    assert (clone / "core/alloc.cpp").stat().st_mode & 0o777 == 0o644


def test_crlf_checkout(world: World, console: Console, calm: tuple[str, dict[str, bytes]]) -> None:
    """Every file has CRLF because of the user's settings: no change, and the same commits."""
    clone = world.folder / "windows"
    plain_git(
        world.folder, "clone", "-q", "-c", "core.autocrlf=true", str(world.upstream), str(clone)
    )
    assert b"\r\n" in (clone / "core/alloc.cpp").read_bytes()
    for path in tracked(clone):
        os.utime(clone / path, (1, 1))
    before = tracked(clone)
    assert apply(world.target, clone, console).head == calm[0]
    # What the series touches is as the series has it, everything else as the user had it.
    touched = set(series_of(world.target).before)
    now = tracked(clone)
    assert {path: now[path] for path in touched} == {path: calm[1][path] for path in touched}
    assert {p: b for p, b in now.items() if p not in touched} == {
        p: b for p, b in before.items() if p not in touched
    }
    assert plain_git(clone, "status", "--porcelain") == ""
    user = checkout_git(clone)
    assert user is not None
    undo(user, console)
    assert tracked(clone) == before
    assert plain_git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize("rule", ["* text=auto", "* text eol=crlf", "*.cpp text eol=crlf ident"])
def test_attributes_of_upstream(world: World, console: Console, rule: str) -> None:
    """Attributes that the framework itself tracks are no reason for other bytes either."""
    plain, ruled = world.clone("plain"), world.clone("ruled")
    write(ruled, {".gitattributes": f"{rule}\n"})
    plain_git(ruled, "add", ".gitattributes")
    plain_git(ruled, "commit", "-q", "-m", "Add attributes")
    plain_git(ruled, "rm", "-q", "--cached", "-r", ".")
    plain_git(ruled, "reset", "-q", "--hard")
    for clone in (plain, ruled):
        apply(world.target, clone, console)
    for path in series_of(world.target).before:
        found = [plain_git(clone, "rev-parse", f"HEAD:{path}") for clone in (plain, ruled)]
        assert found[0] == found[1], path
        assert (plain / path).read_bytes() == (ruled / path).read_bytes(), path


def test_every_command_on_a_hostile_repository(
    world: World, capsys: pytest.CaptureFixture[str], calm: tuple[str, dict[str, bytes]]
) -> None:
    """What the tool made and the user spoiled: found, looked at and worked on all the same."""
    assert run(["fetch", "v1.0"]) == 0
    path = world.target.work / "source"
    with (path / ".git/config").open("a") as config:
        config.write(SETTINGS["hooks"].format(folder=helpers(world)))
        config.write(SETTINGS["aliases and includes"].format(folder=world.folder))
        config.write("[core]\n\tbare = true\n\tworktree = /nowhere\n")
    for command in ("fetch", "status", "apply", "apply", "status", "abort", "undo", "apply"):
        assert run([command, *(["v1.0"] if command != "abort" else [])]) == 0, command
    capsys.readouterr()
    assert tracked(path) == calm[1]
