# SPDX-License-Identifier: Apache-2.0
"""Files and folders that a user names: what cannot be read or written is told at once."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON
from lmsbuild_world import World, leave, small_disk
from test_cli import LEAVES, ROOT

from lmsbuild.base import outputs
from lmsbuild.base.errors import FileError, UsageError
from lmsbuild.cli.group import cli
from lmsbuild.cli.options import OutputFolder, UserPath

OUTPUTS = {  # commands that write into a folder, and what they are given
    "wheel": ["v1.0"],
    "plugin": ["1.0"],
    "conda": ["v1.0"],
    "release": ["v1.0"],
}


def _parameters() -> list[tuple[str, click.Parameter]]:
    found = []
    for name in LEAVES:
        command: click.Command | None = cli
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.get_command(ROOT, word)
        assert command is not None
        found += [(name, each) for each in command.params if isinstance(each.type, click.Path)]
    return found


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/full"),
    "socket": _make_socket,
}


@pytest.mark.parametrize("odd", ODD)
def test_what_never_ends_is_no_file_and_no_folder(odd: str, tmp_path: Path) -> None:
    """As `rebuild /dev/full`, which read for ever."""
    place = tmp_path / odd
    ODD[odd](place)
    kinds = set()
    for name, parameter in _parameters():
        kind = parameter.type
        assert isinstance(kind, UserPath), (name, parameter.name)
        if kind.file_okay and kind.dir_okay:  # a source, a mail: each has a test of its own
            continue
        words = "is no folder" if kind.dir_okay else "is no regular file"
        with pytest.raises(click.BadParameter, match=words):
            kind.convert(str(place), parameter, None)
        kinds.add(words)
    assert len(kinds) == 2


def test_a_manifest_that_never_ends(world: World) -> None:
    code, _, err = run("rebuild", "/dev/full", timeout=60)
    assert code == UsageError.exit_code and "'/dev/full' is no regular file" in err


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_folder_that_cannot_be_written_is_told_before_the_work(world: World, name: str) -> None:
    """Nothing is fetched, compiled or locked for it."""
    (world.folder / "file").write_text("mine")
    (world.folder / "gone").symlink_to("nowhere")
    for place, words in (
        ("/proc/lms", "no file can be made in /proc"),
        ("/sys/kernel/lms/wheels", "no file can be made in /sys/kernel"),
        ("file/x", "file, which is no folder"),
        ("/dev/null/x", "/dev/null, which is no folder"),
        ("gone", "is no folder"),
    ):
        for more in ([], ["--dry-run"]):
            code, _, err = run(name, *OUTPUTS[name], "-o", place, *more)
            assert code == FileError.exit_code and words in err, (place, code, err)
            assert err.splitlines()[-1].startswith("error: nothing can be written to "), err
    assert (world.folder / "file").read_text() == "mine"
    assert not (world.folder / "work/alpha-v1.0").exists()


def test_every_output_folder_is_looked_at() -> None:
    found = {name for name, each in _parameters() if each.name == "output"}
    assert found == {*OUTPUTS, "export"}  # which writes a file
    kinds = {name: each.type for name, each in _parameters() if each.name == "output"}
    assert all(isinstance(kind, OutputFolder) for name, kind in kinds.items() if name in OUTPUTS)


def test_a_read_only_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        outputs.check_folder(disk / "new/folder")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(FileError, match="Read-only file system"):
            outputs.check_folder(disk / "new/folder")
        assert list(disk.iterdir()) == []


def test_looking_changes_nothing(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    outputs.check_folder(tmp_path)
    outputs.check_folder(tmp_path / "new/folder")
    outputs.check_file(tmp_path / "new/file")
    assert list(tmp_path.iterdir()) == [] and tmp_path.stat().st_mtime_ns == before


def test_a_pipe_that_nobody_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = world.folder / "pipe"
    os.mkfifo(pipe)
    code, _, err = run("export", "v1.0", "-o", "pipe", timeout=60)
    assert code == FileError.exit_code and "because no program reads that pipe; " in err
    assert pipe.is_fifo()


def test_a_reader_that_comes_late(tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", bytes(200_000)  # more than a pipe holds
    os.mkfifo(pipe)
    read = tmp_path / "read"
    with subprocess.Popen(["sh", "-c", f"sleep 1; cat {pipe} > {read}"]):
        outputs.write_output(pipe, content)
    assert read.read_bytes() == content


def test_an_export_that_cannot_be_written(world: World) -> None:
    """A folder of its name, a full device, a place that takes no files; no half of one is left."""
    folder = world.folder / "alpha_v1.0_large_model_support.patch"
    folder.mkdir()
    _make_socket(world.folder / "socket")
    for place, words in (
        (".", "it is a folder"),
        ("/dev/full", "No space left on device"),
        ("/proc/lms.patch", "no file can be made in /proc"),
        ("/dev/null/x", "is no folder"),
        ("socket", "No such device or address"),
    ):
        code, out, err = run("export", "v1.0", "-o", place, timeout=60)
        assert code == FileError.exit_code and words in err and not out, (place, code, err)
    code, _, err = run("export", "v1.0", "-o", "")
    assert code == UsageError.exit_code and "--output cannot be used because it is empty" in err
    with small_disk(world.folder / "disk", "4k") as disk:
        leave(disk, 0)
        code, _, err = run("export", "v1.0", "-o", "disk/")
        assert code == FileError.exit_code and "No space left on device" in err
        assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_checkout_where_a_disk_is_mounted(world: World) -> None:
    """What is made beside it cannot take its place; told before anything is fetched."""
    with small_disk(world.folder / "disk", "1m") as disk:
        for name in ("fetch", "apply"):
            code, _, err = run(name, "v1.0", "--into", "disk")
            assert code == FileError.exit_code, err
            assert "because a disk is mounted there; give a folder below it with --into" in err
        assert list(disk.iterdir()) == [] and not list((world.folder / "cache").glob("rep*"))
        assert not list(world.folder.glob(".disk*")) and not list(world.folder.glob(".lmsbuild*"))
        assert run("apply", "v1.0", "--into", "disk/source")[0] == 0


def test_a_release_on_a_full_disk(world: World, official: Path) -> None:
    """What is full is named, and nothing is left there but the lock."""
    command = ["release", "v1.0", "--python", PYTHON, "--no-conda", "--source", "git", "-o", "disk"]
    with small_disk(world.folder / "disk", "64k") as disk:
        leave(disk, 4096)
        code, _, err = run(*command)
        assert code == FileError.exit_code, err
        said = err.splitlines()[-1]
        assert said.startswith(f"error: {disk}")
        assert "cannot be read or written because No space left on device" in said
        assert {path.name for path in disk.iterdir()} <= {"filler", ".lock"}
        leave(disk, 65536)
        code, _, err = run(*command)
        assert code == 0, err
