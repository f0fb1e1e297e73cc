# SPDX-License-Identifier: Apache-2.0
"""The benchmark on the dry device: what it runs, what it runs again, and its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lmsbench import dry
from lmsbench.dry import Bench, Case, page

# Stands for `python -m simcuda ... -m lmsbench.point POINT`: needs 4 GiB without a limit.
PROGRAM = """\
#!{python}
import json, sys
from pathlib import Path
point, memory = json.loads(sys.argv[-1]), int(sys.argv[sys.argv.index("--memory") + 1])
Path({log!r}).open("a").write(point["method"] + "\\n")
if "--trace" in sys.argv:
    profile = {{"name": "x", "link_in": 1e9, "link_out": 1e9, "efficiency": {{"link": 1}}}}
    about = {{"format": "simcuda-trace", "version": 1, "memory": 1, "devices": 1}}
    about["profile"] = profile
    Path(sys.argv[sys.argv.index("--trace") + 1]).write_bytes(
        json.dumps(about).encode() + b"\\n" + {body!r})
if point["method"] == "save_on_cpu":
    print(json.dumps({{"status": "oom", "message": "CUDA out of memory"}}))
else:
    TWO = 2 << 30
    slow = 1 if point["method"] == "plain" else 4
    said = {{"status": "ok", "peak_allocated": min(memory, 4 << 30), "copied_bytes": slow * TWO}}
    print(json.dumps({{**said, "seconds": [slow, slow], "all_seconds": 3 * slow}}))
"""
# Storages 0 and 1 of 2 GiB: made, made, read.
TWO = 2 << 30


def number(value: int) -> bytes:
    made = b""
    while value >= 0x80:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def op(name: bytes, *uses: bytes) -> bytes:
    return b"\1\0" + name + b"\0\0\0" + number(len(uses)) + b"".join(uses)


NEW = number(8 | 4 | 2) + number(TWO) + b"\0"
BODY = (
    op(b"\0\4make", NEW)
    + op(b"\0", number(16 | 8 | 4 | 2) + number(TWO) + b"\0")
    + op(b"\1\4read", number(0))
    + b"\0\0\0"
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dry, "FACTORS", (2.0,))
    program, log = tmp_path / "python", tmp_path / "log"
    program.write_text(PROGRAM.format(python=sys.executable, log=str(log), body=BODY))
    program.chmod(0o755)

    def run() -> tuple[Bench, list[str]]:
        log.write_text("")
        made = Bench(str(program), tmp_path / "results" / "r.jsonl")
        made.run(("v100-32gb-pcie3",), ("gpt2",))
        return made, log.read_text().split()

    return run


def test_the_benchmark_measures_once_and_says_what_is_modelled(bench: Any) -> None:
    made, ran = bench()
    assert ran == ["plain", "lms", "save_on_cpu", "checkpoint"]
    lms = made.found[Case("v100-32gb-pcie3", "gpt2", 16, "lms", 2.0).key]
    assert (lms["capacity"], lms["least_bytes"]) == (TWO, 2 * TWO)  # 0 leaves for 1, and comes back
    assert lms["least_seconds"] == pytest.approx(2 * TWO / 1e9)
    text = page(made.found, ("v100-32gb-pcie3",), ("gpt2",))
    assert "Every time on this page is modelled" in text
    assert "## v100-32gb-pcie3 (modelled)" in text
    row = "| gpt2 16 | 2 | 2.0 GiB | 0.25 | 1.50 | 2.79 | out of memory | 0.25 |"
    assert row in text
    again, ran = bench()
    assert ran == [] and again.found == made.found
    lines = made.path.read_text().splitlines()
    made.path.write_text("\n".join(lines[:1]) + "\n")  # as if it had been killed
    again, ran = bench()
    assert ran == ["plain", "lms", "save_on_cpu", "checkpoint"]  # for its trace
    assert [json.loads(line)["case"] for line in made.path.read_text().splitlines()] == [
        json.loads(line)["case"] for line in lines
    ]
