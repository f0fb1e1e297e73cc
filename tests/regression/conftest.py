# SPDX-License-Identifier: Apache-2.0
"""Regression tests of a patched torch: `python -m pytest tests/regression --device sim|dry|cuda`.

They run in the interpreter they are started with, whose torch must carry Large Model Support, or
which must have torch_lms beside an official torch (tests marked `native` are left out then);
--stock names a Python with the official torch of the same version, for the tests that show what it
cannot do. Without --device (or LMS_DEVICE) nothing here is collected.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import balance
import lacking
import lms_device
import parts
import tiers
from fork_server import Forked, ForkServer

KIND = pytest.StashKey[str]()
FAILED = pytest.StashKey[bool]()
HERE = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("Large Model Support")
    group.addoption("--device", choices=("sim", "dry", "cuda"), help="simulated device, or a GPU")
    group.addoption("--stock", metavar="PYTHON", help="a Python with the official torch")
    group.addoption("--tier", choices=("default", "full"), default="default")
    group.addoption("--shard", metavar="I/N", help="run part I (1 to N) of N")


def _option(config: pytest.Config, name: str, variable: str) -> str:
    return config.getoption(name, None) or os.environ.get(variable, "")


def pytest_configure(config: pytest.Config) -> None:
    balance.register(config)
    config.addinivalue_line("markers", "negative: rebuilds torch without one safeguard")
    config.addinivalue_line("markers", "sanitized: rebuilds torch under a sanitizer")
    config.addinivalue_line("markers", "values: compares what was computed: not on a dry device")
    config.addinivalue_line("markers", "native: what only the patched torch can do")
    kind = _option(config, "--device", "LMS_DEVICE")
    config.stash[KIND] = kind
    if not kind:
        return
    lms_device.use(kind)
    import older_torch
    import torch

    older_torch.name()
    if lms_device.is_plugin():
        import torch_lms  # noqa: F401

    if not hasattr(torch.cuda, "lms"):
        raise pytest.UsageError(
            f"{sys.executable} has torch {torch.__version__} without Large Model Support; "
            "run the tests with a Python that has the patched wheel"
        )
    torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    inside = HERE in collection_path.parents and collection_path.name.startswith("test_")
    return True if inside and not config.stash.get(KIND, "") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.engine)
    lacking.skip(mine)
    drop = set()
    if mine and lms_device.is_plugin():
        drop = {item for item in mine if item.get_closest_marker("native")}
    if mine and config.stash[KIND] == "dry":
        drop |= {item for item in mine if item.get_closest_marker("values")}
    if config.getoption("--tier", "default") == "default":
        drop |= {item for item in mine if item.get_closest_marker("slow")}
        drop |= tiers.in_other_modes(item for item in mine if item not in drop)
    # Matrices of their own: of a plug-in, on one release and not on each.
    for mark in ("negative", "sanitized"):
        if not all(arg.split("::")[0].endswith(f"test_{mark}.py") for arg in config.args):
            drop |= {item for item in mine if item.get_closest_marker(mark)}
    shard = config.getoption("--shard", None)
    drop |= parts.not_in(shard, [item for item in mine if item not in drop])
    config.hook.pytest_deselected(items=list(drop))
    items[:] = [item for item in items if item not in drop]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.failed and HERE in item.path.parents:
        item.stash[FAILED] = True
        if call.excinfo is not None:  # its frames hold tensors, which would meet the next test
            traceback.clear_frames(call.excinfo.tb)
    return report


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The device, empty and without faults, and Large Model Support off. What the test leaves
    pinned, or in host memory, after its tensors are gone fails it, and so does a missing wait."""
    lms_device.reset()
    yield lms_device.device
    if not request.node.stash.get(FAILED, False):
        assert lms_device.leftovers() == {}
        assert lms_device.device.races() == []
    lms_device.reset()


@pytest.fixture
def sim(device: Any) -> Any:
    """Controls of the simulated device, computing or dry."""
    if device.kind == "cuda":
        pytest.skip("needs controls that only a simulated device has")
    import simcuda

    return simcuda.device


