# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import UnknownTagError, UsageError
from lmsbuild.base.outputs import check_folder
from lmsbuild.base.project import find_project
from lmsbuild.base.settings import without_network
from lmsbuild.places.profile import PROFILE
from lmsbuild.ship.choices import Choices
from lmsbuild.tags.frameworks import Target, resolve, targets

F = TypeVar("F", bound=Callable[..., Any])


class UserPath(click.Path):
    """A file or folder that a user names; `~` is the home folder also where no shell sees it.

    Where only a file, or only a folder, may be, nothing else is taken: reading a FIFO or a device
    may never end.
    """

    def __init__(self, **conditions: Any) -> None:
        super().__init__(**{"path_type": Path, **conditions})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty, and no name of a file or folder", param, ctx)
        value = os.path.expanduser(value)  # noqa: PTH111
        with contextlib.suppress(OSError, ValueError):  # of which click says what there is to say
            mode = Path(value).stat().st_mode
            odd = not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
            if odd and not (self.file_okay and self.dir_okay):
                what = "regular file" if self.file_okay else "folder"
                self.fail(f"{value!r} is no {what}", param, ctx)
        return super().convert(value, param, ctx)


class OutputFolder(UserPath):
    """One that a command writes into, and makes if need be: told at once when it cannot."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if not (ctx and ctx.resilient_parsing):
            check_folder(path)
        return path


def _console(ctx: click.Context) -> Console:
    """The one console of the running command."""
    key = "lmsbuild.console"
    if key not in ctx.meta:
        ctx.meta[key] = Console()
        if not ctx.resilient_parsing:  # as for a completion
            cache.check_variables()
            ctx.with_resource(ctx.meta[key].running(ctx.info_name or ""))
    found: Console = ctx.meta[key]
    return found


def _json(ctx: click.Context, _: click.Parameter, value: object) -> Console:
    found = _console(ctx)
    found.json_mode = bool(value)
    _check_form(found)
    return found


def _markdown(ctx: click.Context, _: click.Parameter, value: object) -> None:
    found = _console(ctx)
    found.markdown = bool(value)
    _check_form(found)


def _check_form(found: Console) -> None:
    if found.json_mode and found.markdown:
        found.markdown = False
        raise UsageError(
            "--markdown cannot go with --json because each wants standard output for itself; leave "
            "it out, the steps are in the JSON result"
        )


def json_option(function: F) -> F:
    """Gives the command its `console`."""
    return click.option(
        "--json", "console", is_flag=True, callback=_json,
        help="Print one JSON value on standard output instead of text.",
    )(function)  # fmt: skip


def markdown_option(function: F) -> F:
    return click.option(
        "--markdown", is_flag=True, expose_value=False, callback=_markdown,
        help="Print the summary of the steps as a Markdown table, and nothing else, on standard "
        "output.",
    )(function)  # fmt: skip


def dry_run_option(function: F) -> F:
    """Gives the command `dry_run`, and its result says it."""

    @functools.wraps(function)
    def told(*, dry_run: bool, console: Console, **values: Any) -> Any:
        console.dry_run = dry_run
        return function(dry_run=dry_run, console=console, **values)

    option = click.option(
        "--dry-run", is_flag=True, help="Say what would be done and change nothing."
    )
    return cast(F, option(told))


def dry_options(function: F) -> F:
    """Give the command `profile`: None unless it is to run on the dry device."""

    @functools.wraps(function)
    def chosen(*, dry: bool, profile: str | None, **values: Any) -> Any:
        if profile is not None and not dry:
            raise UsageError(
                f"--profile {profile} cannot be used because it is of the dry device; give --dry, "
                "too, or leave it out"
            )
        if dry and values.get("wanted"):
            raise UsageError(
                f"--dry cannot go with --device {values['wanted']} because it is a device of its "
                "own; leave one of them out"
            )
        return function(profile=(profile or PROFILE) if dry else None, **values)

    for option in (
        click.option(
            "--profile", metavar="NAME",
            help=f"The GPU that the dry device stands for [default: {PROFILE}].",
        ),
        click.option(
            "--dry", is_flag=True,
            help="Run on the simulated device that computes nothing, at true sizes and in modelled "
            "time.",
        ),
    ):  # fmt: skip
        chosen = option(chosen)
    return chosen  # type: ignore[return-value]


def completer(name: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A function of lmsbuild.completion, imported when a shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from lmsbuild.cli import completion

        found: list[str] = getattr(completion, name)(ctx, param, incomplete)
        return found

    return complete


def tag_argument(function: F) -> F:
    """The argument `tag`; when the user names none, that of a checkout (`default_tag`)."""

    @functools.wraps(function)
    def named(tag: str | None, **values: Any) -> Any:
        if tag is not None:
            tag, values = _moved_on(tag, values)
        if tag is None:
            tag = _default_tag(values)
        return function(tag=tag, **values)

    argument = click.argument(
        "tag", required=False, metavar="[TAG]", shell_complete=completer("tags")
    )
    decorated: Any = _with_default(argument(named))
    return decorated  # type: ignore[no-any-return]


def _moved_on(tag: str, values: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The first word without a TAG is a suite, a patch, a file, or an argument of the benchmark."""
    if "suite" in values:
        from lmsbuild.cli.default_tag import is_suite

        if is_suite(tag):
            return None, {**values, "suite": (tag, *values["suite"])}
    for name in ("patches", "files"):
        if name in values and not _is_tag(tag):
            return None, {**values, name: (tag, *values[name])}
    if "arguments" in values and tag.startswith("-"):
        return None, {**values, "arguments": (tag, *values["arguments"])}
    return tag, values


