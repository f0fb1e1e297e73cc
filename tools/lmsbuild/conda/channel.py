# SPDX-License-Identifier: Apache-2.0
"""A conda channel as a folder that any web server can serve: <subdir>/*.conda and repodata.

A package is in its folder before the index names it, and leaves after the index has forgotten it.
The index is made by rattler's indexer in a folder beside, of links to the packages, and each of its
files takes the place of the old one by a rename. Writers queue at a lock that dies with its holder;
what a killed one left is removed, or indexed, by the next.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import reprlib
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import zstandard
from filelock import Timeout
from rattler import BuildString, MatchSpec, PackageRecord, Version
from rattler.index import index_fs

from lmsbuild.base import filenames, strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    ChannelError,
    FileError,
    LmsbuildError,
    PackageError,
    ReadOnlyError,
)
from lmsbuild.base.filenames import file_name
from lmsbuild.base.hashing import sha256_file
from lmsbuild.base.lockfile import Lock
from lmsbuild.conda.condapackage import (
    SUBDIRS,
    SUFFIX,
    CondaPackage,
    check_regular,
    check_room,
    check_words,
    inspect,
    known_subdir,
)

REPODATA = "repodata.json"
INDEX = (f"{REPODATA}.zst", REPODATA)  # in the order in which they are replaced
_RECORDS = "packages.conda"
_CAME = "indexed_timestamp"  # all that an index says of a package and the package does not
_DATA = "channeldata.json"
_LOCK = ".lock"
_STAGING = ".staging-"
_DAY = 86400.0
_MOST = 1 << 53  # of a number that every reader of JSON holds
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class _DamagedError(Exception):
    """An index that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A package as the index has it."""

    subdir: str
    file: str
    name: str
    version: str
    build: str
    build_number: int
    depends: list[str]
    sha256: str
    size: int
    timestamp: float  # seconds since 1970: when it was put into the channel

    @property
    def path(self) -> str:
        return f"{self.subdir}/{self.file}"


# Subdir -> file -> what the index has of it.
Index = Mapping[str, Mapping[str, Entry]]


@dataclass(frozen=True)
class Added:
    package: CondaPackage
    path: Path
    already: bool

    @property
    def place(self) -> str:
        """Below the channel."""
        return f"{self.package.subdir}/{self.path.name}"


@dataclass(frozen=True)
class Problem:
    path: str  # below the channel
    why: str  # follows the path in a sentence
    remedy: str  # what to do

    @property
    def message(self) -> str:
        return f"{self.why}; {self.remedy}"


@dataclass(frozen=True)
class Rule:
    """What `prune` keeps: of each package the newest `keep` builds, and what is younger than
    `days`. None is no limit of that kind."""

    keep: int | None
    days: float | None


class Channel:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    # Reading -------------------------------------------------------------------------------------

    def entries(self, subdir: str | None = None) -> list[Entry]:
        """What the index has, sorted. Raises ChannelError when there is none."""
        wanted = [known_subdir(subdir)] if subdir else self.subdirs()
        if not wanted:
            raise self._no_channel()
        self._check_indexed(wanted)
        return [entry for name in wanted for entry in self._indexed(name)]

    def _check_indexed(self, subdirs: Iterable[str]) -> None:
        """Raise ChannelError for packages that no index lists."""
        for subdir in subdirs:
            if self.files(subdir) and not (self.root / subdir / REPODATA).exists():
                raise ChannelError(
                    f"{self.root / subdir / REPODATA} cannot be used because it is not there, "
                    f"though packages are; {self._anew}"
                )

    def subdirs(self) -> list[str]:
        """Those that there are. Raises ChannelError for one that a link leads out of the channel:
        what is written to it would go elsewhere."""
        for name in SUBDIRS:
            place = self.root / name
            if place.is_symlink() and not place.resolve().is_relative_to(self.root.resolve()):
                raise ChannelError(
                    f"{place} cannot be used because it is a link out of the channel; put a folder "
                    "in its place, or make the whole channel a link"
                )
        return [name for name in SUBDIRS if (self.root / name).is_dir()]

    def files(self, subdir: str) -> list[Path]:
        return sorted((self.root / subdir).glob(f"*{SUFFIX}"))

    def _no_channel(self) -> ChannelError:
        return ChannelError(
            f"{self.root} cannot be used because it is no channel; make one with `lmsbuild channel "
            f"add {self.root} PACKAGE...`"
        )

    def _indexed(self, subdir: str) -> list[Entry]:
        """What the index of `subdir` has. Raises ChannelError."""
        try:
            return _entries(subdir, self._whole(subdir))
        except _DamagedError as error:
            raise ChannelError(
                f"{self.root / subdir / REPODATA} cannot be used because it is damaged ({error}); "
                f"{self._anew}"
            ) from error

    def _whole(self, subdir: str) -> dict[str, Any]:
        """The index, as it stands there. Raises _DamagedError."""
        try:
            return _parsed(_read(self.root / subdir / REPODATA))
        except FileNotFoundError:
            return {_RECORDS: {}}
        except ValueError as error:
            raise _DamagedError(str(error)) from error

    def _read(self, *, or_nothing: bool = False) -> Index:
        """The index of each subdir. Raises ChannelError for one that is damaged, or skips it."""
        found: dict[str, dict[str, Entry]] = {}
        for subdir in self.subdirs():
            try:
                found[subdir] = {entry.file: entry for entry in self._indexed(subdir)}
            except ChannelError:
                if not or_nothing:
                    raise
                found[subdir] = {}
        return found

    def verify(self, console: Console) -> list[Problem]:
        """Everything that is not as the index or a package itself says; nothing is changed."""
        if not self.subdirs():
            raise self._no_channel()
        problems: list[Problem] = []
        listed: list[tuple[Entry, Mapping[str, Any]]] = []
        for subdir in self.subdirs():
            try:
                text = _read(self.root / subdir / REPODATA)
            except FileNotFoundError:
                problems.append(Problem(f"{subdir}/{REPODATA}", "is not there", self._anew))
            except ValueError as error:
                problems.append(self._damaged(subdir, error))
            else:
                try:
                    index = _parsed(text)
                    entries = _entries(subdir, index)
                    listed += [(entry, index[_RECORDS][entry.file]) for entry in entries]
                    problems += self._check_rest(subdir, index)
                except _DamagedError as error:
                    problems.append(self._damaged(subdir, error))
                problems += self._check_compressed(subdir, text)
            problems += self._check_others(subdir)
        with _checking(console, [self.root / entry.path for entry, _ in listed]) as progress:
            for entry, record in listed:
                problems += self._check_entry(entry, record, progress)
        known = {entry.path for entry, _ in listed}
        for subdir in self.subdirs():
            for file in self.files(subdir):
                if f"{subdir}/{file.name}" not in known:
                    path = f"{subdir}/{file.name}"
                    problems.append(Problem(path, "is not in the index", self._anew))
        return [*problems, *self._check_strays()]

    def _damaged(self, subdir: str, error: Exception) -> Problem:
        return Problem(f"{subdir}/{REPODATA}", f"is damaged ({error})", self._anew)

    def _check_compressed(self, subdir: str, plain: bytes) -> list[Problem]:
        packed = self.root / subdir / f"{REPODATA}.zst"
        try:
            stream = io.BytesIO(_read(packed))
            if zstandard.ZstdDecompressor().stream_reader(stream).read() == plain:
                return []
            why = f"differs from {REPODATA}"
        except (OSError, ValueError, zstandard.ZstdError) as error:
            why = f"cannot be read ({error})"
        return [Problem(f"{subdir}/{packed.name}", why, self._anew)]

    def _check_rest(self, subdir: str, index: Mapping[str, Any]) -> list[Problem]:
        """Beside the packages an index can have clients download them from elsewhere (`base_url`),
        or others."""
        plain = {"info": {"subdir": subdir}, "repodata_version": 1}
        return [
            Problem(
                f"{subdir}/{REPODATA}",
                f"has the {key} {reprlib.repr(value)}, which no index of a channel here has",
                self._anew,
            )
            for key, value in sorted(index.items())
            if key != _RECORDS and value and value != plain.get(key)
        ]

    def _check_strays(self) -> list[Problem]:
        """A client reads the folder of its platform, and `channeldata.json`, whoever made them."""
        found = []
        for file in sorted(self.root.iterdir()):
            if file.name in SUBDIRS and file.is_dir():
                continue
            if file.name == _LOCK or file.name.startswith(_STAGING):
                continue  # of a writer at work, or of a killed one, after whom the next tidies
            why = "does not belong to a channel"
            if (file / REPODATA).exists():
                why = (
                    "is the subdir of a platform that no packages here are for, and clients read it"
                )
            elif file.name == _DATA:
                why = "is what clients may read of all packages, and is not written here"
            found.append(Problem(file.name, why, "remove it"))
        return found

    def _check_others(self, subdir: str) -> list[Problem]:
        """Clients ask for `current_repodata.json` or shards before they ask for ours."""
        return [
            Problem(
                f"{subdir}/{file.name}",
                "is an index that clients may read, and is not written here"
                if "repodata" in file.name
                else "is no package, and does not belong to a channel",
                "remove it",
            )
            for file in sorted((self.root / subdir).iterdir())
            if file.name not in INDEX and not file.name.endswith(SUFFIX)
        ]

    def _check_entry(
        self, entry: Entry, record: Mapping[str, Any], progress: Callable[[int], None]
    ) -> list[Problem]:
        path = self.root / entry.path
        try:
            check_regular(path)
            digest = sha256_file(path)
            if digest != entry.sha256:
                why = f"has SHA-256 {digest}, not {entry.sha256} as in the index"
                return [Problem(entry.path, why, self._again)]
            package = inspect(path, stubs=True, progress=progress)
        except FileNotFoundError:
            why = "is in the index and not in the channel"
            return [Problem(entry.path, why, self._again)]
        except LmsbuildError as error:
            why = f"is no sound package ({error.message.split(';')[0]})"
            return [Problem(entry.path, why, self._again)]
        return [
            Problem(
                entry.path,
                f"has the {key} {own!r}, not {record.get(key)!r} as in the index",
                self._anew,
            )
            for key in sorted({*package.record, *record} - {_CAME})
            if ((own := package.record.get(key)) or None) != (record.get(key) or None)
        ]

    @property
    def _anew(self) -> str:
        return f"write the index anew with `lmsbuild channel index {self.root}`"

    @property
    def _again(self) -> str:
        return (
            f"put the one that was published back with `lmsbuild channel add {self.root} PACKAGE`, "
            "or give it up: remove the file and run `lmsbuild channel index`"
        )

    # Writing -------------------------------------------------------------------------------------

    def add(
        self,
        packages: Sequence[Path],
        console: Console,
        *,
        stubs: bool = False,
        dry_run: bool = False,
    ) -> list[Added]:
        """Put packages into their subdirs and the index: all of them or none.

        A file that is there already stays, and one that was damaged or lost is put back; any other
        of the same name is refused, as clients take a published package to be for ever. Raises
        PackageError, SubdirError or ChannelError.
        """
        with _checking(console, packages) as progress:
            checked = [inspect(path, stubs=stubs, progress=progress) for path in packages]
        if dry_run:
            index = self._read()
            placed = [self._place(package, index) for package in checked]
            self._check_lost(index, but={one.place for one in placed if not one.already})
            return placed
        with self._writing(console) as staging:
            index = self._read()
            placed = [self._place(package, index) for package in checked]
            fresh: dict[str, Path] = {}
            known: dict[str, CondaPackage] = {}
            for package in (added.package for added in placed if not added.already):
                copy = staging / package.subdir / package.path.name
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(package.path, copy)
                _flush(copy)
                if sha256_file(copy) != package.sha256:
                    raise PackageError(
                        f"{copy.name} was not added because it changed while it was read; "
                        "give it again when it is finished"
                    )
                name = f"{package.subdir}/{copy.name}"
                fresh[name], known[name] = copy, package
            self._check_lost(index, but={one.place for one in placed if not one.already})
            known.update(self._check_files(index, console, stubs=stubs))
            self._switch(staging, known, console, fresh=fresh)
        return placed

    def _place(self, package: CondaPackage, index: Index) -> Added:
        to = self.root / package.subdir / package.path.name
        published = index.get(package.subdir, {}).get(to.name)
        there = None
        if to.exists():
            check_regular(to)
            there = sha256_file(to)
        if package.sha256 != (published.sha256 if published else there or package.sha256):
            raise PackageError(
                f"{package.path.name} was not added because the channel has another file of this "
                "name, and clients never get a published package again; raise the build number",
                package=package.path.name,
            )
        return Added(package, to, there == package.sha256)

    def index(self, console: Console, *, stubs: bool = False, dry_run: bool = False) -> list[Entry]:
        """Write the index anew from the packages, each of them checked. Raises as `add`."""
        if not self.subdirs():
            raise self._no_channel()
        if dry_run:
            self._check_files(self._read(or_nothing=True), console, stubs=stubs, anew=True)
            return self.entries()
        with self._writing(console) as staging:
            index = self._read(or_nothing=True)
            known = self._check_files(index, console, stubs=stubs, anew=True)
            self._switch(staging, known, console)
        return self.entries()

    def prune(self, rule: Rule, console: Console, *, dry_run: bool = False) -> list[Entry]:
        """Remove what `rule` does not keep, but for what a kept package needs. Gives what went."""
        if not self.subdirs():
            raise self._no_channel()
        if dry_run:
            return _expired(self.entries(), rule)
        with self._writing(console) as staging:
            self._check_indexed(self.subdirs())
            index = self._read()
            gone = _expired([entry for files in index.values() for entry in files.values()], rule)
            if gone:
                left_out = {entry.path for entry in gone}
                self._check_lost(index, but=left_out)
                known = self._check_files(index, console, stubs=True)
                self._switch(staging, known, console, left_out=left_out)
                for entry in gone:
                    (self.root / entry.path).unlink(missing_ok=True)
        return gone

    def _switch(
        self, staging: Path, known: Mapping[str, CondaPackage], console: Console, *,
        fresh: Mapping[str, Path] = MappingProxyType({}), left_out: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Index what is there, with `fresh` (path below the channel -> file) and without
        `left_out`; then put the fresh packages and the new index in their places. `known` are the
        packages that the index lacks, or has as they were before."""
        tree = staging / "tree"
        links = {
            f"{subdir}/{file.name}": file
            for subdir in self.subdirs()
            for file in self.files(subdir)
        }
        subdirs = {*self.subdirs(), "noarch", *(path.split("/")[0] for path in fresh)}
        for subdir in subdirs:
            (tree / subdir).mkdir(parents=True)
            self._write_known(tree, subdir, known)
        for path, file in {**links, **fresh}.items():
            if path not in left_out:
                (tree / path).hardlink_to(file)
        with console.task("indexing"):
            try:
                asyncio.run(index_fs(tree, write_zst=True, write_shards=False))
            except Exception as error:  # rattler has a class for each, below no common one
                check_room(tree, str(error))
                raise ChannelError(
                    f"{self.root} was not indexed because rattler says: {error}; see "
                    "`lmsbuild channel verify`"
                ) from error
        for subdir in subdirs:
            for name in INDEX:
                _flush(tree / subdir / name)
            (self.root / subdir).mkdir(exist_ok=True)
        for path, file in fresh.items():
            file.replace(self.root / path)
        # Metapackages last: what they need is there when they appear.
        for subdir in sorted(subdirs):
            for name in INDEX:
                (tree / subdir / name).replace(self.root / subdir / name)

    def _write_known(self, tree: Path, subdir: str, known: Mapping[str, CondaPackage]) -> None:
        """For the indexer: what there is of each package, so that it reads none of them. It would
        hold all of one in memory. What the index has stays, when each package came as well."""
        try:
            text = _read(self.root / subdir / REPODATA).decode()
            before = strictjson.loads(text)[_RECORDS]
            records = {name: record for name, record in before.items() if isinstance(record, dict)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            records = {}
        for path, package in known.items():
            if package.subdir == subdir:
                name = path.partition("/")[2]
                came = records.get(name, {}).get(_CAME, int(time.time() * 1000))
                records[name] = {**package.record, _CAME: came}
        if records:
            index = {"info": {"subdir": subdir}, "packages": {}, _RECORDS: records}
            text = json.dumps({**index, "repodata_version": 1})
            (tree / subdir / REPODATA).write_text(text, encoding="utf-8")

    def _check_lost(self, index: Index, *, but: Collection[str]) -> None:
        """Raise ChannelError where a published package is not there: an index without it would let
        another one have its name."""
        lost = [
            entry.path
            for files in index.values()
            for entry in files.values()
            if entry.path not in but and not (self.root / entry.path).is_file()
        ]
        if lost:
            raise ChannelError(
                f"{self.root} was not changed because its index has packages that are not there: "
                f"{', '.join(lost)}; put all that were published back in one `lmsbuild channel add "
                f"{self.root} PACKAGE...`, or give them up with `lmsbuild channel index "
                f"{self.root}`"
            )

    def _check_files(
        self, index: Index, console: Console, *, stubs: bool, anew: bool = False
    ) -> dict[str, CondaPackage]:
        """The indexer takes any zip: what `index` has not, and with `anew` also what it has, is
        checked first. Gives it by its path below the channel. Raises PackageError."""
        waiting = [
            (index[subdir].get(file.name), file)
            for subdir in self.subdirs()
            for file in self.files(subdir)
        ]
        if anew:
            there = {file for _, file in waiting}
            for subdir, files in index.items():
                for name in sorted(files):
                    if self.root / subdir / name not in there:
                        console.warn(f"{subdir}/{name} leaves the index because it is gone")
        else:
            waiting = [(None, file) for entry, file in waiting if entry is None]
        with _checking(console, [file for _, file in waiting]) as progress:
            found = {}
            for entry, file in waiting:
                package = self._check_file(file, entry, progress, stubs=stubs)
                found[f"{package.subdir}/{file.name}"] = package
        return found

    def _check_file(
        self, file: Path, published: Entry | None, progress: Callable[[int], None], *, stubs: bool
    ) -> CondaPackage:
        subdir = file.parent.name
        check_regular(file)
        try:
            found = inspect(file, stubs=stubs, progress=progress)
            digest = found.sha256
        except PackageError:
            if published is None or (digest := sha256_file(file)) == published.sha256:
                raise
        if published and digest != published.sha256:
            raise PackageError(
                f"{published.path} cannot be indexed because it was published with SHA-256 "
                f"{published.sha256} and now has {digest}; {self._again}",
                package=file.name,
            )
        if found.subdir != subdir:
            raise PackageError(
                f"{subdir}/{file.name} cannot be indexed because it is for {found.subdir}; move it "
                "there",
                package=file.name,
            )
        return found

    @contextmanager
    def _writing(self, console: Console) -> Iterator[Path]:
        """The channel's lock, and a folder of ours in it that is gone afterwards."""
        try:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:  # of /proc, say, where no folder can be made
                raise FileError.of(error, str(self.root)) from error
            with self._locked(console):
                for left in self.root.glob(f"{_STAGING}*"):  # of a killed writer
                    shutil.rmtree(left, ignore_errors=True)
                staging = Path(tempfile.mkdtemp(dir=self.root, prefix=_STAGING))
                try:
                    yield staging
                finally:
                    shutil.rmtree(staging, ignore_errors=True)
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise ReadOnlyError(
                    f"the channel {self.root} was not changed because it is read-only "
                    f"({error.strerror}); use a folder that you may write to"
                ) from error
            raise

    @contextmanager
    def _locked(self, console: Console) -> Iterator[None]:
        lock = Lock(self.root / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with console.task("waiting for another writer"):
                lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _checking(console: Console, files: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """Progress in bytes: one of the packages may be nearly all that there is."""
    total = sum(file.stat().st_size for file in files if file.is_file())
    with console.task("checking packages", total=max(1, total)) as task:
        yield task.advance


def _read(path: Path) -> bytes:
    """Raises ValueError for what never ends."""
    filenames.check_regular(path)
    return path.read_bytes()


def _parsed(text: bytes) -> dict[str, Any]:
    """An index. Raises _DamagedError."""
    try:
        index = strictjson.loads(text.decode())
    except ValueError as error:
        raise _DamagedError(str(error)) from error
    if not isinstance(index, dict):
        raise _DamagedError("it is no JSON object")
    return index


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _entries(subdir: str, index: Mapping[str, Any]) -> list[Entry]:
    """Sorted. Raises _DamagedError."""
    try:
        records = index.get(_RECORDS)
        if not isinstance(records, dict):
            raise ValueError(f"its {_RECORDS} is no JSON object")
        return [_entry(subdir, file, record) for file, record in sorted(records.items())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(str(error)) from error


def _entry(subdir: str, file: str, record: dict[str, Any]) -> Entry:
    """Raises ValueError, KeyError or TypeError for a record that no indexer wrote."""
    if not file_name(file).endswith(SUFFIX):
        raise ValueError(f"{file!r} is no {SUFFIX} file")
    check_words(record)
    milliseconds = record.get(_CAME) or record.get("timestamp") or 0
    for what, number in (("size", record["size"]), ("time", milliseconds)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST:
            raise ValueError(f"{file} has the {what} {number!r}")
    if not isinstance(record["sha256"], str) or not _SHA256.match(record["sha256"]):
        raise ValueError(f"{file} has the SHA-256 {record['sha256']!r}")
    return Entry(
        subdir=subdir,
        file=file,
        name=record["name"],
        version=record["version"],
        build=record["build"],
        build_number=record["build_number"],
        depends=record["depends"],
        sha256=record["sha256"],
        size=record["size"],
        timestamp=milliseconds / 1000,
    )


# Retention ---------------------------------------------------------------------------------------


def _expired(entries: Sequence[Entry], rule: Rule) -> list[Entry]:
    """What `rule` gives up. A dependency that only an expired package meets keeps that package."""
    now = time.time()
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(entries, key=_age, reverse=True):
        groups.setdefault((entry.subdir, entry.name), []).append(entry)
    kept: list[Entry] = []
    for group in groups.values():
        for place, entry in enumerate(group):
            young = rule.days is not None and now - entry.timestamp < rule.days * _DAY
            few = rule.keep is not None and place < rule.keep
            if young or few:
                kept.append(entry)
    spare = [entry for group in groups.values() for entry in group if entry not in kept]
    waiting = list(kept)
    while waiting:
        for text in waiting.pop().depends:
            spec = MatchSpec(text)
            if not any(_meets(entry, spec) for entry in kept):
                needed = next((entry for entry in spare if _meets(entry, spec)), None)
                if needed:
                    spare.remove(needed)
                    kept.append(needed)
                    waiting.append(needed)
    return sorted(spare, key=lambda entry: entry.path)


def _age(entry: Entry) -> tuple[Version, int, float]:
    return Version(entry.version), entry.build_number, entry.timestamp


def _meets(entry: Entry, spec: MatchSpec) -> bool:
    record = PackageRecord(
        entry.name, entry.version, BuildString(entry.build), entry.build_number, entry.subdir
    )
    return bool(spec.matches(record))
