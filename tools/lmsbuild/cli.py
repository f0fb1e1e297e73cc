# SPDX-License-Identifier: Apache-2.0
"""The command group. Commands are imported when they are asked for, so that each starts fast."""

from __future__ import annotations

import importlib

import click

from lmsbuild import __version__
from lmsbuild.errors import UsageError
from lmsbuild.usage import near

# What a user wants -> the commands for it, in the order of use.
SECTIONS = {
    "Get started": ("doctor", "tags", "run"),
    "Series": ("fetch", "apply", "refresh", "map", "export"),
    "Build": ("wheel",),
    "When it stopped": ("status", "abort", "undo"),
    "Check": ("verify", "lint", "test"),
    "The shell": ("completion",),
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)


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
        module = importlib.import_module(f"lmsbuild.commands.{cmd_name}")
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name.ljust(width), command.get_short_help_str(formatter.width)))
            with formatter.section(title):
                formatter.write_dl(rows)


@click.command(
    cls=_Lazy,
    params=[_debug_option()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A TAG is a tag name (v2.6.0) or framework:tag (pytorch:v2.6.0).",
)
@click.version_option(__version__, prog_name="lmsbuild")
def cli() -> None:
    """Large Model Support: fetch a framework's tag, apply the series, build and test the wheel."""
