# SPDX-License-Identifier: Apache-2.0
"""Conda packages: built for real from wheels, and installed by a real client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tomlkit
from lmsbuild_conda import give_conda, install, serving
from lmsbuild_conda import make as make_small
from lmsbuild_processes import run
from lmsbuild_training import LIMIT, QUIET, TENSORFLOW
from lmsbuild_wheels import PYTHON, start
from lmsbuild_world import REPOSITORY, World, leave, small_disk
from packaging.requirements import Requirement
from rattler.exceptions import SolverError

from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    ConfigError,
    FileError,
    MismatchError,
    PackageError,
    SubdirError,
    UsageError,
    WheelError,
)
from lmsbuild.base.project import Project
from lmsbuild.conda.channel import Channel
from lmsbuild.conda.condapackage import files_of, inspect, metadata
from lmsbuild.conda.dependencies import from_libraries, mapped, required, table
from lmsbuild.conda.make import make
from lmsbuild.conda.plan import Plan, check_wheel, companion_plan, framework_plan, plugin_plan
from lmsbuild.conda.rattler import run_tests
from lmsbuild.conda.staging import stage
from lmsbuild.conda.testchannel import TestChannel, wheel_requirements
from lmsbuild.places import device as devices
from lmsbuild.places.environment import interpreter, packages_for
from lmsbuild.ship.condabuild import beside
from lmsbuild.tags.download import companion_wheel
from lmsbuild.tags.frameworks import Target, resolve, targets
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.plugin import resolve as resolve_plugin
from lmsbuild.wheel.wheelfile import WheelName

KNOWN = table(Project(REPOSITORY))


@pytest.fixture
def alpha(world: World, official: Path) -> World:
    give_conda(world)
    return world


@pytest.mark.default
def test_from_tag_to_a_clients_prefix(alpha: World, console: Console) -> None:
    """The tag's wheel becomes packages, the recipe's tests pass, and a client installs them from
    a served channel."""
    code, out, err = run("conda", "v1.0", "--dry-run")
    assert code == 0 and "alpha-1.0-lms_" in out, err
    assert not (alpha.target.work / "conda").exists()
    code, out, err = run("conda", "v1.0", "--json")
    assert code == 0, err
    package, meta = json.loads(out)["packages"]
    assert package["tested"] and not package["reused"]
    made = inspect(Path(package["path"]))
    tag = PYTHON.replace(".", "")
    assert made.label == f"alpha 1.0 lms_py{tag}_1" and made.subdir == "linux-64"
    assert {text.split()[0] for text in made.depends} >= {"python", "python_abi"}
    assert meta["depends"] == ["alpha ==1.0 lms_*_1"]
    assert any(n.startswith("info/licenses/") for n in metadata(made.path))
    _same_files(made.path, next((alpha.target.work / "wheels").glob("*.whl")))

    code, out, _ = run("conda", "v1.0", "--json")
    assert [x["reused"] for x in json.loads(out)["packages"]] == [True, True]
    code, out, err = run("conda", "v1.0", "--output", "again", "--test", "none", "--json")
    again = json.loads(out)["packages"]
    assert [x["sha256"] for x in again] == [package["sha256"], meta["sha256"]], "same bytes"

    channel = Channel(alpha.folder / "channel")
    channel.add([made.path, Path(meta["path"])], console)
    needs = Channel(alpha.folder / "needs")
    code, out, err = run("conda", "v1.0", "--test-channel", str(needs.root), "--json")
    assert code == 0 and json.loads(out)["packages"][0]["reused"], err
    code, _, err = run("conda", "v1.0", "--test-channel", str(needs.root))
    assert code == UsageError.exit_code and "is there already" in err
    prefix = alpha.folder / "prefix"
    with serving(channel, needs) as urls:
        client = [sys.executable, str(REPOSITORY / "examples" / "conda_install.py")]
        subprocess.run(
            [*client, str(prefix), "alpha-lms", *urls], check=True,
            env={**os.environ, "RATTLER_CACHE_DIR": str(alpha.folder / "cache")},
        )  # fmt: skip
    names = {file.stem.rpartition("-")[0] for file in (prefix / "conda-meta").glob("*.json")}
    assert {"alpha-1.0", "alpha-lms-1.0"} <= names
    code_ = "import alpha.api, alpha.version, sys; print(alpha.version.__version__, sys.prefix)"
    done = subprocess.run(
        [prefix / "bin/python", "-c", code_], capture_output=True, text=True, check=True,
        env={"PATH": os.defpath}, cwd="/",
    )  # fmt: skip
    assert done.stdout.split() == [alpha.target.version, str(prefix)]


def _same_files(package: Path, wheel: Path) -> None:
    """Every file of the wheel is in the package, RECORD as it is after an install."""
    site = f"lib/python{PYTHON}/site-packages/"
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    found = files_of(package, {site + name for name in members})
    changed = [name for name in members if found[site + name] != members[name]]
    assert [name.rpartition("/")[2] for name in changed] == ["RECORD"]


@pytest.mark.default
@pytest.mark.parametrize("interpreter", [sys.executable, "/usr/bin/python3"])
def test_python_of_a_test_channel(interpreter: str, tmp_path: Path, console: Console) -> None:
    """It is at home in the prefix, also the distribution's, which looks elsewhere for modules."""
    if not Path(interpreter).exists():
        pytest.skip(f"no {interpreter}")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.check_output([interpreter, "-c", code], text=True).strip()
    needs = TestChannel(tmp_path / "channel", version, Path(interpreter), None, KNOWN)
    channel = needs.fill([f"python {version}.*", "cuda-version >=12.4,<13"], console)
    site = f"lib/python{version}/site-packages"
    module = make_small(tmp_path, "demo", files={f"{site}/demo.py": ""}, depends=["python"])
    channel.add([module], console)
    with serving(channel) as urls:
        names = install(urls, ["demo", "cuda-version >=12.4"], tmp_path / "prefix")
    assert "cuda-version 12.4" in names
    code = "import ctypes, demo, ssl, sys; print(sys.prefix, demo.__file__)"
    found = subprocess.check_output([tmp_path / "prefix/bin/python", "-c", code], text=True)
    assert found.split() == [str(tmp_path / "prefix"), str(tmp_path / "prefix" / site / "demo.py")]


