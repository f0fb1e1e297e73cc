# SPDX-License-Identifier: Apache-2.0
"""What git tells of a fetch, on our console."""

from __future__ import annotations

from lmsbuild.base.console import Task
from lmsbuild.base.git.command import git


class Progress(git.RemoteProgress):
    """Moves the bar of `task`: each stage of git's (counting, receiving, ...) fills it once."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    @property
    def text(self) -> str:
        """What git said besides."""
        return "\n".join([*self.other_lines, *self.error_lines])

    def update(
        self,
        op_code: int,
        cur_count: str | float,
        max_count: str | float | None = None,
        message: str = "",
    ) -> None:
        if max_count:
            self._task.update(float(cur_count), float(max_count))
