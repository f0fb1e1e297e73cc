# SPDX-License-Identifier: Apache-2.0
"""The engine and the patched allocator on ppc64le: cross-compiled here, run emulated.

In a container whose whole system is the C and C++ libraries of the cross compiler.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import lmsbuild_cross as cross
import pytest
from lmsbuild_engine import Engine, base_image, import_image, missing
from lmsbuild_processes import run
from lmsbuild_world import UPSTREAM, World, enter_world, make_world

from lmsbuild.base.console import Console
from lmsbuild.base.project import cache_dir, find_project
from lmsbuild.places.container import running
from lmsbuild.places.docker import connect
from lmsbuild.tags.frameworks import resolve

pytestmark = [pytest.mark.net, pytest.mark.default]

QEMU = "qemu-ppc64le-static"
# The simulated device reserves terabytes of address space, which qemu keeps books of.
LIMITS = {"QEMU_RESERVED_VA": "16G"}
LIBRARIES = ("ld64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "libgcc_s.so.1", "libstdc++.so.6")  # fmt: skip
# Of the engine's cases those that are not only long; emulated they take eight times as long.
ROUNDS = {"random_programs": ("seeds=4", "steps=1000"), "pool_random": ("seeds=2", "steps=1000"),
          "threads_share_one_engine": ("steps=200",),
          "barriers_show_one_what_the_other_stored": ("rounds=10000",),
          "turns_never_miss_one_that_runs": ("rounds=10000",),
          # In less host memory than QEMU_RESERVED_VA, and more than one victim's candidates.
          "reclaim_cost_of_many": ("large=500", "ops=500"),
          "victims_hole_is_optimal": ("instances=200",),
          "victims_cover_is_within_factor_two": ("instances=200",),
          "victims_take_the_cheaper_way": ("instances=200",)}  # fmt: skip

Run = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    if cross.compiler() is None or shutil.which(QEMU) is None or not cross.FMT.is_dir():
        missing(f"{cross.TRIPLET}-g++, {QEMU} and the headers of fmt are not all here")
    if not Path("/proc/sys/fs/binfmt_misc/qemu-ppc64le").exists():
        missing("the kernel runs no programs of ppc64le (update-binfmts --enable qemu-ppc64le)")


PAUSE = "#include <unistd.h>\nint main() { return pause(); }\n"


@pytest.fixture(scope="module")
def emulated(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a program of ppc64le in a container. Gives what it says."""
    folder = tmp_path_factory.mktemp("system")
    (folder / "pause.c").write_text(PAUSE)
    command = [f"{cross.TRIPLET}-gcc", str(folder / "pause.c"), "-o", str(folder / "pause")]
    subprocess.run(command, check=True)
    tar = folder / "system.tar"
    with tarfile.open(tar, "w", dereference=True) as archive:
        archive.add(folder / "pause", "pause")
        for name in LIBRARIES:
            archive.add(cross.SYSROOT / "lib" / name, f"lib/{name}")
        archive.add(cross.SYSROOT / "lib" / "ld64.so.2", "lib64/ld64.so.2")
    import_image(engine, tar, "lmsbuild-test-ppc64le:1", "ppc64le")
    places = (cross.ENGINE_TESTS, tmp_path_factory.getbasetemp())
    container = engine.client.containers.run(
        "lmsbuild-test-ppc64le:1", ["/pause"], detach=True, platform="linux/ppc64le",
        network_mode="none", mem_limit="3g", user=f"{os.getuid()}:{os.getgid()}",
        tmpfs={"/tmp": ""}, volumes={str(p): {"bind": str(p), "mode": "ro"} for p in places},
    )  # fmt: skip

    def execute(program: Path, *arguments: str) -> str:
        code, said = container.exec_run([str(program), *arguments], environment=LIMITS)
        assert code == 0, said.decode()
        return str(said.decode())

    yield execute
    container.remove(force=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> cross.Built:
    folder = tmp_path_factory.mktemp("ppc64le")
    return cross.build(resolve(find_project(), "v2.6.0"), folder, Console(json_mode=True))


def machine_of(program: Path) -> str:
    done = subprocess.run(["readelf", "-h", program], capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if "Machine:" in line)


# A third of the cases in the default tier: they are the same as in test_core.py.
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_engine(emulated: Run, part: int) -> None:
    program = cross.engine_tests()
    assert "PowerPC64" in machine_of(program)
    # The rows of host memory need more addresses than there are; no processor changes them.
    cases = [case for case in emulated(program, "--list").split() if "host_rows" not in case]
    assert len(cases) > 50
    for case in cases[part::3]:
        emulated(program, case, *ROUNDS.get(case, ()))


# As long as all else of this file together.
@pytest.mark.slow
def test_allocator(built: cross.Built, emulated: Run) -> None:
    for name in ("libc10.so", "libc10_cuda.so", "libcudart.so.12", "test_allocator"):
        assert "PowerPC64" in machine_of(built.folder / name)
    cases = emulated(built.tests, "--list").split()
    assert len(cases) > 8
    for case in cases:
        emulated(built.tests, case)


def test_wrong_result_is_seen(emulated: Run) -> None:
    """A case that does not exist fails, so that a pass means something."""
    with pytest.raises(AssertionError):
        emulated(cross.engine_tests(), "no_such_case")


IMAGES = """
[images.compiler]
base = { ppc64le = "none" }
compilers = ["g++", "sh"]
packages = { apt-get = ["g++"] }
"""


@pytest.mark.slow
def test_image_for_ppc64le(world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a whole Debian, by the command; and a program runs in the image."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.delenv("LMSBUILD_CACHE")
    base = base_image(engine, "bookworm", ("ca-certificates",), "ppc64el")
    toml = world.tag_file
    toml.write_text(toml.read_text() + IMAGES)
    command = ["image", "v1.0", "--kind", "compiler", "--arch", "ppc64le", "--base-image", base]
    code, _, err = run(*command)
    assert code == 0, err
    with (
        connect() as found,
        running(found, "lmsbuild/alpha-v1.0:compiler-ppc64le", {cache_dir(): "ro"}) as box,
    ):
        assert box.run(["uname", "-m"], {}).stdout.strip() == "ppc64le"


# A build that needs no compiler: an emulated one would take minutes.
FULL = """
[images.build]
base = { ppc64le = "none" }
compilers = ["sh"]
pythons = ["python3"]
requirements = { ppc64le = ["setuptools<80", "wheel"] }

[full]
commands = [["{python}", "setup.py", "bdist_wheel", "--dist-dir", "{output}"]]
memory = "200MiB"
needs = ["setup.py"]

[full.environment]
ALPHA_VERSION = "{version}"
"""
SETUP = """
import os
from setuptools import setup
from setuptools.dist import Distribution

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(name="alpha", version=os.environ["ALPHA_VERSION"], packages=["alpha"],
      package_dir={"alpha": "python"}, distclass=Binary)
"""


@pytest.mark.slow
def test_complete_build_for_ppc64le(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated: the wheel is that machine's."""
    base = base_image(engine, "bookworm", ("python3-venv",), "ppc64el")
    ignored = {".gitignore": f"{UPSTREAM['.gitignore']}build/\n*.egg-info/\n"}
    more = {"setup.py": SETUP, "python/__init__.py": ""}
    make_world(tmp_path, {**UPSTREAM, **ignored, **more})
    world = enter_world(tmp_path, monkeypatch)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    toml = world.tag_file
    toml.write_text(toml.read_text() + FULL)
    code, out, err = run(
        "wheel", "v1.0", "--full", "--arch", "ppc64le", "--base-image", base, "--source", "git",
        "--python", "3.11", "--json", timeout=900,
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["wheel"].endswith("-cp311-cp311-linux_ppc64le.whl")
