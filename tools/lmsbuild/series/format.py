# SPDX-License-Identifier: Apache-2.0
"""Commits as patch files: the same bytes for the same commits, on every machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmsbuild.base.errors import GitError, TreeStateError
from lmsbuild.base.filenames import is_utf8, link_target
from lmsbuild.base.git import ABSENT, Entry, Raw, Repository
from lmsbuild.base.refusals import Refusals
from lmsbuild.series import binary
from lmsbuild.series.mail import Mail, from_commit
from lmsbuild.series.scratch import Scratch, scratch
from lmsbuild.series.series import FILE_MODES, LINK_MODE

NAME_LENGTH = 57  # of "0001-" and the subject, as git has it


def file_name(number: int, subject: str) -> str:
    """The patch file's name, made as git makes it."""
    slug = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._]+", "-", subject)).strip("-")
    return f"{number:04}-{slug}"[:NAME_LENGTH].rstrip(".-") + ".patch"


def patch_bytes(
    made_in: Scratch,
    mail: Mail,
    before: str,
    after: str,
    what: str,
    *,
    paths: Sequence[str] | None = None,
) -> bytes:
    """One patch file. Raises TreeStateError, naming `what`, for a change that a patch cannot hold.

    `before` and `after` are trees that `made_in` can read; `paths` leaves out all others.
    """
    raws = [raw for raw in made_in.changed(before, after) if paths is None or raw.path in paths]
    refusals = Refusals(TreeStateError)
    for raw in raws:
        with refusals.gathered():
            _check_path(made_in, raw, what)
    with refusals.gathered():
        _check_message(mail, what)
    refusals.check()
    diff = made_in.diff(before, after, paths)
    parts = re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]
    whole = (_whole(made_in, raw, part) for raw, part in zip(raws, parts, strict=True))
    return mail.render().encode(errors="surrogateescape") + b"".join(whole)


def _check_message(mail: Mail, what: str) -> None:
    if not mail.subject:
        raise TreeStateError(f"{what} cannot become a patch because it has no message; give it one")
    if mail.hazard():
        raise TreeStateError(
            f"{what} cannot become a patch because `git am` would end its message at the line "
            f"{mail.hazard()!r}; reword the message"
        )


def _whole(made_in: Scratch, raw: Raw, part: bytes) -> bytes:
    """The diff of one file with what git leaves out: the blob of one whose mode alone changes, and
    the content of a binary one."""
    if raw.before.blob == raw.after.blob:
        return part + f"index {raw.before.blob}..{raw.after.blob}\n".encode()
    head, mark, _ = part.partition(b"\nBinary files ")
    if not mark or b"\n@@ " in head:
        return part
    sides = (
        made_in.repository.blob(entry.blob) if entry != ABSENT else b""
        for entry in (raw.before, raw.after)
    )
    return head + b"\n" + binary.render(*sides).encode()


def _check_path(made_in: Scratch, raw: Raw, what: str) -> None:
    modes = {raw.before.mode, raw.after.mode} - {"000000"}
    reason = remedy = ""
    if modes.difference((*FILE_MODES, LINK_MODE)):
        reason = f"{raw.path} is a submodule"
        remedy = "use ordinary files"
    elif LINK_MODE in modes and len(modes) > 1:
        reason = f"{raw.path} becomes a link, or a file of one"
        remedy = "remove it in one commit and add it in the next"
    elif raw.after.mode == LINK_MODE and (why := _leads_out(made_in, raw)):
        reason = f"the link {raw.path} cannot be in a series: {why}"
        remedy = "have it lead to a file of the tree"
    elif re.search(r'["\\\x00-\x1f\x7f]', raw.path):
        reason = f"the name {raw.path!r} needs quotes in a patch"
        remedy = "rename the file"
    elif not is_utf8(raw.path):
        reason = f"the name {raw.path!r} is not UTF-8"
        remedy = "rename the file"
    elif raw.path.startswith("-"):  # tag.toml takes none
        reason = f"the name {raw.path!r} would be taken for an option"
        remedy = "rename the file or folder"
    if reason:
        raise TreeStateError(f"{what} cannot become a patch because {reason}; {remedy}")


