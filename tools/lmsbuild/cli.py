# SPDX-License-Identifier: Apache-2.0
"""The command group. Commands are imported when they are asked for, so that each starts fast."""

from __future__ import annotations

import importlib

import click

from lmsbuild import __version__

COMMANDS = ("tags", "doctor", "fetch", "apply", "export", "refresh", "wheel", "test", "run")


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"lmsbuild.commands.{cmd_name}")
        command: click.Command = module.command
        return command


@click.command(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A TAG is a tag name (v2.6.0) or framework:tag (pytorch:v2.6.0).",
)
@click.version_option(__version__, prog_name="lmsbuild")
def cli() -> None:
    """Large Model Support: fetch a framework's tag, apply the series, build and test the wheel."""
