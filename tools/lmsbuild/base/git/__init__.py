# SPDX-License-Identifier: Apache-2.0
"""The one way to git: GitPython, hermetic (`command`), pinned (`repository`), and on our console
(`progress`)."""

from lmsbuild.base.git.command import EMAIL, NAME, TRUSTING, Git, git, version
from lmsbuild.base.git.repository import (
    NOTHING,
    Repository,
    checkout_git,
    checkout_top,
    has_git,
    is_bare,
    open_at,
)
from lmsbuild.base.git.trees import ABSENT, Entry, Raw, changed, entries, folder, obstacles

__all__ = [
    "ABSENT",
    "EMAIL",
    "NAME",
    "NOTHING",
    "TRUSTING",
    "Entry",
    "Git",
    "Raw",
    "Repository",
    "changed",
    "checkout_git",
    "checkout_top",
    "entries",
    "folder",
    "git",
    "has_git",
    "is_bare",
    "obstacles",
    "open_at",
    "version",
]
