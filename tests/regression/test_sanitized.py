# SPDX-License-Identifier: Apache-2.0
"""The libraries, compiled with sanitizers, under the suites that move the most. Only when nothing
but this file is asked for: they are compiled from what the package was built from, which takes
minutes.

torch, Python and the simulated device are not compiled so: what only these do is not seen, and what
they do to memory of ours, or with the locks that it has, is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lms_device
import pytest
from lms_device import HERE
from lms_rebuild import PLUGIN, Rebuilder, tree_of_package

pytestmark = pytest.mark.sanitized
SECONDS = 3000
# Of the plug-in's, which is the same but for its allocator.
PLUGIN_SUITES = {"adversarial", "beside", "pointers", "streams", "threads", "waits"}
# Beside it each program imports torch under the sanitizer, so of a suite that is all programs only
# these modes run: what is queued runs as late as it can, and what can leave does.
PLUGIN_MODES = {"adversarial": "lazy or chaos"}
# Tests that give a program less memory than a sanitizer reserves.
LEFT_OUT = "not test_what_is_taken_is_not_merged"


@dataclass(frozen=True)
class Sanitizer:
    flags: tuple[str, ...]
    runtimes: tuple[str, ...]  # loaded before all else, and libstdc++, whose exceptions they watch
    options: dict[str, str]  # by the variable that they are read from; with what is known
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
        {
            "ASAN_OPTIONS": "detect_leaks=0:suppressions={known}",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        (
            "adversarial", "allocator", "beside", "graphs", "launches", "pointers", "streams",
            "threads", "waits",
        ),
    ),
    "thread": Sanitizer(
        (*COMMON, "-fsanitize=thread"),
        ("libtsan.so", "libstdc++.so.6"),
        # Of the other libraries it sees too little of what orders their accesses to tell of them.
        {
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:die_after_fork=0:"
            "suppressions={known}",
        },
        (
            "adversarial", "beside", "graphs", "pointers", "programs", "streams", "threads",
            "waits",
        ),
    ),
}  # fmt: skip


def _path_of(runtime: str) -> str:
    told = ["g++", f"-print-file-name={runtime}"]
    return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rebuilder]:
    if lms_device.device.kind != "sim":
        pytest.skip("the suites are of the simulated device")

    @cache
    def build(sanitizer: str) -> Rebuilder:
        folder = tmp_path_factory.mktemp(sanitizer)
        made = Rebuilder(tree_of_package(folder), folder, SANITIZERS[sanitizer].flags)
        made.build_all()
        return made

    return build


@pytest.mark.parametrize(
    ("sanitizer", "suite"),
    [
        (name, suite)
        for name, one in SANITIZERS.items()
        for suite in one.suites
        if not PLUGIN or suite in PLUGIN_SUITES
    ],
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
    known = HERE / f"reports_of_{sanitizer}.supp"
    variables = {
        name: f"{text.format(known=known)}:log_path={reports}"
        for name, text in chosen.options.items()
    }
    variables["LD_PRELOAD"] = " ".join(map(_path_of, chosen.runtimes))
    stock = pytestconfig.getoption("--stock") or ""
    words = LEFT_OUT
    if PLUGIN and suite in PLUGIN_MODES:
        words += f" and ({PLUGIN_MODES[suite]})"
    status, output = rebuilt(sanitizer).run(
        [f"test_{suite}.py"], stock, SECONDS, "default", variables, ("-k", words)
    )
    found = "\n".join(report.read_text() for report in sorted(tmp_path.glob("report*")))
    assert not found, found[:20000]
    assert status == 0, output
