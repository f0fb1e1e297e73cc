# SPDX-License-Identifier: Apache-2.0
"""A tag that a series was just ported to: built and tried, and written down how far that went."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.checkout.newtag import verified
from lmsbuild.checkout.port import Outcome
from lmsbuild.places import device as devices
from lmsbuild.ship import pipeline, trial
from lmsbuild.ship.choices import Choices
from lmsbuild.tags.frameworks import Target, resolve
from lmsbuild.trials import suite


def wheel(done: Outcome, console: Console) -> Path:
    target = _target(done)
    made = pipeline.wheel(target, _choices(done), console)[1].wheel
    verified(target, "built")
    return made


def suites(done: Outcome, console: Console) -> suite.Outcome:
    """All of them, on the device that stands for a GPU."""
    target = _target(done)
    files = suite.suites(target, ())
    tools, alone = trial.packages(target)
    wanted = pipeline.Wanted(
        target=target,
        choices=_choices(done),
        device=devices.choose(target, "sim", None),
        prefix="test-",
        tools=tools,
        alone=alone,
    )
    ran = trial.run(wanted, files, console)
    if not ran.failed:
        verified(target, "trained")
    return ran


def _target(done: Outcome) -> Target:
    return resolve(find_project(), f"{done.series.partition(':')[0]}:{done.tag}")


def _choices(done: Outcome) -> Choices:
    return Choices(source="auto", reference=None, into=done.path, python=None, cuda=None, jobs=None)
