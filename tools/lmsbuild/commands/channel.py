# SPDX-License-Identifier: Apache-2.0
"""lmsbuild channel"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import filesize

from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import ChannelError, UsageError
from lmsbuild.base.interrupt import Interrupted
from lmsbuild.cli.options import UserPath, dry_run_option, examples, json_option

if TYPE_CHECKING:
    from lmsbuild.conda.channel import Channel

F = TypeVar("F", bound=Callable[..., Any])


def _channel(path: Path) -> Channel:
    from lmsbuild.conda.channel import Channel

    return Channel(path)


def _channel_argument(function: F) -> F:
    return click.argument("channel", type=UserPath(file_okay=False))(function)


def _stubs_option(function: F) -> F:
    return click.option(
        "--stubs", is_flag=True, help="Let packages without files in: only for a channel for tests."
    )(function)


@click.group(
    "channel",
    invoke_without_command=True,
    epilog=examples(
        "lmsbuild channel add /srv/conda dist/*.conda --json",
        "lmsbuild channel prune /srv/conda --keep 3 --dry-run",
        "lmsbuild channel serve /srv/conda",
    ),
)
@click.pass_context
def command(context: click.Context) -> None:
    """Keep a conda channel: a folder that any web server can serve."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command(
    "add", epilog=examples("lmsbuild channel add /srv/conda pytorch-2.6.0-lms_cu124py311_1.conda")
)
@_channel_argument
@click.argument(
    "packages", metavar="PACKAGE...", nargs=-1, required=True,
    type=UserPath(exists=True, dir_okay=False),
)  # fmt: skip
@_stubs_option
@dry_run_option
@json_option
def add(
    *, channel: Path, packages: tuple[Path, ...], stubs: bool, dry_run: bool, console: Console
) -> None:
    """Check packages byte for byte, and put them into CHANNEL and its index: all or none.

    The folder is made if need be. Safe beside other writers and readers.
    """
    done = _channel(channel).add(packages, console, stubs=stubs, dry_run=dry_run)
    for added in done:
        what = "already there" if added.already else "would add" if dry_run else "added"
        console.say(f"{what} {added.path}")
    rows = [
        {
            "package": added.package.label, "path": added.path, "sha256": added.package.sha256,
            "already": added.already,
        }
        for added in done
    ]  # fmt: skip
    console.result({"packages": rows})


@command.command("index", epilog=examples("lmsbuild channel index /srv/conda"))
@_channel_argument
@_stubs_option
@dry_run_option
@json_option
def index(*, channel: Path, stubs: bool, dry_run: bool, console: Console) -> None:
    """Write the index of CHANNEL anew from its packages, each of which is checked."""
    found = _channel(channel).index(console, stubs=stubs, dry_run=dry_run)
    console.say(
        f"{'would index' if dry_run else 'indexed'} {channel} ({counted(len(found), 'package')})"
    )
    console.result({"packages": len(found)})


@command.command(
    "list",
    epilog=examples("lmsbuild channel list /srv/conda --subdir linux-64"),
)
@_channel_argument
@click.option("--subdir", metavar="NAME", help="Only this platform, such as linux-64 or noarch.")
@json_option
def list_packages(channel: Path, subdir: str | None, console: Console) -> None:
    """List the packages in the index of CHANNEL."""
    found = _channel(channel).entries(subdir)
    rows = [
        [x.subdir, x.name, x.version, x.build, filesize.decimal(x.size), x.sha256[:12]]
        for x in found
    ]
    console.table("", ["subdir", "package", "version", "build", "size", "sha256"], rows)
    console.result(found)


@command.command("verify", epilog=examples("lmsbuild channel verify /srv/conda"))
@_channel_argument
@json_option
def verify(channel: Path, console: Console) -> None:
    """Check every package of CHANNEL against the index and against itself; change nothing."""
    found = _channel(channel).verify(console)
    if found:
        for problem in found[1:]:
            console.say(f"{problem.path} {problem.message}")
        raise ChannelError(
            f"{channel} is not sound because {found[0].path} {found[0].why} (problems in all: "
            f"{len(found)}); {found[0].remedy}",
            problems=[{"path": one.path, "message": one.message} for one in found],
        )
    console.say(f"{channel} is sound")
    console.result({"sound": True})


@command.command(
    "prune",
    epilog=examples(
        "lmsbuild channel prune /srv/conda --keep 3",
        "lmsbuild channel prune /srv/conda --keep 1 --younger-than 90 --dry-run",
    ),
)
@_channel_argument
@click.option(
    "--keep", metavar="N", type=click.IntRange(min=1),
    help="Keep the newest N builds of each package and platform.",
)  # fmt: skip
@click.option(
    "--younger-than", "days", metavar="DAYS", type=click.FloatRange(min=0),
    help="Keep, too, what came into the channel within so many days.",
)  # fmt: skip
@dry_run_option
@json_option
def prune(
    *, channel: Path, keep: int | None, days: float | None, dry_run: bool, console: Console
) -> None:
    """Remove old packages from CHANNEL by rule, but never what a package that stays needs."""
    from lmsbuild.conda.channel import Rule

    if keep is None and days is None:
        raise UsageError(
            "nothing was removed because no rule was given; give --keep, --younger-than or both"
        )
    gone = _channel(channel).prune(Rule(keep, days), console, dry_run=dry_run)
    did = "would remove" if dry_run else "removed"
    for entry in gone:
        console.say(f"{did} {entry.path}")
    total = sum(entry.size for entry in gone)
    console.say(f"{did} {counted(len(gone), 'package')}, {filesize.decimal(total)}")
    console.result({"packages": gone, "bytes": total})


@command.command(
    "serve",
    epilog=examples(
        "lmsbuild channel serve /srv/conda",
        "lmsbuild channel serve /srv/conda --host 0.0.0.0 --port 8080   # to the whole network",
        "lmsbuild channel serve /srv/conda --name lms   # conda's listings show it as lms",
    ),
)
@_channel_argument
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Address to listen on; the default is reached from this machine only.",
)  # fmt: skip
@click.option(
    "--port", default=8000, show_default=True, metavar="N", type=click.IntRange(0, 65535),
    help="Port to listen on; 0 is a free one.",
)  # fmt: skip
@click.option(
    "--name", default="", metavar="NAME",
    help="Last step of the channel's URL, by which conda's listings call it; none by default.",
)  # fmt: skip
@json_option
def serve(*, channel: Path, host: str, port: int, name: str, console: Console) -> None:
    """Serve CHANNEL over http until Ctrl-C or SIGTERM, for a few clients, read-only.

    Stopped downloads go on where they stopped, and an unchanged index is not sent again.
    """
    from lmsbuild.conda.channelserver import server

    # A server that is told to end has not failed.
    with server(_channel(channel), host, port, name) as running, suppress(Interrupted):
        console.say(f"serving {channel} at {running.url}; Ctrl-C ends it")
        console.result({"url": running.url})
        sys.stdout.flush()
        console.rest()
        running.serve_forever()
