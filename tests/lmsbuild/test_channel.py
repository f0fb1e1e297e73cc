# SPDX-License-Identifier: Apache-2.0
"""The conda channel: real packages, real processes, a real client of the protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import zstandard
from lmsbuild_conda import append, make, meta, rewrite, running
from lmsbuild_processes import run
from lmsbuild_wheels import start
from lmsbuild_world import REPOSITORY, leave, small_disk
from rattler import Gateway, solve
from rattler.index import index_fs

from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    ChannelError,
    FileError,
    PackageError,
    PortError,
    SubdirError,
    UsageError,
)
from lmsbuild.conda import channel as channels
from lmsbuild.conda.channel import Channel, Rule
from lmsbuild.conda.channelserver import server
from lmsbuild.conda.condapackage import inspect


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path / "work"))
    return Channel(tmp_path / "channel")


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Where packages are built."""
    return tmp_path / "built"


def names(channel: Channel) -> list[str]:
    return [entry.file for entry in channel.entries()]


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_packages_go_into_their_subdirs(channel: Channel, box: Path, console: Console) -> None:
    power = make(box, "demo", subdir="linux-ppc64le")
    added = channel.add([make(box), power, meta(box, "all", ["demo"])], console)
    assert [a.already for a in added] == [False] * 3
    assert [e.path for e in channel.entries()] == [
        "linux-64/demo-1.0-0.conda", "linux-ppc64le/demo-1.0-0.conda", "noarch/all-1.0-0.conda",
    ]  # fmt: skip
    assert names(channel) == [e.file for e in channel.index(console)]
    assert channel.verify(console) == []
    assert channel.add([power], console)[0].already
    assert not list(channel.root.glob(".staging-*"))
    assert [e.name for e in channel.entries("noarch")] == ["all"]


@pytest.mark.default
def test_command_line(channel: Channel, box: Path) -> None:
    root, package = str(channel.root), str(make(box))
    code, out, _ = run("channel", "add", root, package, "--dry-run")
    assert code == 0 and "would add" in out and not channel.root.exists()
    code, out, err = run("channel", "add", root, package, "--json")
    assert code == 0, err
    assert json.loads(out)["packages"][0]["package"] == "demo 1.0 0"
    assert "demo" in run("channel", "list", root)[1]
    assert run("channel", "list", root, "--subdir", "linux-65")[0] == SubdirError.exit_code
    assert run("channel", "verify", root)[0] == 0
    (channel.root / "linux-64/demo-1.0-0.conda").write_bytes(b"")
    code, out, err = run("channel", "verify", root, "--json")
    assert code == ChannelError.exit_code and "demo-1.0-0.conda has SHA-256" in err
    assert json.loads(out)["error"]["problems"][0]["path"] == "linux-64/demo-1.0-0.conda"
    assert run("channel", "list", str(box.parent))[0] == ChannelError.exit_code
    assert run("channel", "prune", root)[0] == 2


APART = """
import os, signal, sys
from pathlib import Path
from lmsbuild.conda.channel import Channel
from lmsbuild.conda.condapackage import inspect
from lmsbuild.base.console import Console
channel, console = Channel(Path(sys.argv[1])), Console(json_mode=True)
try:
{code}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
sys.stdout.flush()
os._exit(0)  # as lmsbuild does: rattler's threads may outlive the interpreter
"""
DYING = """
count, replace = 0, Path.replace
def dying(self, target):
    global count
    if Path(target).parent.parent == channel.root:
        if count == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
    return replace(self, target)
Path.replace = dying
channel.add([Path(sys.argv[2])], console)
"""


