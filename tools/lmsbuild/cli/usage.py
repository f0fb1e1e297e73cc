# SPDX-License-Identifier: Apache-2.0
"""click's complaints about a command line in the form "X because Y; do Z"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click
from click.core import ParameterSource


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean ...? `, "" when nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {found[0]}? " if found else ""


def explain(error: click.ClickException) -> str:
    """The message for a user."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "lmsbuild"
    helps = f"run `{command} --help`"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in context.command.params for name in param.opts] if context else []
        return (
            f"{error.option_name} cannot be used because `{command}` has no such option; "
            f"{near(error.option_name, known)}{helps}"
        )
    if isinstance(error, click.MissingParameter):
        return f"`{command}` cannot start because {_name(error)} is missing; {helps}"
    if isinstance(error, click.BadParameter):
        reason = error.message.rstrip(".")
        return f"{_name(error)} cannot be used because {_lower(reason)}; {helps}"
    reason = _lower(error.format_message()).rstrip(".")
    reason = f"it {reason}" if reason.startswith("got ") else reason
    return f"`{command}` cannot start because {reason}; {helps}"


def _name(error: click.BadParameter) -> str:
    """--option, ARGUMENT or VARIABLE."""
    if error.param is None:
        return "a value"
    if isinstance(error.param, click.Argument):
        return error.param.human_readable_name
    source = error.ctx.get_parameter_source(error.param.name or "") if error.ctx else None
    if source is ParameterSource.ENVIRONMENT:
        return str(error.param.envvar)
    return max(error.param.opts, key=len)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
