# SPDX-License-Identifier: Apache-2.0
"""From lms/ and from a checkout's commits back into patch files, byte for byte the same.

Three versions of everything: what the checkout had when the series was put there, what it has now,
and what is on the disk. A side that did not change gives way; two changes are a conflict, and then
nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmsbuild.base.errors import ConflictError, TreeStateError, UsageError
from lmsbuild.base.git import EMAIL, NAME, Entry
from lmsbuild.base.hashing import git_blob, sha256_bytes
from lmsbuild.base.project import full_path
from lmsbuild.base.refusals import Refusals
from lmsbuild.base.transaction import PROJECT_STATE, Content, FileTransaction, fingerprint
from lmsbuild.checkout import made
from lmsbuild.checkout.checkout import in_work_folder, standing_in
from lmsbuild.checkout.edits import REFRESHED, Line, changes_of, earlier, read_checkout, same_series
from lmsbuild.checkout.switch import REFS, recorded
from lmsbuild.series.format import file_name, patch_bytes
from lmsbuild.series.mail import Mail
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Patch, check_folders, check_settled, patch_files
from lmsbuild.tags.frameworks import Target, resolve, targets
from lmsbuild.tags.runtimefiles import is_of, runtime_files, source_of

RUNTIME_SUBJECT = "Add the Large Model Support runtime"
RUNTIME_MESSAGE = f"""{RUNTIME_SUBJECT}

New files only, the same for every tag: the engine (states of storages,
victims, prediction, host pool, statistics) and its adaptor to this
framework. Nothing here runs until the hooks of the tag call it.

