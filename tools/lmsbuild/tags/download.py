# SPDX-License-Identifier: Apache-2.0
"""Downloads: wheels through pip by hash; files by URL, going on where one was stopped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import importlib.metadata
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from lmsbuild.base import cache, log, strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    DownloadError,
    FileError,
    MismatchError,
    SourceError,
    UsageError,
)
from lmsbuild.base.hashing import sha256_file, sha256_value
from lmsbuild.base.project import cache_dir
from lmsbuild.tags.frameworks import Companion, HeaderWheel, Target

_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)")
_TIMEOUT = 60.0
_CHUNK = 1 << 16
_NEWEST_GLIBC = 40  # minor version that a wheel may ask for


def hash_memory() -> Path:
    return cache_dir() / "hashes"


# Wheels ------------------------------------------------------------------------------------------


def official_wheel(target: Target, python: str, console: Console) -> Path:
    """The official wheel for CPython `python` (X.Y). Raises UsageError where there is none for the
    target's machine, DownloadError, OfflineError."""
    wheel = target.wheel
    if target.machine not in target.machines:
        raise UsageError(
            f"no official wheel of {target.label} can be had for {target.machine} because they are "
            f"for {', '.join(target.machines)}; build all of it with `lmsbuild wheel --full`"
        )
    return _wheel(
        wheel.project,
        wheel.version,
        target.official_sha256(python),
        f"{wheel.project} {wheel.version} for Python {python}",
        _for_python(target, python),
        command=f"{_command(target)} --python {python}",
        target=target,
        console=console,
    )


def companion_wheel(
    target: Target, companion: Companion, digest: str, python: str, console: Console
) -> Path:
    """The official wheel that goes beside that of the tag. Raises as official_wheel."""
    return _wheel(
        companion.project,
        companion.version,
        digest,
        f"{companion.project} {companion.version} for Python {python}",
        _for_python(target, python),
        command=f"lmsbuild conda {target.label} --companions --python {python}",
        target=target,
        console=console,
    )


def _for_python(target: Target, python: str) -> list[str]:
    """pip's options for wheels of CPython `python` on the tag's platforms."""
    tag = f"cp{python.replace('.', '')}" + ("m" if python in ("3.6", "3.7") else "")
    options = ["--python-version", python, "--implementation", "cp", "--abi", tag]
    return options + [word for name in target.wheel.platforms for word in ("--platform", name)]


def header_wheel(wheel: HeaderWheel, target: Target, console: Console) -> Path:
    title = f"{wheel.project} {wheel.version}"
    command = _command(target)
    return _wheel(
        wheel.project,
        wheel.version,
        wheel.sha256,
        title,
        [],
        command=command,
        target=target,
        console=console,
    )


def _command(target: Target) -> str:
    """What gets the wheels that the wheel of `target` is made with."""
    other = target.cuda != next(iter(target.tag.cuda))
    return f"lmsbuild wheel {target.label}" + (f" --cuda {target.cuda}" if other else "")


def _wheel(
    project: str,
    version: str,
    digest: str,
    title: str,
    options: Sequence[str],
    *,
    command: str,
    target: Target,
    console: Console,
) -> Path:
    def fill(folder: Path) -> None:
        cache.require_network(title, command)
        folder.mkdir()
        requirement = folder.with_name("requirement.txt")
        requirement.write_text(f"{project}=={version} --hash=sha256:{digest}\n", encoding="utf-8")
        words = ["--require-hashes", "-r", str(requirement), "--dest", str(folder), *options]
        pip_download(title, words, console)

    folder = cache.keep(
        "packages", digest[:16], title, fill, console, tag=target.label, sha256=digest
    )
    return next(folder.glob("*.whl"))


def wheels_for(
    names: Iterable[str], python: str, arch: str, title: str, console: Console, *, tag: str,
    alone: bool = False,
) -> list[Path]:  # fmt: skip
    """Wheels of `names` and, unless `alone`, of what these require. Raises DownloadError or
    OfflineError."""
    wanted = sorted(names)
    if not wanted:
        return []
    abi = f"cp{python.replace('.', '')}"
    platforms = [f"manylinux_2_{n}_{arch}" for n in range(_NEWEST_GLIBC, 4, -1)]
    platforms += [f"manylinux{year}_{arch}" for year in ("2014", "2010", "1")]
    words = ["--python-version", python, "--implementation", "cp"]
    words += [word for name in (abi, "abi3", "none") for word in ("--abi", name)]
    words += [word for name in platforms for word in ("--platform", name)]

    def fill(folder: Path) -> None:
        cache.require_network(title, f"lmsbuild image {tag}")
        folder.mkdir()
        pip_download(
            title, [*words, "--dest", str(folder), "--", *wanted], console, whole=not alone
        )

    name = sha256_value([python, arch, wanted, *(["alone"] if alone else [])])[:16]
    folder = cache.keep("requirements", f"image-{name}", title, fill, console, tag=tag)
    return sorted(folder.glob("*.whl"))