def _is_tag(word: str) -> bool:
    try:
        resolve(find_project(), word)
    except UnknownTagError:
        return False
    return True


def _default_tag(values: Mapping[str, Any]) -> str:
    from lmsbuild.cli.default_tag import default_tag

    context = click.get_current_context()
    if values.get("new"):
        raise UsageError(
            f"`{context.command_path}` cannot start because TAG is missing and --new is for a "
            "release that is not known yet; name it"
        )
    # refresh calls a checkout so, other commands a route.
    source = values.get("source")
    place = values.get("into") or (source if isinstance(source, Path) else None)
    return default_tag(context.command_path, place, _console(context))


def _with_default(function: F) -> F:
    """Say in --help what becomes of a command line without a TAG."""
    function.__doc__ = (
        f"{inspect.cleandoc(function.__doc__ or '')}\n\n"
        "Without TAG: that of the checkout you stand in, else of the only one in work/."
    )
    return function


def suite_argument(function: F) -> F:
    return click.argument("suite", nargs=-1, shell_complete=completer("suites"))(function)


def patches_argument(function: F) -> F:
    """The argument `patches`, by number or name."""
    return click.argument("patches", metavar="PATCH...", nargs=-1)(function)


def patch_option(function: F) -> F:
    return click.option(
        "--patch", metavar="PATCH",
        help="The patch, by its number or a part of its name [default: the last on the checkout].",
    )(function)  # fmt: skip


def files_argument(function: F) -> F:
    """The argument `files`, which need not exist when they are read."""
    argument = click.argument("files", metavar="FILE...", nargs=-1, type=UserPath())

    @functools.wraps(function)
    def named(files: tuple[Path | str, ...], **values: Any) -> Any:
        # The first may have come as a TAG.
        return function(files=tuple(Path(file).expanduser() for file in files), **values)

    return argument(named)  # type: ignore[return-value]


def tag_choice(function: F) -> F:
    """The argument `tag`, None when the user names none."""
    return click.argument("tag", required=False, shell_complete=completer("tags"))(function)


def tags_option(function: F) -> F:
    """The argument `tags` and the flag `every` of a command that checks many tags at once."""
    every = click.option("--all", "every", is_flag=True, help="Every supported tag.")
    argument = click.argument(
        "tags", metavar="[TAG]...", nargs=-1, shell_complete=completer("tags")
    )
    return _with_default(argument(every(function)))


