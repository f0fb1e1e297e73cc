# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import Timeout
from lmsbuild_processes import run
from lmsbuild_world import World, write

from lmsbuild.base.errors import FileError
from lmsbuild.base.lockfile import Lock


def test_one_has_it(tmp_path: Path) -> None:
    place = tmp_path / "made" / ".lock"
    with Lock(place), pytest.raises(Timeout):
        Lock(place, timeout=0).acquire()
    with Lock(place, timeout=0):
        assert place.is_file()


def test_one_that_goes_is_nobodys(tmp_path: Path) -> None:
    """Who waited for it takes the one that is made anew, as anybody who comes then does."""
    place = tmp_path / ".lock"
    holder, waiter = Lock(place), Lock(place)
    holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.acquire)
        time.sleep(0.3)
        holder.remove()
        holder.release()
        waiting.result(timeout=30)
        with pytest.raises(Timeout):
            Lock(place, timeout=0).acquire()
        pool.submit(waiter.release).result()  # it is the thread's


@pytest.mark.parametrize("to", ["nowhere", "file", "folder"])
def test_a_link_is_no_lock(tmp_path: Path, to: str) -> None:
    write(tmp_path, {"file": "kept", "folder/x": ""})
    (tmp_path / ".lock").symlink_to(to)
    with pytest.raises(FileError, match=rf"\.lock .* is a link \(to {to}\); remove the link"):
        Lock(tmp_path / ".lock").acquire()
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("place", ["/proc/.lock", "/proc/self/fdinfo/x/.lock"])
def test_where_no_file_can_be_made(place: str) -> None:
    with pytest.raises(FileError, match="no lock can be made at"):
        Lock(place).acquire()


def test_a_command_ends_there(world: World) -> None:
    code, _, err = run("apply", "v1.0", "--into", "/proc/x", timeout=60)
    assert code == FileError.exit_code and "/proc" in err and "Traceback" not in err
