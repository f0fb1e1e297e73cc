# SPDX-License-Identifier: Apache-2.0
"""Every failure has its exit code, and a message of the form "X because Y; do Z"."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, World

from lmsbuild.__main__ import run
from lmsbuild.base import errors
from lmsbuild.base.errors import (
    STOPPED,
    ContainerError,
    EmulationError,
    FileError,
    GitError,
    all_errors,
)
from lmsbuild.base.git import Git
from lmsbuild.places import docker

PACKAGE = REPOSITORY / "tools" / "lmsbuild"
FORM = re.compile(r"\S.* because .*\S; \S", re.DOTALL)
NAMES = {error.__name__ for error in all_errors()}


def constructed() -> Iterator[tuple[str, str, ast.expr | None]]:
    """Place, class and message of every error that the package makes, but for those passed on."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                function = node.func
                name = function.id if isinstance(function, ast.Name) else function.attr
                if name == "of" and isinstance(function, ast.Attribute):
                    name = ast.unparse(function.value)
                if name in NAMES and file.name != "errors.py":
                    place = f"{file.relative_to(PACKAGE)}:{node.lineno}"
                    yield place, name, node.args[0] if node.args else None


def text_of(message: ast.expr) -> str | None:
    """A literal with `{}` for what is put in, None for what is no literal."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return message.value
    if isinstance(message, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in message.values]
        return "".join(map(str, parts))
    return None


def test_every_message_has_the_form() -> None:
    texts = [
        (place, text_of(message))
        for place, name, message in constructed()
        if message is not None and name != "GitError"
    ]
    literal = [(place, text) for place, text in texts if text is not None]
    assert len(literal) > 50
    wrong = [f"{place}: {text}" for place, text in literal if not FORM.match(text)]
    assert not wrong, "\n".join(wrong)
    ended = [f"{place}: {text}" for place, text in literal if text.endswith(".")]
    assert not ended, "\n".join(ended)


def test_every_class_is_raised_somewhere() -> None:
    raised = {name for _, name, _ in constructed()}
    assert NAMES - raised == set()


def test_exit_codes_are_one_per_class() -> None:
    codes = [error.exit_code for error in all_errors()]
    assert len(codes) == len(set(codes))
    assert not set(codes) & {0, *STOPPED} and max(codes) < 126  # above are the shell's own
    assert len({error.meaning for error in all_errors()}) == len(codes)
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.LmsbuildError)
    }
    assert defined == set(all_errors())


def test_git_without_room_is_a_file_that_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Git, *arguments: str, **_: object) -> None:
        raise GitError(arguments, "fatal: write error: No space left on device", self.path)

    clone = world.clone()
    monkeypatch.setattr(Git, "run", full)
    with pytest.raises(GitError):
        Git(clone).run("status")
    assert run(["fetch", "v1.0", "--source", str(clone)]) == FileError.exit_code
    errors = capsys.readouterr().err
    assert "because No space left on device; free space" in errors and "`git " not in errors


def test_what_the_system_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        (tmp_path / "file" / "below").mkdir(parents=True)
        (tmp_path / "file" / "below").write_text("")
    message = FileError.of(caught.value).message
    assert message.startswith(f"{tmp_path}/file/below cannot be read or written because ")
    assert FORM.match(message)


def test_a_pipe_that_breaks_elsewhere_is_no_silent_end(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """141 is for standard output; test_console.py closes that."""

    def broken(*_: object, **__: object) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            os.write(writing, b"x")
        finally:
            os.close(writing)

    monkeypatch.setattr(Git, "run", broken)
    assert run(["apply", "v1.0"]) == 1
    assert "error: lmsbuild stopped because of BrokenPipeError" in capsys.readouterr().err


def test_remedy_for_missing_emulation_is_whole() -> None:
    """The packages alone register nothing where binfmt_misc is not mounted, as in a container."""
    found = docker.failure("cannot run a step", "exec /bin/sh: exec format error")
    assert isinstance(found, EmulationError)
    documented = (REPOSITORY / "docs/shipping.md").read_text()
    for part in (
        "qemu-user-static binfmt-support",
        "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc",
        "update-binfmts --enable",
    ):
        assert part in str(found) and part in documented


@pytest.mark.parametrize(
    "said",
    [
        "crun: setrlimit `RLIMIT_NPROC`: Operation not permitted: OCI permission denied",
        "runc: runc create failed: unable to start container process: error setting rlimits for "
        "ready process: error setting rlimit type 6: operation not permitted",
    ],
)
def test_limits_that_an_engine_may_not_set(said: str) -> None:
    """podman gives a container its own default for each limit that containers.conf leaves out."""
    found = docker.failure("the container was not run", said)
    assert type(found) is ContainerError and said in str(found)
    documented = (REPOSITORY / "docs/shipping.md").read_text()
    for part in ("default_ulimits", "containers.conf", "nproc"):
        assert part in str(found) and part in documented
    assert "nproc" not in str(docker.failure("the container was not run", "it ended"))
