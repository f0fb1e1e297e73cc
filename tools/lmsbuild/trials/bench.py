# SPDX-License-Identifier: Apache-2.0
"""Runs tools/lmsbench in an environment that has Large Model Support, and resumes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import BenchError
from lmsbuild.base.project import make_folder
from lmsbuild.places import device as devices
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Environment

# A model that the simulated device trains in seconds.
_SIMULATED = ("--scale", "32", "--growth", "2", "--caps", "48M", "--steps", "1", "--warmup", "1")
_SIMULATED_MEMORY = "192M"


@dataclass(frozen=True)
class Benchmark:
    """What is run: `arguments` go to `lmsbench run` and `lmsbench report` both; on a dry
    device to `lmsbench.dry`."""

    environment: Environment
    device: Device
    variables: dict[str, str]
    results: Path
    arguments: Sequence[str]
    tools: Path  # where lmsbench is
    elsewhere: Mapping[str, Environment] = field(default_factory=dict)  # dry: by their methods

    def run(self, minutes: float, console: Console) -> Path | None:
        """Measure what is not measured yet for at most about `minutes`, and write the page beside
        the results. Each point is said as it comes. None where the arguments only ask for help.
        Raises BenchError."""
        make_folder(self.results.parent)
        results = ("--results", str(self.results))
        page = self.results.parent / "README.md"
        measures = not {"-h", "--help"} & set(self.arguments)
        if self.device.kind == "dry":
            self._dry(console, *results, "--page", str(page), "--minutes", f"{minutes:g}")
        else:
            self._lmsbench(console, "run", *results, "--minutes", f"{minutes:g}")
            if measures:
                self._lmsbench(console, "report", *results)
        return page if measures else None

    def compare(self, plugin: Path, page: Path, console: Console) -> None:
        """Write these results, of the patch, beside those of the plug-in into `page`. Raises
        BenchError."""
        files = ("--patch", str(self.results), "--plugin", str(plugin), "--page", str(page))
        self._lmsbench(console, "compare", *files)

    def _lmsbench(self, console: Console, command: str, *options: str) -> None:
        simulated = self.device.kind == "sim"
        words = ["-m", "simcuda", "--memory", _SIMULATED_MEMORY] if simulated else []
        words += ["-m", "lmsbench", command, *options]
        words += [*(_SIMULATED if simulated else ()), *self.arguments]
        python = str(self.environment.python)
        environment = self.environment.run_environment(self.variables)
        self._follow(console, f"lmsbench {command}", [python, *words], environment)

    def _dry(self, console: Console, *options: str) -> None:
        """By this Python, which has the solver of the bounds; the environment's trains."""
        words = ["-m", "lmsbench.dry", "--python", str(self.environment.python), *options]
        for method, environment in self.elsewhere.items():
            words += [f"--{method}", str(environment.python)]
        words += ["--profiles", self.device.profile, *self.arguments]
        variables = self.environment.run_environment(
            # Each run says by itself what device it is for.
            {k: v for k, v in self.variables.items() if k not in devices.DRY_VARIABLES}
        )
        variables["PYTHONPATH"] = str(self.tools)
        self._follow(console, "lmsbench.dry", [sys.executable, *words], variables)

    def _follow(
        self, console: Console, name: str, command: list[str], environment: dict[str, str]
    ) -> None:
        def line(text: str) -> bool:
            console.say(text.rstrip())
            return True

        code = log.follow(command, line, env=environment).returncode
        if code != 0:
            raise BenchError(
                f"the benchmark stopped because `{name}` ended with code {code} (see "
                "its output above); run the same command to go on from what was measured"
            )