def apart(code: str, channel: Channel, package: Path) -> tuple[int, str]:
    """Exit code and output of `code` in a process of its own."""
    text = APART.format(code=textwrap.indent(code, "    "))
    done = subprocess.run(
        [sys.executable, "-c", text, str(channel.root), str(package)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


# Packages that are not what they say -------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    """One bit in the middle of the files' part."""
    content = bytearray(path.read_bytes())
    content[content.index(b"\x28\xb5\x2f\xfd") + 30] ^= 1
    path.write_bytes(content)


def replace_file(path: Path) -> None:
    rewrite(path, "pkg", lambda files: files.update({"lib/demo.txt": b"evil\n"}))


def slip_in(path: Path) -> None:
    rewrite(path, "pkg", lambda files: files.update({"bin/evil": b""}))


def take_out(path: Path) -> None:
    rewrite(path, "pkg", lambda files: files.clear())


def no_metadata(path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        del files["info/index.json"]

    rewrite(path, "info", change)


def wrong_platform(path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        index = json.loads(files["info/index.json"])
        files["info/index.json"] = json.dumps({**index, "subdir": "linux-65"}).encode()

    rewrite(path, "info", change)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, "damaged"), (flip, "damaged|tampered"), (replace_file, "lib/demo.txt has SHA"),
        (slip_in, "bin/evil is not in its list"), (take_out, "lib/demo.txt is not in it"),
        (no_metadata, "index.json"), (wrong_platform, "linux-65"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"more"), "bytes follow"),
        (lambda path: path.write_bytes(b"more" + path.read_bytes()), "bytes come before"),
    ],
)  # fmt: skip
def test_bad_package_is_refused_by_name(
    channel: Channel, box: Path, console: Console, damage: object, why: str
) -> None:
    channel.add([make(box, "sound")], console)
    before = tree(channel.root)
    bad = make(box)
    assert callable(damage)
    damage(bad)
    with pytest.raises((PackageError, SubdirError), match=why) as caught:
        channel.add([make(box, "another"), bad], console)
    assert "demo-1.0-0.conda" in caught.value.message or "linux-65" in caught.value.message
    assert tree(channel.root) == before
    # The same when somebody copies it into the folder.
    shutil.copy(bad, channel.root / "linux-64")
    with pytest.raises((PackageError, SubdirError)):
        channel.index(console)
    assert names(channel) == ["sound-1.0-0.conda"]
    assert [p.path for p in channel.verify(console)] == ["linux-64/demo-1.0-0.conda"]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    ("entries", "listed", "why"),
    [
        ([member("../../evil")], {"../../evil": "hardlink"}, "may lead out of its folder"),
        ([member("/etc/evil")], {"/etc/evil": "hardlink"}, "may lead out of its folder"),
        ([member("lib/demo.txt")], {}, "lib/demo.txt is in it twice"),
        ([member("bin/a", LINK, "/etc/passwd")], {"bin/a": "softlink"}, "is a link to /etc/passwd"),
        ([member("bin/a", LINK, "../../x")], {"bin/a": "softlink"}, r"is a link to \.\./\.\./x"),
        ([member("bin/a", LINK, "../lib/demo.txt")], {"bin/a": "hardlink"}, "is not the hardlink"),
        ([member("bin/a")], {"bin/a": "softlink"}, "is not the softlink"),
        ([member("bin/a", HARD, "/etc/passwd")], {"bin/a": "hardlink"}, "neither a file"),
        ([member("bin/a", tarfile.CHRTYPE)], {"bin/a": "hardlink"}, "neither a file"),
        ([member("bin/a", tarfile.FIFOTYPE)], {"bin/a": "hardlink"}, "neither a file"),
        ([member("bin", LINK, "lib"), member("bin/a")], {"bin": "softlink", "bin/a": "hardlink"},
         "bin/a lies below bin, which is no folder"),
    ],
)  # fmt: skip
def test_members_that_no_client_should_unpack(
    box: Path, entries: list[tarfile.TarInfo], listed: dict[str, str], why: str
) -> None:
    bad = make(box)
    append(bad, entries)

    def change(files: dict[str, bytes]) -> None:
        paths = json.loads(files["info/paths.json"])
        nothing = hashlib.sha256().hexdigest()
        paths["paths"] += [
            {"_path": path, "path_type": kind, "sha256": nothing, "size_in_bytes": 0}
            for path, kind in listed.items()
        ]
        files["info/paths.json"] = json.dumps(paths).encode()

    rewrite(bad, "info", change)
    with pytest.raises(PackageError, match=rf"^demo-1\.0-0\.conda .*{why}"):
        inspect(bad)


def test_links_within_a_package(box: Path) -> None:
    """As libraries have them; a client installs them."""
    good = make(box)
    append(good, [member("lib/so.1", LINK, "demo.txt"), member("lib/also", HARD, "lib/demo.txt")])

    def change(files: dict[str, bytes]) -> None:
        paths = json.loads(files["info/paths.json"])
        (demo,) = paths["paths"]
        paths["paths"] += [
            {**demo, "_path": "lib/so.1", "path_type": "softlink"}, {**demo, "_path": "lib/also"},
        ]  # fmt: skip
        files["info/paths.json"] = json.dumps(paths).encode()

    rewrite(good, "info", change)
    assert inspect(good).files == ["lib/also", "lib/demo.txt", "lib/so.1"]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("name", "Demo", "its name 'Demo'"), ("name", "../demo", "its name"),
        ("name", 1, "its name 1"), ("version", "1-0", "its version"), ("build", "a-b", "its build"),
        ("version", "1..0", "clients cannot read"), ("build_number", -1, "its build number -1"),
        ("depends", [">>>>1"], "clients cannot read"), ("depends", [7], "clients cannot read"),
        ("constrains", ["x [y"], "clients cannot read"), ("depends", "abc", "clients cannot read"),
        ("depends", {"a": 1}, "clients cannot read"), ("timestamp", "x", "clients cannot read"),
        ("noarch", "snake", "clients cannot read"), ("license", ["MIT"], "clients cannot read"),
    ],
)  # fmt: skip
def test_words_that_no_client_reads(box: Path, key: str, value: object, why: str) -> None:
    bad = make(box)

    def change(files: dict[str, bytes]) -> None:
        index = json.loads(files["info/index.json"])
        files["info/index.json"] = json.dumps({**index, key: value}).encode()

    rewrite(bad, "info", change)
    with pytest.raises(PackageError, match=rf"^demo-1\.0-0\.conda .*{why}"):
        inspect(bad)


