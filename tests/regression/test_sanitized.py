# SPDX-License-Identifier: Apache-2.0
"""The libraries, compiled with sanitizers, under the suites that move the most. Only when nothing
but this file is asked for: they are compiled from the tree LMS_SOURCE, which takes minutes.

torch, Python and the simulated device are not compiled so: what only these do is not seen, and what
they do to memory of ours, or with the locks that it has, is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lms_device
import pytest
from lms_rebuild import PLUGIN, Rebuilder

pytestmark = pytest.mark.sanitized
SECONDS = 3000
# Tests that give a program less memory than a sanitizer reserves.
LEFT_OUT = "not test_what_is_taken_is_not_merged"
# TensorPipe's message of a function that the simulated device refuses is a string that is gone.
KNOWN = "interceptor_via_fun:tensorpipe::getUuidOfDevice\n"


@dataclass(frozen=True)
class Sanitizer:
    flags: tuple[str, ...]
    runtimes: tuple[str, ...]  # loaded before all else, and libstdc++, whose exceptions they watch
    options: dict[str, str]  # by the variable that they are read from
    suites: tuple[str, ...]


COMMON = ("-O1", "-g1", "-fno-omit-frame-pointer")
SANITIZERS = {
    "address": Sanitizer(
        (
            *COMMON, "-D_GLIBCXX_ASSERTIONS", "-fsanitize=address,undefined",
            "-fno-sanitize=vptr",  # the official libraries hide what tells of classes
            "-fno-sanitize-recover=undefined",
        ),
        ("libasan.so", "libubsan.so", "libstdc++.so.6"),
        # Python frees nothing at its end.
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        (
            "adversarial", "allocator", "graphs", "launches", "pointers", "streams", "threads",
            "waits",
        ),
    ),
}  # fmt: skip


def _path_of(runtime: str) -> str:
    told = ["g++", f"-print-file-name={runtime}"]
    return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rebuilder]:
    source = os.environ.get("LMS_SOURCE")
    if not source or PLUGIN:
        pytest.skip("needs LMS_SOURCE, what the wheel was built from")
    if lms_device.device.kind != "sim":
        pytest.skip("the suites are of the simulated device")

    @cache
    def build(sanitizer: str) -> Rebuilder:
        folder = tmp_path_factory.mktemp(sanitizer)
        made = Rebuilder(Path(source), folder, SANITIZERS[sanitizer].flags)
        made.build_all()
        return made

    return build


@pytest.mark.parametrize(
    ("sanitizer", "suite"),
    [(name, suite) for name, one in SANITIZERS.items() for suite in one.suites],
)
def test_nothing_is_reported(
    rebuilt: Callable[[str], Rebuilder],
    tmp_path: Path,
    pytestconfig: Any,
    sanitizer: str,
    suite: str,
) -> None:
    chosen = SANITIZERS[sanitizer]
    reports = tmp_path / "report"
    known = tmp_path / "known"
    known.write_text(KNOWN)
    variables = {name: f"{text}:log_path={reports}" for name, text in chosen.options.items()}
    if sanitizer == "address":
        variables["ASAN_OPTIONS"] += f":suppressions={known}"
    variables["LD_PRELOAD"] = " ".join(map(_path_of, chosen.runtimes))
    stock = pytestconfig.getoption("--stock") or ""
    status, output = rebuilt(sanitizer).run(
        [f"test_{suite}.py"], stock, SECONDS, "default", variables, ("-k", LEFT_OUT)
    )
    found = "\n".join(report.read_text() for report in sorted(tmp_path.glob("report*")))
    assert not found, found[:20000]
    assert status == 0, output