@pytest.fixture
def lms(device: Any, request: pytest.FixtureRequest) -> Any:
    """torch.cuda.lms on: every storage may move, whatever its size. Only a test with an extension
    has kernels that no operator tells of."""
    import torch

    torch.cuda.lms.enable(min_size=0)
    extended = "extension" in request.fixturenames
    torch.ops.lms.set_unseen_kernels("looked-for" if extended else "none")
    torch.ops.lms.measure_waits(False)
    return torch.cuda.lms


class Forks:
    """Processes that have imported the patched torch beside the simulated device, computing and
    dry: made when they are first asked for."""

    def __init__(self) -> None:
        self._servers: dict[bool, ForkServer] = {}

    def of(self, variables: dict[str, str]) -> ForkServer:
        """For a program with these environment variables."""
        dry = variables.get("SIMCUDA_DRY") == "1"
        if dry not in self._servers:
            kept = ("SIMCUDA_DRY", "SIMCUDA_PROFILE")
            device = {name: variables[name] for name in kept if name in variables}
            environment = {**lms_device.child_environment(), **device}
            self._servers[dry] = ForkServer(sys.executable, ["lms_fork"], environment)
        return self._servers[dry]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.fixture(scope="session")
def forks(pytestconfig: pytest.Config) -> Iterator[Forks | None]:
    if pytestconfig.stash[KIND] == "cuda" or lms_device.is_plugin():
        yield None
        return
    forks = Forks()
    yield forks
    forks.close()


# By PyTorch 2.13, of each allocation that finds no memory, before anybody makes room.
TOLD_OF_SHORTAGES = re.compile(r"^\[W.* memory allocation failed with OOM .*\n", re.MULTILINE)


@pytest.fixture
def program(tmp_path: Path, forks: Forks | None, pytestconfig: pytest.Config) -> Callable[..., str]:
    """Run a program in a process with a device of its own and return what it printed:
    `program(code, memory=..., mode=..., env=..., fails=...)`. A missing wait fails the test. The
    process is a fork of one that has imported torch where there is one, else, or if it is to be
    `fresh`, does its own import."""

    def run(
        code: str,
        *arguments: str,
        memory: int = 64 * lms_device.MIB,
        mode: str = "immediate",
        env: dict[str, str] | None = None,
        fails: bool = False,
        timeout: float = 300,
        fresh: bool = False,
    ) -> str:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(code))
        variables = {**lms_device.child_environment(), **(env or {})}
        done: Forked | subprocess.CompletedProcess[str]
        if forks is None or fresh:
            kind = pytestconfig.stash[KIND]
            command = lms_device.child_command(kind, sys.executable, memory, mode)
            done = subprocess.run(
                [*command, str(script), *arguments],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
        else:
            settings = lms_device.child_settings(memory, mode)
            variables.update((f"SIMCUDA_{name.upper()}", text) for name, text in settings.items())
            done = forks.of(variables).run(
                [str(script)], arguments, variables, timeout, "lms_fork:ready", together=True
            )
        assert (done.returncode != 0) == fails, f"exit status {done.returncode}:\n{done.stdout}"
        assert "simcuda: RACE" not in done.stdout, done.stdout
        return TOLD_OF_SHORTAGES.sub("", done.stdout)

    return run


class Stock:
    """The official torch in a process of its own."""

    def __init__(self, kind: str, python: str) -> None:
        self._kind = kind
        command = lms_device.child_command(kind, python, lms_device.LARGE, "immediate")
        self._process = subprocess.Popen(
            [*command, str(HERE / "lms_stock.py"), kind],
            env=lms_device.child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @cache  # noqa: B019  (lives as long as the session)
    def train(self, model: str, optimiser: str, device: str, limit: int = 0) -> Any:
        from lms_models import Result

        job = {"model": model, "optimiser": optimiser, "device": device, "limit": limit}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the stock torch gave no answer, exit {self._process.wait()}")
        return Result(**json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=120)


@pytest.fixture(scope="session")
def stock(pytestconfig: pytest.Config) -> Iterator[Stock]:
    python = _option(pytestconfig, "--stock", "LMS_STOCK_PYTHON")
    if not python:
        pytest.skip("needs --stock PYTHON, a Python with the official torch")
    worker = Stock(pytestconfig.stash[KIND], python)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An extension that takes pointers past every operator."""
    from lms_extension import Extension

    return Extension(tmp_path_factory.mktemp("extension"))
