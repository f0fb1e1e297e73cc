# SPDX-License-Identifier: Apache-2.0
"""Renders docs/cli.md from the commands, and the README's table of tags from patches/:
`python -m lmsbuild.cli.docs` writes both."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from lmsbuild.base.errors import STOPPED, all_errors
from lmsbuild.base.project import find_project
from lmsbuild.cli.group import SECTIONS, TAGS, cli, walkthrough
from lmsbuild.tags.frameworks import Target, targets

_TAGS_BEGIN = "<!-- tags: rendered by `python -m lmsbuild.cli.docs` -->"
_TAGS_END = "<!-- end of tags -->"


_OUTPUT = """\
- Text for people goes to standard output, progress and errors to standard error. With `--json`
  standard output holds one JSON value, also for an error. Where it is closed (`>&-`) no command
  begins; send it to `/dev/null` instead.
- The console is terse. What git, pip, the compiler and pytest say is in the full log of the
  command, whose place an error names: in `~/.local/state/lmsbuild/log`, or in `logs` of
  `LMSBUILD_WORK` where that is set. The last 50 logs are kept.
- `--markdown` prints the table of steps (time, size, hash), for the summary of a CI job.
- Colour and bars are for terminals (`NO_COLOR`, `FORCE_COLOR` and `TERM` are heeded). A table that
  a terminal is too narrow for is a list there.
- Ctrl-C and SIGTERM end child processes and clean up, as an error does."""
_PLACES = """\
- Patches and sources: `LMSBUILD_ROOT`, else the checkout of the project that you stand in, else the
  one that lmsbuild was installed from with `pip install -e`, else what its package carries.
- Checkouts, environments and wheels: `work/` of that checkout; of the current folder when they come
  from the package, which is only read (`refresh` needs a checkout)."""


def render() -> str:
    """The whole page as Markdown."""
    context = click.Context(cli, info_name="lmsbuild")
    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Rendered by `python -m lmsbuild.cli.docs`; do not edit. -->",
        "# lmsbuild",
        inspect.cleandoc(cli.help or ""),
        TAGS,
        "## Change a hook",
        "A series is one commit of new files (the runtime, made from `lms/`) and small commits of "
        "hooks into upstream's code. To change a hook, and build and test it:",
        f"```sh\n{walkthrough()}\n```",
        "`refresh` writes patches from commits, so commit first. An edit of a runtime file, in any "
        "commit, goes back into `lms/`. Commit what `refresh` wrote to this repository. A command "
        "finishes or leaves everything as it was; when one was stopped, `lmsbuild status` says "
        "where things stand, `lmsbuild abort` puts them back, and `lmsbuild undo` takes the last "
        "finished change back.",
        "`apply --to`, `push` and `pop` go to one patch of the series; `fold`, `squash`, `drop`, "
        "`reorder` and `import` change which there are. All of them work on the commits of the "
        "checkout, and `refresh` then writes the files.",
        "## Output",
        _OUTPUT,
        "## Where things are",
        _PLACES,
    ]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            for leaf in leaves(name, command, context):
                parts += _command(leaf)
    parts += ["## Exit codes", _exit_codes(), "## Environment variables", _variables()]
    return "\n\n".join(parts) + "\n"


def leaves(name: str, command: click.Command, parent: click.Context) -> Iterator[click.Context]:
    """The command, or those of the group, as they are called."""
    context = click.Context(command, info_name=name, parent=parent)
    if not isinstance(command, click.Group):
        yield context
        return
    for below, found in command.commands.items():
        yield from leaves(below, found, context)


def _command(context: click.Context) -> list[str]:
    command = context.command
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option):
            rows.append(f"| `{record[0].replace('|', chr(92) + '|')}` | {record[1]} |")
    examples = (command.epilog or "").replace("\b\n", "").replace("Examples:\n", "")
    return [
        f"### {context.command_path.removeprefix('lmsbuild ')}",
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
        patches = len(target.patches)
        rows.append(
            f"| `{target.label}` | {patches} | {target.version} "
            f"| {', '.join(target.tag.cuda)} | {_pythons(target)} |"
        )
    return "\n".join(rows)


def _pythons(target: Target) -> str:
    """The Pythons of the tag's wheels; by CUDA version where these differ in that."""
    by_cuda = {cuda: ", ".join(target.for_cuda(cuda).pythons) for cuda in target.tag.cuda}
    if len(set(by_cuda.values())) == 1:
        return ", ".join(target.pythons)
    return "; ".join(f"{cuda}: {pythons}" for cuda, pythons in by_cuda.items())


def _variables() -> str:
    variables = {
        "LMSBUILD_ROOT": "the checkout of this project to use",
        "LMSBUILD_WORK": "folder for checkouts, environments, wheels and logs instead of `work/`",
        "LMSBUILD_CACHE": "folder for downloads and objects instead of the user's cache",
        "LMSBUILD_CACHE_LIMIT": "its size, 30GiB by default; the least recently used goes first",
        "LMSBUILD_SHARED_CACHE": "the server by which complete builds share what they compile "
        "between machines (docs/shipping.md)",
        "LMSBUILD_MIRROR": "--reference, for every command that fetches; --source of `survey`",
        "LMSBUILD_OFFLINE": "1: download nothing (as --offline); 0: not so",
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
