# SPDX-License-Identifier: Apache-2.0
"""Shell completion: click's, with what lmsbuild knows of tags and suites.

Imported when a shell asks for completions, and to print the script that makes it ask. A key is
waited for: what only some completions need is imported for those.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
)

from lmsbuild.base.errors import LmsbuildError
from lmsbuild.base.project import find_project
from lmsbuild.tags.frameworks import targets

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LMSBUILD_COMPLETE"


def script(shell: str, cli: click.Command) -> str:
    """What `shell` reads to complete lmsbuild's command lines."""
    found = get_completion_class(shell)
    assert found is not None
    return found(cli, {}, "lmsbuild", VARIABLE).source()


def answer(cli: click.Command) -> int:
    """Tell the shell what it asked for in the environment; gives the exit code."""
    return shell_complete(cli, {}, "lmsbuild", VARIABLE, os.environ[VARIABLE])


def tags(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tags, and framework:tag once a framework's name is begun."""
    try:
        project = find_project()
        known = targets(project)
        if ctx.info_name in ("plugin", "test"):
            from lmsbuild.wheel.plugin import releases

            known += [found.target for found in releases(project)]
    except LmsbuildError:
        return []
    names = [target.tag_name for target in known]
    names += [target.label for target in known] if incomplete else []
    return sorted({name for name in names if name.startswith(incomplete)})


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from lmsbuild.trials.suite import suite_names

    try:
        names = {name for target in targets(find_project()) for name in suite_names(target)}
    except LmsbuildError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def pythons(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Versions that there are official wheels for, of any tag: which one is meant is not known
    before the command line is whole."""
    try:
        known = {version for target in targets(find_project()) for version in target.pythons}
    except LmsbuildError:
        return []
    return sorted(version for version in known if version.startswith(incomplete))


class _Bash(BashComplete):
    """bash takes framework:tag for three words, and puts in what follows the colon."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        joined = False
        for word in [*args, incomplete]:
            joined = joined or word == ":"
            if words and joined:
                words[-1] += word
            else:
                words.append(word)
            joined = word == ":"
        return words[:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        found = super().get_completions(args, incomplete)
        if ":" in incomplete:
            before = incomplete[: incomplete.rindex(":") + 1]
            for item in found:
                item.value = item.value.removeprefix(before)
        return found


add_completion_class(_Bash)
