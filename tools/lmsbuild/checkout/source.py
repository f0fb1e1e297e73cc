# SPDX-License-Identifier: Apache-2.0
"""The source of a tag as a bare git repository in the cache, whatever route it came by."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    GitError,
    LmsbuildError,
    MismatchError,
    OfflineError,
    SourceError,
    TreeStateError,
    cat_file,
)
from lmsbuild.base.git import TRUSTING, Git, Repository, entries, git, has_git, is_bare, open_at
from lmsbuild.base.hashing import sha256_file, sha256_value
from lmsbuild.base.project import cache_dir, cache_path, full_path
from lmsbuild.series.series import check_preimage
from lmsbuild.tags.frameworks import Target

ANSWER_SECONDS = 5.0
ROUTES = ("auto", "git", "debian")
_BASE = "refs/heads/base"
_KIND = "repositories"
_VOUCHER = "lmsbuild.voucher"  # git setting: what vouches for the source
_ABSENT = "lmsbuild.absent"  # git setting: files of the tag that the source has not


@dataclass(frozen=True)
class Source:
    """A bare repository whose branch `base` is the tag's code."""

    repository: Path
    commit: str
    route: str
    why: str


def obtain(target: Target, wanted: str, console: Console, reference: Path | None = None) -> Source:
    """Get the source by the route `wanted` (auto, git, debian, a path or a URL).

    `reference` is a clone whose objects need not be downloaded; it may be deleted afterwards.
    Raises SourceError when no route works, MismatchError when the code is not the tag's,
    OfflineError when it would have to be downloaded and must not.
    """
    way = _Way(target, console, reference)
    if wanted == "auto":
        return _auto(way)
    if wanted == "git":
        return way.kept("git", target.framework.url, "asked for", way.from_git)
    if wanted == "debian":
        return way.kept("debian", "", "asked for", way.from_debian)
    if _is_url(wanted):
        fill = way.from_archive_url if is_archive(wanted) else way.from_git
        return way.kept("url", wanted, "asked for", fill)
    check(wanted)
    return _from_path(way, full_path(wanted))


def check(wanted: str) -> None:
    """Raise SourceError for what is no route, no URL and no path."""
    if wanted in ROUTES or _is_url(wanted):
        return
    path = full_path(wanted)
    if not wanted or not (path.is_dir() or path.is_file()):
        there = bool(wanted) and path.exists()
        why = "it is neither a file nor a folder" if there else "there is no such file or folder"
        raise SourceError(
            f"{shlex.quote(wanted)} cannot be a source because {why}; "
            f"give {', '.join(ROUTES)}, a path or a URL"
        )


def _is_url(wanted: str) -> bool:
    return "://" in wanted or wanted.startswith("git@")


def cached(target: Target) -> list[Path]:
    """The bare repositories in the cache that have the tag's code, held; none is checked."""
    found = sorted((cache_path() / _KIND).glob(f"{target.slug}-*.git"))
    return [path for path in found if cache.hold(path)]


def _auto(way: _Way) -> Source:
    url = way.target.framework.url
    for route, location, fill in (("git", url, way.from_git), ("debian", "", way.from_debian)):
        if way.place(route, location).is_dir():
            return way.kept(route, location, "in the cache", fill)
    reasons = []
    try:
        return way.kept("git", url, "upstream git answers", way.from_git)
    except (SourceError, GitError, OfflineError) as error:
        if isinstance(error, GitError) and (refused := error.refused()):
            raise refused from error
        if isinstance(error, OfflineError) and way.target.tag.debian is None:
            raise
        reasons.append(f"git: {error.message}")
        why = f"upstream git cannot be used, {_short(error)}"
    try:
        return way.kept("debian", "", why, way.from_debian)
    except OfflineError:
        cache.require_network(
            f"the source of {way.target.label}", f"lmsbuild fetch {way.target.label}"
        )
        raise
    except SourceError as error:
        reasons.append(f"debian: {error.message}")
    raise SourceError(
        f"the source of {way.target.label} could not be had because every route failed "
        f"({'; '.join(reasons)}); give a clone, an unpacked tree or a tarball with --source PATH"
    )


