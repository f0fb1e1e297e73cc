# SPDX-License-Identifier: Apache-2.0
"""The overlay wheel: the official wheel with a few libraries built from the patched tree.

Checked before anything is written: the tree is the one the wheel was made of, every touched file
reaches the wheel, and the new libraries fit where the old ones were.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import FileError
from lmsbuild.base.hashing import sha256_bytes, sha256_file, sha256_value
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import make_folder
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.fit import Needs, check_fit, needs_of, official_libraries
from lmsbuild.wheel.headers import unpack_all
from lmsbuild.wheel.inputs import Inputs, gather
from lmsbuild.wheel.libraries import compile_all, link_all, renamed
from lmsbuild.wheel.members import check_lists, identity, installed_members
from lmsbuild.wheel.publish import BESIDE, BUILDING, publish, published, tidy
from lmsbuild.wheel.toolchain import Compiler, ObjectCache, Roots, processors
from lmsbuild.wheel.wheelfile import WheelName

MANIFEST = "lms-manifest.json"


@dataclass(frozen=True)
class Built:
    wheel: Path
    manifest: Path
    key: str
    reused: bool  # nothing had changed
    compiled: int = 0  # files
    sha256: str = ""  # of the wheel; "" when it is not built, as of a dry run
    needs: Needs | None = None


def build(
    target: Target,
    tree: Path,
    python: str,
    output: Path,
    console: Console,
    *,
    jobs: int | None = None,
    dry_run: bool = False,
    compiler: Compiler | None = None,
    objects: Path | None = None,
) -> Built:
    """Make the overlay wheel of the patched checkout `tree` for CPython `python` in `output`.

    An earlier wheel there, with its manifest, stays as it is until the new one is whole. `objects`
    is a folder to keep objects in instead of the cache, where they may have been made before.
    Raises ConfigError, MismatchError, CompileError, WheelError, DownloadError, OfflineError or
    FileError.
    """
    inputs = gather(target, tree, python, console, compiler or Compiler.find(target.machine))
    if dry_run:
        check_lists(inputs)
        there = _existing(output, inputs.key(), dry_run=True)
        return there or planned(target, python, output, inputs.key())
    make_folder(output)
    try:
        with Lock(output / ".lock"):
            tidy(output)
            found = _existing(output, inputs.key())
            if found:
                return found
            check_lists(inputs)
            return _make(inputs, output, jobs or processors(), console, objects)
    except OSError as error:
        raise FileError.of(error, "" if error.filename else str(output)) from error


def planned(target: Target, python: str, output: Path, key: str = "") -> Built:
    """What `build` would write, as far as it is known before: * stands for the platform."""
    interpreter = f"cp{python.replace('.', '')}"
    abi = f"{interpreter}m" if python == "3.7" else interpreter
    project = target.wheel.project.replace("-", "_")
    path = output / str(WheelName(project, target.version, interpreter, abi, "*"))
    return Built(path, Path(f"{path}{BESIDE}"), key, reused=False)


def _existing(output: Path, key: str, *, dry_run: bool = False) -> Built | None:
    for wheel, note, manifest in published(output, {"key": key}, dry_run=dry_run):
        digest = manifest["wheel"]["sha256"]
        with contextlib.suppress(KeyError, TypeError):
            needs = Needs(**manifest["needs"])
            return Built(wheel, note, key, reused=True, sha256=digest, needs=needs)
    return None


def _make(inputs: Inputs, output: Path, jobs: int, console: Console, place: Path | None) -> Built:
    overlay = inputs.target.tag.overlay
    changed, removed = installed_members(inputs)
    with console.task("unpacking headers"):
        roots = Roots(inputs.tree, unpack_all(inputs, console))
    objects = ObjectCache(inputs.compiler, roots, overlay.prefix, place)
    with cache.scratch() as folder, ThreadPoolExecutor(1) as background:
        official = background.submit(official_libraries, inputs, console)
        compiled = compile_all(inputs, objects, jobs, console)
        with console.step("reading the official libraries, linking"):
            kept = renamed(inputs, folder)
            built = link_all(inputs, roots, compiled, folder, official, kept=kept)
        with console.task("checking the libraries"):
            new = {member: elf.read(file) for member, file in {**built, **kept}.items()}
            check_fit(inputs, new, official.result())
        files = {**built, **kept}
        changed.update({member: file.read_bytes() for member, file in files.items()})
    for source, text in objects.warnings.items():
        if source in inputs.series.before:
            console.warn(f"{source} compiles with warnings:\n{text}")
    needs = needs_of(inputs, new, official.result())
    old = WheelName.of(inputs.wheel)
    name = WheelName(old.project, inputs.target.version, old.python, old.abi, needs.platform)
    changed.update(identity(inputs, old, name))
    manifest = {
        **inputs.manifest(),
        "needs": asdict(needs),
        "sources": sha256_value(objects.read),
        "members": {
            **{member: sha256_bytes(content) for member, content in sorted(changed.items())},
            **dict.fromkeys(sorted(removed), "removed"),
        },
    }
    changed[f"{name.dist_info}/{MANIFEST}"] = _json(manifest)
    with tempfile.TemporaryDirectory(dir=output, prefix=BUILDING) as building:
        fresh = Path(building) / "files"
        fresh.mkdir()
        with console.step(f"writing {name}") as task:
            wheelfile.repack(inputs.wheel, fresh / str(name), changed, removed)
            digest = sha256_file(fresh / str(name))
            task.size, task.digest = (fresh / str(name)).stat().st_size, digest
        about = {"name": str(name), "sha256": digest, "bytes": task.size}
        beside = {**manifest, "key": inputs.key(), "wheel": about}
        (fresh / f"{name}{BESIDE}").write_bytes(_json(beside))
        publish(output, fresh)
    wheel = output / str(name)
    note = Path(f"{wheel}{BESIDE}")
    return Built(
        wheel, note, inputs.key(), reused=False, compiled=len(objects.compiled), sha256=digest,
        needs=needs,
    )  # fmt: skip


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
