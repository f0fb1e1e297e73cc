# SPDX-License-Identifier: Apache-2.0
"""The one way to git: GitPython, hermetic (`command`), pinned (`repository`), and on our console
(`progress`)."""

from lmsbuild.base.git.command import EMAIL, NAME, Git, git
from lmsbuild.base.git.repository import (
    NOTHING,
    Repository,
    check_sound,
    checkout_git,
    open_at,
    toplevel,
)
from lmsbuild.base.git.trees import ABSENT, Entry, Raw, changed, entries, folder

__all__ = [
    "ABSENT",
    "EMAIL",
    "NAME",
    "NOTHING",
    "Entry",
    "Git",
    "Raw",
    "Repository",
    "changed",
    "check_sound",
    "checkout_git",
    "entries",
    "folder",
    "git",
    "open_at",
    "toplevel",
]