# Bad input ---------------------------------------------------------------------------------------


@pytest.fixture
def plan() -> Plan:
    return Plan(
        name="alpha",
        version="1.0",
        build="lms_0",
        number=0,
        subdir="linux-64",
        python=PYTHON,
        home="",
        license="Apache-2.0",
        summary="Alpha",
        depends=[f"python {PYTHON}.*"],
        script=[],
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A wheel with a script and a licence."""
    tag = f"cp{PYTHON.replace('.', '')}"
    path = tmp_path / f"alpha-1.0-{tag}-{tag}-linux_x86_64.whl"
    info = "alpha-1.0.dist-info"
    wheelfile.create(
        path,
        {
            "alpha/__init__.py": b"def main():\n    print('alpha', __file__)\n",
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
            f"{info}/LICENSE": b"Do what you like.\n",
            f"{info}/entry_points.txt": (
                b"[console_scripts]\nalpha-says = alpha:main\nbeta = beta.x:y\n"
            ),
            "alpha-1.0.data/scripts/tool.sh": b"#!/bin/sh\necho tool\n",
        },
    )
    return path


def test_scripts_and_licences(
    plan: Plan, small: Path, tmp_path: Path, console: Console, real_project: Project
) -> None:
    made = make(plan, small, real_project, tmp_path / "out", console)[0].package
    scripts = [name for name in made.files if name.startswith("bin/")]
    assert scripts == ["bin/alpha-says", "bin/tool.sh"], "beta is another package's"
    assert metadata(made.path)["info/licenses/licences/0-LICENSE"] == b"Do what you like.\n"
    site = tmp_path / "moved" / "lib" / f"python{PYTHON}" / "site-packages"
    stage(small, tmp_path / "moved", site.relative_to(tmp_path / "moved").as_posix())
    (tmp_path / "moved/bin/python").symlink_to(sys.executable)
    done = subprocess.run(
        [tmp_path / "moved/bin/alpha-says"], env={"PYTHONPATH": str(site), "PATH": os.defpath},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"alpha {site}/alpha/__init__.py\n"


def test_build_that_copies_nothing_is_caught(
    plan: Plan, small: Path, alpha: World, console: Console
) -> None:
    template = alpha.project.root / "conda-recipes" / "wheel.yaml.j2"
    text = template.read_text()
    copies = 'cp -a --link "$RECIPE_DIR/staged/." "$PREFIX/"'
    assert copies in text
    template.write_text(
        text.replace(copies, 'mkdir -p "$PREFIX/x" && touch "$PREFIX/x/y"').replace(
            "files: {{ contents | tojson }}", "files: [x/y]"
        )
    )
    with pytest.raises(PackageError, match="are not those of the wheel"):
        make(plan, small, alpha.project, alpha.folder / "out", console)
    assert not list((alpha.folder / "out").rglob("*.conda"))


@pytest.mark.default
def test_package_that_fails_its_tests_is_not_there(alpha: World) -> None:
    toml = alpha.framework_file
    toml.write_text(toml.read_text().replace("import alpha.lms", "import alpha.missing"))
    code, _, err = run("conda", "v1.0")
    assert code == PackageError.exit_code and "No module named 'alpha.missing'" in err
    assert not list(alpha.folder.rglob("alpha-1.0-*.conda"))


@pytest.mark.default
def test_wheel_that_is_not_the_tags(alpha: World, small: Path) -> None:
    code, _, err = run("conda", "v1.0", "--wheel", str(small))
    assert code == MismatchError.exit_code and "the wheel of this tag" in err
    code, _, err = run("conda", "v1.0", "--arch", "linux-65")
    assert code == SubdirError.exit_code and "linux-ppc64le" in err
    code, _, err = run("conda", "v1.0", "--arch", "linux-ppc64le")
    assert code == UsageError.exit_code and "--wheel" in err
    code, _, err = run("conda", "v1.0", "--test", "channel")
    assert code == UsageError.exit_code
    code, _, err = run("conda", "lmsbuild", "--container")
    assert code == UsageError.exit_code and "--container" in err
    right = small.with_name(small.name.replace("alpha-1.0", f"alpha-{alpha.target.version}"))
    shutil.copy(small, right)
    code, _, err = run("conda", "v1.0", "--arch", "linux-ppc64le", "--wheel", str(right))
    assert code == MismatchError.exit_code and "not for linux-ppc64le" in err
    right.write_bytes(b"PK")
    for more in ([], ["--dry-run"]):
        code, _, err = run("conda", "v1.0", "--wheel", str(right), *more)
        assert code == WheelError.exit_code and "damaged" in err
    assert not list(alpha.folder.rglob("*.conda"))


def test_wheel_that_was_tampered_with(small: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(small) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, why in (("alpha/__init__.py", "RECORD says"), ("alpha/extra.py", "RECORD says")):
        with zipfile.ZipFile(small, "w") as archive:
            for member, content in {**members, name: b"evil\n"}.items():
                archive.writestr(member, content)
        with pytest.raises(WheelError, match=why):
            stage(small, tmp_path / name, "site-packages")


@pytest.mark.parametrize(
    "point", ["../../evil = alpha:main", "/tmp/evil = alpha:main", "-x = alpha:main",
              "x = /alpha:main", "x = alpha:main; import os", "x = alpha"],
)  # fmt: skip
def test_a_script_lies_in_the_packages_bin(small: Path, tmp_path: Path, point: str) -> None:
    with zipfile.ZipFile(small) as archive:
        members = {n: archive.read(n) for n in archive.namelist() if "RECORD" not in n}
    members["alpha-1.0.dist-info/entry_points.txt"] = f"[console_scripts]\n{point}\n".encode()
    wheelfile.create(small, members)
    with pytest.raises(WheelError, match=r"cannot be used because its script .* get the wheel"):
        stage(small, tmp_path / "a/b/staged", "lib/python3.11/site-packages")
    assert not list(tmp_path.rglob("evil"))


def test_what_the_table_does_not_know(tmp_path: Path, small: Path) -> None:
    with pytest.raises(ConfigError, match="nobody-knows"):
        mapped([Requirement("nobody-knows>=1")], KNOWN)
    source = tmp_path / "x.c"
    source.write_text("int x;")
    other = tmp_path / "libother.so.3"
    library = tmp_path / "stage.so"
    subprocess.run(["gcc", "-shared", "-o", other, "-Wl,-soname,libother.so.3", source], check=True)
    subprocess.run(
        ["gcc", "-shared", "-o", library, source, "-Wl,--no-as-needed", other], check=True
    )
    members = {"alpha/stage.so": library.read_bytes()}
    with zipfile.ZipFile(small) as archive:
        members |= {n: archive.read(n) for n in archive.namelist() if "RECORD" not in n}
    wheelfile.create(small, members)
    staged = stage(small, tmp_path / "staged", "site-packages")
    with pytest.raises(PackageError, match=r"alpha/stage\.so needs libother\.so\.3"):
        from_libraries(staged, [], KNOWN)
    assert from_libraries(staged, [], KNOWN, ["libother.so.*"]) == []


@pytest.mark.parametrize(
    ("wanted", "spec"),
    [
        ("sympy==1.13.1", "sympy ==1.13.1"),
        ("typing-extensions>=4.10.0", "typing_extensions >=4.10.0"),
        ("nvidia-cublas-cu12==12.4.5.8", "libcublas >=12.4.5.8,<13"),
        ("nvidia-cublas-cu11==11.10.3.66", "cudatoolkit"),
        ("nvidia-cuda-runtime-cu11==11.7.99", "cudatoolkit >=11.7.99,<12"),
        ("NumPy<2.0.0,>=1.23.5", "numpy >=1.23.5,<2.0.0"),
        ("keras==2.14.*", "keras 2.14.*"),
        ("jinja2", "jinja2"),
    ],
)
def test_specs(wanted: str, spec: str) -> None:
    assert mapped([Requirement(wanted)], KNOWN) == [spec]


def test_markers_are_evaluated_for_the_package() -> None:
    texts = ['a; python_version < "3.11"', 'b; platform_machine == "x86_64"', 'c; extra == "x"']
    assert [r.name for r in required(texts, "3.10", "x86_64")] == ["a", "b"]
    assert [r.name for r in required(texts, "3.12", "ppc64le")] == []


def test_every_framework_has_a_recipe(real_project: Project) -> None:
    """The recipes of all tags render, and their metapackages are those of the documentation."""
    metas = set()
    for target in targets(real_project):
        for cuda in target.tag.cuda:
            plan = framework_plan(target.for_cuda(cuda), target.pythons[-1], "linux-64")
            assert plan.build.startswith("lms_") and plan.version == target.tag.version
            metas |= set(plan.metas)
            assert len(plan.constrains) >= len(target.tag.pins) + 2
    assert metas == {"pytorch-lms", "pytorch-gpu", "tensorflow-lms", "tensorflow-gpu"}


@pytest.mark.default
def test_killed_build_leaves_nothing_half(alpha: World) -> None:
    """What it left is found by `clean`, and the next build goes on as if nothing had been."""
    folder = alpha.target.work / "conda"
    process = start("conda", "v1.0", "--test", "none")
    deadline = time.monotonic() + 120
    while not list(folder.glob(".build-*/recipe/staged")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not list(folder.glob("*/*.conda"))
    code, out, _ = run("clean", "--dry-run", "--json")
    assert code == 0 and ".build-" in out
    code, out, err = run("conda", "v1.0", "--test", "none", "--json")
    assert code == 0, err
    assert len(json.loads(out)["packages"]) == 2 and not list(folder.glob(".build-*"))


@pytest.mark.default
def test_packing_shows_progress_and_ends_on_a_signal(alpha: World) -> None:
    """However long rattler-build holds on."""
    template = alpha.project.root / "conda-recipes" / "wheel.yaml.j2"
    text = template.read_text().replace(
        "  script:\n    - cp", "  script:\n    - sleep 100\n    - cp"
    )
    template.write_text(text)
    assert "sleep" in text
    process = start("conda", "v1.0", "--test", "none")
    assert process.stderr is not None
    assert any("building alpha-1.0" in line for line in process.stderr)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.terminate()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143 and "SIGTERM" in err
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    assert not [c for c in children if c.is_running() and c.status() not in gone]
    folder = alpha.target.work / "conda"
    assert not list(folder.glob(".build-*")) and not list(folder.rglob("*.conda"))


@pytest.mark.default
def test_full_disk_leaves_no_package(
    plan: Plan, small: Path, tmp_path: Path, console: Console, real_project: Project
) -> None:
    """Wherever the room ends, also in rattler-build."""
    failed = 0
    with small_disk(tmp_path / "disk", "1m") as disk:
        for room in range(0, 300_000, 24_576):
            leave(disk, room)
            try:
                make(plan, small, real_project, disk / "out", console)
            except (FileError, OSError) as error:
                assert "No space left on device" in str(error)
                failed += 1
                assert not list(disk.rglob("*.conda")) and not list(disk.rglob(".build-*"))
            else:
                break
        assert failed > 1 and len(list(disk.rglob("*.conda"))) == 1


# Other packages ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("powerpc64le-linux-gnu-g++") is None, reason="no cross compiler for ppc64le"
)
def test_engine_for_ppc64le(tmp_path: Path, console: Console, real_project: Project) -> None:
    """The engine, cross-compiled, becomes a package of linux-ppc64le that a client for that
    platform finds, and no other client does."""
    library = tmp_path / "liblms.so"
    sources = sorted((REPOSITORY / "lms/core").glob("*.cpp"))
    subprocess.run(
        ["powerpc64le-linux-gnu-g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread",
         "-Wl,-soname,liblms.so", f"-I{REPOSITORY / 'lms'}", f"-I{REPOSITORY}", "-o", str(library),
         *map(str, sources)], check=True,
    )  # fmt: skip
    info = "lms_engine-0.1.dist-info"
    wheel = tmp_path / "lms_engine-0.1-py3-none-linux_ppc64le.whl"
    wheelfile.create(
        wheel,
        {
            "lms_engine/liblms.so": library.read_bytes(),
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: lms-engine\nVersion: 0.1\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
        },
    )
    plan = Plan(
        name="lms-engine",
        version="0.1",
        build="lms_0",
        number=0,
        subdir="linux-ppc64le",
        python=PYTHON,
        home="",
        license="Apache-2.0",
        summary="The engine",
        depends=[],
        script=[],
    )
    check_wheel(wheel, plan, "lms-engine", "0.1")
    made = make(plan, wheel, real_project, tmp_path / "out", console)[0].package
    assert (
        made.subdir == "linux-ppc64le"
        and json.loads(metadata(made.path)["info/index.json"])["arch"] == "ppc64le"
    )
    assert any(spec.startswith("__glibc >=2.") for spec in made.depends)
    assert any(spec.startswith("libstdcxx-ng >=") for spec in made.depends)
    content = next(iter(files_of(made.path, set(made.files) & {made.files[-1]}).values()))
    assert content[:4] == b"\x7fELF" and content[18:20] == (21).to_bytes(2, "little")  # EM_PPC64
    channel = Channel(tmp_path / "channel")
    runtimes = [
        make_small(tmp_path / "box", name, version="12", subdir="linux-ppc64le")
        for name in ("libstdcxx-ng", "libgcc-ng")
    ]
    channel.add([made.path, *runtimes], console)
    with serving(channel) as urls:
        found = install(urls, ["lms-engine"], tmp_path / "power", platform="linux-ppc64le")
        assert "lms-engine 0.1" in found
        with pytest.raises(SolverError):
            install(urls, ["lms-engine"], tmp_path / "x86")


def test_the_table_knows_what_lmsbuild_requires() -> None:
    about = tomlkit.parse((REPOSITORY / "pyproject.toml").read_text()).unwrap()
    texts = about["project"]["dependencies"]
    wanted = [text for text in texts if "python_version" not in text]
    assert len(mapped([Requirement(text) for text in wanted], KNOWN)) == len(wanted)


@pytest.mark.default
@pytest.mark.net
def test_companions(tmp_path: Path, real_project: Project, console: Console) -> None:
    """Official wheels that go beside a tag's become packages that pull its build and no other."""
    out = str(tmp_path)
    code, shown, err = run("conda", "v2.6.0", "--companions", "--python", "3.11", "--output", out,
                           "--json", timeout=300)  # fmt: skip
    assert code == 0, err
    found = {row["package"]: row["depends"] for row in json.loads(shown)["packages"]}
    assert set(found) == {
        "torchvision 0.21.0 lms_cu124py311_1",
        "torchaudio 2.6.0 lms_cu124py311_1",
    }
    assert all("pytorch ==2.6.0 lms_cu124*" in depends for depends in found.values())
    vision, audio = found.values()
    assert "pillow >=5.3.0,!=8.3.*" in vision and "numpy" in vision
    assert "_openmp_mutex >=4.5" in audio
    code, shown, err = run("conda", "tensorflow:v2.14.1", "--companions", "--python", "3.11",
                           "--output", out, "--json", timeout=300)  # fmt: skip
    assert code == 0, err
    (estimator,) = json.loads(shown)["packages"]
    assert estimator["package"] == "tensorflow-estimator 2.14.0 lms_cpupy311_1"
    made = sorted((tmp_path / "linux-64").glob("*.conda"))
    Channel(tmp_path / "channel").add(made, console)


def test_companions_that_are_not_there(alpha: World) -> None:
    code, _, err = run("conda", "v1.0", "--companions")
    assert code == UsageError.exit_code and "tag.toml has none" in err
    code, _, err = run("conda", "v1.0", "--companions", "--plugin")
    assert code == UsageError.exit_code and "leave the others out" in err


@pytest.mark.slow
@pytest.mark.net
def test_lmsbuild_itself(tmp_path: Path) -> None:
    """Its own package, whose recipe's tests run it in an environment of its own."""
    env = {"LMSBUILD_ROOT": str(REPOSITORY), "LMSBUILD_WORK": str(tmp_path / "work")}
    code, out, err = run("conda", "lmsbuild", "--output", str(tmp_path), "--json", env=env)
    assert code == 0, err
    package, everything = json.loads(out)["packages"]
    assert package["tested"] and inspect(Path(package["path"])).subdir == "noarch"
    assert everything["package"].startswith("powerai ")
    assert everything["depends"] == ["pytorch-lms", "tensorflow-lms"]


@pytest.mark.default
def test_plugin_depends_on_the_release(
    tmp_path: Path, console: Console, real_project: Project
) -> None:
    found = resolve_plugin(real_project, "2.6.0")
    plan = plugin_plan(found, PYTHON, "linux-64")
    assert plan.build.startswith("lms_pt26cu124py")
    wheel = tmp_path / f"torch_lms-{found.version}-py3-none-manylinux_2_34_x86_64.whl"
    info = WheelName.of(wheel).dist_info
    requires = f"Requires-Dist: torch{found.release.requires}\n"
    about = f"Metadata-Version: 2.1\nName: torch-lms\nVersion: {found.version}\n{requires}"
    wheelfile.create(
        wheel,
        {"torch_lms/__init__.py": b"", f"{info}/METADATA": about.encode(), f"{info}/WHEEL": b""},
    )
    made = make(plan, wheel, real_project, tmp_path / "out", console)[0].package
    assert "pytorch >=2.6,<2.7" in made.depends and made.name == "torch-lms"
    channel = tmp_path / "channel"
    beside(real_project, found.target, plan, wheel, made.depends, place=channel, console=console)
    run_tests(made, [str(channel)], "", console)


# The framework itself ----------------------------------------------------------------------------

TRAIN = """
import json, simcuda
simcuda.load(memory="48M")
import torch
from torch import nn

def train(device):
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(512, 512), nn.Tanh())]
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(1024, 512).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses

try:
    stock = train("cuda")
except torch.OutOfMemoryError:
    stock = "out of memory"
import gc; gc.collect(); torch.cuda.empty_cache()
torch.cuda.lms.enable()
print(json.dumps({"version": torch.__version__, "place": torch.__file__, "stock": stock,
                  "lms": train("cuda"), "cpu": train("cpu"),
                  "out": simcuda.device.counters()["d2h_bytes"]}))
"""


@contextmanager
def installed(
    label: str, folder: Path, console: Console, *, companions: bool = False
) -> Iterator[tuple[Target, Path]]:
    """The tag solved and installed over http by its metapackage's name, with its companions if
    they are wanted: a prefix that has them.

    LMSBUILD_TEST_CONDA names a folder with all of the packages; without it they are built.
    """
    target = resolve(Project(REPOSITORY), label)
    python = target.python(None)
    given = os.environ.get("LMSBUILD_TEST_CONDA")
    if given is None:
        given = str(folder / "built")
        for options in (["--test", "none"], *([["--companions"]] if companions else [])):
            code, _, err = run(
                "conda", label, "--python", python, "--output", given, *options, timeout=1800
            )
            assert code == 0, err
    channel = Channel(folder / "channel")
    channel.add(sorted(Path(given).rglob("*.conda")), console)
    plan = framework_plan(target, python, "linux-64")
    note = json.loads((Path(given) / f"{plan.files[0]}.manifest.json").read_text())
    wheel = next(p for p in _wheels(target.work) if p.name == note["wheel"])
    needs = [Channel(folder / "needs")]
    beside(
        target.project, target, plan, wheel, note["depends"], place=needs[0].root, console=console
    )
    if companions:
        needs.append(needs_of_companions(target, python, Path(given), folder / "more", console))
    with serving(channel, *needs) as urls:
        prefix = folder / "prefix"
        cuda = target.cuda if target.cuda[0].isdigit() else ""
        meta = next(iter(plan.metas))
        others = [one.project for one in target.tag.companions] if companions else []
        names = install(urls, [meta, *others], prefix, cuda=cuda)
    assert {f"{name} {plan.version}" for name in (plan.name, meta)} <= set(names)
    yield target, prefix


def needs_of_companions(
    target: Target, python: str, given: Path, place: Path, console: Console
) -> Channel:
    """What they need beside the framework's package and what that needs."""
    wanted: list[str] = []
    depends: list[str] = []
    for one in target.tag.companions:
        plan = companion_plan(target, one, python, "linux-64")
        note = json.loads((given / f"{plan.files[0]}.manifest.json").read_text())
        depends += [
            spec for spec in note["depends"] if spec.split()[0] not in ("python", "pytorch")
        ]
        wheel = companion_wheel(target, one, one.digest(python) or "", python, console)
        wanted += wheel_requirements(wheelfile.requirements(wheel), python, KNOWN)
    base = Path(interpreter(python))
    wheels = packages_for(base, wanted, python, target.label, console, command="conda")
    return TestChannel(place, python, base, wheels, KNOWN).fill(depends, console)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.engine
def test_client_trains_with_the_real_framework(
    tmp_path: Path, console: Console, real_project: Project
) -> None:
    """v2.6.0 from a channel trains what does not fit the device, with the CPU's losses."""
    with installed("v2.6.0", tmp_path, console) as (target, prefix):
        variables = {
            **devices.variables(target, devices.choose(target, "sim"), console),
            "PYTHONPATH": str(real_project.tools),
        }
        done = run_there(prefix, TRAIN, variables)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["version"] == target.version and result["place"].startswith(str(prefix))
    assert result["stock"] == "out of memory"
    assert result["lms"] == result["cpu"] and len(result["lms"]) == 3
    assert result["out"] > 0


BESIDE = """
import json, simcuda
simcuda.load(memory="40M")
import torch, torchaudio, torchvision
from torchvision.transforms.functional import to_pil_image, to_tensor

def train(device):
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(8, 3, 64, 64).to(device), torch.arange(8).to(device)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses

try:
    stock = train("cuda")
except torch.OutOfMemoryError:
    stock = "out of memory"
import gc; gc.collect(); torch.cuda.empty_cache()
torch.cuda.lms.enable()
boxes = torch.tensor([[0., 0., 9., 9.], [0., 0., 9., 8.], [20., 20., 29., 29.]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
picture = torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8)
wave = torch.randn(1, 16000)
mel = torchaudio.transforms.MelSpectrogram(n_mels=32)
print(json.dumps({
    "places": [module.__file__ for module in (torch, torchvision, torchaudio)], "stock": stock,
    "lms": train("cuda"), "cpu": train("cpu"), "kept": kept,
    "png": torch.equal(torchvision.io.decode_png(torchvision.io.encode_png(picture)), picture),
    "pil": torch.equal((to_tensor(to_pil_image(picture)) * 255).round().byte(), picture),
    "filtered": list(torchaudio.functional.lfilter(
        wave, torch.tensor([1.0, 0.2]), torch.tensor([1.0, 0.1])).shape),
    "mel": torch.equal(mel(wave), mel.to("cuda")(wave.cuda()).cpu())}))
"""


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.engine
def test_companions_beside_the_real_framework(
    tmp_path: Path, console: Console, real_project: Project
) -> None:
    """torchvision and torchaudio of the channel load their libraries beside v2.6.0's, and what is
    theirs trains in a device that it does not fit."""
    with installed("v2.6.0", tmp_path, console, companions=True) as (target, prefix):
        variables = {
            **devices.variables(target, devices.choose(target, "sim"), console),
            "PYTHONPATH": str(real_project.tools),
        }
        done = run_there(prefix, BESIDE, variables)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(place.startswith(str(prefix)) for place in result["places"])
    assert result["stock"] == "out of memory"
    assert result["lms"] == result["cpu"] and len(result["lms"]) == 2
    assert result["kept"] == [0, 2] and result["filtered"] == [1, 16000]
    assert result["png"] and result["pil"] and result["mel"]


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.engine
def test_client_trains_with_the_real_tensorflow(tmp_path: Path, console: Console) -> None:
    """v2.14.1 from a channel trains under a limit, with the losses of no limit."""
    with installed("tensorflow:v2.14.1", tmp_path, console) as (_, prefix):
        stopped = run_there(prefix, TENSORFLOW, {**QUIET, **LIMIT})
        limited = run_there(prefix, TENSORFLOW, {**QUIET, **LIMIT, "TF_LMS": "1"})
        free = run_there(prefix, TENSORFLOW, QUIET)
    assert stopped.returncode != 0 and "OOM when allocating" in stopped.stderr
    assert free.returncode == limited.returncode == 0, limited.stderr
    assert limited.stdout == free.stdout and str(prefix) in free.stdout


def run_there(
    prefix: Path, code: str, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [prefix / "bin/python", "-c", code], env={"PATH": os.environ["PATH"], **variables},
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip


def _wheels(work: Path) -> list[Path]:
    given = os.environ.get("LMSBUILD_TEST_WHEELS")
    return sorted((Path(given) if given else work / "wheels").glob("*.whl"))