Test: tests/engine/test_core.py::test_case"""


@dataclass(frozen=True)
class Refreshed:
    source: Path | None  # the checkout that hooks and edits were taken from
    written: list[str]  # patches
    removed: list[str]
    unchanged: list[str]
    runtime: list[str]  # files of lms/ that were written or removed
    notes: list[str]  # what became of commits that are no patch, or only in part
    preimage: dict[str, str]


@dataclass
class _Plan:
    """Files below the project's root as they are to be; None for one that goes."""

    files: dict[Path, bytes | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    made: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by what of: made.note
    preimage: dict[str, str] = field(default_factory=dict)

    def changed(self) -> dict[Path, bytes | None]:
        return {path: new for path, new in self.files.items() if _read(path) != new}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _runtime_mail(target: Target) -> Mail:
    tests = "".join(f"\nTest: {test}" for test in target.framework.shows.tests)
    return Mail(NAME, EMAIL, "Thu, 1 Jan 2026 00:00:00 +0000", RUNTIME_MESSAGE + tests)


def runtime_patch(target: Target, contents: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """The runtime patch (file name -> content) made from lms/, or from `contents` instead."""
    if contents is None:
        contents = {path: file.read_bytes() for path, file in runtime_files(target).items()}
    key = _runtime_key(target, contents)
    found = made.known(target.project, key, target.runtime_patches) or _made_here.get(key)
    if found is not None:
        return found
    with scratch() as room:
        files = {p: Entry("100644", room.add_blob(content)) for p, content in contents.items()}
        trees = room.tree({}), room.tree(files)
        content = patch_bytes(room, _runtime_mail(target), *trees, "the runtime")
    _made_here[key] = {file_name(1, RUNTIME_SUBJECT): content}
    return _made_here[key]


_made_here: dict[str, dict[str, bytes]] = {}  # by this process: tags of a framework share it


def _runtime_key(target: Target, contents: dict[str, bytes]) -> str:
    files = {path: sha256_bytes(content) for path, content in contents.items()}
    return made.key_of("runtime", _runtime_mail(target).message, files)


def find_checkout(target: Target) -> Path | None:
    """The clone the user stands in, else the work folder's, if it has one."""
    return standing_in(target) or in_work_folder(target)


def refresh(target: Target, source: Path | None, *, dry_run: bool = False) -> Refreshed:
    """Write the series anew: the runtime from lms/ and, with a checkout `source`, from its commits.

    Edits of runtime files in the checkout go into lms/, everything else into the tag's patches,
    the blob ids of the upstream files they touch into tag.toml. All files change or none.
    Raises TreeStateError when the checkout is not fit, ConflictError, naming the files, when both
    sides changed since the series was put there.
    """
    if target.project.installed and not dry_run:
        raise UsageError(
            "the patches of an installed lmsbuild are not written because an update would undo it; "
            "work in a clone of the project, or name one with LMSBUILD_ROOT"
        )
    check_folders(target, f"{target.label} cannot be refreshed")
    if dry_run:
        check_settled(target.project)
        return _refreshed(target, source, _plan(target, source)[0])
    root = target.project.root
    command = f"refresh {target.tag_name}"
    with FileTransaction.begin(root, root / PROJECT_STATE, command) as transaction:
        target = resolve(target.project, target.label)  # as it is now that nobody else writes
        for path in _taken_from(target):
            transaction.expect(path.relative_to(root).as_posix(), fingerprint(path))
        plan, line = _plan(target, source)
        done = _refreshed(target, source, plan)
        changes = plan.changed()
        for path, content in changes.items():
            name = path.relative_to(root).as_posix()
            if content is None:
                transaction.remove(name)
            else:
                transaction.put(name, Content(content))
        if changes:
            transaction.commit()
        made.note(target.project, plan.made)
        if line is not None and recorded(line.repository, REFRESHED) != line.tip:
            repository = line.repository
            # A clone may be read-only.
            repository.git.run("update-ref", f"{REFS}{REFRESHED}", line.tip, check=False)
    if target.runtime_patches in {path.parent for path in changes}:
        done = replace(done, notes=[*done.notes, *_stale_elsewhere(target)])
    return done


def _taken_from(target: Target) -> list[Path]:
    """The files of the project that a refresh reads and may write anew."""
    patches = (*patch_files(target.runtime_patches), *patch_files(target.tag_patches))
    return [*runtime_files(target).values(), *patches, target.project.root / target.file]


def _stale_elsewhere(target: Target) -> list[str]:
    """Of the frameworks that share files of lms/ with that of `target`."""
    others = {each.framework_name: each for each in reversed(targets(target.project))}
    del others[target.framework_name]
    return [
        f"the runtime patch of {name} is no longer what lms/ gives: run `lmsbuild refresh "
        f"{other.label} --runtime`"
        for name, other in sorted(others.items())
        if not same_series(runtime_patch(other), _patches(other.runtime_patches))
    ]


def _refreshed(target: Target, source: Path | None, plan: _Plan) -> Refreshed:
    changes = plan.changed()
    root = target.project.root
    patches = [path for path in plan.files if path.suffix == ".patch"]
    others = sorted(
        path.relative_to(root).as_posix()
        for path in changes
        if path not in patches and path != root / target.file
    )
    return Refreshed(
        source,
        [Patch(path).name for path in patches if changes.get(path) is not None],
        [Patch(path).name for path in patches if path in changes and changes[path] is None],
        [Patch(path).name for path in patches if path not in changes],
        others,
        plan.notes,
        plan.preimage,
    )


def _plan(target: Target, source: Path | None) -> tuple[_Plan, Line | None]:
    plan = _Plan(preimage=dict(target.tag.preimage))
    files = runtime_files(target)
    runtime = {path: file.read_bytes() for path, file in files.items()}
    line = None
    if source is not None:
        line = read_checkout(target, full_path(source), RUNTIME_SUBJECT)
        before = earlier(line, _patches(target.runtime_patches), _patches(target.tag_patches))
        plan.notes += line.notes(RUNTIME_SUBJECT)
        conflicts = Refusals(ConflictError)
        with conflicts.gathered():
            _merge_runtime(target, plan, runtime, line, before, files=files)
        with conflicts.gathered():
            _merge_hooks(target, plan, line, before)
        conflicts.check()
        plan.made[line.key] = line.hooks
    patch = runtime_patch(target, runtime)
    plan.made[_runtime_key(target, runtime)] = patch
    _put_patches(plan, target.runtime_patches, patch)
    if plan.preimage != target.tag.preimage:
        plan.files[target.project.root / target.file] = _recorded(target, plan.preimage)
    return plan, line


def _patches(folder: Path) -> list[Patch]:
    return [Patch(path) for path in patch_files(folder)]


def _put_patches(plan: _Plan, folder: Path, made: dict[str, bytes]) -> None:
    for path in patch_files(folder):
        plan.files[path] = None
    for name, content in made.items():
        plan.files[folder / name] = content


def _merge_hooks(target: Target, plan: _Plan, line: Line, before: Line | None) -> None:
    disk = _patches(target.tag_patches)
    if before is not None:
        ours_changed = not same_series(before.hooks, disk)
        theirs_changed = line.hooks != before.hooks
        if ours_changed and not theirs_changed:  # the patches are newer than the checkout
            plan.notes.append(
                f"the patches in {target.tag_patches} changed since they were put on this "
                "checkout, whose commits did not: they are left as they are; "
                f"`lmsbuild apply {target.tag_name}` puts them there"
            )
            return
        if ours_changed and not same_series(line.hooks, disk):
            raise ConflictError(
                f"{target.label} was not refreshed because the hooks changed in "
                f"{line.repository.path} and {target.tag_patches} changed too since the "
                f"series was applied there; run `lmsbuild apply {target.tag_name} --into ANOTHER` "
                "and cherry-pick your commits",
                files=[patch.name for patch in disk],
            )
    _put_patches(plan, target.tag_patches, line.hooks)
    plan.preimage = line.preimage()


def _merge_runtime(
    target: Target, plan: _Plan, runtime: dict[str, bytes], line: Line, before: Line | None,
    *, files: Mapping[str, Path],
) -> None:  # fmt: skip
    """Take the checkout's edits of runtime files into `runtime`, which `files` have, and the
    plan."""
    recorded = {c.path: c.after for c in changes_of(_patches(target.runtime_patches))}
    base = before.runtime if before else line.runtime_in_commit(RUNTIME_SUBJECT)
    conflicts = []
    for path in sorted(runtime.keys() | line.runtime.keys()):
        ours = git_blob(runtime[path]) if path in runtime else None
        theirs = line.runtime.get(path)
        started = (recorded if base is None else base).get(path)
        if theirs == ours:
            continue
        if theirs == started:
            # With no note of `apply`, the runtime commit may have been amended, or be an old one.
            if before is None and theirs != recorded.get(path):
                conflicts.append(path)
            continue
        if ours != started:
            conflicts.append(path)
            continue
        name = source_of(target, path)
        assert name is not None, path  # is_runtime
        file = files.get(path, target.project.root / name)
        if theirs is None:
            del runtime[path]
            plan.files[file] = None
        else:
            runtime[path] = line.content(path)
            plan.files[file] = runtime[path]
    if conflicts:
        raise ConflictError(
            f"{target.label} was not refreshed because {', '.join(conflicts)} changed both in lms/ "
            f"and in {line.repository.path} since the series was applied there; make the two equal "
            "(git diff shows each change) and refresh again",
            files=conflicts,
        )
    for entry in target.framework.layout:
        for pattern in entry.patterns:
            if not any(is_of(path, entry, pattern) for path in runtime):
                raise TreeStateError(
                    f"{target.label} was not refreshed because the commits in "
                    f"{line.repository.path} remove the last file {pattern} of {entry.target}, and "
                    f"`layout` in {target.framework_file} names some; correct it there first, or "
                    "restore the file"
                )


def _recorded(target: Target, preimage: dict[str, str]) -> bytes:
    """tag.toml with these blob ids in the order of their paths. A comment stays with what it is
    above of."""
    import tomlkit  # most refreshes find it as it is to be
    from tomlkit.items import Comment, Whitespace

    path = target.project.root / target.file
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    if "preimage" not in document:
        document.add(tomlkit.nl())
        document.add("preimage", tomlkit.table())
    old = document["preimage"]
    above: list[Comment | Whitespace] = []
    comments: dict[str, list[Comment]] = {}
    for key, item in old.value.body:
        if isinstance(item, Comment | Whitespace):
            above.append(item)
        elif key is not None:
            comments[key.key] = [each for each in above if isinstance(each, Comment)]
            above = []
    table = tomlkit.table()
    for file, blob in sorted(preimage.items()):
        for comment in comments.get(file, []):
            table.add(comment)
        table.add(file, old[file] if old.get(file) == blob else blob)
    for each in above:  # the empty line before the next table among them
        table.add(each)
    document["preimage"] = table
    return tomlkit.dumps(document).encode()