def compress(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        archive.writestr(name, content, zipfile.ZIP_DEFLATED)


def encrypt(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        entry = zipfile.ZipInfo(name)
        archive.writestr(entry, content)
        entry.flag_bits |= 1


def twice(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in [*members.items(), ("metadata.json", members["metadata.json"])]:
        archive.writestr(name, content)


def beyond(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in [*members.items(), ("../evil", b"")]:
        archive.writestr(name, content)


def later(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in {**members, "metadata.json": b'{"conda_pkg_format_version": 3}'}.items():
        archive.writestr(name, content)


def unformed(archive: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        if name != "metadata.json":
            archive.writestr(name, content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "why"),
    [
        (compress, "compressed or encrypted once more"), (twice, "an entry is in it twice"),
        (encrypt, "compressed or encrypted once more"), (later, "not that of format 2"),
        (beyond, r"its entry '\.\./evil' is none of the format"), (unformed, "metadata.json"),
    ],
)  # fmt: skip
def test_archives_that_clients_do_not_read(box: Path, write: Any, why: str) -> None:
    bad = make(box)
    with zipfile.ZipFile(bad) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(bad, "w") as archive:
        write(archive, members)
    with pytest.raises(PackageError, match=rf"^demo-1\.0-0\.conda .*{why}"):
        inspect(bad)


CENTRAL, LAST = b"PK\x01\x02", b"PK\x05\x06"
HEADER = r"the header of 'metadata\.json' is not as the list at its end has it"


@pytest.mark.parametrize(
    ("at", "old", "new", "why"),
    [
        (6, 2, b"\x08\x00", HEADER),  # flags: the size comes after the content
        (8, 2, b"\x5d\x00", HEADER),  # compressed
        (14, 4, b"abcd", HEADER),  # checksum
        (43, 2, b"\x02\x00", r"'metadata\.json' has no size"),
        (47, 8, b"\x1f" + bytes(7), HEADER),
        (CENTRAL, 0, b"bytes", "bytes lie between its entries and their list|bytes come before"),
        (LAST, 10, LAST + b"\0\0\1\0\3\0", "its end tells of other entries"),
        (LAST, 12, LAST + b"\0\0\0\0\3\0\2\0", "its end tells of other entries"),
        (-2, 2, b"\1\0", "bytes follow its end"),
        (-2, 2, b"\1\0\0\0", "bytes follow its end"),
    ],
)
def test_archives_that_clients_read_otherwise(
    box: Path, at: bytes | int, old: int, new: bytes, why: str
) -> None:
    """By the headers, while they download it, or by the list at the end."""
    bad = make(box)
    inspect(bad)
    data = bad.read_bytes()
    start = at % len(data) if isinstance(at, int) else data.index(at)
    bad.write_bytes(data[:start] + new + data[start + old :])
    with pytest.raises(PackageError, match=rf"^demo-1\.0-0\.conda .*({why})"):
        inspect(bad)


def test_parts_of_another_name(box: Path) -> None:
    """Conda asks for them by the package's."""
    bad = make(box)
    with zipfile.ZipFile(bad) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(bad, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("pkg-demo-1.0-0", "pkg-demo"), content)
    with pytest.raises(PackageError, match=r"its entry 'pkg-demo\.tar\.zst' is another package's"):
        inspect(bad)


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        ("paths", {"paths_version": 2}, "its list of files has version 2"),
        ("paths", {"path_type": "device"}, "lib/demo.txt is a 'device' in its list"),
        ("paths", {"size_in_bytes": 9}, "lib/demo.txt has 5 bytes, not 9"),
        ("index", "[" * 100_000, "is damaged"),
    ],
)
def test_lists_that_clients_do_not_believe(box: Path, file: str, change: Any, why: str) -> None:
    bad = make(box)

    def spoil(files: dict[str, bytes]) -> None:
        name = f"info/{file}.json"
        if isinstance(change, str):
            files[name] = change.encode()
            return
        said = json.loads(files[name])
        for value in (said, *said["paths"]):
            value.update({key: new for key, new in change.items() if key in value})
        files[name] = json.dumps(said).encode()

    rewrite(bad, "info", spoil)
    with pytest.raises(PackageError, match=rf"^demo-1\.0-0\.conda .*{why}"):
        inspect(bad)


@pytest.mark.parametrize("name", ["../../victim-0.9-0.conda", "/victim.conda", "a\nb.conda", "x"])
def test_an_index_that_names_what_is_elsewhere(
    channel: Channel, box: Path, console: Console, name: str
) -> None:
    """Nothing outside the channel is looked at, shown or removed."""
    channel.add([make(box), make(box, version="2.0")], console)
    victim = channel.root.parent / "victim-0.9-0.conda"
    victim.write_bytes(b"mine")
    file = channel.root / "linux-64/repodata.json"
    index = json.loads(file.read_text())
    packages = index["packages.conda"]
    packages[name] = {**packages["demo-1.0-0.conda"], "version": "0.9"}
    file.write_text(json.dumps(index))
    before = tree(channel.root)
    for call in (
        lambda: channel.prune(Rule(keep=1, days=None), console),
        channel.entries,
        lambda: channel.add([make(box, "more")], console),
    ):
        with pytest.raises(ChannelError, match=r"repodata\.json .* damaged .*channel index"):
            call()
    assert any("damaged" in problem.why for problem in channel.verify(console))
    assert tree(channel.root) == before and victim.read_bytes() == b"mine"
    channel.index(console)
    assert channel.verify(console) == [] and victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "make_odd",
    [os.mkfifo, os.mkdir, lambda path: path.symlink_to("nowhere")],
    ids=["fifo", "folder", "link"],
)
def test_what_is_no_regular_file_is_not_waited_for(
    channel: Channel, box: Path, console: Console, make_odd: Callable[[Path], None]
) -> None:
    """In a package's place, published or not, or given as one: nothing would ever come from it."""
    package = make(box)
    channel.add([package], console)
    there = channel.root / "linux-64" / package.name
    there.unlink()
    make_odd(there)
    (problem,) = channel.verify(console)
    why = "no regular file|leads nowhere"
    assert problem.path == "linux-64/demo-1.0-0.conda" and re.search(why, problem.why)
    calls: list[Callable[[], object]] = [lambda: channel.index(console), lambda: inspect(there)]
    if not there.is_symlink():  # which is put back in its place
        calls.append(lambda: channel.add([package], console))
    for call in calls:
        with pytest.raises(PackageError, match=rf"demo-1\.0-0\.conda .*({why})"):
            call()
    with pytest.raises(ChannelError, match=r"not there: linux-64/demo-1\.0-0\.conda"):
        channel.add([make(box, "more")], console)


def test_stub_and_wrong_name(channel: Channel, box: Path, console: Console) -> None:
    stub = make(box, files={})
    with pytest.raises(PackageError, match=r"demo-1\.0-0\.conda is a stub"):
        channel.add([stub], console)
    assert not channel.root.exists()
    channel.add([stub], console, stubs=True)
    wrong = make(box, "other").rename(box / "linux-64" / "other-2.0-0.conda")
    with pytest.raises(PackageError, match=r"inside it is other 1\.0 0"):
        channel.add([wrong], console)
    with pytest.raises(PackageError, match=r"no \.conda"):
        inspect(box / "x.tar.bz2")


def test_published_package_never_changes(channel: Channel, box: Path, console: Console) -> None:
    channel.add([make(box)], console)
    before = tree(channel.root)
    with pytest.raises(PackageError, match="raise the build number"):
        channel.add([make(box, files={"lib/demo.txt": "other\n"})], console)
    assert tree(channel.root) == before


def test_what_was_published_is_put_back_or_given_up(
    channel: Channel, box: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [make(box), make(box, "two")]
    channel.add(packages, console)
    sound = tree(channel.root)
    one, two = (channel.root / "linux-64" / package.name for package in packages)
    rewrite(one, "info", lambda files: None)  # sound, and other bytes
    assert one.read_bytes() != packages[0].read_bytes()
    two.unlink()
    assert [p.path for p in channel.verify(console)] == [
        "linux-64/demo-1.0-0.conda", "linux-64/two-1.0-0.conda",
    ]  # fmt: skip
    for dry_run in (False, True):
        with pytest.raises(PackageError, match=r"published with SHA-256 .* put the one"):
            channel.index(console, dry_run=dry_run)
    with pytest.raises(PackageError, match="raise the build number"):
        channel.add([make(box, "two", files={"lib/demo.txt": "other\n"})], console)
    packages[1] = make(box, "two")
    assert not any(added.already for added in channel.add(packages, console))
    assert channel.verify(console) == [] and tree(channel.root) == sound
    two.unlink()
    told: list[str] = []
    monkeypatch.setattr(console, "warn", told.append)
    channel.index(console)
    assert told == ["linux-64/two-1.0-0.conda leaves the index because it is gone"]
    assert names(channel) == ["demo-1.0-0.conda"] and channel.verify(console) == []


def test_the_index_is_as_the_indexer_writes_it(
    channel: Channel, box: Path, console: Console, tmp_path: Path
) -> None:
    """Which reads no package here: each is told to it."""
    more: dict[str, Any] = {"constrains": ["x <2"], "license": "MIT"}
    packages = [make(box, depends=["python >=3"], **more), meta(box, "all", ["demo"])]
    channel.add(packages, console)
    for path in packages:
        (tmp_path / "other" / path.parent.name).mkdir(parents=True)
        shutil.copy(path, tmp_path / "other" / path.parent.name)
    asyncio.run(index_fs(tmp_path / "other", write_zst=True, write_shards=False))

    def index(root: Path, subdir: str) -> Any:
        found = json.loads((root / subdir / "repodata.json").read_text())
        for record in found["packages.conda"].values():
            assert abs(record.pop("indexed_timestamp") / 1000 - time.time()) < 60
        return found

    for subdir in ("linux-64", "noarch"):
        assert index(channel.root, subdir) == index(tmp_path / "other", subdir)


# Not ru_maxrss, which counts what the process was before it became this program.
PEAK = """
channel.add([Path(sys.argv[2])], console)
channel.index(console)
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""


@pytest.mark.default
def test_a_large_package_is_not_held_in_memory(channel: Channel, box: Path) -> None:
    small, large = make(box), make(box, "large", files={"lib/large.bin": "x"})
    members = os.urandom(96 << 20)
    rewrite(large, "pkg", lambda files: files.update({"lib/large.bin": members}))

    def change(files: dict[str, bytes]) -> None:
        said = json.loads(files["info/paths.json"])
        digest = hashlib.sha256(members).hexdigest()
        said["paths"][0].update(sha256=digest, size_in_bytes=len(members))
        files["info/paths.json"] = json.dumps(said).encode()

    rewrite(large, "info", change)
    peaks = [int(apart(PEAK, channel, path)[1].split()[0]) for path in (small, large)]  # KiB
    assert large.stat().st_size > 90 << 20 and peaks[1] - peaks[0] < 48 << 10, peaks


def test_index_anew_is_from_the_packages(channel: Channel, box: Path, console: Console) -> None:
    """All but when they came, which is in no package."""
    channel.add([make(box)], console)
    came = channel.entries()
    file = channel.root / "linux-64/repodata.json"
    index = json.loads(file.read_text())
    index["packages.conda"]["demo-1.0-0.conda"]["depends"] = ["evil"]
    file.write_text(json.dumps(index))
    assert [entry.depends for entry in channel.entries()] == [["evil"]]
    time.sleep(0.01)
    channel.index(console)
    assert channel.entries() == came


def test_no_writer_forgets_what_is_lost(channel: Channel, box: Path, console: Console) -> None:
    """An index without it would let another package have its name."""
    packages = [make(box), make(box, "lost"), make(box, "lost", version="1.1"), make(box, "two")]
    channel.add(packages, console)
    for name in ("lost-1.1-0", "two-1.0-0"):
        (channel.root / f"linux-64/{name}.conda").unlink()
    before = tree(channel.root)
    more = make(box, "more")
    calls: list[Callable[[], object]] = [
        lambda: channel.add([more], console),
        lambda: channel.add([more], console, dry_run=True),
        lambda: channel.add(packages[:1], console),
        lambda: channel.add(packages[2:3], console),
        lambda: channel.prune(Rule(keep=1, days=None), console),
    ]
    for call in calls:
        with pytest.raises(ChannelError, match=r"not there: .*put all .* in one .*channel index"):
            call()
    assert tree(channel.root) == before
    channel.add([*packages[2:], more], console)
    assert channel.verify(console) == [] and len(names(channel)) == 5


def test_packages_that_no_index_lists(channel: Channel, box: Path, console: Console) -> None:
    channel.add([make(box)], console)
    (channel.root / "linux-64/repodata.json").unlink()
    rule = Rule(keep=1, days=None)
    calls: list[Callable[[], object]] = [
        channel.entries,
        lambda: channel.prune(rule, console),
        lambda: channel.prune(rule, console, dry_run=True),
    ]
    for call in calls:
        with pytest.raises(ChannelError, match=r"repodata\.json .*not there.*channel index"):
            call()
    channel.index(console)
    assert names(channel) == ["demo-1.0-0.conda"]


def test_damage_in_the_channel_is_found(channel: Channel, box: Path, console: Console) -> None:
    channel.add([make(box), make(box, "gone")], console)
    (channel.root / "linux-64/gone-1.0-0.conda").unlink()
    zst = channel.root / "linux-64/repodata.json.zst"
    zst.write_bytes(zst.read_bytes()[:-3])
    problems = {p.path: p.message for p in channel.verify(console)}
    assert set(problems) == {"linux-64/gone-1.0-0.conda", "linux-64/repodata.json.zst"}
    channel.index(console)
    assert channel.verify(console) == [] and names(channel) == ["demo-1.0-0.conda"]
    (channel.root / "linux-64/repodata.json").write_text("{")
    with pytest.raises(ChannelError, match="channel index"):
        channel.entries()
    code, _, err = run("channel", "verify", str(channel.root))
    assert code == ChannelError.exit_code and "linux-64/repodata.json is damaged (Expecting" in err
    last = err.splitlines()[-1]
    assert last.count(" because ") == 1 and last.count("; ") == 1, "one sentence, one remedy"
    channel.index(console)
    assert names(channel) == ["demo-1.0-0.conda"]
    (channel.root / "linux-64/repodata.json").unlink()
    problems = {p.path: p.message for p in channel.verify(console)}
    assert problems["linux-64/repodata.json"].startswith("is not there; ")
    assert "linux-64/repodata.json.zst" not in problems


@pytest.mark.parametrize(
    ("key", "lie"),
    [
        ("version", "9.9"),
        ("depends", []),
        ("constrains", ["python <3"]),
        ("build_number", 7),
        ("size", 1),
        ("md5", "0" * 32),
        ("features", "other"),
        ("python_site_packages_path", "../../elsewhere"),
    ],
)
def test_an_index_that_says_other_than_the_package(
    channel: Channel, box: Path, console: Console, key: str, lie: object
) -> None:
    """Both of its files alike, so that only the package tells."""
    channel.add([make(box, depends=["python >=3.9"]), make(box, "other")], console)
    place = channel.root / "linux-64"
    index = json.loads((place / "repodata.json").read_text())
    index["packages.conda"]["demo-1.0-0.conda"][key] = lie
    write_index(place, index)
    (problem,) = channel.verify(console)
    assert problem.path == "linux-64/demo-1.0-0.conda"
    assert problem.why.startswith(f"has the {key} ")
    assert f"not {lie!r} as in the index" in problem.why
    channel.index(console)
    assert channel.verify(console) == []


def write_index(place: Path, index: dict[str, Any]) -> None:
    text = json.dumps(index).encode()
    (place / "repodata.json").write_bytes(text)
    (place / "repodata.json.zst").write_bytes(zstandard.ZstdCompressor().compress(text))


@pytest.mark.parametrize(
    ("key", "lie"),
    [
        ("info", {"subdir": "linux-64", "base_url": "http://elsewhere.invalid/"}),
        ("info", {"subdir": "linux-aarch64"}),
        ("packages", {"other-9-0.tar.bz2": {"name": "other"}}),
        ("repodata_version", 99),
    ],
)
def test_an_index_that_leads_elsewhere(
    channel: Channel, box: Path, console: Console, key: str, lie: object
) -> None:
    """Clients download from a `base_url`, and what the older format lists."""
    channel.add([make(box)], console)
    place = channel.root / "linux-64"
    write_index(place, {**json.loads((place / "repodata.json").read_text()), key: lie})
    (problem,) = channel.verify(console)
    assert problem.path == "linux-64/repodata.json"
    assert problem.why.startswith(f"has the {key} ")
    channel.index(console)
    assert channel.verify(console) == []


@pytest.mark.parametrize(
    "name", ["current_repodata.json", "repodata_shards.msgpack.zst", "repodata.json.bz2"]
)
def test_an_index_of_another_form(channel: Channel, box: Path, console: Console, name: str) -> None:
    """Clients that know the form read it, and never ours."""
    channel.add([make(box)], console)
    (channel.root / "linux-64" / name).write_text("{}")
    (problem,) = channel.verify(console)
    assert problem.path == f"linux-64/{name}" and problem.message.endswith("; remove it")
    (channel.root / "linux-64" / name).unlink()
    assert channel.verify(console) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("channeldata.json", "clients may read"),
        ("win-64/repodata.json", "subdir of a platform that no packages here are for"),
        ("linux-65/demo-1.0-0.conda", "does not belong"),
        ("noarch.txt", "does not belong"),
        ("linux-ppc64le", "does not belong"),
        (".staging", "does not belong"),
        ("linux-64/demo-0.9-0.tar.bz2", "is no package"),
        ("linux-64/demo-1.0-0.conda.part", "is no package"),
        ("noarch/folder/file", "is no package"),
    ],
)
def test_what_no_writer_put_there(
    channel: Channel, box: Path, console: Console, name: str, words: str
) -> None:
    channel.add([make(box)], console)
    (channel.root / ".staging-killed").mkdir()  # the next writer's to remove
    assert channel.verify(console) == []
    stray = channel.root / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("{}")
    (problem,) = channel.verify(console)
    inside = name.startswith(("linux-64/", "noarch/"))
    assert problem.path == "/".join(name.split("/")[: 2 if inside else 1])
    assert words in problem.why and problem.remedy == "remove it"
    code, _, err = run("channel", "verify", str(channel.root))
    assert code == ChannelError.exit_code and problem.path in err
    assert stray.read_text() == "{}"


def test_an_index_is_read_once(
    channel: Channel, box: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what is compared is what was checked, also beside a writer."""
    channel.add([make(box)], console)
    there = channels._read
    read: list[str] = []

    def noted(path: Path) -> bytes:
        read.append(path.relative_to(channel.root).as_posix())
        return there(path)

    monkeypatch.setattr(channels, "_read", noted)
    assert channel.verify(console) == []
    subdirs = ("linux-64", "noarch")
    assert sorted(read) == sorted(f"{s}/repodata.json{x}" for s in subdirs for x in ("", ".zst"))


def test_progress_is_of_bytes(box: Path) -> None:
    package = make(box, files={"share/large": "".join(map(str, range(400_000)))})
    read: list[int] = []
    inspect(package, progress=read.append)
    size = package.stat().st_size
    assert len(read) > 3 and size * 0.9 < sum(read) <= size


def test_where_no_folder_can_be_made(box: Path) -> None:
    code, _, err = run("channel", "add", "/proc/channel", str(make(box)))
    assert code == FileError.exit_code and "/proc/channel cannot be " in err


def test_read_only_channel(box: Path, console: Console) -> None:
    """As a user who may not write, whoever runs the tests."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        channel, package = Channel(folder / "channel"), make(box)
        channel.add([package], console)
        fresh = make(folder, "fresh")
        for path in folder.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        text = apart(
            "inspect(Path(sys.argv[2]))  # imports what it needs\n"
            "import tempfile; tempfile.tempdir = '/tmp'  # where that user may write\n"
            "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
            "channel.add([Path(sys.argv[2])], console)",
            channel, fresh,
        )[1]  # fmt: skip
        assert text.startswith("ReadOnlyError") and "read-only" in text
        assert names(channel) == ["demo-1.0-0.conda"]
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_ends_at_once(channel: Channel, box: Path, console: Console) -> None:
    """Rattler's threads crash an interpreter that ends while they give back its objects: now and
    then `index` succeeded, and ended with SIGSEGV."""
    channel.add([make(box)], console)
    code, said = apart(
        "import atexit; atexit.register(print, 'the interpreter ended')\n"
        "from lmsbuild.__main__ import main\n"
        "main(['channel', 'index', sys.argv[1]])",
        channel, box,
    )  # fmt: skip
    assert code == 0 and said.startswith("indexed ") and said.count("\n") == 1


# Many at once ------------------------------------------------------------------------------------


@pytest.mark.default
def test_no_writer_loses_a_package(channel: Channel, box: Path, console: Console) -> None:
    """Four processes add, two at a time are killed at any moment and started again; a reader sees
    whole indexes only, and never one that forgets a package."""
    packages = [make(box, f"p{i}") for i in range(4)]
    channel.add([make(box, "first")], console)
    stop = threading.Event()
    seen: list[set[str]] = []
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            try:
                found = set(names(channel))
                if seen and not seen[-1] <= found:
                    wrong.append(f"{seen[-1]} became {found}")
                for name in found:
                    if not (channel.root / "linux-64" / name).is_file():
                        wrong.append(f"{name} is in the index and not there")
                seen.append(found)
            except ChannelError as error:
                wrong.append(error.message)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        command = ["channel", "add", str(channel.root)]
        processes = [start(*command, str(path)) for path in packages]
        for number, process in enumerate(processes[:2]):
            time.sleep(0.9 + 0.15 * number)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            processes.append(start(*command, str(packages[number])))
        for process in processes[2:]:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
    finally:
        stop.set()
        reader.join()
    assert wrong == []
    assert len(names(channel)) == 5 and channel.verify(console) == []
    assert not list(channel.root.glob(".staging-*"))


@pytest.mark.default
@pytest.mark.parametrize("step", range(6))
def test_killed_at_each_step_of_the_switch(
    channel: Channel, box: Path, console: Console, step: int
) -> None:
    """A writer that dies before its n-th rename leaves a channel that every reader can use, and
    the next writer finishes what it began."""
    channel.add([make(box, "old")], console)
    fresh, later = make(box, "fresh"), make(box, "later")
    code, _ = apart(DYING.format(step=step), channel, fresh)
    assert code == (-signal.SIGKILL if step < 5 else 0)
    assert set(names(channel)) >= {"old-1.0-0.conda"}
    for entry in channel.entries():
        assert (channel.root / entry.path).is_file()
    there = (channel.root / "linux-64" / fresh.name).is_file()
    assert there == (step > 0)
    channel.add([later], console)
    assert (fresh.name in names(channel)) == there
    assert channel.verify(console) == []
    assert not list(channel.root.glob(".staging-*"))


# Retention ---------------------------------------------------------------------------------------


def test_prune_keeps_the_newest_and_what_they_need(
    channel: Channel, box: Path, console: Console
) -> None:
    packages = [
        make(box, version=version, build=f"b{number}", number=number)
        for version, number in [("1.9", 0), ("1.10", 0), ("1.10", 1), ("2.0", 0)]
    ]
    wants_old = meta(box, "wants", ["demo 1.9.*", "missing"])
    channel.add([*packages, wants_old, make(box, "demo", subdir="linux-ppc64le")], console)
    rule = Rule(1, None)
    planned = channel.prune(rule, console, dry_run=True)
    assert len(names(channel)) == 6
    gone = channel.prune(rule, console)
    assert gone == planned
    assert [entry.file for entry in gone] == ["demo-1.10-b0.conda", "demo-1.10-b1.conda"]
    assert channel.verify(console) == [] and len(names(channel)) == 4
    assert channel.prune(Rule(None, 1.0), console) == []
    assert len(channel.prune(Rule(None, 0), console)) == 4 and names(channel) == []


# Serving -----------------------------------------------------------------------------------------


@pytest.fixture
def served(channel: Channel, box: Path, console: Console) -> Iterator[str]:
    channel.add([make(box), meta(box, "demo-lms", ["demo 1.0.*"])], console)
    with running(server(channel, "127.0.0.1", 0)) as url:
        yield url


def test_a_client_solves_from_it(served: str, tmp_path: Path) -> None:
    gateway = Gateway(cache_dir=tmp_path / "cache")
    found = asyncio.run(
        solve([served], ["demo-lms"], gateway=gateway, platforms=["linux-64", "noarch"])
    )
    assert sorted(record.name.normalized for record in found) == ["demo", "demo-lms"]


@pytest.mark.parametrize(
    "path",
    ["/", "/linux-64/", "/.lock", "/linux-65/repodata.json", "/linux-64/../.lock", "/noarch",
     "/linux-64/%2e%2e/%2e%2e/built/x.conda", "/linux-64/missing-1-0.conda", "//etc/passwd"],
)  # fmt: skip
def test_nothing_else_is_served(served: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{served}{path}")
    request = urllib.request.Request(f"{served}/noarch/repodata.json", method="PUT", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request)


def test_no_symbolic_link_leads_out(served: str, channel: Channel, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (channel.root / "linux-64" / "leads-1-0.conda").symlink_to(secret)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{served}/linux-64/leads-1-0.conda")


def test_a_link_that_leads_to_itself_is_not_there(served: str, channel: Channel) -> None:
    loop = channel.root / "linux-64/loop-1-0.conda"
    loop.symlink_to(loop.name)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{served}/linux-64/{loop.name}", timeout=10)


def test_many_ranges_cost_the_server_nothing(served: str) -> None:
    """As many as a header holds, in the order that is the worst to sort and merge."""
    ranges = ",".join(f"{number}-" for number in range(8000, 0, -1))
    began = time.monotonic()
    status, _, _ = _get(f"{served}/linux-64/demo-1.0-0.conda", Range=f"bytes={ranges}")
    assert status in (200, 206, 416) and time.monotonic() - began < 5


def _get(url: str, **headers: str) -> tuple[int, Message, bytes]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=fields)) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_a_stopped_download_goes_on(served: str, channel: Channel) -> None:
    path = "linux-64/demo-1.0-0.conda"
    whole = (channel.root / path).read_bytes()
    url = f"{served}/{path}"
    _, headers, body = _get(url)
    assert body == whole and headers["Accept-Ranges"] == "bytes"
    code, part, body = _get(url, Range="bytes=100-", If_Range=headers["ETag"])
    assert code == 206 and body == whole[100:]
    assert part["Content-Range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
    # Of another file than the client began with, nothing can go on.
    assert _get(url, Range="bytes=100-", If_Range='"another"')[::2] == (200, whole)
    assert _get(url, Range=f"bytes={len(whole)}-")[0] == 416


def test_an_unchanged_index_is_not_sent_again(
    served: str, channel: Channel, box: Path, console: Console
) -> None:
    url = f"{served}/linux-64/repodata.json"
    _, headers, body = _get(url)
    assert _get(url, If_None_Match=headers["ETag"])[::2] == (304, b"")
    channel.add([make(box, "later")], console)
    code, _, fresh = _get(url, If_None_Match=headers["ETag"])
    assert code == 200 and fresh != body


def test_a_name_in_the_url(channel: Channel, box: Path, console: Console) -> None:
    channel.add([make(box)], console)
    with running(server(channel, "127.0.0.1", 0, "lms")) as url:
        assert url.endswith("/lms")
        assert _get(f"{url}/linux-64/demo-1.0-0.conda")[0] == 200
        assert _get(f"{url}/.lock")[0] == 404
        assert _get(f"{url.removesuffix('/lms')}/linux-64/demo-1.0-0.conda")[0] == 404
    for wrong in ("a/b", "..", "{path}", "ä", "a b"):
        code, _, err = run("channel", "serve", str(channel.root), "--port", "0", "--name", wrong)
        assert code == UsageError.exit_code and "channel's name" in err


def test_behind_nginx(channel: Channel, box: Path, console: Console, tmp_path: Path) -> None:
    """The lines of docs/shipping.md, with another port and folder."""
    channel.add([make(box)], console)
    text = (REPOSITORY / "docs" / "shipping.md").read_text(encoding="utf-8")
    lines = text.split("```nginx\n")[1].split("```")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = lines.replace("listen 80;", f"listen 127.0.0.1:{port};")
    assert "/srv/conda/" in lines and str(port) in lines
    lines = lines.replace("/srv/conda/", f"{channel.root}/")
    Path(tmp_path).chmod(0o755)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"user root; daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors;\n"
        f"events {{}}\nhttp {{ access_log off;\n{lines}}}\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(["nginx", "-c", str(configuration)])
    try:
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}/lms"
        whole = (channel.root / "linux-64/demo-1.0-0.conda").read_bytes()
        assert _get(f"{url}/linux-64/demo-1.0-0.conda", Range="bytes=9-")[::2] == (206, whole[9:])
        assert _get(f"{url}/linux-64/repodata.json")[0] == 200
        (channel.root / "linux-64" / "leads-1-0.conda").symlink_to("/etc/hostname")
        for path in (".lock", "linux-64/leads-1-0.conda", "linux-64/", "../etc/hostname"):
            assert _get(f"{url}/{path}")[0] in (403, 404)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.mark.default
def test_full_disk_changes_nothing(
    tmp_path: Path, box: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the room ends: among the packages, or in the index."""
    monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path / "work"))
    large = make(box, "large", files={"lib/large": os.urandom(30_000).hex()})
    with small_disk(tmp_path / "disk", "400k") as disk:
        channel = Channel(disk / "channel")
        channel.add([make(box)], console)
        before, failed = tree(channel.root), 0
        for room in range(0, 200_000, 8192):
            leave(disk, room)
            try:
                channel.add([large], console)
            except (FileError, OSError) as error:
                assert "No space left on device" in str(error)
                failed += 1
                assert tree(channel.root) == before and not channel.verify(console)
                if failed == 1:
                    code, _, err = run("channel", "add", str(channel.root), str(large))
                    assert code == FileError.exit_code and "No space left on device" in err
            else:
                break
        assert failed > 3 and names(channel) == ["demo-1.0-0.conda", "large-1.0-0.conda"]


@pytest.mark.default
def test_port_in_use_and_wrong_address(channel: Channel, box: Path, console: Console) -> None:
    with pytest.raises(ChannelError, match="no channel"):
        server(channel, "127.0.0.1", 0)
    channel.add([make(box)], console)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run("channel", "serve", str(channel.root), "--port", str(port))
    assert code == PortError.exit_code and f"port {port}" in err and "--port" in err
    for address in ("192.0.2.1", "no such name"):
        with pytest.raises(PortError, match="another with --host"):
            server(channel, address, 0)


@pytest.mark.default
def test_serving_ends_with_a_signal(channel: Channel, box: Path, console: Console) -> None:
    channel.add([make(box)], console)
    process = start("channel", "serve", str(channel.root), "--port", "0")
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.split(" at ")[1].split(";")[0]
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{url}/linux-64/demo-1.0-0.conda") as answer:
        assert answer.read() == (channel.root / "linux-64/demo-1.0-0.conda").read_bytes()
    time.sleep(2.5)  # progress would be told of now
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and not err


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda record: record.update(version=["1"]),
    "no version": lambda record: record.update(version="1..*"),
    "name": lambda record: record.update(name=5),
    "NaN": lambda record: record.update(build_number=math.nan),
    "infinite": lambda record: record.update(indexed_timestamp=math.inf),
    "before 1970": lambda record: record.update(indexed_timestamp=-(10**20)),
    "far from now": lambda record: record.update(indexed_timestamp=10**30),
    "huge": lambda record: record.update(build_number=-1),
    "size": lambda record: record.update(size=-1),
    "hash": lambda record: record.update(sha256=None),
    "no depends": lambda record: record.update(depends=None),
    "depends": lambda record: record.update(depends="python"),
    "odd depends": lambda record: record.update(depends=[">>>=["]),
    "other depends": lambda record: record.update(depends=[5]),
}
OTHER_FORMS = {"list": "[]", "no records": '{"packages.conda": null}', "no key": "{}"}