def _short(error: LmsbuildError) -> str:
    """git's own last line, or what is said instead of it."""
    cause = error.__cause__ if isinstance(error.__cause__, GitError) else error
    text = cause.output.strip().splitlines() if isinstance(cause, GitError) else []
    return text[-1].removeprefix("fatal: ") if text else error.message


def check_reference(reference: Path) -> None:
    """Raise SourceError for what is no clone."""
    try:
        open_at(reference).close()
    except (GitError, TreeStateError) as error:
        why = "is no git repository" if isinstance(error, GitError) else "is damaged"
        raise SourceError(
            f"{reference} cannot be a reference because it {why}; give a clone of the framework "
            "with --reference or LMSBUILD_MIRROR"
        ) from error


def _is_local(location: str) -> bool:
    return location.startswith("file:") or ("://" not in location and "@" not in location)


Fill = Callable[[str, Repository], str]
"""Puts the source at a location into a bare repository; gives what vouches for it, or ""."""


@dataclass(frozen=True)
class _Way:
    """The ways to one tag's source."""

    target: Target
    console: Console
    reference: Path | None

    def place(self, route: str, location: str) -> Path:
        suffix = f"-{sha256_value(location)[:12]}" if route == "url" else ""
        return cache_dir() / _KIND / f"{self.target.slug}-{route}{suffix}.git"

    def kept(
        self, route: str, location: str, why: str, fill: Fill, *, anew: bool = False
    ) -> Source:
        """The source from the cache, put there by `fill` if need be, and checked."""

        def make(bare: Path) -> None:
            bare.mkdir()
            with Repository.create(bare) as made:
                vouched = fill(location, made)
                made.git.run("config", _VOUCHER, vouched)
                check_preimage(self.target, made, _BASE, f"the source by {route}")

        name = self.place(route, location).name
        title = f"source of {self.target.label} by {route}"
        label = self.target.label
        repository = cache.keep(_KIND, name, title, make, self.console, tag=label, anew=anew)
        with Repository(repository) as found:
            commit = found.commit_id(_BASE)
            if commit is None:
                raise SourceError(
                    f"{repository} cannot be a source because it has no commit; remove it with "
                    f"`lmsbuild clean {label} --cache`, and fetch again"
                )
            check_preimage(self.target, found, commit, f"the cached source {repository}")
            vouched = "".join(found.setting(_VOUCHER))
        return Source(repository, commit, route, f"{why}; {vouched}" if vouched else why)

    def from_git(self, url: str, made: Repository) -> str:
        """The tag's commit from `url`, or from the reference when that cannot be reached."""
        location = self._reachable(url)
        if location != url:
            return self.from_clone(self.target.tag.commit, made)
        tag, commit = f"refs/tags/{self.target.tag_name}", self.target.tag.commit
        self._fetch(made, url, tag, commit, of_clone=False)
        return _tag_signature(made)

    def from_clone(self, commit: str, made: Repository) -> str:
        """A commit of the reference, without the files that it lacks if no patch touches them."""
        assert self.reference is not None
        location = self.reference.resolve().as_uri()
        self._fetch(made, location, commit, commit, of_clone=True)
        return "taken from the reference"

    def _fetch(
        self, made: Repository, location: str, wanted: str, commit: str, *, of_clone: bool
    ) -> None:
        """A commit without history: trees first, then the files that the series touches, then,
        unless these are wrong, all others, each time in one go. What a clone lacks, nobody has."""
        if self.reference is not None:
            with open_at(self.reference) as lender:
                if of_clone:
                    _check_trees(lender, commit, self.target.label)
                made.borrow(lender.file("objects"))
                if lender.file("shallow").is_file():  # where git is not to look for more history
                    shutil.copyfile(lender.file("shallow"), made.file("shallow"))
        with self.console.step(f"fetching {self.target.tag_name} from {location}") as step:
            try:
                origin = made.create_remote("origin", location)
                with made.config_writer() as settings:
                    settings.set_value('remote "origin"', "promisor", "true")
                    settings.set_value('remote "origin"', "partialclonefilter", "blob:none")
                    if not of_clone:
                        # It would offer borrowed commits, those of a treeless clone without trees.
                        settings.set_value("fetch", "negotiationAlgorithm", "noop")
                made.fetch("origin", wanted, step, depth=1, no_tags=True, filter="blob:none")
                found = made.commit_id("FETCH_HEAD")
                if found != commit:
                    raise MismatchError(
                        f"{location} is not the source of {self.target.label} because its tag is "
                        f"commit {found}, not {commit}; use another source"
                    )
                git.Reference(made, _BASE).set_object(commit)
                missing = _missing(made, commit)
                there = entries(made, commit, list(self.target.tag.preimage))
                touched = [entry.blob for entry in there.values()]
                lost = missing if of_clone else set()
                self._leave_out(made, commit, lost)
                made.fetch_blobs("origin", [blob for blob in touched if blob in missing], step)
                check_preimage(self.target, made, commit, location)
                made.fetch_blobs("origin", sorted(missing.difference(touched, lost)), step)
            except GitError as error:
                if refused := error.refused():
                    raise refused from error
                raise SourceError(
                    f"{self.target.tag_name} was not fetched from {location} because "
                    f"git says: {error.reason}; try --source debian, or a PATH"
                ) from error
            git.Remote.remove(made, origin)
            if self.reference is not None:
                _keep_objects(made, commit)
                made.file("objects/info/alternates").unlink()
                made.file("shallow").write_text(f"{commit}\n", encoding="utf-8")
                for marker in made.file("objects/pack").glob("*.promisor"):
                    marker.unlink()  # nothing is missing any longer

    def _leave_out(self, made: Repository, commit: str, lost: set[str]) -> None:
        """Remember the files whose content `lost` nowhere is: a checkout goes without them."""
        if not lost or self.reference is None:
            return
        paths = {p: e.blob for p, e in entries(made, commit).items() if e.blob in lost}
        needed = sorted(paths.keys() & self.target.tag.preimage.keys())
        if needed:
            blob = paths[needed[0]]
            raise SourceError(
                f"{self.reference} cannot give the source of {self.target.label} because it lacks "
                f"blob {blob}, the content of {needed[0]}, which a patch touches; run "
                f"`{cat_file(self.reference, blob)}` to fetch it, or use another clone",
                object=blob,
                file=needed[0],
            )
        for path in paths:
            made.git.run("config", "--add", _ABSENT, path)
        self.console.warn(
            f"{', '.join(paths)} will be missing from the checkout because {self.reference} lacks "
            "the content; no patch touches it, but `git gc` refuses there until `git fetch "
            f"--refetch --depth=1 origin tag {self.target.tag_name}` has got it"
        )

    def _reachable(self, url: str) -> str:
        """`url`, or the reference when upstream cannot be reached and it has the commit."""
        try:
            if not _is_local(url):
                cache.require_network(
                    f"the source of {self.target.label} by git",
                    f"lmsbuild fetch {self.target.label} --source git",
                )
            ask(url, self.target.tag_name)
            return url
        except (GitError, SourceError, OfflineError) as error:
            if self.reference is not None:
                with open_at(self.reference) as lender:
                    if lender.commit_id(self.target.tag.commit):
                        return self.reference.resolve().as_uri()
            if isinstance(error, GitError):
                raise SourceError(
                    f"{self.target.tag_name} was not fetched from {url} because git says: "
                    f"{error.reason}; try --source debian, or a PATH"
                ) from error
            raise

    def from_debian(self, _: str, made: Repository) -> str:
        package = self.target.tag.debian
        if package is None:
            raise SourceError(
                f"{self.target.label} cannot come from Debian because Debian has no source package "
                "of it; use --source git or a PATH"
            )
        from lmsbuild.checkout import debian  # of no command that finds its source at hand

        tarball = debian.orig_tarball(package, self.target.label, self.console)
        self.from_tarball(tarball, made)
        return debian.signature()

    def from_archive_url(self, url: str, made: Repository) -> str:
        if not _is_local(url):
            cache.require_network(url, f"lmsbuild fetch {self.target.label} --source {url}")
        tarball = made.path.with_name("source.tar")
        from lmsbuild.tags.download import download_url

        download_url(url, tarball, self.console)
        return self.from_tarball(tarball, made)

    def from_tarball(self, tarball: Path, made: Repository) -> str:
        folder = made.path.with_name("unpacked")
        folder.mkdir()
        with self.console.step(f"unpacking {tarball.name}"):
            try:
                with tarfile.open(tarball) as archive:
                    archive.extractall(folder, filter="data")
            except (tarfile.TarError, EOFError, OSError) as error:
                raise SourceError(
                    f"{tarball} cannot be unpacked because {error}; remove it and fetch again"
                ) from error
        entries = list(folder.iterdir())
        tree = entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
        return self.from_tree(tree, made)

    def from_tree(self, tree: Path, made: Repository) -> str:
        """One commit with fixed identity and date, so that it has the same id everywhere."""
        with self.console.step(f"importing the source of {self.target.label} into git"):
            try:
                # Not GitPython's index, which writes every object loose and by Python.
                # --force: upstream tracks files that its own .gitignore names.
                run = made.variant(work_tree=tree).git
                run.run("add", "--all", "--force", ".")
                message = f"{self.target.framework_name} {self.target.tag_name}"
                commit = run.text("commit-tree", run.text("write-tree"), "-m", message)
                git.Reference(made, _BASE).set_object(commit)
                made.file("index").unlink(missing_ok=True)
            except GitError as error:
                raise SourceError(
                    f"the tree was not imported because git says: {error.reason}; check disk "
                    "space and permissions"
                ) from error
        return ""