def _leads_out(made_in: Scratch, raw: Raw) -> str:
    """Why a link may not be, or ""."""
    target = made_in.repository.blob(raw.after.blob).decode(errors="surrogateescape")
    try:
        link_target(raw.path, target)
    except ValueError as error:
        return str(error)
    return ""


def mail_of(repository: Repository, commit: str) -> Mail:
    """Raises TreeStateError for a commit that git itself would not write."""
    found = repository.git.read(f"{commit}^{{commit}}")
    try:
        return from_commit(found[2] if found else b"")
    except ValueError as error:
        raise TreeStateError(
            f"commit {commit[:12]} cannot become a patch because {error}; commit it anew"
        ) from error


def fetch_blobs(repository: Repository, wanted: Mapping[str, Entry]) -> None:
    """Have a partial clone get what a diff will read. Raises TreeStateError when it cannot."""
    paths = {entry.blob: path for path, entry in wanted.items() if int(entry.mode, 8)}
    lost = next((blob for blob in paths if not _has(repository, blob)), "")
    if lost:
        raise TreeStateError(
            f"{repository.path} cannot be read because it lacks the content of {paths[lost]} (blob "
            f"{lost}) and it was not fetched; run `git fetch --refetch --no-filter --tags` there, "
            "or use a full clone"
        )


def _has(repository: Repository, blob: str) -> bool:
    try:
        repository.blob(blob)
    except GitError as error:
        if error.misconfigured:
            raise
        return False
    return True


def format_patches(
    repository: Repository, base: str, tip: str, keep: Callable[[str], bool] = lambda path: True
) -> dict[str, bytes]:
    """The commits base..tip as patch files (name -> content), of the paths that `keep` accepts.

    A commit that changes nothing else becomes no patch. Raises TreeStateError for all that a patch
    cannot hold.
    """
    made: dict[str, bytes] = {}
    refusals = Refusals(TreeStateError)
    with scratch(repository) as room:
        for commit in repository.commits(base, tip):
            with refusals.gathered():
                content = commit_patch(room, repository, commit, keep)
                if content:
                    subject = mail_of(repository, commit).subject
                    made[file_name(len(made) + 1, subject)] = content
    refusals.check()
    return made


def commit_patch(
    room: Scratch,
    repository: Repository,
    commit: str,
    keep: Callable[[str], bool] | None = None,
) -> bytes:
    """A commit as a patch file: of the paths that `keep` accepts, nothing when it changes none of
    them. Raises TreeStateError for what a patch cannot hold."""
    trees = f"{commit}~1^{{tree}}", f"{commit}^{{tree}}"
    raws = [raw for raw in room.changed(*trees) if keep is None or keep(raw.path)]
    if keep is not None and not raws:
        return b""
    fetch_blobs(repository, {raw.path: raw.before for raw in raws})
    fetch_blobs(repository, {raw.path: raw.after for raw in raws})
    mail = mail_of(repository, commit)
    what = f"commit {commit[:12]} ({mail.subject})"
    content = patch_bytes(room, mail, *trees, what, paths=[raw.path for raw in raws])
    check_mail(room, content, mail, what)
    return content


def check_mail(room: Scratch, content: bytes, mail: Mail, what: str) -> None:
    """Raise TreeStateError unless git itself reads `mail` from the patch."""
    with tempfile.TemporaryDirectory() as name:
        body, patch = Path(name) / "body", Path(name) / "patch"
        options = ("-u", "-b", "--no-scissors")
        head = room.repository.git.run(
            "mailinfo", *options, str(body), str(patch), stdin=content
        ).stdout
        subject = re.search(r"^Subject: (.*)$", head.decode(errors="replace"), re.MULTILINE)
        read = (subject[1] if subject else "", body.read_text("utf-8", "replace").strip("\n"))
    if read != (mail.subject, mail.body):
        raise TreeStateError(
            f"{what} cannot become a patch because `git am` would read its message as "
            f"{read[0]!r}; reword the message"
        )
