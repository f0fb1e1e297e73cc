# SPDX-License-Identifier: Apache-2.0
"""Tags of the small framework that went on without the series: one for each kind of drift."""

from __future__ import annotations

from pathlib import Path

from lmsbuild_world import UPSTREAM, World, hook_files, make_world, plain_git, write

ALLOC = UPSTREAM["core/alloc.cpp"]
# How upstream was before v1.0: the line that a hook changes had another value.
OLDER = {**UPSTREAM, "core/alloc.cpp": ALLOC.replace("line20 = 20", "line20 = 9")}
_NOISE = {"recognise.me": "alpha, and more\n"}
# Tag -> subject -> files; None removes one, and a name is what it is renamed to.
DRIFT: dict[str, dict[str, dict[str, str | None]]] = {
    "v1.1-moved": {"Say more": {"core/alloc.cpp": f"// one\n// two\n// three\n{ALLOC}"}},
    "v1.2-merged": {"Change a neighbour": {"core/alloc.cpp": ALLOC.replace("line18 =", "line18=")}},
    "v1.3-conflict": {
        "Say more": {"core/alloc.cpp": f"// one\n{ALLOC}"},
        "Change the line": {"core/alloc.cpp": f"// one\n{ALLOC}".replace("= 20;", "= 77;")},
        "Go on": {"core/alloc.cpp": f"// one\n// two\n{ALLOC}".replace("= 20;", "= 77;")},
    },
    "v1.4-inserted": {
        "Insert a line": {
            "core/alloc.cpp": ALLOC.replace("int line20", "int between;\nint line20", 1)
        }
    },
    "v1.5-renamed": {
        "Rename the file": {"python/api.py": None, "python/memory.py": UPSTREAM["python/api.py"]},
        "Go on": {**_NOISE},
    },
    "v1.6-deleted": {"Remove the file": {"python/windows.py": None}, "Go on": {**_NOISE}},
    "v1.7-taken": {
        "Take it": dict(next(iter(hook_files().values()))),
        "Go on": {**_NOISE},
    },
    "v1.8-in-the-way": {"Have an engine": {"core/lms/engine.cpp": "int engine();\n"}},
}


def make_drift(folder: Path) -> None:
    """A world whose upstream has the tags of DRIFT, and v0.9, beside v1.0."""
    make_world(folder, UPSTREAM, OLDER)
    upstream = folder / "upstream"
    for tag, commits in DRIFT.items():
        plain_git(upstream, "checkout", "-q", "--detach", "v1.0")
        for subject, files in commits.items():
            commit(upstream, files, subject)
        plain_git(upstream, "tag", tag)
    plain_git(upstream, "checkout", "-q", "main")


def commit(tree: Path, files: dict[str, str | None], subject: str) -> None:
    for name, text in files.items():
        if text is None:
            (tree / name).unlink()
        else:
            write(tree, {name: text})
    plain_git(tree, "add", "-A", "-f")
    plain_git(tree, "commit", "-q", "-m", subject)


def commit_called(world: World, tag: str, subject: str) -> str:
    """The id of a commit of upstream's."""
    found = plain_git(world.upstream, "log", "--format=%H %s", f"v1.0..{tag}")
    return next(line.split()[0] for line in found.splitlines() if line.endswith(f" {subject}"))
