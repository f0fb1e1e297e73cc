# SPDX-License-Identifier: Apache-2.0
"""No dry run changes anything: not the project, a checkout, the cache, a channel or the home."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lmsbuild_conda import give_conda
from lmsbuild_conda import make as make_small
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON, offer
from lmsbuild_world import REPOSITORY, UPSTREAM, World, enter_world, make_world, plain_git, write
from test_cli import LEAVES, READ_ONLY

from lmsbuild.base.errors import UsageError
from lmsbuild.base.hashing import sha256_file
from lmsbuild.base.project import Project

# What each is run with; {name} stands for what `Ready` has below that name.
ARGUMENTS = {
    "run": ["v1.0", "--python", PYTHON],
    "fetch": ["v1.0"],
    "apply": ["v1.0"],
    "refresh": ["v1.0"],
    "port": ["v1.0", "v1.1", "--source", "{upstream}"],
    "add": ["alpha:v1.1", "--source", "{upstream}", "--offline"],
    "export": ["v1.0"],
    "push": ["v1.0", "--all"],
    "pop": ["v1.0"],
    "fold": ["v1.0", "{patches}/fold.diff", "--patch", "1"],
    "squash": ["v1.0", "1", "2"],
    "drop": ["v1.0", "2"],
    "reorder": ["v1.0", "2", "--before", "1"],
    "import": ["v1.0", "{patches}/more.patch"],
    "wheel": ["v1.0", "--python", PYTHON],
    "plugin": ["1.0"],
    "abort": [],
    "undo": ["v1.0"],
    "test": ["v1.0", "--python", PYTHON],
    "bench": ["v1.0", "--python", PYTHON],
    "image": ["v1.0", "--kind", "compiler"],
    "conda": ["v1.0", "--python", PYTHON],
    "channel add": ["{channel}", "{patches}/linux-64/demo-1.1-0.conda"],
    "channel index": ["{channel}"],
    "channel prune": ["{channel}", "--keep", "1"],
    "release": ["v1.0", "--python", PYTHON],
    "rebuild": ["{patches}/release.json"],
    "matrix": ["--write"],
    "clean": ["--all", "--force"],
}
# These are about a checkout that is there, and fail without one.
ON_A_CHECKOUT = (
    "push", "pop", "fold", "squash", "drop", "reorder", "import", "undo", "rebuild"
)  # fmt: skip
# Of each one is in what a dry run says: there may be nothing to do.
WORDS = ("would", "nothing", "unchanged", "as it should be", "as lms/ has it")
MORE = """
[images.compiler]
base = { x86_64 = "no-such-image:1" }
compilers = ["g++"]
"""
PLUGIN = """
name = "alpha_lms"
version = "0.1"
sources = "lms/plug"
[releases."1.0"]
tag = "v1.0"
requires = ""
"""
RUNNERS = """
[runners.x86_64]
github = ["big"]
gitlab = ["big"]
jenkins = "big"
"""


@dataclass(frozen=True)
class Ready:
    world: World
    environment: dict[str, str]
    made: bool  # with a checkout that has the series, and more

    def run(self, *words: str) -> tuple[int, str, str]:
        folder = self.world.folder
        values = {
            "upstream": str(self.world.upstream), "channel": str(folder / "channel"),
            "patches": str(folder / "given"),
        }  # fmt: skip
        filled = [word.format(**values) for word in words]
        return run(*filled, env=self.environment, cwd=folder)

    def state(self) -> dict[str, str]:
        """Every file and folder but for the logs."""
        found = {}
        for path in sorted(self.world.folder.rglob("*")):
            name = path.relative_to(self.world.folder).as_posix()
            if name.startswith("work/logs"):
                continue
            mode = path.lstat().st_mode
            content = sha256_file(path) if stat.S_ISREG(mode) else ""
            content = str(path.readlink()) if stat.S_ISLNK(mode) else content
            found[name] = f"{mode:o} {content}"
        return found


@pytest.fixture(scope="module", params=["fresh", "made"])
def ready(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ready]:
    folder = tmp_path_factory.mktemp(request.param)
    make_world(folder, UPSTREAM)
    with pytest.MonkeyPatch.context() as patched:
        world = enter_world(folder, patched)
        yield _filled(world, made=request.param == "made")


def _filled(world: World, *, made: bool) -> Ready:
    folder, project = world.folder, world.project.root
    later = UPSTREAM["core/alloc.cpp"].replace("line18 = 18", "line18 = 0")
    world.commit(world.upstream, {"core/alloc.cpp": later}, "Release 1.1")
    plain_git(world.upstream, "tag", "v1.1")
    _, variables = offer(world)
    give_conda(world)
    shutil.copytree(REPOSITORY / "ci/templates", project / "ci/templates")
    write(project, {"ci/matrix.toml": RUNNERS, "lms/plug/alpha_lms/__init__.py": ""})
    write(project, {"tests/regression/test_x.py": "", "examples/train.py": ""})
    write(project, {"patches/alpha/plugin.toml": PLUGIN})
    world.tag_file.write_text(world.tag_file.read_text() + MORE)
    for name in ("home", "work", "given", "cache"):
        (folder / name).mkdir(exist_ok=True)
    home = str(folder / "home")
    environment = {**variables, "HOME": home, "XDG_CACHE_HOME": "", "XDG_STATE_HOME": ""}
    ready = Ready(world, environment, made)
    for version in ("1.0", "0.9", "1.1"):
        make_small(folder / "given", version=version)
    packages = [str(folder / f"given/linux-64/demo-{v}-0.conda") for v in ("1.0", "0.9")]
    said = ready.run("channel", "add", "{channel}", *packages)
    assert said[0] == 0, said
    if made:
        _use(ready)
    else:
        write(folder, {"given/release.json": "{}"})
    return ready


def _use(ready: Ready) -> None:
    folder = ready.world.folder
    checkout = ready.world.target.work / "source"
    for command in (
        ["apply", "v1.0", "--source", "git"],
        ["release", "v1.0", "--python", PYTHON, "--no-conda"],
    ):
        said = ready.run(*command)
        assert said[0] == 0, said
    (manifest,) = folder.glob("work/alpha-v1.0/releases/*/release.json")
    shutil.copy(manifest, folder / "given/release.json")
    text = (checkout / "core/alloc.cpp").read_text()
    write(checkout, {"core/alloc.cpp": text.replace("line35 = 35", "line35 = 36")})
    (folder / "given/fold.diff").write_text(plain_git(checkout, "diff") + "\n")
    plain_git(checkout, "commit", "-qam", "Count it\n\nBecause core/alloc.cpp must.")
    mail = plain_git(checkout, "format-patch", "-1", "--stdout")
    (folder / "given/more.patch").write_text(mail + "\n")
    plain_git(checkout, "reset", "-q", "--hard", "HEAD~1")


def test_every_command_is_here() -> None:
    assert set(ARGUMENTS) == set(LEAVES) - set(READ_ONLY)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_changes_nothing_and_says_what_it_would_do(ready: Ready, name: str) -> None:
    popped = name == "push" and ready.made  # or there was nothing to push
    if popped:
        assert ready.run("pop", "v1.0")[0] == 0
    before = ready.state()
    for more in ([], ["--json"]):
        code, out, err = ready.run(*name.split(), *ARGUMENTS[name], "--dry-run", *more)
        assert ready.state() == before
        assert "Traceback" not in err
        if name in ON_A_CHECKOUT and not ready.made:
            assert code not in (0, 1), (code, out, err)
            continue
        if name == "bench":  # its models are PyTorch's
            assert code == UsageError.exit_code
            continue
        assert code == 0, (code, out, err)
        if more:
            assert json.loads(out)["dry_run"] is True
        else:
            assert any(word in out for word in WORDS), (out, err)
    if popped:
        assert ready.run("push", "v1.0")[0] == 0


def test_bench(real_project: Project, tmp_path: Path) -> None:
    home = {name: str(tmp_path / name) for name in ("HOME", "LMSBUILD_WORK", "LMSBUILD_CACHE")}
    code, out, err = run("bench", "v2.6.0", "--dry-run", "--device", "sim", env=home, cwd=tmp_path)
    assert code == 0 and "would measure pytorch:v2.6.0" in out, err
    assert [path.name for path in tmp_path.rglob("*") if "logs" not in path.parts] == []
