# SPDX-License-Identifier: Apache-2.0
"""Renders docs/cli.md from the commands, and the README's table of tags from frameworks.toml:
`python -m lmsbuild.docs` writes both."""

from __future__ import annotations

import inspect

import click

from lmsbuild.cli import COMMANDS, cli
from lmsbuild.errors import STOPPED, all_errors
from lmsbuild.frameworks import targets
from lmsbuild.project import find_project
from lmsbuild.series import patch_files

_TAGS_BEGIN = "<!-- tags: rendered by `python -m lmsbuild.docs` -->"
_TAGS_END = "<!-- end of tags -->"


def render() -> str:
    """The whole page as Markdown."""
    context = click.Context(cli, info_name="lmsbuild")
    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Rendered by `python -m lmsbuild.docs`; do not edit. -->",
        "# lmsbuild",
        inspect.cleandoc(cli.help or ""),
        f"{cli.epilog} A bare tag means the supported framework that has it.",
        "Text for people goes to standard output, progress and errors to standard error. With "
        "`--json` standard output holds one JSON value, also for an error.",
    ]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(name, command, context)
    parts += ["## Exit codes", _exit_codes(), "## Environment variables", _variables()]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option):
            rows.append(f"| `{record[0].replace('|', chr(92) + '|')}` | {record[1]} |")
    examples = (command.epilog or "").replace("\b\n", "").replace("Examples:\n", "")
    return [
        f"## {name}",
        f"    {' '.join(usage.split())}",
        inspect.cleandoc(command.help or ""),
        "\n".join(rows),
        "```sh\n" + inspect.cleandoc(examples) + "\n```",
    ]


def _exit_codes() -> str:
    rows = ["| code | class of failure |", "|---|---|", "| 0 | success |"]
    codes: dict[int, str] = {}
    for error in all_errors():
        codes.setdefault(error.exit_code, error.meaning)
    codes.update(STOPPED)
    return "\n".join(rows + [f"| {code} | {meaning} |" for code, meaning in codes.items()])


def render_readme(text: str) -> str:
    """The README `text` with its table of tags anew."""
    before, begin, rest = text.partition(_TAGS_BEGIN)
    _, end, after = rest.partition(_TAGS_END)
    return f"{before}{begin}\n{_tags()}\n{end}{after}"


def _tags() -> str:
    rows = ["| tag | patches | wheel | CUDA | Python |", "|---|---|---|---|---|"]
    for target in targets(find_project()):
        patches = len(patch_files(target.runtime_patches) + patch_files(target.tag_patches))
        rows.append(
            f"| `{target.label}` | {patches} | {target.version} "
            f"| {', '.join(target.tag.cuda)} | {', '.join(target.pythons)} |"
        )
    return "\n".join(rows)


def _variables() -> str:
    variables = {
        "LMSBUILD_ROOT": "the checkout of this project to use",
        "LMSBUILD_WORK": "folder for checkouts, environments and wheels instead of `work/`",
        "LMSBUILD_CACHE": "folder for downloads and objects instead of the user's cache",
        "LMSBUILD_CACHE_LIMIT": "its size, 30GiB by default; the least recently used goes first",
        "LMSBUILD_OFFLINE": "1: download nothing (as --offline)",
        "LMSBUILD_DEBUG": "show a traceback for an error of lmsbuild itself",
        "CXX": "the C++ compiler instead of `g++`",
    }
    rows = ["| variable | meaning |", "|---|---|"]
    return "\n".join(rows + [f"| `{name}` | {meaning} |" for name, meaning in variables.items()])


if __name__ == "__main__":
    root = find_project().root
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "cli.md").write_text(render(), encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(render_readme(readme.read_text(encoding="utf-8")), encoding="utf-8")
