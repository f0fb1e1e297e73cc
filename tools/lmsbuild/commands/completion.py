# SPDX-License-Identifier: Apache-2.0
"""lmsbuild completion"""

from __future__ import annotations

import click

from lmsbuild.base.console import Console
from lmsbuild.cli.completion import SHELLS, script
from lmsbuild.cli.options import examples, json_option


@click.command(
    "completion",
    epilog=examples(
        "lmsbuild completion bash > ~/.local/share/bash-completion/completions/lmsbuild",
        'lmsbuild completion zsh > "${fpath[1]}/_lmsbuild"',
        "lmsbuild completion fish > ~/.config/fish/completions/lmsbuild.fish",
        "source <(lmsbuild completion bash)   # for this shell only",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def command(ctx: click.Context, shell: str, console: Console) -> None:
    """Print the script that completes commands, options and tags in SHELL.

    Put it where the shell looks for completions, as in the examples, and start a new shell.
    """
    text = script(shell, ctx.find_root().command)
    console.say(text)
    console.result({"shell": shell, "script": text})
