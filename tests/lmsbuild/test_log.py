# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmsbuild.base import log


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path))
    log.start(["--debug", "apply", "v1.0"])
    yield tmp_path / "logs"
    log.stop()


def test_log_is_made_at_the_first_note(logs: Path) -> None:
    assert log.path() is None and not logs.exists()
    log.note("one")
    log.note("two \udcff")
    path = log.path()
    assert path is not None and path.parent == logs
    assert path.name.endswith(f"-apply-{os.getpid()}.log")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert text.startswith("lmsbuild --debug apply v1.0\n") and "s] one\n" in text
    assert "two \\udcff\n" in text and text.count("lmsbuild --debug") == 1


def test_no_note_without_a_log(logs: Path) -> None:
    log.stop()
    log.note("nothing")
    assert log.path() is None and not logs.exists()


def test_old_logs_go(logs: Path) -> None:
    logs.mkdir()
    for number in range(log.KEPT + 5):
        file = logs / f"20000101T0000{number:02}.000000Z-apply-1.log"
        file.touch()
        os.utime(file, (1000 + number, 1000 + number))
    os.utime(logs / "20000101T000000.000000Z-apply-1.log")  # of a command that still runs
    log.note("new")
    names = sorted(path.name for path in logs.iterdir())
    path = log.path()
    assert len(names) == log.KEPT and path is not None and names[-1] == path.name
    assert names[0].startswith("20000101T000000.") and names[1].startswith("20000101T000007.")


def test_log_that_cannot_be_written_is_no_failure(logs: Path) -> None:
    logs.write_text("a file, not a folder")
    log.note("lost")
    log.note("lost too")
    assert log.path() is None


def test_passwords_are_left_out(logs: Path) -> None:
    log.start(["fetch", "--source", "https://me:secret@example.invalid/x.git"])
    log.note("fetching https://me:secret@example.invalid/x.git")
    path = log.path()
    assert path is not None
    assert "secret" not in path.read_text() and "https://***@example" in path.read_text()


def test_processes_are_noted_with_their_output(logs: Path) -> None:
    done = log.run([sys.executable, "-c", "import sys; print('a b'); sys.exit('bad')"])
    assert done.returncode == 1 and done.stdout == "a b\n"
    log.process(["git", "cat-file"], 0, "x" * 100_000)
    log.process(["git", "am"], 1, "y" * 100_000)
    path = log.path()
    assert path is not None
    text = path.read_text()
    assert "\nexit code 1 (" in text and "a b\nbad\n" in text
    assert text.count("x" * 100) == 655 and "34464 more characters" in text
    assert "y" * 100_000 in text
