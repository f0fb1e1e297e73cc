# SPDX-License-Identifier: Apache-2.0
"""From lms/ and from a checkout's commits back into patch files, byte for byte the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import tomlkit

from lmsbuild.errors import ConfigError, TreeStateError, UsageError
from lmsbuild.format import file_name, format_patches, patch_bytes
from lmsbuild.frameworks import Target
from lmsbuild.git import EMAIL, NAME, Git
from lmsbuild.mail import Mail
from lmsbuild.scratch import Entry, scratch
from lmsbuild.series import NO_BLOB, Patch, patch_files

RUNTIME_SUBJECT = "Add the Large Model Support runtime"
RUNTIME_MESSAGE = f"""{RUNTIME_SUBJECT}

New files only, the same for every tag: the engine (states of storages,
victims, prediction, host pool, statistics) and its adaptor to this
framework. Nothing here runs until the hooks of the tag call it.

Test: tests/engine/test_core.py::test_case
Test: tests/regression/test_training.py::test_oversubscribed"""
RUNTIME_MAIL = Mail(NAME, EMAIL, "Thu, 1 Jan 2026 00:00:00 +0000", RUNTIME_MESSAGE)


@dataclass(frozen=True)
class Refreshed:
    written: list[str]
    removed: list[str]
    unchanged: list[str]
    preimage: dict[str, str]


def runtime_files(target: Target) -> dict[str, Path]:
    """Path in the framework -> file below lms/. Raises ConfigError when two map to one path."""
    found: dict[str, Path] = {}
    root = target.project.root
    for entry in target.framework.layout:
        folder = root / entry.source
        for pattern in entry.patterns:
            for file in sorted(folder.glob(pattern)):
                if not file.is_file():
                    continue
                path = str(PurePosixPath(entry.target) / file.relative_to(folder).as_posix())
                if found.setdefault(path, file) != file:
                    raise ConfigError(
                        f"the layout of {target.framework_name} is wrong because {found[path]} and "
                        f"{file} both go to {path}; correct frameworks.toml"
                    )
    if not found:
        raise ConfigError(
            f"the runtime patch cannot be made because {root / 'lms'} has no files for "
            f"{target.framework_name}; check out the whole project"
        )
    return found


def runtime_patch(target: Target) -> dict[str, bytes]:
    """The runtime patch (file name -> content) made from lms/."""
    with scratch() as room:
        files = {
            path: Entry("100644", room.add_blob(file.read_bytes()))
            for path, file in runtime_files(target).items()
        }
        trees = room.tree({}), room.tree(files)
        content = patch_bytes(room, RUNTIME_MAIL, *trees, "the runtime")
    return {file_name(1, RUNTIME_MAIL.subject): content}


def refresh(target: Target, source: Path | None, dry_run: bool = False) -> Refreshed:
    """Write the runtime patch from lms/ and, from `source`, the hook patches of the tag.

    The hooks are the commits after the runtime commit in the checkout `source`. Their
    pre-image blob ids go into frameworks.toml.
    """
    if target.project.installed and not dry_run:
        raise UsageError(
            "the patches of an installed lmsbuild are not written because an update would undo it; "
            "work in a clone of the project, or name one with LMSBUILD_ROOT"
        )
    wanted: dict[Path, bytes] = {}
    folders = [target.runtime_patches]
    for name, content in runtime_patch(target).items():
        wanted[target.runtime_patches / name] = content
    preimage: dict[str, str] = dict(target.tag.preimage)
    if source is not None:
        hooks, preimage = _hooks(target, Git(source.expanduser().absolute()))
        folders.append(target.tag_patches)
        wanted.update({target.tag_patches / name: content for name, content in hooks.items()})
    stale = [file for folder in folders for file in patch_files(folder) if file not in wanted]
    changed = [p for p, content in wanted.items() if not p.is_file() or p.read_bytes() != content]
    if not dry_run:
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_bytes(wanted[path])
            fresh.replace(path)
        for path in stale:
            path.unlink()
        if preimage != target.tag.preimage:
            _record(target, preimage)
    return Refreshed(
        [Patch(path).name for path in changed],
        [Patch(path).name for path in stale],
        [Patch(path).name for path in wanted if path not in changed],
        preimage,
    )


def _hooks(target: Target, git: Git) -> tuple[dict[str, bytes], dict[str, str]]:
    """Hook patches of a checkout and the pre-image of the files they touch."""
    if git.changes():
        raise TreeStateError(
            f"{git.path} cannot be refreshed from because it is not clean; commit its changes first"
        )
    log = git.text("log", "--first-parent", "-n", "200", "--format=%H %P%x09%s").splitlines()
    runtime = next((line for line in log if line.endswith(f"\t{RUNTIME_SUBJECT}")), None)
    if runtime is None:
        raise TreeStateError(
            f"{git.path} cannot be refreshed from because none of its last 200 commits is "
            f"{RUNTIME_SUBJECT!r}; run `lmsbuild apply` there first"
        )
    commit, base = runtime.split("\t")[0].split()[:2]
    if git.text("rev-list", "--merges", f"{commit}..HEAD"):
        raise TreeStateError(
            f"{git.path} cannot be refreshed from because it has a merge after the runtime commit; "
            "rebase it into a line of commits"
        )
    hooks = format_patches(git, commit, "HEAD")
    touched = git.text("diff", "--name-only", "--no-renames", commit, "HEAD").splitlines()
    runtime_paths = set(runtime_files(target))
    misplaced = sorted(runtime_paths.intersection(touched))
    if misplaced:
        raise TreeStateError(
            f"{git.path} cannot be refreshed from because a commit after the runtime commit edits "
            f"{misplaced[0]}, which is generated from lms/; make that edit in lms/"
        )
    before = git.blobs(base, touched)
    return hooks, {path: before[path] for path in sorted(before) if before[path] != NO_BLOB}


def _record(target: Target, preimage: dict[str, str]) -> None:
    path = target.project.frameworks_file
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    table = tomlkit.table()
    for file, blob in sorted(preimage.items()):
        table.add(file, blob)
    tag = document["frameworks"][target.framework_name]["tags"][target.tag_name]
    tag["preimage"] = table
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
