# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import lmsbuild_processes
import pytest
from lmsbuild_world import REPOSITORY, World, plain_git

from lmsbuild.__main__ import run
from lmsbuild.base.errors import FileError
from lmsbuild.cli import docs
from lmsbuild.cli.group import COMMANDS, WALKTHROUGH, cli, summary
from lmsbuild.series.series import export


def lmsbuild(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code, out, err = lmsbuild_processes.run(*arguments, cwd=cwd)
    return subprocess.CompletedProcess(arguments, code, out, err)


READ_ONLY = (
    "tags", "doctor", "status", "verify", "lint", "map", "survey", "diff", "completion",
    "channel list", "channel verify", "channel serve",
)  # fmt: skip
ROOT = click.Context(cli, info_name="lmsbuild")
LEAVES = [
    leaf.command_path.removeprefix("lmsbuild ")
    for name in COMMANDS
    if (command := cli.get_command(ROOT, name))
    for leaf in docs.leaves(name, command, ROOT)
]


def test_a_group_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["channel", "--help"]) == run(["channel"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text and "verify" in text
    assert run(["channel", "ad"]) == 2
    assert "because" in capsys.readouterr().err


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text and f"lmsbuild {name}" in text and "--json" in text
    assert ("--dry-run" in text) == (name not in READ_ONLY)


def example_lines() -> list[str]:
    """The arguments of every lmsbuild in the examples of every --help."""
    texts = [
        leaf.command.epilog or ""
        for name in COMMANDS
        if (command := cli.get_command(ROOT, name))
        for leaf in docs.leaves(name, command, ROOT)
    ]
    commands = re.sub("#.*", "", "\n".join(texts))
    return [line.strip() for line in re.findall("lmsbuild ([^|>&)\n]+)", commands)]


def page_lines() -> list[str]:
    """The same of the pages that people write; docs/cli.md has the examples."""
    pages = [REPOSITORY / name for name in plain_git(REPOSITORY, "ls-files", "*.md").split()]
    found: set[str] = set()
    for page in pages:
        if page.name == "cli.md":
            continue
        # Code is within a pair of marks, or indented, as blocks between fences need not be.
        text = page.read_text(encoding="utf-8")
        code = re.findall(r"`([^`\n]+)`|^(?: {4}|\$ )(.+)$", text, re.MULTILINE)
        fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in [*map("".join, code), *"\n".join(fenced).splitlines()]:
            commands = re.findall(
                r"(?:^|/|&& |=\S+ )lmsbuild ([a-z][^|>&)]*)", line.partition(" #")[0]
            )
            found |= {command.strip() for command in commands}
    return sorted(found)


@pytest.mark.parametrize("line", [*example_lines(), *page_lines()])
def test_examples_have_options_and_choices_that_are_there(line: str) -> None:
    name, *words = shlex.split(line)
    command = cli.get_command(ROOT, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=ROOT)
    if isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
        assert command is not None
        context = click.Context(command, info_name=command.name, parent=context)
    given = command.make_parser(context).parse_args(words)[0]
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and given.get(parameter.name or ""):
            parameter.type.convert(given[parameter.name or ""], parameter, context)


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == run(["--help"]) == 0
    first, second = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == second and all(name in first for name in COMMANDS)


def test_summaries_are_the_first_sentences_of_the_commands() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert summary(name) == command.get_short_help_str(300)


@pytest.mark.parametrize(
    "variables",
    [{}, {"_LMSBUILD_COMPLETE": "bash_complete", "COMP_WORDS": "lmsbuild ", "COMP_CWORD": "1"}],
)
def test_help_and_completion_import_no_command(variables: dict[str, str]) -> None:
    code = (
        "import sys; from lmsbuild.__main__ import run; run(['--help'])\n"
        "print([name for name in sys.modules if name.startswith('lmsbuild.commands.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert all(name in done.stdout for name in COMMANDS)
    assert done.stdout.endswith("\n[]\n")


def test_a_short_command_imports_nothing_for_long_work(world: World) -> None:
    """Progress bars, locks and downloads took a tenth of what `tags` and `refresh` cost."""
    code = (
        "import sys; from lmsbuild.__main__ import run; run(['tags']); run(['refresh', 'v1.0'])\n"
        "print([name for name in ('rich.progress', 'tomllib', 'tomlkit', 'filelock', "
        "'urllib.request') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the runtime patch is as lms/ has it" in done.stdout and done.stdout.endswith("\n[]\n")


def test_page_is_as_rendered() -> None:
    page = REPOSITORY / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == docs.render(), "run python -m lmsbuild.cli.docs"


def test_table_of_tags_is_as_rendered() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "| `pytorch:v2.6.0` |" in text
    assert text == docs.render_readme(text), "run python -m lmsbuild.cli.docs"


def test_from_tag_to_export(world: World) -> None:
    done = lmsbuild("apply", "v1.0", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and len(result["patches"]) == 3
    assert result["path"] == str(world.folder / "work/alpha-v1.0/source")
    again = lmsbuild("apply", "v1.0")
    assert "already applied" in again.stdout and result["path"] in again.stdout
    exported = lmsbuild("export", "v1.0", "--output", "out", "--json")
    clone = world.clone()
    plain_git(clone, "am", "-q", json.loads(exported.stdout)["path"])
    assert b"\r\n" in (clone / "python/windows.py").read_bytes()


def test_walkthrough_works_as_written(world: World) -> None:
    """The lines of `lmsbuild --help`, with a change of a hook made where they say so."""
    folder = world.folder
    commit, ran = "", []
    for line in WALKTHROUGH:
        words = line.replace("v2.6.0", "v1.0").replace("pytorch", "alpha").split()
        if words[0] == "cd":
            folder = world.folder / words[1]
            (folder / "python/api.py").write_text("def memory():\n    return 2\n")
            commit = plain_git(folder, "rev-parse", "HEAD")
        elif words[0] == "git":
            words = [word.replace("COMMIT", commit) for word in words]
            plain_git(folder, "-c", "sequence.editor=:", *words[1:])
        elif words[1] in ("wheel", "test", "lint"):
            # They need a real wheel, and rules that the small project does not keep.
            assert lmsbuild(words[1], "--help").returncode == 0
        else:
            done = lmsbuild(*words[1:], cwd=folder)
            assert done.returncode == 0, done.stderr
            ran.append(words[1])
    assert ran == ["apply", "refresh", "refresh", "verify"]
    patches = "".join(file.read_text() for file in world.target.tag_patches.glob("*.patch"))
    assert "+    return 2" in patches and "+    return 1" not in patches
    assert "already applied" in lmsbuild("apply", "v1.0", cwd=folder).stdout


def test_apply_works_on_the_clone_the_user_stands_in(world: World) -> None:
    clone = world.clone()
    done = lmsbuild("apply", "v1.0", cwd=clone / "core")
    assert str(clone) in done.stdout and (clone / "core/lms/engine.h").is_file()
    assert not (world.folder / "work/alpha-v1.0").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_export_tells_of_a_reader_that_left(
    world: World, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = next(world.target.runtime_patches.glob("*.patch"))
    head, mail = patch.read_bytes().split(b"\n\n", 1)  # more than a pipe holds
    patch.write_bytes(head + b"\n\n" + b"Words of a message.\n" * 20_000 + b"\n" + mail)
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "lmsbuild", "export", "v1.0", "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as export:
        assert export.stdout is not None
        assert os.read(export.stdout.fileno(), 10)
        export.stdout.close()
        assert export.wait() == 141


def test_export_goes_through_links_and_pipes(world: World) -> None:
    there = world.folder / "real.patch"
    there.write_text("before")
    for name, target in (("link", "real.patch"), ("dangling", "new.patch")):
        (world.folder / name).symlink_to(target)
        assert lmsbuild("export", "v1.0", "-o", name).returncode == 0
        assert (world.folder / name).is_symlink()
    content = there.read_bytes()
    assert b"Subject: " in content and (world.folder / "new.patch").read_bytes() == content
    pipe = world.folder / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert lmsbuild("export", "v1.0", "-o", "pipe").returncode == 0
        pipe_open = pipe.is_fifo()
        if not pipe_open:
            reader.kill()
        assert pipe_open and reader.communicate()[0] == content


@pytest.mark.parametrize(
    "words",
    [
        "-o /dev/stdout >out",
        "-o /dev/stdout | cat >out",
        "-o >(cat >out); wait $!",
    ],
    ids=["file", "pipe", "process"],
)
def test_export_to_what_a_shell_opened(world: World, words: str) -> None:
    """`>(git am)` is a pipe that has no name."""
    command = f"{sys.executable} -m lmsbuild export v1.0 {words}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60
    )
    assert "error" not in done.stderr
    assert (world.folder / "out").read_bytes() == export(world.target)


def test_export_writes_over_no_patch(world: World) -> None:
    """One file more, or another, in a tag's folder is another series."""
    folder = world.target.tag_patches
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (world.folder / "link").symlink_to(folder)
    for output in (str(next(folder.glob("*.patch"))), f"{folder}/whole.patch", "link"):
        done = lmsbuild("export", "v1.0", "-o", output)
        assert done.returncode == 2 and "the project keeps its patches" in done.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["apply", "v9"], 3, "because"),
        (["apply"], 2, "lmsbuild apply --help"),
        (["aply", "v1.0"], 2, "did you mean apply?"),
        (["apply", "v1.0", "v1.1"], 2, "because it got unexpected extra argument (v1.1); run"),
        (["fetch", "v1.0", "--markdown", "--json"], 2, "the steps are in the JSON result"),
        (["apply", "v1"], 3, "alpha:v1.0"),
        (["apply", "v1.0", "--sorce=git"], 2, "did you mean --source?"),
        (["wheel", "v1.0", "--jobs", "0"], 2, "--jobs cannot be used because 0 is not"),
        (["fetch", "v1.0", "--source", "/nowhere"], 6, "there is no such file or folder"),
        (["fetch", "v1.0", "--source", "/dev/null"], 6, "it is neither a file nor a folder"),
        (["wheel", "v1.0", "--python", "2.7"], 2, "wheels are for 3.11; choose"),
        (["wheel", "v1.0", "--python", "x"], 2, "wheels are for 3.11; choose"),
        (["apply", ""], 3, "error: '' cannot be used"),
        (["apply", "v1.0 "], 3, "error: 'v1.0 ' cannot be used"),
        (["test", "v1.0"], 2, "no suites; name a tag that has some"),
        (["test", "v1.0", "--shard", "3/2"], 2, "3/2"),
    ],
)
def test_failures(world: World, arguments: list[str], code: int, words: str) -> None:
    done = lmsbuild(*arguments)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith("error: ") and words in done.stderr
    assert "Traceback" not in done.stderr
    if len(arguments) > 1:
        error = json.loads(lmsbuild(*arguments, "--json").stdout)["error"]
        assert error["exit_code"] == code and error["message"]


def test_work_folder_that_cannot_be_made(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.folder / "gone").symlink_to("nowhere")
    monkeypatch.setenv("LMSBUILD_WORK", str(world.folder / "gone"))
    assert run(["apply", "v1.0"]) == FileError.exit_code
    assert "set LMSBUILD_WORK" in capsys.readouterr().err


def test_defect_shows_no_traceback(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("lmsbuild.tags.frameworks.load", broken)
    assert run(["export", "v1.0"]) == 1
    (log,) = (world.folder / "work/logs").iterdir()
    assert "RuntimeError: surprise" in log.read_text() and "Traceback" in log.read_text()
    errors = capsys.readouterr().err
    assert "Traceback" not in errors and f"full log: {log}\n" in errors
    assert run(["--debug", "export", "v1.0"]) == run(["export", "v1.0", "--debug"]) == 1
    assert capsys.readouterr().err.count("Traceback") == 2


def test_interrupt_ends_cleanly(world: World) -> None:
    """Ctrl-C while another process holds the lock that it waits for."""
    from filelock import FileLock

    lock = world.folder / "work/alpha-v1.0/.source.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        process = subprocess.Popen(
            [sys.executable, "-m", "lmsbuild", "fetch", "v1.0"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
            stderr=subprocess.PIPE,
            text=True,
            # A shell starts background commands with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        # The log says when it has come to the step that needs the lock.
        logs = world.folder / "work/logs"
        while not any("fetch: begins" in log.read_text() for log in logs.glob("*.log")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("error: stopped (fetch) because Ctrl-C was")