def ask(url: str, tag: str) -> str:
    """The commit that a tag is at `url`. Raises GitError or SourceError unless that answers in time
    and has the tag."""
    try:
        git.Git.check_unsafe_protocols(url)
    except git.UnsafeProtocolError as error:
        raise SourceError(
            f"{tag} cannot be had from {url} because such an address runs a program; give one of "
            "https, ssh or file, or a PATH"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        # Nor is any repository looked for around the folder.
        asking = Git(Path(folder), {**TRUSTING, "GIT_DIR": os.devnull})
        try:
            name = f"refs/tags/{tag}"
            words = ("ls-remote", "--", url, name, f"{name}^{{}}")
            listed = asking.run(*words, timeout=ANSWER_SECONDS).stdout.decode()
        except subprocess.TimeoutExpired as error:
            raise SourceError(
                f"{url} gave no answer because it took over {ANSWER_SECONDS:.0f} s; try later"
            ) from error
    if not listed:
        raise SourceError(
            f"{tag} cannot be had from {url} because there is no such tag; give another source, or "
            "push the tag there"
        )
    return listed.splitlines()[-1].split()[0]  # of an annotated tag what it points to comes last


def _missing(made: Repository, commit: str) -> set[str]:
    """Objects of the commit that are promised but not here."""
    listed = made.git.text("rev-list", "--objects", "--missing=print", "--max-count=1", commit)
    return {line[1:] for line in listed.split("\n") if line.startswith("?")}


def _check_trees(clone: Repository, commit: str, label: str) -> None:
    """Raise SourceError when a clone lacks the list of files of a folder."""
    try:
        clone.git.run("ls-tree", "-r", commit)
    except GitError as error:
        if error.lost is None:
            raise
        command = f"git -C {shlex.quote(str(clone.path))} ls-tree -r {commit}"
        raise SourceError(
            f"{clone.path} cannot give the source of {label} because it lacks tree {error.lost}; "
            f"run `{command}`, which fetches all of them into a partial clone, or use a full clone",
            object=error.lost,
        ) from error


def absent(found: Repository) -> list[str]:
    """Files of the tag that a repository in the cache has not."""
    return found.setting(_ABSENT)


def _keep_objects(made: Repository, commit: str) -> None:
    """Pack the objects of the commit that are here or borrowed, so that nothing is borrowed."""
    listed = made.git.text("rev-list", "--objects", "--missing=allow-any", "--max-count=1", commit)
    request = f"{listed}\n".encode(errors="surrogateescape")
    made.git.run("pack-objects", "-q", str(made.file("objects/pack/pack")), stdin=request)


def _tag_signature(made: Repository) -> str:
    """What the user's own gpg says of the fetched tag. Never a reason to refuse it: the commit's id
    is recorded."""
    found = made.git.read("FETCH_HEAD")
    if found is None or found[1] != "tag" or b"-----BEGIN" not in found[2]:
        return "tag not signed"
    keys = {name: os.environ[name] for name in ("HOME", "GNUPGHOME") if name in os.environ}
    done = made.variant(variables=keys).git.run("verify-tag", "--raw", found[0], check=False)
    status = done.stderr.decode(errors="replace")
    good = [line.split(" ", 3)[3] for line in status.splitlines() if "] GOODSIG " in line]
    if done.returncode == 0 and good:
        return f"tag signed by {good[0]}"
    if "] BADSIG " in status:
        return "the tag's signature is BAD"
    return "tag signature not checked (no key of the signer, or no gpg)"


def is_archive(name: str) -> bool:
    return ".tar" in Path(name).name or name.endswith((".tgz", ".txz"))


def is_repository(path: Path) -> bool:
    return path.is_dir() and (is_bare(path) or has_git(path))


def _from_clone(way: _Way, path: Path) -> Source:
    """The clone itself, or what a partial one has, as of a reference."""
    target = way.target
    with open_at(path) as given:
        names = (target.tag.commit, f"refs/tags/{target.tag_name}", "HEAD")
        found = ((name, given.commit_id(name)) for name in names)
        revision, commit = next(((n, c) for n, c in found if c is not None), ("", ""))
        if not commit:
            raise SourceError(f"{path} cannot be a source because it has no commit; use another")
        _check_trees(given, commit, target.label)
        lacks = f", as it has no tag {target.tag_name}" if revision == "HEAD" else ""
        check_preimage(target, given, commit, f"{path} ({revision}{lacks})")
        whole = not _missing(given, commit)
    why = f"asked for, at {revision}"
    if whole:
        return Source(path, commit, "path", why)
    lent = replace(way, reference=path)
    # It may have got more since.
    return lent.kept(
        "url", str(path), why, lambda _, made: lent.from_clone(commit, made), anew=True
    )


def _from_path(way: _Way, path: Path) -> Source:
    target = way.target
    if is_repository(path):
        return _from_clone(way, path)
    if path.is_dir():
        for name in target.framework.recognise:
            # All of a folder is imported, so a wrong one must be told first.
            if not (path / name).exists():
                raise SourceError(
                    f"{path} cannot be a source because it is no {target.framework_name}: it lacks "
                    f"{name}; give a clone, an unpacked tree or a tarball"
                )
        # What is in a folder may have changed since.
        return way.kept(
            "url", str(path), "asked for", lambda _, made: way.from_tree(path, made), anew=True
        )
    digest = sha256_file(path)
    return way.kept(
        "url", digest, f"asked for; SHA-256 {digest}", lambda _, made: way.from_tarball(path, made)
    )