@pytest.mark.parametrize("name", [*HOSTILE, *OTHER_FORMS, "deep", "twice", "BOM"])
def test_a_hostile_index_is_damaged(tmp_path: Path, console: Console, name: str) -> None:
    """Above all prune must not decide by it what goes."""
    channel = Channel(tmp_path / "channel")
    packages = [make(tmp_path, version=version) for version in ("1.0", "1.1")]
    channel.add(packages, console)
    index = channel.root / "linux-64/repodata.json"
    text = index.read_text()
    value = json.loads(text)
    record = value["packages.conda"]["demo-1.1-0.conda"]
    if name in HOSTILE:
        HOSTILE[name](record)
        index.write_text(json.dumps(value))
    else:
        twice = json.dumps(value)[:-1] + ', "packages.conda": {}}'
        wrong = {"deep": "[" * 100_000, "twice": twice, "BOM": f"\ufeff{text}", **OTHER_FORMS}
        index.write_text(wrong[name])
    for command in (["list"], ["prune", "--keep", "1"], ["prune", "--keep", "1", "--dry-run"]):
        code, _, err = run("channel", command[0], str(channel.root), *command[1:])
        assert code == ChannelError.exit_code and "is damaged" in err, (command, err)
        if name in OTHER_FORMS:
            assert "is no JSON object" in err
    assert run("channel", "verify", str(channel.root))[0] == ChannelError.exit_code
    assert len(list(channel.root.rglob("*.conda"))) == 2
    assert run("channel", "index", str(channel.root))[0] == 0
    assert run("channel", "verify", str(channel.root))[0] == 0


