# SPDX-License-Identifier: Apache-2.0
"""What the tool's short commands cost: processes, and seconds of processors and of the clock.

    python tests/lmsbuild/bench.py [TAG] [--before CLONE]

Prints a table beside what each may cost, and what it cost on 6e513ce. With --before each command is
run in turn in another clone of the project, too. Exit status: 0, or 1 when one costs more than it
may. Processes are counted by strace, where it is. `apply` is measured with --before only: it is
taken off the checkout of TAG and put there again. What needs a checkout, or a wheel that can be
unchanged, is measured where there is one in work/.

Everything runs in copies, of the project's files and of what of work/ it needs: a refresh takes
what a checkout has into lms/, and no measurement may.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPEATS = 5  # the best counts: what others do on the machine is not the tool's


@dataclass(frozen=True)
class Bound:
    """What a command may cost; None is no bound."""

    words: tuple[str, ...]
    processes: int | None = None
    processor: float | None = None  # seconds
    clock: float | None = None  # seconds
    once: str = ""  # what it took on 6e513ce, as far as that was measured
    first: tuple[str, ...] = ()  # what is run before it each time, and not measured
    needs: str = ""  # what it works on, in a clone


@dataclass(frozen=True)
class Cost:
    processes: int | None
    processor: float
    clock: float


def bounds(root: Path, tag: str, *, changing: bool) -> list[Bound]:
    found = [
        Bound(("--help",), processor=0.3, once="1.5 s"),
        Bound(("tags",), processor=0.3),
        Bound(("status",), processes=10, clock=0.7, once="48 processes"),
        Bound(("verify", "--all"), clock=2.0, once="359 processes, 4.2 s"),
    ]
    source, wheel = f"work/*-{tag}/source/.git", f"work/*-{tag}/wheels/*.whl"
    if changing:
        found.append(Bound(("apply", tag), first=("undo", tag), needs=source))
    found += [
        Bound(("refresh", tag), processes=10, clock=0.7, once="181 processes", needs=source),
        Bound(("wheel", tag), clock=1.5, once="2.5 s", needs=wheel),
    ]
    return [bound for bound in found if there(bound, root)]


@contextmanager
def copied(root: Path, tag: str) -> Iterator[Path]:
    """A copy of the project at `root`, with the checkout and the wheels of `tag` that its work/
    has; on the same disk, so that the wheels need no room."""
    work = root / "work"
    work.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="bench-tool-") as place:
        copy = Path(place) / "project"
        subprocess.run(["git", "clone", "-q", "--shared", str(root), str(copy)], check=True)
        _copy_files(root, copy)
        for folder in work.glob(f"*-{tag}"):
            to = copy / "work" / folder.name
            if (folder / "source/.git").is_dir():
                shutil.copytree(folder / "source", to / "source", symlinks=True)
                # The index knows the files by their inodes, which are others now.
                refresh = ["git", "update-index", "-q", "--refresh"]
                subprocess.run(refresh, cwd=to / "source", check=False)
            if (folder / "wheels").is_dir():
                shutil.copytree(folder / "wheels", to / "wheels", copy_function=os.link)
        yield copy


def _copy_files(root: Path, copy: Path) -> None:
    """What is not committed, too."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=root, check=True, capture_output=True)
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    for file in [path for path in copy.rglob("*") if ".git" not in path.parts]:
        if not file.is_dir() and file.relative_to(copy).as_posix() not in names:
            file.unlink()
    for name in names:
        (copy / name).unlink(missing_ok=True)
        if os.path.lexists(root / name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name, follow_symlinks=False)


def there(bound: Bound, root: Path) -> bool:
    return not bound.needs or any(root.glob(bound.needs))


def measure(bound: Bound, root: Path) -> tuple[float, float]:
    """Seconds of processors and of the clock that a run of lmsbuild takes."""
    if bound.first:
        run(_command(bound.first), root)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run(_command(bound.words), root)
    clock, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def processes(bound: Bound, root: Path) -> int | None:
    """How many programs a run starts, itself among them; None where nothing can count them."""
    if shutil.which("strace") is None:
        return None
    if bound.first:
        run(_command(bound.first), root)
    with tempfile.NamedTemporaryFile() as told:
        trace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", told.name]
        run([*trace, *_command(bound.words)], root)
        lines = Path(told.name).read_text(errors="replace").splitlines()
    # Not those that were looked for in a folder of PATH that does not have them.
    return sum("execve(" in line and "= -1" not in line for line in lines)


def run(command: Sequence[str], root: Path) -> None:
    """Ends the program with what the command said, if it fails."""
    variables = {**os.environ, "PYTHONPATH": str(root / "tools")}
    for name in ("LMSBUILD_ROOT", "LMSBUILD_WORK"):  # which lead out of the copy
        variables.pop(name, None)
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} in {root} ended with {done.returncode}:\n{done.stderr}")


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "lmsbuild", *words]


def costs(bound: Bound, roots: Sequence[Path]) -> list[Cost]:
    """Of one command in each clone that has what it needs; they take turns."""
    roots = [root for root in roots if there(bound, root)]
    runs = [[measure(bound, root) for root in roots] for _ in range(REPEATS)]
    return [
        Cost(processes(bound, root), min(r[i][0] for r in runs), min(r[i][1] for r in runs))
        for i, root in enumerate(roots)
    ]


def cell(found: Sequence[float | None], bound: float | None) -> str:
    """Before, if that was measured, and now: `0.51, 0.24 of 0.3`."""
    texts = [
        "?" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
        for value in found
    ]
    return ", ".join(texts) + ("" if bound is None else f" of {bound}")


def within(bound: Bound, cost: Cost) -> bool:
    pairs = (
        (cost.processes, bound.processes),
        (cost.processor, bound.processor),
        (cost.clock, bound.clock),
    )
    return all(found is None or most is None or found <= most for found, most in pairs)


def main(tag: str, before: Path | None) -> int:
    with ExitStack() as stack:
        roots = [ROOT] if before is None else [before, ROOT]
        copies = [stack.enter_context(copied(root, tag)) for root in roots]
        return compare(copies, tag)


def compare(roots: Sequence[Path], tag: str) -> int:
    """The table of what each command costs in `roots`, of which the last is judged."""
    print(f"{platform.machine()}, {platform.system()} {platform.release()}, {os.cpu_count()} CPUs")
    print("\n| command | on 6e513ce | processes | processor, s | clock, s | within |")
    print("|---|---|---|---|---|---|")
    kept = True
    for bound in bounds(roots[-1], tag, changing=len(roots) > 1):
        found = costs(bound, roots)
        good = within(bound, found[-1])
        kept = kept and good
        cells = (
            cell([cost.processes for cost in found], bound.processes),
            cell([cost.processor for cost in found], bound.processor),
            cell([cost.clock for cost in found], bound.clock),
        )
        words = " ".join(bound.words)
        print(f"| `{words}` | {bound.once} | {' | '.join(cells)} | {'yes' if good else 'no'} |")
        sys.stdout.flush()
    return 0 if kept else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the tool's short commands cost.")
    parser.add_argument("tag", nargs="?", default="v2.6.0")
    parser.add_argument("--before", type=Path, metavar="CLONE", help="another clone of the project")
    options = parser.parse_args()
    sys.exit(main(options.tag, options.before))
