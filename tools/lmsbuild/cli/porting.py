# SPDX-License-Identifier: Apache-2.0
"""What `port` and `add` share: how they tell what became of the patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import PatchError
from lmsbuild.base.project import full_path
from lmsbuild.checkout.checkout import default_path, is_there
from lmsbuild.checkout.newtag import check_new, new_tag
from lmsbuild.checkout.port import Outcome
from lmsbuild.checkout.porting import Ported
from lmsbuild.checkout.source import is_repository
from lmsbuild.checkout.survey import survey
from lmsbuild.tags.frameworks import Target

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def telling(console: Console) -> Iterator[None]:
    """What became of the patches is said also when one needs a person."""
    try:
        yield
    except PatchError as failure:
        patches = failure.details.get("patches")
        if isinstance(patches, list):
            _show(patches, console)
            for note in patches[-1].notes:
                console.say(note)
        raise


def end_options(function: F) -> F:
    """The flags `compiled` and `tested` of a command whose end is a new tag."""
    compiled = click.option(
        "--wheel", "compiled", is_flag=True,
        help="At the end compile what the patches touch: make the wheel, as `lmsbuild wheel`, from "
        "the official ones that the package index has.",
    )  # fmt: skip
    tested = click.option(
        "--test", "tested", is_flag=True,
        help="As --wheel, and then run the suites, as `lmsbuild test`.",
    )  # fmt: skip
    return compiled(tested(function))


def tell(done: Outcome, console: Console, *, compiled: bool, tested: bool) -> None:
    _show(done.patches, console)
    for name in done.written:
        console.say(f"written: {name}")
    for what in done.unknown:
        console.say(f"not known: {what}")
    console.say(f"{done.series} is ported to {done.tag}: {done.path}")
    left = ["verify", "lint", "wheel", "test"]
    ran = None
    if compiled or tested:
        from lmsbuild.ship import proving, trial  # the whole way of a build

        done = replace(done, wheel=proving.wheel(done, console))
        console.say(f"wrote {done.wheel}")
        left.remove("wheel")
        if tested:
            ran = proving.suites(done, console)
            left.remove("test")
    *first, last = left
    console.say(f"next: complete tag.toml, then lmsbuild {', '.join(first)} and {last} {done.tag}")
    value = {**asdict(done), "suites": ran}
    if ran:
        trial.result(ran, value, console)
        trial.check(ran)
    else:
        console.result(value)


def _show(patches: list[Ported], console: Console) -> None:
    console.table("", ("patch", "state"), [(each.patch, each.state) for each in patches])


def foresee(target: Target, tag: str, source: str, into: Path | None, console: Console) -> None:
    """What would become of each patch, by the tag's code where that is at hand."""
    new = new_tag(target, tag)
    check_new(target, new)
    place = default_path(new, into)
    given = full_path(source)
    clone = given if "://" not in source and is_repository(given) else None
    name = new.tag_name
    if clone is None and is_there(place):
        clone, name = place, "HEAD"
    if clone is None:
        console.say(f"would fetch {new.label} to {place}, and port the series of {target.label}")
        console.result({"path": place, "patches": []})
        return
    rows = survey(target, [name], clone, console).rows
    console.table("", ("patch", "state"), [(row.patch, row.state) for row in rows])
    for row in rows:
        for file in row.files:
            for reason in file.reasons:
                console.say(f"{row.patch}: {reason}")
    console.say(
        f"would make these commits in {place}, up to the first patch that needs a person, and at "
        f"the end write patches/{new.framework_name}/{new.tag_name}"
    )
    console.result({"path": place, "patches": rows})
