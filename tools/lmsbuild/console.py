# SPDX-License-Identifier: Apache-2.0
"""What a user sees: terse lines on stdout, progress on stderr for whatever takes over 2 s."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel
from rich import box
from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from lmsbuild import log

QUIET_SECONDS = 2.0
LINE_SECONDS = 15.0


class Task:
    """Something that takes time. Nothing is shown before QUIET_SECONDS; thread-safe.

    `size` (bytes), `digest` and `note` are what a caller wants told about a step.
    """

    def __init__(self, title: str, total: float | None, console: RichConsole) -> None:
        self.title = title
        self.depth = 0  # steps that it is part of
        self.seconds = 0.0
        self.size: int | None = None
        self.digest = ""
        self.note = ""
        self._total = total
        self._done = 0.0
        self._console = console
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def update(self, done: float, total: float | None = None) -> None:
        with self._lock:
            self._done = done
            self._total = total if total is not None else self._total

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self._done += amount

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _share(self) -> str:
        with self._lock:
            return f" {100 * self._done / self._total:.0f}%" if self._total else ""

    def _show(self) -> None:
        started = time.monotonic()
        if self._stop.wait(QUIET_SECONDS):
            return
        if not self._console.is_terminal:
            while True:
                seconds = time.monotonic() - started
                self._console.print(f"  {self.title}:{self._share()} ({seconds:.0f} s)")
                if self._stop.wait(LINE_SECONDS):
                    return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%" if self._total else ""),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(self.title, total=self._total)
            while not self._stop.wait(0.1):
                with self._lock:
                    progress.update(task, completed=self._done, total=self._total)


class Console:
    """Output of one command. With `json_mode` stdout holds one JSON value and nothing else."""

    def __init__(self, json_mode: bool = False) -> None:
        self.json_mode = json_mode
        self._out = RichConsole(highlight=False, soft_wrap=True)
        self._err = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self.steps: list[Task] = []
        self._depth = 0

    def say(self, text: str) -> None:
        if not self.json_mode:
            self._out.print(text, markup=False)

    def warn(self, text: str) -> None:
        self._err.print(f"warning: {text}", markup=False)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.json_mode:
            return
        table = Table(
            title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._out.print(table)

    def result(self, value: object) -> None:
        """The command's machine-readable result; shown only with --json."""
        if self.json_mode:
            sys.stdout.write(json.dumps(value, default=_jsonable, indent=2) + "\n")

    @contextmanager
    def task(self, title: str, total: float | None = None) -> Iterator[Task]:
        """Progress for a part of the work. `total` is the amount that makes it 100%."""
        task = Task(title, total, self._err)
        began = time.monotonic()
        log.note(f"{title}: begins")
        try:
            yield task
        except BaseException:
            task.note = task.note or "failed"
            raise
        finally:
            task.close()
            task.seconds = time.monotonic() - began
            log.note(f"{title}: {task.note or 'done'} after {task.seconds:.2f} s")

    @contextmanager
    def step(self, title: str, total: float | None = None) -> Iterator[Task]:
        """A task that is a line of the summary at the end of the command."""
        with self.task(title, total) as task:
            task.depth = self._depth
            self.steps.append(task)
            self._depth += 1
            try:
                yield task
            finally:
                self._depth -= 1


def _jsonable(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    return str(value)
