# SPDX-License-Identifier: Apache-2.0
"""What a user sees: terse lines on stdout, progress on stderr for whatever takes over 2 s.

Everything longer goes to the log. Colour and moving bars are for terminals only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pydantic import BaseModel
from rich import box, filesize
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from lmsbuild.base import log
from lmsbuild.base.interrupt import Interrupted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS = 2.0
LINE_SECONDS = 15.0
_TICK_SECONDS = 0.1
_LEAST_WIDTH = 40
_BETWEEN = 3  # columns between those of a table
_UNLIMITED = 10_000  # columns of what is no terminal
_CONTROLS = re.compile(r"[\x00-\x06\x0e-\x1f\x7f-\x9f]")  # rich leaves the others out itself
_STYLES = {"ok": "green", "MISSING": "bold red", "failed": "bold red"}


class Task:
    """Something that takes time; safe to update from any thread.

    `size` (bytes), `digest` and `note` are what a caller wants told about a step.
    """

    def __init__(self, title: str, total: float | None) -> None:
        self.title = title
        self.depth = 0  # steps that it is part of
        self.seconds = 0.0
        self.size: int | None = None
        self.digest = ""
        self.note = ""
        self.command = False  # stands for the whole command
        self.whole = True  # no task has begun inside it
        self.total = total
        self.done = 0.0
        self.began = time.monotonic()
        self._lock = threading.Lock()

    def update(self, done: float, total: float | None = None) -> None:
        with self._lock:
            self.done = done
            self.total = total if total is not None else self.total

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self.done += amount

    @property
    def share(self) -> str:
        return f" {100 * self.done / self.total:.0f}%" if self.total else ""


class _Display:
    """Shows the running tasks that are older than QUIET_SECONDS, from a thread of its own.

    On a terminal as bars; else the innermost one as a line every LINE_SECONDS.
    """

    def __init__(self, console: RichConsole, *, live: bool) -> None:
        self._console = console
        self._live = live
        self._tasks: list[Task] = []
        self._told: set[Task] = set()
        self._last_line = -LINE_SECONDS
        self._bars: Progress | None = None
        self._bar_of: dict[Task, TaskID] = {}
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self.resting = False

    def add(self, task: Task) -> None:
        with self._lock:
            if self._tasks:
                self._tasks[-1].whole = False
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, daemon=True)
                self._thread.start()

    def remove(self, task: Task) -> None:
        with self._lock:
            self._tasks.remove(task)
            self._told.discard(task)
            bar = self._bar_of.pop(task, None)
            if self._bars and bar is not None:
                self._bars.remove_task(bar)
            if not self._bar_of:
                self._hide()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Nothing is drawn inside, and no bar is in the way."""
        with self._lock:
            self._hide()
            yield

    def _hide(self) -> None:
        if self._bars:
            self._bars.stop()
        self._bars = None
        self._bar_of.clear()

    def _loop(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            with self._lock:
                if not self._tasks or self.resting:
                    self._thread = None
                    return
                now = time.monotonic()
                old = [task for task in self._tasks if now - task.began >= QUIET_SECONDS]
                # The command as a whole is shown where it has no parts that could be.
                old = old[1:] if len(old) > 1 and old[0].command else old
                if old and self._live:
                    self._draw(old)
                elif old and not self._soon(now):
                    self._print(old[-1], now)

    def _soon(self, now: float) -> bool:
        """Whether the innermost task will be old enough in a moment, and told of instead."""
        return QUIET_SECONDS / 2 <= now - self._tasks[-1].began < QUIET_SECONDS

    def _draw(self, tasks: list[Task]) -> None:
        if self._bars is None:
            from rich import progress  # most commands are over before

            self._bars = progress.Progress(
                progress.SpinnerColumn(
                    "dots" if self._console.encoding.startswith("utf") else "line"
                ),
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TimeElapsedColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bars.start()
        for task in tasks:
            if task not in self._bar_of:
                self._bar_of[task] = self._bars.add_task(task.title, total=task.total)
                self._bars.tasks[-1].start_time = task.began
            self._bars.update(self._bar_of[task], completed=task.done, total=task.total)

    def _print(self, task: Task, now: float) -> None:
        """A task that has no parts is told of at once, any other when nothing was for a while."""
        new = task.whole and task not in self._told
        if new or now - self._last_line >= LINE_SECONDS:
            self._told.add(task)
            self._last_line = now
            line = f"  {task.title}:{task.share} ({now - task.began:.0f} s)"
            self._console.print(line, markup=False)


class Console:
    """Output of one command.

    With `json_mode` stdout holds one JSON value and nothing else, with `markdown` the summary of
    the steps and nothing else.
    """

    def __init__(self, *, json_mode: bool = False, markdown: bool = False) -> None:
        self.json_mode = json_mode
        self.markdown = markdown
        self.dry_run: bool | None = None  # None: of a command that has no dry run
        self.steps: list[Task] = []
        self._out = _rich(sys.stdout)
        self._err = _rich(sys.stderr)
        self._display = _Display(self._err, live=_is_live(sys.stderr))
        self._depth = 0
        self._summarised = False

    def say(self, text: str) -> None:
        if not self.json_mode:
            self._print(_visible(text))

    def tell(self, text: str) -> None:
        """A line that is not the command's result: on standard error, in every form of output."""
        log.note(text)
        with self._display.hidden():
            self._err.print(_visible(text), markup=False)

    def warn(self, text: str) -> None:
        log.note(f"warning: {text}")
        with self._display.hidden():
            self._err.print(Text.assemble(("warning: ", "yellow"), _visible(text)))

    def fail(self, message: str, log_file: Path | None) -> None:
        """Why the command failed, last, so that it is what stays in view."""
        if log_file:
            self._err.print(_visible(f"full log: {log_file}"), markup=False, style="dim")
        line = _visible(message).replace("\n", r"\n")  # one, whatever a file of it is called
        self._err.print(Text.assemble(("error: ", "bold red"), line))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.json_mode:
            return
        shown = [[_visible(cell) for cell in row] for row in rows]
        columns = list(zip(header, *shown, strict=True))
        room = self._out.width - _BETWEEN * len(columns)
        widths = _widths(columns, room)
        if sum(widths) > room:
            self._list(title, header, shown)
            return
        table = Table(
            title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for name, width in zip(header, widths, strict=True):
            table.add_column(name, overflow="fold", width=width)
        for row in shown:
            table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
        self._print(table)

    def _list(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table whose words have no room side by side: one row below the other."""
        if title:
            self.say(title)
        for first, *others in rows:
            self._print(first)
            table = Table.grid(padding=(0, 2))
            for name, cell in zip(header[1:], others, strict=True):
                table.add_row(f"  {name}", Text(cell, _STYLES.get(cell, "")))
            self._print(table)

    def result(self, value: object) -> None:
        """The end of a command that succeeded: its machine-readable result with --json, else the
        summary of its steps if they took long."""
        if self.json_mode:
            sys.stdout.write(json.dumps(self._whole(value), default=jsonable, indent=2))
            sys.stdout.write("\n")
            return
        if sum(step.seconds for step in self.steps if step.depth == 0) >= QUIET_SECONDS:
            self._summarise()

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Progress for whatever part of a command has none of its own."""
        task = Task(command, None)
        task.command = True
        self._display.add(task)
        try:
            yield
        finally:
            self._display.remove(task)
            if self.markdown:  # also of a command that failed
                self._summarise()

    def rest(self) -> None:
        """No more progress: what is left is to wait, for as long as the user likes."""
        self._display.resting = True

    @contextmanager
    def task(self, title: str, total: float | None = None) -> Iterator[Task]:
        """Progress for a part of the work. `total` is the amount that makes it 100%."""
        task = Task(title, total)
        self._display.add(task)
        log.note(f"{title}: begins")
        try:
            yield task
        except BaseException as error:
            task.note = task.note or "failed"
            if isinstance(error, Interrupted):
                error.during = error.during or title
            raise
        finally:
            self._display.remove(task)
            task.seconds = time.monotonic() - task.began
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

    def _print(self, text: str | Table) -> None:
        with self._display.hidden():
            (self._err if self.markdown else self._out).print(text, markup=False)

    def _whole(self, value: object) -> object:
        """With what every command tells: whether it was a dry run, and its steps."""
        if not self.steps and self.dry_run is None:
            return value
        plain = value if isinstance(value, dict | list) else jsonable(value)
        if self.dry_run is not None and isinstance(plain, dict):
            plain = {**plain, "dry_run": self.dry_run}
        if not self.steps:
            return plain
        steps = [
            {
                "step": step.title,
                "depth": step.depth,
                "seconds": round(step.seconds, 2),
                "size": step.size,
                "hash": step.digest,
                "note": step.note,
            }
            for step in self.steps
        ]
        return {**plain, "steps": steps, "log": log.path()} if isinstance(plain, dict) else value

    def _summarise(self) -> None:
        if self._summarised:
            return
        self._summarised = True
        rows = [
            (
                "  " * step.depth + step.title,
                f"{step.seconds:.1f} s",
                "" if step.size is None else filesize.decimal(step.size),
                step.digest[:12],
                step.note,
            )
            for step in self.steps
        ]
        header = ("step", "time", "size", "hash", "")
        used = [i for i in range(len(header)) if i < 2 or any(row[i] for row in rows)]
        rows_used = [[row[i] for i in used] for row in rows]
        if self.markdown:
            lines = [[header[i] for i in used], ["---"] * len(used), *rows_used]
            for line in lines:
                cells = (cell.replace("|", r"\|") for cell in line)
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
        else:
            self.table("", [header[i] for i in used], rows_used)
            if log.path():
                self.say(f"full log: {log.path()}")


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide columns are so that no word in them is broken, which may be more than `room`. Where
    there is more room than that, narrow ones come first."""
    words = [[word for cell in column for word in cell.split()] for column in columns]
    lines = [[line for cell in column for line in cell.splitlines()] for column in columns]
    widths = [max(map(cell_len, each), default=0) for each in words]
    most = [max(map(cell_len, each), default=0) for each in lines]
    for _ in range(room - sum(widths)):
        short = [n for n, width in enumerate(widths) if width < most[n]]
        if not short:
            break
        widths[min(short, key=widths.__getitem__)] += 1
    return widths


def _visible(text: str) -> str:
    """`text` without what a terminal would obey: a file may be called anything."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class _Rich(RichConsole):
    def on_broken_pipe(self) -> None:
        """rich would exit; here it is the command that ends."""
        raise BrokenPipeError


def _rich(stream: TextIO) -> RichConsole:
    """rich decides on colour (NO_COLOR, FORCE_COLOR, TERM); it breaks and replaces no text."""
    found = _Rich(file=stream, highlight=False, soft_wrap=True, emoji=False)
    found.width = max(found.width, _LEAST_WIDTH) if stream.isatty() else _UNLIMITED
    return found


def _is_live(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{plural}"


def jsonable(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    return str(value)
