# SPDX-License-Identifier: Apache-2.0
"""The way from a tag to its checkout with the series on it, as steps of a command's summary."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.checkout.apply import Applied, apply
from lmsbuild.checkout.checkout import Checkout, fetch, working_path
from lmsbuild.ship.choices import Choices
from lmsbuild.tags.frameworks import Target


def fetched(
    target: Target,
    source: str,
    into: Path | None,
    console: Console,
    reference: Path | None = None,
) -> Checkout:
    with console.step("fetch") as step:
        done = fetch(target, source, into, console, reference)
        step.digest, step.note = done.commit, done.route
    return done


def applied(target: Target, path: Path, console: Console, *, dry_run: bool = False) -> Applied:
    with console.step("apply") as step:
        done = apply(target, path, console, dry_run=dry_run)
        step.digest = done.head
        step.note = f"{len(done.patches)} applied, {done.already} there already"
    return done


def patched(
    target: Target, choices: Choices, console: Console, *, dry_run: bool = False
) -> Path:  # fmt: skip
    """The checkout with the series on it, fetched if need be."""
    into = working_path(target, choices.into)
    path = fetched(target, choices.source, into, console, choices.reference).path
    applied(target, path, console, dry_run=dry_run)
    return path