def pip_download(
    title: str, words: Sequence[str], console: Console, *, whole: bool = False
) -> None:
    """`pip download` of wheels, the `whole` with their dependencies. Raises DownloadError."""
    command = [
        sys.executable, "-m", "pip", "download", "--only-binary=:all:",
        "--disable-pip-version-check", *_progress_options(), *([] if whole else ["--no-deps"]),
        *words,
    ]  # fmt: skip
    with console.task(f"downloading {title}") as task:

        def line(text: str) -> bool:
            progress = _PROGRESS.match(text)
            if progress:
                task.update(int(progress[1]), int(progress[2]))
            return progress is None

        done = log.follow(command, line)
    if done.returncode != 0:
        full = os.strerror(errno.ENOSPC)
        if full in done.stdout:
            raise FileError.of(OSError(errno.ENOSPC, full), str(cache_dir()))
        reason, remedy = _pips_reason(done.stdout)
        raise DownloadError(
            f"{title} was not downloaded because {reason}; {remedy}", output=done.stdout
        )


def _pips_reason(output: str) -> tuple[str, str]:
    """Why pip refused, as it says, and what to do about it."""
    again = "check the network and run again"
    constraint = re.search(r"The user requested \(constraint\) (.+)", output)
    if constraint:
        return (
            f"pip's configuration allows only {constraint[1].strip()}",
            "see `pip config list` and PIP_CONSTRAINT, take that constraint out and run again",
        )
    expected = re.search(r"Expected sha256 ([0-9a-f]{64})", output)
    got = re.search(r"Got +([0-9a-f]{64})", output)
    if expected and got:
        return f"the file that the index gave has SHA-256 {got[1]}, not {expected[1]}", again
    errors = [line[7:] for line in output.splitlines() if line.startswith("ERROR:")]
    return f"pip says {(errors or output.splitlines() or ['nothing'])[-1]}", again


def _progress_options() -> list[str]:
    """pip tells its progress to programs from 24.1 on."""
    raw = Version(importlib.metadata.version("pip")) >= Version("24.1")
    return ["--progress-bar", "raw" if raw else "off"]


# Files by URL ------------------------------------------------------------------------------------


@contextlib.contextmanager
def partial(name: str) -> Iterator[Path]:
    """A folder that keeps what was got of `name` until it is had, whatever ends this process."""
    folder = cache_dir() / "partial" / sha256_value(name)[:16]
    handle = _made_and_locked(folder)
    try:
        yield folder
        shutil.rmtree(folder)
    finally:
        os.close(handle)


def _made_and_locked(folder: Path) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # who had it before removed it just now
            return cache.open_locked(folder, fcntl.LOCK_EX, os.O_RDONLY)


def download_url(url: str, to: Path, console: Console, sha256: str | None = None) -> None:
    """Get `url` as the file `to`; a download that was stopped goes on if the file is the same.

    That is told by the server (ETag, Last-Modified), or by `sha256` where it is known beforehand.
    Raises SourceError; MismatchError for another hash.
    """
    with partial(url) as folder, console.task(f"downloading {to.name}") as task:
        data, known = folder / "data", folder / "validator.json"
        try:
            resumed = _get(url, data, known, task.update, blindly=sha256 is not None)
            if sha256 is not None and resumed and sha256_file(data) != sha256:
                data.unlink()  # what there was of it was of another file
                _get(url, data, known, task.update, blindly=False)
        except (http.client.HTTPException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FileError.of(error, str(data)) from error
            raise SourceError(
                f"{url} was not downloaded because {error}; check the address and run again, it "
                "goes on where it stopped"
            ) from error
        if sha256 is not None and (digest := sha256_file(data)) != sha256:
            size = data.stat().st_size
            data.unlink()
            raise MismatchError(
                f"{to.name} was thrown away because it has {size} bytes and SHA-256 {digest}, not "
                f"{sha256}; fetch again or use another source",
                file=to.name,
            )
        data.replace(to)


def _get(
    url: str,
    data: Path,
    known: Path,
    progress: Callable[[float, float | None], None],
    *,
    blindly: bool,
) -> bool:
    """Fill `data`; was it gone on with? `blindly`: even if the server cannot tell files apart."""
    request = urllib.request.Request(url)
    validator = strictjson.record(known).get("validator")
    have = data.stat().st_size if data.is_file() and (blindly or validator) else 0
    if have:
        request.add_header("Range", f"bytes={have}-")
    if have and validator:
        # The server sends the rest only if the file is still the one that was begun.
        request.add_header("If-Range", str(validator))
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is left to send, or the file has become shorter
            raise
        data.unlink()
        return _get(url, data, known, progress, blindly=False)
    with answer:
        if getattr(answer, "status", None) != 206:
            have = 0
        resumed = have > 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        # A weak ETag does not promise equal bytes.
        etag = answer.headers.get("ETag", "")
        validator = etag if etag.startswith('"') else answer.headers.get("Last-Modified")
        with data.open("ab" if have else "wb", buffering=0) as out:
            if validator:
                known.write_text(json.dumps({"validator": validator}), encoding="utf-8")
            else:
                known.unlink(missing_ok=True)
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                have += len(chunk)
                progress(have, total)
    if total is not None and have != total:
        raise OSError(f"it ended after {have} of {total} bytes")
    return resumed
