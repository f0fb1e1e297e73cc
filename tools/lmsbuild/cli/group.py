# SPDX-License-Identifier: Apache-2.0
"""The command group. Commands are imported when they are asked for, so that each starts fast."""

from __future__ import annotations

import ast
import importlib
import keyword
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from lmsbuild import __version__
from lmsbuild.base.errors import UsageError
from lmsbuild.cli.usage import near

# What a user wants -> the commands for it, in the order of use.
SECTIONS = {
    "Get started": ("doctor", "tags", "run"),
    "Series": ("fetch", "apply", "refresh", "map", "diff", "survey", "port", "add", "export"),
    "Patches": ("push", "pop", "fold", "squash", "drop", "reorder", "import"),
    "Build": ("wheel", "plugin"),
    "When it stopped": ("status", "abort", "undo"),
    "Check": ("verify", "lint", "test", "bench"),
    "Ship": ("image", "conda", "channel", "release", "rebuild", "matrix"),
    "Housekeeping": ("clean", "completion"),
}
# The way of a change, for --help and docs/cli.md.
WALKTHROUGH = {
    "lmsbuild apply v2.6.0": "the source with the series on it",
    "cd work/pytorch-v2.6.0/source": "a commit is a patch: edit, then `git commit`, or",
    "lmsbuild refresh v2.6.0 --patch 2": "put what is not committed into patch 2",
    "lmsbuild refresh v2.6.0": "the commits back into patches/, the runtime's into lms/",
    "lmsbuild verify v2.6.0": "the patches are whole, apply, and are in normal form",
    "lmsbuild lint v2.6.0": "they keep the project's rules",
    "lmsbuild wheel v2.6.0": "the wheel, in work/pytorch-v2.6.0/wheels",
    "lmsbuild test v2.6.0": "the regression suites on it",
}
TAGS = (
    "A TAG is a tag name (v2.6.0) or framework:tag (pytorch:v2.6.0). A bare tag means the "
    "supported framework that has it. A command that needs one and is given none takes that of the "
    "checkout you stand in (or name with --into), if lmsbuild made it, else that of the only "
    "checkout in work/."
)
_LONG = 300  # characters: a command's first sentence is never cut
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)


def walkthrough() -> str:
    """One command a line, each with what it is for."""
    width = max(map(len, WALKTHROUGH))
    return "\n".join(f"{line.ljust(width)}  # {why}" for line, why in WALKTHROUGH.items())


def _module(command: str) -> str:
    """A module has no name that is a word of Python's."""
    return f"lmsbuild.commands.{command}{'_' if keyword.iskeyword(command) else ''}"


def summary(command: str) -> str:
    """The first sentence of a command's help. Read, not imported: all commands together import most
    of lmsbuild, which takes a second."""
    spec = find_spec(_module(command))
    assert spec is not None and spec.origin is not None
    module = ast.parse(Path(spec.origin).read_bytes())
    (function,) = (
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "command"
    )
    return click.Command(command, help=ast.get_docstring(function)).get_short_help_str(_LONG)


def _epilog() -> str:
    steps = walkthrough().replace("\n", "\n  ")
    return (
        f"\b\nTo change a hook, and build and test it:\n  {steps}\n\n"
        "When a command was stopped, `lmsbuild status` says where things stand, `abort` puts them "
        f"back, and `undo` takes the last finished change back.\n\n{TAGS}"
    )


def _debug_option() -> click.Option:
    # Read from the command line by __main__, which outlives every command.
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False,
        help="Show a traceback when something fails (also LMSBUILD_DEBUG=1).",
    )  # fmt: skip


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(_module(cmd_name))
        command: click.Command = module.command
        if not any("--debug" in parameter.opts for parameter in command.params):
            hidden = _debug_option()
            hidden.hidden = True
            command.params.append(hidden)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise UsageError(
            f"{name} cannot be run because lmsbuild has no such command; {near(name, COMMANDS)}"
            "run `lmsbuild --help`"
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        found = [CompletionItem(name, help=summary(name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            rows = [(name.ljust(width), summary(name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.command(
    cls=_Lazy,
    params=[_debug_option()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_epilog(),
)
@click.version_option(__version__, prog_name="lmsbuild")
def cli() -> None:
    """Large Model Support: fetch a framework's tag, apply the series, build and test the wheel."""
