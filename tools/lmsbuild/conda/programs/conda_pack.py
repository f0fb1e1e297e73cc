# SPDX-License-Identifier: Apache-2.0
"""Runs rattler-build in a process of its own, which a signal ends.

While it works rattler-build holds the interpreter's lock, for half a minute with a framework: in
lmsbuild's own process neither progress nor a signal would come through. The arguments are `build`
or `test`, a JSON object, and the file that the answer, another one, is written to.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any

import rattler_build

_PR_SET_PDEATHSIG = 1


def build(recipe: str, platform: str, output: str, threads: int) -> dict[str, Any]:
    """Build the rendered `recipe`. Answers with the files made and what was logged."""
    config = (
        rattler_build.PlatformConfig(target_platform="linux-64")
        if platform == "noarch"
        else rattler_build.PlatformConfig(target_platform=platform, build_platform="linux-64")
    )
    variant = rattler_build.Stage0Recipe.from_file(recipe).render(
        rattler_build.VariantConfig(), rattler_build.RenderConfig(platform=config)
    )[0]
    done = variant.run_build(
        tool_config=rattler_build.ToolConfiguration(
            test_strategy="skip", compression_threads=threads
        ),
        output_dir=output, channels=[], package_format="conda:-7",
        no_build_id=True, no_include_recipe=True,
    )  # fmt: skip
    return {"files": [str(path) for path in done.packages], "log": list(done.log)}


def test(package: str, channels: list[str]) -> dict[str, Any]:
    """Run the tests in `package` in an environment from `channels`."""
    said = _Said()
    try:
        results = rattler_build.Package.from_file(package).run_tests(
            channel=channels, progress_callback=said
        )
    except rattler_build.RattlerBuildError as error:
        return {"log": said.lines, "error": str(error)}
    passed = all(result.success for result in results)
    return {"log": said.lines, "error": "" if passed else "a test failed"}


class _Said:
    """Keeps what rattler-build logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_log(self, event: Any) -> None:
        self.lines.append(event.message)

    def on_download_start(self, event: Any) -> None: ...
    def on_download_progress(self, event: Any) -> None: ...
    def on_download_complete(self, event: Any) -> None: ...
    def on_build_step(self, event: Any) -> None: ...


def main(work: str, order: str, answer: str) -> None:
    # If lmsbuild is killed, nobody is left who could end this.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        found = (build if work == "build" else test)(**json.loads(order))
    except rattler_build.RattlerBuildError as error:
        found = {"error": str(error)}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
