# SPDX-License-Identifier: Apache-2.0
"""The source of a tag as a bare git repository in the cache, whatever route it came by."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lmsbuild import debian
from lmsbuild.console import Console
from lmsbuild.errors import GitError, LmsbuildError, MismatchError, SourceError
from lmsbuild.frameworks import Target
from lmsbuild.git import Git
from lmsbuild.hashing import sha256_file, sha256_value
from lmsbuild.project import cache_dir
from lmsbuild.series import check_preimage

ANSWER_SECONDS = 5.0
ROUTES = ("auto", "git", "debian")
_BASE = "refs/heads/base"


@dataclass(frozen=True)
class Source:
    """A bare repository whose branch `base` is the tag's code."""

    repository: Path
    commit: str
    route: str
    why: str


def obtain(target: Target, wanted: str, console: Console) -> Source:
    """Get the source by the route `wanted` (auto, git, debian, a path or a URL).

    Raises SourceError when no route works, MismatchError when the code is not the tag's.
    """
    if wanted == "auto":
        return _auto(target, console)
    if wanted == "git":
        return _cached(target, "git", target.framework.url, "asked for", _from_git, console)
    if wanted == "debian":
        return _cached(target, "debian", "", "asked for", _from_debian, console)
    if "://" in wanted or wanted.startswith("git@"):
        fill = _from_archive_url if _is_archive(wanted) else _from_git
        return _cached(target, "url", wanted, "asked for", fill, console)
    path = Path(wanted).expanduser().absolute()
    if not path.exists():
        raise SourceError(
            f"{wanted} cannot be a source because there is no such file or folder; give "
            f"{', '.join(ROUTES)}, a path or a URL"
        )
    return _from_path(target, path, console)


def _auto(target: Target, console: Console) -> Source:
    for route, location in (("git", target.framework.url), ("debian", "")):
        source = _lookup(target, route, location, "in the cache")
        if source:
            return source
    reasons = []
    try:
        _ask_upstream(target, target.framework.url)
        return _cached(
            target, "git", target.framework.url, "upstream git answers", _from_git, console
        )
    except (SourceError, GitError) as error:
        reasons.append(f"git: {error.message}")
        why = f"upstream git cannot be used, {_short(error)}"
    try:
        return _cached(target, "debian", "", why, _from_debian, console)
    except SourceError as error:
        reasons.append(f"debian: {error.message}")
    raise SourceError(
        f"the source of {target.label} could not be had because every route failed "
        f"({'; '.join(reasons)}); give a clone, an unpacked tree or a tarball with --source PATH"
    )


def _short(error: LmsbuildError) -> str:
    """git's own last line, or what is said instead of it."""
    text = error.output.strip().splitlines() if isinstance(error, GitError) else []
    return text[-1].removeprefix("fatal: ") if text else error.message


def _store(target: Target, route: str, location: str) -> Path:
    suffix = f"-{sha256_value(location)[:12]}" if route == "url" else ""
    return cache_dir() / "sources" / f"{target.slug}-{route}{suffix}.git"


def _lookup(target: Target, route: str, location: str, why: str) -> Source | None:
    repository = _store(target, route, location)
    if not repository.is_dir():
        return None
    commit = Git(repository).text("rev-parse", _BASE)
    check_preimage(target, Git(repository), commit, f"the cached source {repository}")
    return Source(repository, commit, route, why)


Fill = Callable[[Target, str, Path, Console], None]


def _cached(
    target: Target,
    route: str,
    location: str,
    why: str,
    fill: Fill,
    console: Console,
    anew: bool = False,
) -> Source:
    """The cached repository, filled first in a folder of its own so that it is all or nothing."""
    repository = _store(target, route, location)
    repository.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{repository}.lock"):
        if anew:
            shutil.rmtree(repository, ignore_errors=True)
        found = _lookup(target, route, location, why)
        if found:
            return found
        with tempfile.TemporaryDirectory(dir=repository.parent, prefix="new-") as folder:
            fresh = Path(folder) / "repository.git"
            fresh.mkdir()
            Git(fresh).run("init", "--bare", "-q")
            fill(target, location, fresh, console)
            commit = Git(fresh).text("rev-parse", _BASE)
            check_preimage(target, Git(fresh), commit, f"the source by {route}")
            fresh.rename(repository)
    return Source(repository, commit, route, why)


