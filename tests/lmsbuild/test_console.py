# SPDX-License-Identifier: Apache-2.0
"""What a user sees, on real terminals and without one."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, World

from lmsbuild.base.console import Console, counted


def test_counted() -> None:
    said = [counted(n, noun) for n, noun in ((0, "file"), (1, "file"), (1, "patch"), (2, "patch"))]
    assert said == ["0 files", "1 file", "1 patch", "2 patches"]


PROGRAM = """
import sys, time
sys.path.insert(0, {tools!r})
from lmsbuild.base import console
console.QUIET_SECONDS = 0.6
shown = console.Console(markdown={markdown})
with shown.running("everything"):
    with shown.step("first | step", total=4) as step:
        step.advance()
        with shown.task("inner part"):
            time.sleep({seconds})
        step.size, step.digest, step.note = 2_000_000, "0123456789abcdef", "made"
    shown.warn("[bold]careful[/bold]")
    with shown.step("second"):
        shown.say("said")
    shown.table("", ["what", "state"], [["thing", "MISSING"]])
    shown.result(None)
"""


def program(seconds: float = 1.2, markdown: bool = False) -> list[str]:
    text = PROGRAM.format(tools=str(REPOSITORY / "tools"), seconds=seconds, markdown=markdown)
    return [sys.executable, "-c", text]


def variables(**changes: str | None) -> dict[str, str]:
    """The environment without what decides on colour, and with `changes` (None: removed)."""
    settled = dict.fromkeys(("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"))
    wanted = {**os.environ, "TERM": "xterm-256color", **settled, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def on_terminal(command: list[str], **changes: str | None) -> str:
    """What `command` draws on a terminal of its own."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=variables(**changes)
    )
    os.close(terminal)
    text = b""
    while True:
        try:
            part = os.read(controller, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(controller)
    assert process.wait(timeout=30) == 0
    return text.decode()


def test_colour_and_bars_on_a_terminal() -> None:
    text = on_terminal(program())
    assert "\x1b[1;31mMISSING" in text and "\x1b[33mwarning: " in text
    assert "first | step" in text and "25%" in text and "inner part" in text
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "[bold]careful[/bold]" in text


@pytest.mark.parametrize(
    "changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=lambda value: next(iter(value))
)
def test_no_colour_where_none_is_wanted(changes: dict[str, str]) -> None:
    text = on_terminal(program(), **changes)
    assert "\x1b[31m" not in text and "\x1b[33m" not in text and "MISSING" in text
    if "TERM" in changes:
        assert "\x1b" not in text and re.search(r"inner part: \(\d s\)", text)


def test_neither_colour_nor_bars_in_a_pipe() -> None:
    done = subprocess.run(program(), env=variables(), capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr
    # The innermost task is the one that is told about.
    told = [line for line in done.stderr.splitlines() if line.endswith(" s)")]
    assert len(told) == 1 and told[0].startswith("  inner part: (")
    assert "warning: [bold]careful[/bold]" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert ["said"] in lines
    step = [line for line in lines if line[:3] == ["first", "|", "step"]]
    assert len(step) == 1 and float(step[0][3]) >= 1.2
    assert step[0][4:] == ["s", "2.0", "MB", "0123456789ab", "made"]
    forced = subprocess.run(
        program(0), env=variables(FORCE_COLOR="1"), capture_output=True, text=True, check=True
    )
    assert "\x1b[1;31mMISSING" in forced.stdout and "\x1b[?25l" not in forced.stderr


TABLE = """
from lmsbuild.base.console import Console
row = ["framework:v1.10.0", "1.10.0+cu117.lms.1", "3.9 3.10 3.11", "2026-11-29: trained"]
Console().table("", ["tag", "wheel", "Python", "last verified"], [row, row])
"""


@pytest.mark.parametrize("columns", [1, 40, 59, 60, 72, 80, 120])
def test_a_table_is_read_on_any_terminal(columns: int) -> None:
    """No line is longer than the terminal, which would break it, and no word is broken."""
    text = on_terminal([sys.executable, "-c", TABLE], COLUMNS=str(columns))
    text = re.sub(r"\x1b\[\d*m", "", text)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= max(columns, 40)
    for word in ("framework:v1.10.0", "1.10.0+cu117.lms.1", "3.11", "2026-11-29:", "verified"):
        assert word in text, text
    assert ("framework:v1.10.0" in lines) == (columns < 64)  # one row below the other


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Not as emoji, markup or numbers in colour."""
    text = "lms:x:1:smile: [red]\\[bold] 1.5 :wq"
    console = Console()
    for show in (console.say, console.tell, console.warn):
        show(text)
    console.table("", ["a"], [[text]])
    shown = capsys.readouterr()
    assert shown.out.count(text) == 2 and shown.err.count(text) == 2


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A CI system takes lines that begin with :: as commands."""
    Console().fail("the tag x\n::add-path::/evil is none; name another", None)
    assert capsys.readouterr().err == "error: the tag x\\n::add-path::/evil is none; name another\n"


def test_markdown_holds_the_summary_alone() -> None:
    done = subprocess.run(
        program(0, markdown=True), env=variables(), capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["| step | time | size | hash |  |", "| --- | --- | --- | --- | --- |"]
    first = r"\| first \\\| step \| \d+\.\d s \| 2\.0 MB \| 0123456789ab \| made \|"
    assert re.fullmatch(first, lines[2])
    assert lines[3].startswith("| second | ") and len(lines) == 4
    assert "said" in done.stderr and "MISSING" in done.stderr


def test_quick_commands_have_no_summary(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    with console.step("quick"):
        pass
    console.result({})
    assert capsys.readouterr().out == ""


def test_steps_are_in_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(json_mode=True)
    with console.step("outer") as outer:
        outer.digest = "ab"
        with console.step("inner"):
            pass
    console.result({"value": 1})
    result = json.loads(capsys.readouterr().out)
    assert result["value"] == 1
    outer_step, inner_step = result["steps"]
    assert (outer_step["step"], outer_step["depth"], outer_step["hash"]) == ("outer", 0, "ab")
    assert (inner_step["step"], inner_step["depth"]) == ("inner", 1)
    assert outer_step["seconds"] >= inner_step["seconds"]


def test_failed_step_is_marked() -> None:
    console = Console(json_mode=True)
    with pytest.raises(ValueError), console.step("broken"):
        raise ValueError
    assert [(step.title, step.note) for step in console.steps] == [("broken", "failed")]


def told(capfd: pytest.CaptureFixture[str]) -> str:
    """What is told of a task that goes on until something is."""
    text = ""
    deadline = time.monotonic() + 60
    while not text.endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        text += capfd.readouterr().err
    return text


def test_progress_comes_after_two_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    began = time.monotonic()
    with console.task("quick"):
        pass
    with console.task("slow", total=4) as task:
        task.advance()
        assert re.fullmatch(r"  slow: 25% \(\d+ s\)\n", told(capfd))
        assert time.monotonic() - began >= 2


def test_every_command_has_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with Console().running("verify"):
        assert re.fullmatch(r"  verify: \(\d+ s\)\n", told(capfd))


def test_a_part_is_told_of_rather_than_the_whole(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the whole is old enough before its part is."""
    monkeypatch.setattr("lmsbuild.base.console.QUIET_SECONDS", 1.0)
    console = Console()
    with console.task("whole"):
        time.sleep(0.3)
        with console.task("part"):
            assert told(capfd).startswith("  part: (")


TAGS = [sys.executable, "-m", "lmsbuild", "tags"]


@pytest.mark.parametrize(
    ("redirection", "changes", "code"),
    [
        ("<&-", {}, 0),
        ("<&- 2>&-", {}, 0),
        (">&-", {}, 18),
        ("<&- >&- 2>&-", {}, 18),
        ("--json >&-", {}, 18),
        ("--help >&-", {}, 18),
        ("1</dev/null", {}, 18),
        (">/dev/full", {}, 18),
        ("| true", {}, 141),
        ("| true", {"PYTHONUNBUFFERED": "1"}, 141),
        ("--json >/dev/full", {"PYTHONUNBUFFERED": "1"}, 18),
        ("--help | true", {}, 141),
        ("--nonsense 2>/dev/full", {}, 2),
        ("", {"HOME": None, "XDG_STATE_HOME": None}, 0),
        ("", {"HOME": "/proc/nowhere"}, 0),
        ("", {"PYTHONIOENCODING": "ascii"}, 0),
        ("", {"COLUMNS": "1"}, 0),
        ("", {"COLUMNS": "-7", "LINES": "x"}, 0),
        ("--help", {"COLUMNS": "0"}, 0),
        ("", {"TERM": None, "LANG": "xx_XX.nonsense", "LC_ALL": "C", "PYTHONUTF8": "0"}, 0),
    ],
    ids=str,
)
def test_surroundings_are_no_failure(
    world: World, redirection: str, changes: dict[str, str | None], code: int
) -> None:
    """A real shell with real redirections; the command is one that needs nothing."""
    command = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
    paths: dict[str, str | None] = {
        "PYTHONPATH": str(REPOSITORY / "tools"), "LMSBUILD_WORK": None, "LMSBUILD_CACHE": None
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", command, "bash", *TAGS],
        env=variables(**{"HOME": str(world.folder), **paths, **changes}),
        capture_output=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert (b"error: " in done.stderr) == (code == 18 and "2>&-" not in redirection)
    assert b"Exception ignored" not in done.stderr
    if not redirection:
        assert b"alpha:v1.0" in done.stdout
        assert not done.stderr


def test_folder_that_is_gone(world: World, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["bash", "-c", 'rmdir ../gone; "$@"', "bash", *TAGS],
        cwd=gone,
        env=variables(PYTHONPATH=str(REPOSITORY / "tools")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 18
    assert done.stderr.endswith("because the current folder is gone; change to another\n")


def test_no_home_and_no_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs the cache says how to give it one; nothing is made in the current folder."""
    before = sorted(world.folder.iterdir())
    done = subprocess.run(
        [*TAGS[:-1], "fetch", "v1.0", "--source", "git"],
        env=variables(
            PYTHONPATH=str(REPOSITORY / "tools"), HOME="/proc/nowhere", XDG_CACHE_HOME=None,
            LMSBUILD_CACHE=None,
        ),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 18 and "set LMSBUILD_CACHE" in done.stderr
    assert {path.name for path in set(world.folder.iterdir()) - set(before)} <= {"work"}