def test_a_subdir_that_is_elsewhere(tmp_path: Path, console: Console) -> None:
    """Nothing is written there."""
    channel, elsewhere = Channel(tmp_path / "channel"), tmp_path / "elsewhere"
    channel.add([make(tmp_path)], console)
    elsewhere.mkdir()
    (channel.root / "noarch").rename(tmp_path / "noarch")
    (channel.root / "noarch").symlink_to(elsewhere)
    package = str(make(tmp_path, version="2.0"))
    for command in (["list"], ["verify"], ["index"], ["add", package], ["prune", "--keep", "1"]):
        code, _, err = run("channel", command[0], str(channel.root), *command[1:])
        assert (
            code == ChannelError.exit_code and "noarch cannot be used because it is a link" in err
        )
    assert not list(elsewhere.iterdir())
    (channel.root / "noarch").unlink()
    (tmp_path / "noarch").rename(channel.root / "noarch")
    (tmp_path / "link").symlink_to(channel.root)
    assert run("channel", "index", str(tmp_path / "link"))[0] == 0


@pytest.mark.parametrize("name", ["repodata.json", "repodata.json.zst"])
def test_an_index_that_never_ends(tmp_path: Path, console: Console, name: str) -> None:
    channel = Channel(tmp_path / "channel")
    channel.add([make(tmp_path)], console)
    (channel.root / "linux-64" / name).unlink()
    os.mkfifo(channel.root / "linux-64" / name)
    code, _, err = run("channel", "verify", str(channel.root), timeout=60)
    assert code == ChannelError.exit_code and "no regular file" in err
    assert run("channel", "index", str(channel.root), timeout=60)[0] == 0
    assert run("channel", "verify", str(channel.root), timeout=60)[0] == 0