def chosen(tags: Sequence[str], *, every: bool, place: Path | None = None) -> list[Target]:
    """What `tags_option` asks for; without a TAG that of the checkout at `place`, or of the one
    that `default_tag` finds. Raises UsageError when there is none."""
    project = find_project()
    if every:
        return targets(project)
    return [resolve(project, tag) for tag in tags or [_default_tag({"into": place})]]


def source_option(function: F) -> F:
    """The argument `source` of a command that fetches, and --offline, which every such one has."""
    return offline_option(
        click.option(
            "--source", default="auto", show_default=True, metavar="auto|git|debian|PATH|URL",
            help="Where the source comes from. auto: upstream git if it answers within 5 s, "
            "else Debian's source package.",
        )(function)
    )  # fmt: skip


def offline_option(function: F) -> F:
    def switch_off(ctx: click.Context, _: click.Parameter, value: object) -> None:
        if value:
            ctx.with_resource(without_network())

    return click.option(
        "--offline", is_flag=True, expose_value=False, callback=switch_off,
        help="Download nothing: use what was fetched before (also LMSBUILD_OFFLINE=1).",
    )(function)  # fmt: skip


def cuda_option(function: F) -> F:
    return click.option(
        "--cuda", metavar="X.Y",
        help="CUDA version of the official wheel [default: the tag's first].",
    )(function)  # fmt: skip


def reference_option(function: F) -> F:
    return click.option(
        "--reference", metavar="PATH", type=UserPath(exists=True),
        envvar="LMSBUILD_MIRROR",
        help="A clone of the framework: what it has is not downloaded from git. It is not needed "
        "afterwards.",
    )(function)  # fmt: skip


def into_option(function: F) -> F:
    return click.option(
        "--into", metavar="DIR", type=UserPath(file_okay=False),
        help="The checkout's folder instead of work/<framework>-<tag>/source.",
    )(function)  # fmt: skip


def clone_option(function: F) -> F:
    """The argument `place` of a command that reads the framework's code."""
    return click.option(
        "--from", "place", metavar="DIR",
        type=UserPath(exists=True, file_okay=False),
        help="A clone with the tag's code [default: the one you stand in, the work folder's, the "
        "cache's].",
    )(function)  # fmt: skip


def python_option(function: F) -> F:
    return click.option(
        "--python", "python", metavar="X.Y", shell_complete=completer("pythons"),
        help="Python version [default: the running one, else the tag's newest].",
    )(function)  # fmt: skip


def jobs_option(function: F) -> F:
    return click.option(
        "--jobs", "-j", metavar="N", type=click.IntRange(min=1),
        help="Parallel compilations [default: the number of processors].",
    )(function)  # fmt: skip


def container_option(function: F) -> F:
    """The flag `in_container` of a command that builds the wheel on its way, and --base-image."""
    return base_image_option(
        click.option(
            "--container", "in_container", is_flag=True,
            help="Compile as `lmsbuild wheel --container`.",
        )(function)
    )  # fmt: skip


def base_image_option(function: F) -> F:
    return click.option(
        "--base-image", metavar="IMAGE",
        help="The image to build on, instead of the one in tag.toml.",
    )(function)  # fmt: skip


def output_option(what: str) -> Callable[[F], F]:
    """--output, a folder for `what`, None for the tag's own."""
    return click.option(
        "--output", "-o", metavar="DIR", type=OutputFolder(),
        help=f"Folder for {what} [default: work/<framework>-<tag>/wheels].",
    )  # fmt: skip


def _together(
    name: str, record: Callable[..., Any], *options: Callable[[F], F]
) -> Callable[[F], F]:
    """One decorator for `options`, whose values come as the one argument `name`, a `record`."""
    fields = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            chosen = {field: values.pop(field) for field in fields}
            return function(**values, **{name: record(**chosen)})

        decorated: Any = gathered
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


# What a user chooses about a build, as the argument `choices`.
build_options = _together(
    "choices",
    Choices,
    source_option,
    reference_option,
    into_option,
    python_option,
    cuda_option,
    jobs_option,
)


def examples(*lines: str) -> str:
    """Epilog for --help that keeps its line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
