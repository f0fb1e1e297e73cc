# SPDX-License-Identifier: Apache-2.0
"""What the commands that arrange patches share: the checkout, and how they tell what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import PatchError, UsageError
from lmsbuild.base.project import find_project
from lmsbuild.checkout.arrange import Arranged, Plan, Stack, arrange, open_stack
from lmsbuild.checkout.checkout import working_path
from lmsbuild.series.patchstate import PatchState
from lmsbuild.tags.frameworks import resolve


def run(
    tag: str, into: Path | None, words: Sequence[object], plan: Callable[[Stack], Plan],
    console: Console, *, dry_run: bool,
) -> None:  # fmt: skip
    """Arrange the patches of the checkout of `tag` by the plan that `plan` makes. `words` are the
    command and what it was given, without the TAG."""
    target = resolve(find_project(), tag)
    stack = open_stack(target, working_path(target, into))
    first, *rest = map(str, words)
    with telling(console):
        command = " ".join((first, target.tag_name, *rest))
        done = arrange(stack, plan(stack), command, console, dry_run=dry_run)
    tell(done, console)


def tell(done: Arranged, console: Console) -> None:
    show(done.patches, console)
    if done.dry_run:
        console.say(f"{done.path}: this would be so, and is not changed")
        console.result(done)
        return
    console.say(f"{done.path}: at {done.head[:12]}")
    if done.popped:
        console.say("next: lmsbuild push, or push --all (puts on what is popped)")
    elif not done.in_patches:
        console.say("next: lmsbuild refresh (puts the commits into the patches)")
    console.result(done)


@contextmanager
def telling(console: Console) -> Iterator[None]:
    """What became of the patches is said also when one needs a person."""
    try:
        yield
    except PatchError as failure:
        patches = failure.details.get("patches")
        if isinstance(patches, list):
            show(patches, console)
        raise


def show(patches: Sequence[PatchState], console: Console) -> None:
    if patches:
        console.table("", ("patch", "state"), [(each.patch, each.state) for each in patches])


def need(found: Sequence[object], count: int, what: str, command: str) -> None:
    """Raise UsageError when fewer than `count` words were given."""
    if len(found) < count:
        raise UsageError(
            f"`lmsbuild {command}` cannot start because {what} is missing; run `lmsbuild {command} "
            "--help`"
        )
