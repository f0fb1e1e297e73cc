# SPDX-License-Identifier: Apache-2.0
"""Regression tests of a patched TensorFlow: `python -m pytest tests/tensorflow --device cpu`.

They run in the interpreter they are started with, whose TensorFlow must carry Large Model Support;
--stock names a Python with the official wheel of the same version. Every program is a process of
its own, a fork after the import or a fresh one, on the CPU device with a pool of a chosen size.
Without --device nothing here is collected.
"""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

try:
    from importlib.metadata import distributions
except ImportError:  # Python 3.7
    from importlib_metadata import distributions

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import balance  # noqa: E402
import parts  # noqa: E402
from fork_server import ForkServer  # noqa: E402

MIB = 1 << 20


def pytest_addoption(parser):
    group = parser.getgroup("Large Model Support")
    group.addoption("--device", choices=("cpu", "cuda"), help="CPU device with a pool, or a GPU")
    group.addoption("--stock", metavar="PYTHON", help="a Python with the official wheel")
    group.addoption("--tier", choices=("default", "full"), default="default")
    group.addoption("--shard", metavar="I/N", help="run part I (1 to N) of N")


def pytest_configure(config):
    balance.register(config)
    config.addinivalue_line("markers", "slow: only in the full tier")
    config.addinivalue_line("markers", "engine: needs the built wheels")
    config.addinivalue_line("markers", "negative: turns safeguards off")


def _mine(items):
    return [item for item in items if HERE in Path(str(item.fspath)).parents]


def pytest_ignore_collect(collection_path, config):
    inside = HERE in collection_path.parents and collection_path.name.startswith("test_")
    return True if inside and not config.getoption("--device", None) else None


def pytest_collection_modifyitems(config, items):
    mine = _mine(items)
    for item in mine:
        item.add_marker(pytest.mark.engine)
    drop = set()
    if config.getoption("--tier", "default") == "default":
        drop = {item for item in mine if item.get_closest_marker("slow")}
    # A matrix of its own.
    if not all(arg.split("::")[0].endswith("test_negative.py") for arg in config.args):
        drop |= {item for item in mine if item.get_closest_marker("negative")}
    drop |= parts.not_in(config.getoption("--shard", None), mine)
    config.hook.pytest_deselected(items=list(drop))
    items[:] = [item for item in items if item not in drop]


@lru_cache(maxsize=None)
def version_text():
    """The version of the patched wheel that is installed: 2.14.1+cpu.lms.1."""
    return next(d.version for d in distributions() if ".lms." in d.version)


def version():
    """The first two parts of it: (2, 14)."""
    return tuple(int(part) for part in version_text().split(".")[:2])


@pytest.fixture
def eager_moves():
    """For tests of tensors that eager operations made."""
    if version() < (2, 3):
        pytest.skip("the results of eager operations stay on this version")


@pytest.fixture
def eager_stays():
    if version() >= (2, 3):
        pytest.skip("the results of eager operations move on this version")


class Programs:
    """Runs programs on the official wheel and on ours."""

    # The last that the import of ours does, and all in it that looks at the environment.
    _ENABLE = "tensorflow.python.framework.lms.environment:enable"

    def __init__(self, stock):
        self._pythons = {"lms": sys.executable, "stock": stock}
        self._servers = []

    def run(
        self, code, wheel="lms", pool=None, env=None, fails=False, arguments=(), within=600,
        fresh=False,
    ):  # fmt: skip
        """Standard output of a program (text, or a file); standard error if it `fails`, as it must
        then. `pool` is the size of the CPU device's pool in MiB, None for no pool. A `fresh` one
        does its own import."""
        variables = self._variables(wheel)
        if pool is not None:
            variables.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB=str(pool))
        variables.update(env or {})
        program = [str(code)] if isinstance(code, Path) else ["-c", code]
        if fresh:
            done = subprocess.run(
                [self._pythons[wheel]] + program + list(arguments),
                env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                universal_newlines=True, timeout=within,
            )  # fmt: skip
        else:
            ready = self._ENABLE if wheel == "lms" else None
            done = self._server(wheel).run(program, arguments, variables, within, ready)
        if (done.returncode != 0) != fails:
            pytest.fail("the program ended with {0.returncode}:\n{0.stdout}{0.stderr}".format(done))
        return done.stderr if fails else done.stdout

    def _variables(self, wheel):
        dropped = ("TF_LMS", "LMS_DEBUG", "PYTHONPATH")
        variables = {k: v for k, v in os.environ.items() if k not in dropped}
        variables.update(
            TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0"
        )
        if wheel == "lms" and "LMS_SITE" in os.environ:  # a rebuilt package, without a safeguard
            variables["PYTHONPATH"] = os.environ["LMS_SITE"]
        return variables

    @lru_cache(maxsize=None)  # noqa: B019 (one object, for all of the run)
    def _server(self, wheel):
        server = ForkServer(self._pythons[wheel], ["tensorflow"], self._variables(wheel))
        self._servers.append(server)
        return server

    def close(self):
        for server in self._servers:
            server.close()

    def train(self, model, way, wheel="lms", pool=None, env=None, within=600, **options):
        """What tf_program.py says of a training run of at most `within` seconds."""
        arguments = [model, way] + ["--%s=%s" % item for item in sorted(options.items())]
        file = HERE / "tf_program.py"
        said = self.run(file, wheel, pool, env, arguments=arguments, within=within)
        return json.loads(said.splitlines()[-1])

    @lru_cache(maxsize=None)  # noqa: B019
    def reference(self, model, way, **options):
        """The official wheel without a limit."""
        return self.train(model, way, "stock", **options)

    @lru_cache(maxsize=None)  # noqa: B019
    def needed(self, model, way, **options):
        """MiB of the pool that the run takes where it has enough."""
        roomy = self.train(model, way, pool=8192, env={"TF_LMS": "1"}, **options)
        return roomy["statistics"]["devices"][0]["peak_bytes_in_use"] / MIB


@pytest.fixture(scope="session")
def programs(pytestconfig):
    if not pytestconfig.getoption("--stock"):
        pytest.skip("needs --stock, a Python with the official wheel")
    made = Programs(pytestconfig.getoption("--stock"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    from native import Builder

    return Builder(tmp_path_factory.mktemp("programs"))