def _ask_upstream(target: Target, url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            Git(Path(folder)).run(
                "ls-remote", "--exit-code", url, f"refs/tags/{target.tag_name}",
                timeout=ANSWER_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SourceError(
                f"{url} gave no answer because it took over {ANSWER_SECONDS:.0f} s; try later"
            ) from error


def _from_git(target: Target, url: str, bare: Path, console: Console) -> None:
    with console.task(f"fetching {target.tag_name} from {url}"):
        try:
            _ask_upstream(target, url)
            Git(bare).run(
                "fetch", "--quiet", "--depth=1", "--no-tags", url, f"refs/tags/{target.tag_name}"
            )
        except GitError as error:
            raise SourceError(
                f"{target.tag_name} was not fetched from {url} because {error.message}; "
                "try --source debian, or a PATH"
            ) from error
    git = Git(bare)
    commit = git.text("rev-parse", "FETCH_HEAD^{commit}")
    if commit != target.tag.commit:
        raise MismatchError(
            f"{url} is not the source of {target.label} because its tag is commit {commit}, "
            f"not {target.tag.commit}; use another source"
        )
    git.run("update-ref", _BASE, commit)


def _from_debian(target: Target, _: str, bare: Path, console: Console) -> None:
    package = target.tag.debian
    if package is None:
        raise SourceError(
            f"{target.label} cannot come from Debian because Debian has no source package of it; "
            "use --source git or a PATH"
        )
    with console.task(f"downloading Debian source package {package.package}"):
        tarball = debian.orig_tarball(package, cache_dir() / "debian")
    _import_tarball(target, tarball, bare, console)


def _is_archive(name: str) -> bool:
    return ".tar" in Path(name).name or name.endswith((".tgz", ".txz"))


def _from_archive_url(target: Target, url: str, bare: Path, console: Console) -> None:
    tarball = bare.parent / "source.tar"
    with console.task(f"downloading {url}"):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, tarball.open("wb") as out:
                shutil.copyfileobj(answer, out)
        except (urllib.error.URLError, OSError) as error:
            raise SourceError(
                f"{url} was not downloaded because {error}; check the address"
            ) from error
    _import_tarball(target, tarball, bare, console)


def _from_path(target: Target, path: Path, console: Console) -> Source:
    if path.is_dir() and (path / ".git").exists():
        git = Git(path)
        revision = next(
            (
                name
                for name in (target.tag.commit, f"refs/tags/{target.tag_name}", "HEAD")
                if git.ok("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            ),
            None,
        )
        if revision is None:
            raise SourceError(f"{path} cannot be a source because it has no commit; use another")
        commit = git.text("rev-parse", f"{revision}^{{commit}}")
        check_preimage(target, git, commit, f"{path} ({revision})")
        return Source(path, commit, "path", f"asked for, at {revision}")
    if path.is_dir():

        def fill(target: Target, _: str, bare: Path, console: Console) -> None:
            _import_tree(target, path, bare, console)

        # What is in a folder may have changed since.
        return _cached(target, "url", str(path), "asked for", fill, console, anew=True)

    def fill_from_tarball(target: Target, _: str, bare: Path, console: Console) -> None:
        _import_tarball(target, path, bare, console)

    return _cached(target, "url", sha256_file(path), "asked for", fill_from_tarball, console)


def _import_tarball(target: Target, tarball: Path, bare: Path, console: Console) -> None:
    folder = bare.parent / "unpacked"
    folder.mkdir()
    with console.task(f"unpacking {tarball.name}"):
        try:
            with tarfile.open(tarball) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise SourceError(
                f"{tarball} cannot be unpacked because {error}; remove it and fetch again"
            ) from error
    entries = list(folder.iterdir())
    tree = entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
    _import_tree(target, tree, bare, console)


def _import_tree(target: Target, tree: Path, bare: Path, console: Console) -> None:
    """One commit with fixed identity and date, so that it has the same id everywhere."""
    env = {"GIT_DIR": str(bare), "GIT_WORK_TREE": str(tree)}
    git = Git(tree, env)
    with console.task(f"importing the source of {target.label} into git"):
        try:
            # -f: upstream tracks files that its own .gitignore names.
            git.run("add", "--all", "--force", ".")
            tree_id = git.text("write-tree")
            message = f"{target.framework_name} {target.tag_name}"
            commit = git.text("commit-tree", tree_id, "-m", message)
            git.run("update-ref", _BASE, commit)
            (bare / "index").unlink(missing_ok=True)
        except GitError as error:
            raise SourceError(
                f"the tree was not imported because {error.message}; check disk space"
            ) from error
