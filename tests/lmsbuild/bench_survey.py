# SPDX-License-Identifier: Apache-2.0
"""How long `lmsbuild survey` takes, in a clone of true size with eight tags that went on.

    python tests/lmsbuild/bench_survey.py [TAG]

The clone is made of the checkout of TAG in work/: before each of the tags 200 commits to the files
that the series touches, so that nearly every patch is a conflict whose commit is looked for. Exit
status: 0, or 1 when it takes more than it may, or there is no checkout.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAGS, COMMITS = 8, 200
CLOCK = 60.0  # seconds that it may take


def drifted(checkout: Path, clone: Path) -> Path:
    """A clone in which upstream went on, by commits that put a line into a touched file, take one
    out or change one."""
    chance = random.Random(1)

    def git(*words: str, at: Path = checkout, give: bytes | None = None) -> bytes:
        command = ["git", "-C", str(at), *words]
        return subprocess.run(command, input=give, stdout=subprocess.PIPE, check=True).stdout

    base = git("rev-parse", "refs/worktree/lmsbuild/base").decode().strip()
    git("clone", "-q", "--bare", str(checkout), str(clone))
    names = git("diff", "--name-only", "--diff-filter=M", base, "refs/worktree/lmsbuild/applied")
    files = {name: git("show", f"{base}:{name}").split(b"\n") for name in names.decode().split()}
    stream = [f"reset refs/heads/bench\nfrom {base}\n"]
    for number in range(TAGS * COMMITS):
        name = chance.choice([*files])
        lines = files[name]
        at, kind = chance.randrange(len(lines)), chance.choice(("more", "other", "less"))
        lines[at : at + (kind != "more")] = [] if kind == "less" else [b"// %d" % number]
        text = b"\n".join(lines).decode()
        stream.append(
            f"commit refs/heads/bench\ncommitter Bench <bench> {1700000000 + number} +0000\n"
            f"data <<END\nChange {number}\nEND\n"
            f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n"
        )
        if number % COMMITS == COMMITS - 1:
            tag = f"bench-{number // COMMITS + 1}"
            stream.append(f"reset refs/tags/{tag}\nfrom refs/heads/bench\n\n")
    git("fast-import", "--quiet", at=clone, give="".join(stream).encode())
    return clone


def main(tag: str) -> int:
    checkouts = [*(ROOT / "work").glob(f"*-{tag}/source")]
    if not checkouts:
        print(f"no survey is measured because work/ has no checkout of {tag}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        clone = drifted(checkouts[0], Path(folder) / "clone")
        command = [sys.executable, "-m", "lmsbuild", "survey", tag, "--source", str(clone)]
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
        made = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        subprocess.run(
            [*command, "--tags", "bench-*"], cwd=ROOT, env=variables,
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        clock, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - made.ru_utime - made.ru_stime
    print(f"survey of {TAGS} tags: {clock:.1f} s of {CLOCK:.0f}, {processor:.1f} s of processors")
    return 0 if clock <= CLOCK else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "v2.6.0"))
