# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM on real processes that have children and temporary folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lmsbuild_world import REPOSITORY, World, plain_git

# A git that never ends one of its commands, and has a child of its own that does not end either.
HANGING = """#!/bin/sh
case " $* " in
*" {command} "*) sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait;;
esac
exec {git} "$@"
"""


def start(world: World, *arguments: str, path: Path | None = None) -> subprocess.Popen[str]:
    search = f"{path}{os.pathsep}{os.environ['PATH']}" if path else os.environ["PATH"]
    return subprocess.Popen(
        [sys.executable, "-m", "lmsbuild", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools"), "PATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background commands with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
    )


def hanging(folder: Path, command: str) -> tuple[Path, Path]:
    """A folder for PATH with such a git, and the file that tells the pids when it hangs."""
    programs, pids = folder / "programs", folder / "pids"
    programs.mkdir()
    git = programs / "git"
    git.write_text(HANGING.format(command=command, pids=pids, git=shutil.which("git")))
    git.chmod(0o755)
    return programs, pids


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(signal.SIGINT, 130, "Ctrl-C was pressed"), (signal.SIGTERM, 143, "SIGTERM was received")],
)
def test_children_and_folders_go(
    world: World, tmp_path: Path, number: signal.Signals, code: int, why: str
) -> None:
    programs, pids = hanging(tmp_path, "fetch")
    process = start(world, "fetch", "v1.0", "--source", "git", path=programs)
    wait_for(pids)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    lines = errors.splitlines()
    assert lines[-1].startswith("error: stopped (fetching v1.0 from ") and why in lines[-1]
    assert lines[-2].startswith("full log: ") and "Traceback" not in errors
    for pid in map(int, pids.read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    assert not list((world.folder / "cache" / "sources").glob("new-*"))
    # And it goes on from there.
    process = start(world, "fetch", "v1.0", "--source", "git")
    assert process.wait(timeout=60) == 0


def test_checkout_stays_as_it_was(world: World, tmp_path: Path) -> None:
    clone = world.clone()
    before = plain_git(clone, "rev-parse", "HEAD")
    programs, pids = hanging(tmp_path, "am")
    process = start(world, "apply", "v1.0", "--into", str(clone), path=programs)
    wait_for(pids)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "lmsbuild status" in errors
    assert plain_git(clone, "rev-parse", "HEAD") == before
    assert not plain_git(clone, "status", "--porcelain", "--ignored")
    process = start(world, "status", "v1.0", "--into", str(clone))
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "unfinished" not in text
    assert start(world, "apply", "v1.0", "--into", str(clone)).wait(timeout=60) == 0


POOL = """
from concurrent.futures import ThreadPoolExecutor
from lmsbuild.base import interrupt, log
interrupt.install()
interrupt.insist()
try:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            pool.submit(log.run, ["sh", "-c", {script!r}, {folder!r}])
        pool.submit(print).result()
except interrupt.Interrupted as error:
    raise SystemExit(error.exit_code)
"""


# The second starts a process after it was asked to end, and leaves it behind with its outputs open.
SCRIPTS = [
    "echo > $0/$$; sleep 30",
    "trap 'sleep 30 & exit' TERM; echo > $0/$$; while :; do sleep 0.1; done",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_thread_starts_another_process(tmp_path: Path, script: str) -> None:
    """When the process that it waits for has ended, a thread of a pool goes on to the next."""
    folder = tmp_path / "started"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", POOL.format(folder=str(folder), script=script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
    )
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == 143
    assert len(list(folder.iterdir())) == 2
    for file in folder.iterdir():
        assert not psutil.pid_exists(int(file.name))


UNHEARD = """
import signal, sys, threading, time
from lmsbuild.base import interrupt

def take():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(20)

interrupt.install()
interrupt.insist()
try:
    threading.Thread(target=take, daemon=True).start()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
except interrupt.Interrupted as error:
    interrupt.finish()
    interrupt.uninstall()
    sys.exit(error.exit_code)
"""


def test_a_signal_that_does_not_wake_the_main_thread() -> None:
    """As one that comes just before it sleeps: here another thread takes it."""
    done = run(UNHEARD)
    assert (done.returncode, done.stderr) == (143, "")


def test_no_traceback_however_early(world: World) -> None:
    """The signal may come while modules are still imported."""
    for delay in (0.05, 0.1, 0.15, 0.25):
        process = start(world, "tags")
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors
        assert process.returncode in {0, 143, -signal.SIGTERM}, errors


def test_a_signal_that_a_library_takes_for_its_own_error(tmp_path: Path) -> None:
    """As pydantic does, which asks Python for the text of what it did not match."""
    script = """
import os, signal
from lmsbuild.__main__ import main
from lmsbuild.base.errors import ConfigError
from lmsbuild.cli.group import cli

def invoke(context):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        raise ConfigError("tag.toml is invalid; correct the entries")

cli.invoke = invoke
main(["tags"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 143
    assert "because SIGTERM was received" in done.stderr and "invalid" not in done.stderr


def test_signals_that_are_ignored_stay_so(world: World) -> None:
    """As under nohup."""
    text = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from lmsbuild.base import interrupt\n"
        "interrupt.install()\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "assert signal.getsignal(signal.SIGTERM) is interrupt._handle\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    subprocess.run([sys.executable, "-c", text], env=environment, check=True)


DROPPED = """
import resource, signal, sys, time
from lmsbuild.base import interrupt

class Thing:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

interrupt.install()
if sys.argv[1] == "no files":
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    interrupt.insist()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
else:
    interrupt.insist()
try:
    thing = Thing()
    del thing  # what is raised in there is dropped
    if sys.argv[1] == "no files":
        signal.raise_signal(signal.SIGTERM)  # the next one counts
    time.sleep(20)
except interrupt.Interrupted as error:
    interrupt.finish()
    interrupt.uninstall()
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("how", ["repeated", "no files"])
def test_a_signal_while_an_object_is_destroyed_is_not_lost(how: str) -> None:
    done = run(DROPPED, how)
    assert (done.returncode, done.stderr) == (143, "")


LATE = """
import signal, threading
from lmsbuild import __main__
from lmsbuild.base import interrupt

def late(function):
    def call(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return function(*arguments)
    return call

interrupt.finish, interrupt.uninstall = late(interrupt.finish), late(interrupt.uninstall)
threading.Thread.join = late(threading.Thread.join)
__main__.main(["--version"])
"""


def test_a_signal_when_all_is_done() -> None:
    """As by who has read all of the output, and asks what wrote it to end."""
    done = run(LATE)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout
