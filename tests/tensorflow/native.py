# SPDX-License-Identifier: Apache-2.0
"""Programs of C++ against the patched TensorFlow."""

import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import HERE, version

FRAMEWORK = "libtensorflow_framework.so.2"
OFFICIAL = "libtensorflow_framework_official.so.2"
RUNTIME = "tensorflow/core/common_runtime/lms"


class Builder:
    """Compiles programs against the installed TensorFlow and the tree that it was patched from."""

    def __init__(self, folder):
        self.folder = folder
        site = Path(sysconfig.get_paths()["purelib"])
        self.package = next(f.parent for f in sorted(site.glob("tensorflow*/" + FRAMEWORK)))

    def runtime(self, without=()):
        """The sources of Large Model Support in the tree."""
        tree = Path(os.environ.get("LMS_SOURCE", os.devnull))
        files = [*(tree / RUNTIME).glob("*.cc"), *(tree / RUNTIME / "core").glob("*.cpp")]
        return sorted(str(f.relative_to(tree)) for f in files if f.name not in without)

    def run(self, name, sources=(), libraries=(FRAMEWORK, OFFICIAL), arguments=()):
        """What the program of `name`.cpp and of `sources` of the tree prints."""
        tree = os.environ.get("LMS_SOURCE")
        if not tree or shutil.which("g++") is None:
            pytest.skip("needs g++, and LMS_SOURCE, the patched source")
        # A safeguard's test puts other versions of files there.
        trees = [Path(t) for t in (os.environ.get("LMS_MUTANT"), tree) if t]
        files = [next(t / s for t in trees if (t / s).exists()) for s in sources]
        new = version() >= (2, 14)
        compiler = [
            "g++", "-std=c++17" if new else "-std=c++14", "-w", "-DNDEBUG", "-DGOOGLE_CUDA=1",
            "-D_GLIBCXX_USE_CXX11_ABI=%d" % new, "-DEIGEN_MAX_ALIGN_BYTES=64",
            "-include", "limits", "-include", "cstdint", *("-I%s" % t for t in trees),
            *("-I%s" % i for i in sorted(self.package.parent.glob("tensorflow*/include"))),
        ]  # fmt: skip

        def compiled(file):
            target = self.folder / ("%s_%s.o" % (name, str(file).replace("/", "_")[-100:]))
            _run([*compiler, "-c", str(file), "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, [HERE / (name + ".cpp"), *files]))
        program = self.folder / name
        _run([
            "g++", *objects, "-o", str(program), *(str(self.package / lib) for lib in libraries),
            "-Wl,-rpath,%s" % self.package, "-Wl,--allow-shlib-undefined", "-ldl",
        ])  # fmt: skip
        done = _run([str(program), *arguments])
        return dict(line.split() for line in done.stdout.splitlines())

    def library(self, name):
        """The library of `name`.cpp, whose operations tf.load_op_library loads."""
        if shutil.which("g++") is None:
            pytest.skip("needs g++")
        new = version() >= (2, 14)
        target = self.folder / (name + ".so")
        _run([
            "g++", "-std=c++17" if new else "-std=c++14", "-w", "-O1", "-DNDEBUG", "-shared",
            "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=%d" % new, "-DEIGEN_MAX_ALIGN_BYTES=64",
            "-include", "limits", "-include", "cstdint",
            *("-I%s" % i for i in sorted(self.package.parent.glob("tensorflow*/include"))),
            str(HERE / (name + ".cpp")), "-o", str(target), str(self.package / FRAMEWORK),
            str(self.package / OFFICIAL), "-Wl,-rpath,%s" % self.package,
            "-Wl,--allow-shlib-undefined",
        ])  # fmt: skip
        return target


def _run(command):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True
    )
    assert done.returncode == 0, done.stderr
    return done
