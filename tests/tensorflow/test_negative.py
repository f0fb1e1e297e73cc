# SPDX-License-Identifier: Apache-2.0
"""Turns each safeguard of kind "tensorflow" off in turn: its test must fail.

In a TensorFlow whose framework library is rebuilt from the tree LMS_SOURCE. Only when nothing but
this file is asked for.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest
from conftest import HERE, version

if sys.version_info >= (3, 10):  # where nothing here runs, the environment has no tree-sitter
    sys.path.insert(0, str(HERE.parent / "safeguards"))
    import safeguards

pytestmark = pytest.mark.negative
FRAMEWORK = "libtensorflow_framework.so.2"
OFFICIAL = "libtensorflow_framework_official.so.2"
RUNTIME = "tensorflow/core/common_runtime/lms"
TOUCHED = (
    "tensorflow/c/tf_tensor.cc",
    "tensorflow/core/common_runtime/graph_runner.cc",
    "tensorflow/core/common_runtime/single_threaded_cpu_device.cc",
    "tensorflow/core/common_runtime/threadpool_device.cc",
    "tensorflow/core/framework/tensor.cc",
    "tensorflow/tsl/framework/bfc_allocator.cc",
)
SAFEGUARDS = safeguards.load("tensorflow") if sys.version_info >= (3, 10) else []


class Rebuilder:
    """A copy of the package in which the library of Large Model Support is replaced."""

    def __init__(self, tree, folder):
        self.tree, self.folder = tree, folder
        site = Path(sysconfig.get_paths()["purelib"])
        self.official = site / "tensorflow"
        self.site = folder / "site"
        self.package = self.site / "tensorflow"
        self.mutant = folder / "mutant"
        leave = shutil.ignore_patterns("__pycache__", "include")
        shutil.copytree(str(self.official), str(self.package), copy_function=_link, ignore=leave)
        self.sources = [
            *TOUCHED,
            *sorted(str(f.relative_to(tree)) for f in (tree / RUNTIME).glob("*.cc")),
            *sorted(str(f.relative_to(tree)) for f in (tree / RUNTIME / "core").glob("*.cpp")),
        ]
        # What the library shows to others is as before.
        names = subprocess.run(
            ["nm", "-D", "--defined-only", str(self.official / FRAMEWORK)],
            stdout=subprocess.PIPE, universal_newlines=True, check=True,
        ).stdout  # fmt: skip
        shown = "".join("    %s;\n" % line.split()[2].split("@")[0] for line in names.splitlines())
        self.exports = folder / "exports.map"
        self.exports.write_text("{\n  global:\n%s  local:\n    *;\n};\n" % shown)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda s: self.compile(tree / s, self.object_of(s)), self.sources))
        self.link({})

    def object_of(self, source):
        return self.folder / (source.replace("/", "_") + ".o")

    def compile(self, file, target):
        command = [
            "g++", "-std=gnu++17", "-O1", "-fPIC", "-w", "-DNDEBUG", "-DTF_LMS_OVERLAY", "-pthread",
            "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MPL2_ONLY", "-DEIGEN_MAX_ALIGN_BYTES=64",
            "-I%s" % self.mutant, "-I%s" % self.tree, "-I%s" % (self.official / "include"),
            "-c", str(file), "-o", str(target),
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def link(self, instead):
        target = self.package / FRAMEWORK
        target.unlink()
        command = [
            "g++", "-shared", "-fPIC", "-pthread", "-o", str(target),
            *(str(instead.get(s, self.object_of(s))) for s in self.sources),
            "-Wl,-soname,%s" % FRAMEWORK, "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs",
            "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed",
            "-Wl,--version-script=%s" % self.exports, str(self.package / OFFICIAL),
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def mutate(self, file, text):
        changed = self.mutant / file
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        if file.endswith(".h"):
            affected = {s: self.tree / s for s in self.sources if s.startswith(RUNTIME)}
        else:
            affected = {file: changed}
        made = {s: self.folder / ("mutant%d.o" % i) for i, s in enumerate(affected)}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda s: self.compile(affected[s], made[s]), affected))
        self.link(made)

    def restore(self):
        shutil.rmtree(str(self.mutant), ignore_errors=True)
        self.link({})

    def run(self, tests, stock):
        """Exit status of pytest (None: no end), and the end of its output."""
        environment = {
            **os.environ, "LMS_SITE": str(self.site), "LMS_MUTANT": str(self.mutant),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--device=cpu",
            "--stock=%s" % stock, "--tier=full", *(str(HERE / test) for test in tests),
        ]  # fmt: skip
        return safeguards.outcome(command, HERE.parents[1], environment, 300 + 60 * len(tests))


def _link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def rebuilder(tmp_path_factory):
    if version() < (2, 14):
        pytest.skip("the safeguards are the same on every version")
    if not os.environ.get("LMS_SOURCE"):
        pytest.skip("needs LMS_SOURCE, what this was built from")
    folder = tmp_path_factory.mktemp("negative")
    yield Rebuilder(Path(os.environ["LMS_SOURCE"]), folder)
    shutil.rmtree(str(folder))


@pytest.fixture(scope="session")
def passes(rebuilder, pytestconfig):
    """Whether a test passes with every safeguard, and what it said."""
    return lru_cache(maxsize=None)(
        lambda test: rebuilder.run([test], pytestconfig.getoption("--stock"))
    )


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=[s.id for s in SAFEGUARDS])
def test_without_it_its_test_fails(rebuilder, passes, pytestconfig, safeguard):
    status, output = passes(safeguard.test)
    assert status == 0, "%s fails with %s, too:\n%s" % (safeguard.test, safeguard.id, output)
    runtime = (rebuilder.tree / RUNTIME).rglob("*.[hc]*")
    text = safeguards.without(safeguard, rebuilder.tree, runtime)
    try:
        rebuilder.mutate(safeguard.file, text)
        status, output = rebuilder.run([safeguard.test], pytestconfig.getoption("--stock"))
    finally:
        rebuilder.restore()
    # 1: it failed. 2 to 5: pytest did not run it.
    assert status == (None if safeguard.hangs else 1), (
        f"{safeguard.test} does not fail without {safeguard.id}:\n{output}"
    )
