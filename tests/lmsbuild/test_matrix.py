# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_groovy
from click.testing import CliRunner
from lmsbuild_world import REPOSITORY, World, write
from ruamel.yaml import YAML

from lmsbuild.base.errors import ConfigError, SeriesError, UsageError
from lmsbuild.base.project import Project
from lmsbuild.commands.matrix import command
from lmsbuild.tags import matrix
from lmsbuild.tags.frameworks import load
from lmsbuild.tags.matrix import Cell
from lmsbuild.wheel.plugin import releases

GITHUB = ("github", "github-release")
RUNNERS = """
[runners.x86_64]
github = ["big"]
gitlab = ["big"]
jenkins = "big"
"""
INCLUDE = """
[[include]]
framework = "alpha"
tag = "v1.0"
python = "3.11"
cuda = "{cuda}"
arch = "{arch}"
build = "full"
"""


def _with(world: World, text: str) -> list[Cell]:
    """The cells of the world with these rules."""
    write(world.project.root, {matrix.FILE: text})
    return matrix.cells(load(world.project), matrix.rules_of(world.project))


def test_every_official_wheel_is_a_cell() -> None:
    frameworks = load(Project(REPOSITORY))
    rules = matrix.rules_of(Project(REPOSITORY)).model_copy(update={"exclude": []})
    found = matrix.cells(frameworks, rules)
    overlays = [cell for cell in found if cell.build == "overlay"]
    wheels = sum(
        len(wheel.sha256) * len({p.rsplit("linux", 1)[-1] for p in wheel.platforms})
        for framework in frameworks.values()
        for tag in framework.tags.values()
        for variant in tag.cuda.values()
        for wheel in (variant.wheel, *variant.machines.values())
    )
    assert len(overlays) == wheels > 0
    assert len(set(found)) == len(found)
    assert found == matrix.cells(frameworks, rules)


def test_names_of_jobs_differ() -> None:
    frameworks, rules = load(Project(REPOSITORY)), matrix.rules_of(Project(REPOSITORY))
    cells = matrix.cells(frameworks, rules)
    names = [job.name for job in matrix.jobs(frameworks, rules, cells)]
    assert len(set(names)) == len(names)


def test_include_and_exclude(world: World) -> None:
    before = _with(world, "")
    assert [cell.python for cell in before] == ["3.11"]
    rules = '[[exclude]]\npython = "3.1?"\nwhy = "too new"\n'
    full = _with(world, rules + INCLUDE.format(cuda="0", arch="ppc64le"))
    assert [(cell.build, cell.arch) for cell in full] == [("full", "ppc64le")]


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ('[[exclude]]\ntag = "v9*"\nwhy = "gone"\n', r"why = 'gone'.*matches no wheel"),
        (INCLUDE.format(cuda="9.9", arch="ppc64le"), r"alpha:v1\.0 for CUDA 9\.9"),
        ('[[exclude]]\npython = "*"\n', "why"),
        (INCLUDE.format(cuda="0", arch="ppc64le").replace("full", "half"), "build"),
    ],
)
def test_wrong_rules_are_named(world: World, rule: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        _with(world, rule)


def test_an_architecture_needs_a_runner(world: World) -> None:
    cells = _with(world, RUNNERS.replace("x86_64", "s390x"))
    with pytest.raises(ConfigError, match=r"`runners` has no entry for .*x86_64"):
        matrix.jobs(load(world.project), matrix.rules_of(world.project), cells)


def _schema(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "check_jsonschema", *options, str(file)]
    return subprocess.run([sys.executable, *arguments], text=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        *((name, ["--builtin-schema", "vendor.github-workflows"], "runs-on:") for name in GITHUB),
        (
            "gitlab",
            ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
            "script:",
        ),
    ],
)
def test_pipelines_keep_the_published_schema(
    name: str, options: list[str], key: str, tmp_path: Path
) -> None:
    file = REPOSITORY / "ci" / matrix.PIPELINES[name]
    good = _schema(file, *options)
    assert good.returncode == 0, good.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(file.read_text().replace(key, "wrong-" + key))
    bad = _schema(broken, *options)
    assert bad.returncode == 1 and "wrong-" in bad.stdout


def test_what_github_runs_for_whom() -> None:
    """No long build on main is cancelled, and no fork's code gets to a runner of the project."""
    workflow = YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES["github"])
    cancelled = workflow["concurrency"]["cancel-in-progress"]
    assert cancelled == "${{ github.ref != 'refs/heads/main' }}"
    jobs = workflow["jobs"]
    assert jobs["check"]["runs-on"] == "ubuntu-24.04"
    own = "github.event.pull_request.head.repo.full_name == github.repository"
    assert jobs["wheel"]["if"] == f"github.event_name != 'pull_request' || {own}"
    steps = [step for job in jobs.values() for step in job["steps"] if "uses" in step]
    for step in steps:
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        if step["uses"].startswith("actions/upload-artifact@"):
            assert step["with"]["retention-days"] == 30


@pytest.mark.parametrize("name", GITHUB)
def test_actions_are_pinned_and_the_workflow_is_safe(name: str, tmp_path: Path) -> None:
    """A tag can be moved by whoever has the action's repository; zizmor finds that, and more."""
    text = (REPOSITORY / "ci" / matrix.PIPELINES[name]).read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used)

    def audit(content: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "lms.yml"
        file.write_text(content)
        program = Path(sys.executable).with_name("zizmor")
        return subprocess.run(
            [program, "--offline", "--no-progress", file], text=True, capture_output=True
        )

    good = audit(text)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "unpinned-uses" in audit(re.sub("@[0-9a-f]{40}", "@v4", text)).stdout
    asked = text.replace("python -m pip install .", "echo ${{ github.head_ref }} #")
    assert "template-injection" in audit(asked).stdout


@pytest.mark.parametrize("name", GITHUB)
def test_the_workflow_passes_actionlint(name: str, tmp_path: Path) -> None:
    """Its expressions, and by shellcheck its scripts."""

    def checked(content: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "lms.yml"
        file.write_text(content)
        programs = Path(sys.executable).parent
        options: list[str | Path] = ["-shellcheck", programs / "shellcheck"]
        return subprocess.run(
            [programs / "actionlint", *options, file], text=True, capture_output=True
        )

    text = (REPOSITORY / "ci" / matrix.PIPELINES[name]).read_text()
    good = checked(text)
    assert good.returncode == 0, good.stdout + good.stderr
    assert '"runer" is not defined' in checked(text.replace("matrix.runner", "matrix.runer")).stdout
    asked = text.replace("run: python -m pip install", "run: python -m pip install $CHOSEN")
    assert "SC2086" in checked(asked).stdout


def test_cells_of_a_tag_share_one_cache() -> None:
    """Of what each of them uses: the official wheels are each one cell's, and most of the bytes."""
    github, gitlab = (
        YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES[name])
        for name in ("github", "gitlab")
    )
    cells = github["jobs"]["wheel"]["strategy"]["matrix"]["include"]
    steps = github["jobs"]["wheel"]["steps"]
    (step,) = (step for step in steps if step.get("uses", "").startswith("actions/cache@"))
    assert step["with"]["key"] == "lmsbuild-${{ matrix.tag }}-${{ hashFiles(matrix.file) }}"
    assert len({cell["tag"] for cell in cells}) < len(cells)
    assert all((REPOSITORY / cell["file"]).is_file() for cell in cells)
    kept = {Path(path).name for path in step["with"]["path"].split()}
    assert kept == set(matrix.CACHED) and "packages" not in kept
    for cell in cells:
        cache = gitlab[cell["name"]]["cache"][0]
        assert cache["key"] == {"prefix": cell["tag"], "files": [cell["file"]]}
        assert {Path(path).name for path in cache["paths"]} == kept


def commands(name: str) -> dict[str, str]:
    """The script of every cell of a pipeline."""
    found = YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES[name])
    if name == "gitlab":
        del found["stages"]
        jobs = {key: job for key, job in found.items() if job.get("extends") == ".lms-wheel"}
        return {key: "\n".join(job["script"]) for key, job in jobs.items()}
    cells = found["jobs"]["wheel"]["strategy"]["matrix"]["include"]
    return {cell["name"]: cell["build"] for cell in cells}


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_what_is_compiled_in_a_container_is_what_is_tested_and_packed(name: str) -> None:
    """So a wheel needs what the official one needs, and not what the runner has."""
    scripts = commands(name)
    wheels = {cell: text for cell, text in scripts.items() if not cell.endswith("-plugin")}
    overlays = [text for text in wheels.values() if "--full" not in text]
    assert len(overlays) == len(wheels) - 1
    for text in overlays:
        lines = [line for line in text.splitlines() if line.startswith("lmsbuild ")]
        assert [line.split()[1] for line in lines] == ["wheel", "test", "conda"]
        assert lines[0].endswith("--container --output dist")
        assert "--wheel dist/*.whl" in lines[1] and "--wheel dist/*.whl" in lines[2]
    frameworks, rules = load(Project(REPOSITORY)), matrix.rules_of(Project(REPOSITORY))
    for cell in matrix.cells(frameworks, rules):
        if cell.build == "overlay":
            images = frameworks[cell.framework].tags[cell.tag].images
            assert cell.arch in images["compiler"].base


def test_a_complete_build_keeps_its_state() -> None:
    """Restored before it and kept after it, also when its time was over."""
    github, gitlab = (
        YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES[name])
        for name in ("github", "gitlab")
    )
    steps = github["jobs"]["wheel"]["steps"]
    uses = [step.get("uses", "").partition("@")[0] for step in steps]
    restore, save = uses.index("actions/cache/restore"), uses.index("actions/cache/save")
    build = next(n for n, step in enumerate(steps) if step.get("run") == "${{ matrix.build }}")
    assert restore < build < save and steps[save]["if"] == "always() && matrix.full"
    assert steps[restore]["with"]["path"] == steps[save]["with"]["path"]
    assert steps[restore]["with"]["key"].startswith(steps[restore]["with"]["restore-keys"])
    assert steps[build]["timeout-minutes"] == "${{ matrix.minutes }}"
    (full,) = (
        cell for cell in github["jobs"]["wheel"]["strategy"]["matrix"]["include"] if cell["full"]
    )
    assert full["limit"] > full["minutes"]
    state = gitlab[full["name"]]["cache"][1]
    assert state["when"] == "always" and "work/*/full-*" in state["paths"]
    assert int(gitlab[full["name"]]["timeout"].split()[0]) > full["minutes"]


def test_a_gpu_has_its_cells(shipped: World) -> None:
    """Off while nobody has such a machine; then one for each tag and CUDA version."""
    project = shipped.project
    frameworks, rules = load(project), matrix.rules_of(project)
    work = matrix.jobs(frameworks, rules, matrix.cells(frameworks, rules))
    assert "--device cuda" not in matrix.render(project, "github", work)
    gpu = matrix.Runner(github=["gpu"], gitlab=[], jenkins="gpu && linux")
    rules = rules.model_copy(update={"gpu": gpu})
    # The framework of the tests has no GPU; PyTorch has.
    shows = frameworks["alpha"].shows.model_copy(update={"device": "simcuda"})
    frameworks = {"alpha": frameworks["alpha"].model_copy(update={"shows": shows})}
    work = matrix.jobs(frameworks, rules, matrix.cells(frameworks, rules))
    for name in ("github", "jenkins"):
        text = matrix.render(project, name, work)
        assert text.count("lmsbuild test alpha:v1.0 --python 3.11 --cuda 0 --device cuda") == 1
        assert "alpha-v1.0-py311-cu0-x86_64-gpu" in text
    assert "--device cuda" not in matrix.render(project, "gitlab", work)
    assert "-gpu" not in matrix.render(project, "github-release", work)


def test_a_pushed_tag_makes_a_release() -> None:
    """Of every overlay, tested, signed when there is a key; published when all are there."""
    workflow = YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES["github-release"])
    assert workflow["on"] == {"push": {"tags": ["lms-*"]}}
    release, publish = workflow["jobs"]["release"], workflow["jobs"]["publish"]
    uses = {step.get("uses", "").partition("@")[0] for step in release["steps"]}
    assert not any(name.startswith("actions/cache") for name in uses), "nothing of other runs"
    assert publish["needs"] == "release" and release["environment"] == "release"
    cells = release["strategy"]["matrix"]["include"]
    plugins = [cell for cell in cells if cell["name"].endswith("-plugin")]
    cells = [cell for cell in cells if cell not in plugins]
    wheels = [name for name in commands("github") if not name.endswith(("ppc64le", "-plugin"))]
    assert [cell["name"] for cell in cells] == wheels
    for cell in plugins:
        assert cell["image"] == ""
        assert cell["test"].strip().endswith("--plugin --wheel release/*/*.whl")
    for cell in cells:
        assert "--container" in cell["release"]
        assert '${LMS_KEY:+--sign "$LMS_KEY"}' in cell["release"]
        assert "--wheel release/*/*.whl" in cell["test"]
        assert bool(cell["image"]) == ("lmsbuild image" in cell["release"])
    images = [cell["image"] for cell in cells if cell["image"]]
    assert len(images) == len({name.partition(":")[0] for name in images}) > 2, "one of a tag"
    assert any("--companions" in cell["release"] for cell in cells)


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_every_release_of_a_plugin_is_tested(name: str) -> None:
    scripts = {cell: text for cell, text in commands(name).items() if cell.endswith("-plugin")}
    frameworks = load(Project(REPOSITORY))
    known = [
        f"{framework}:v{release}"
        for framework, what in frameworks.items()
        if what.plugin
        for release in what.plugin.releases
    ]
    assert [cell.removesuffix("-plugin").replace("-", ":", 1) for cell in scripts] == known
    for label, script in zip(known, scripts.values(), strict=True):
        lines = [line.split() for line in script.splitlines() if line.startswith("lmsbuild ")]
        assert all(line[2] == label for line in lines)
        assert lines[0][1] == "plugin" and lines[-1][1] == "test"
        assert {line[1] for line in lines[1:-1]} == {"conda"}
        # What is compiled needs the container's libraries, not the runner's; that is what goes on.
        assert ("--container" in lines[0]) == label.startswith("pytorch:")
        for line in lines[1:]:
            assert "--plugin" in line and line[line.index("--wheel") + 1] == "dist/*.whl"


def test_what_a_release_has_of_the_plugins() -> None:
    """A wheel that is compiled for each release of the framework once for each, with a conda
    package for each Python; one that is for all of them once."""
    workflow = YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES["github-release"])
    cells = workflow["jobs"]["release"]["strategy"]["matrix"]["include"]
    made = [cell for cell in cells if cell["name"].endswith("-plugin")]
    plugin = load(Project(REPOSITORY))["pytorch"].plugin
    assert plugin is not None
    torch = [cell for cell in made if cell["name"].startswith("pytorch")]
    assert len(torch) == len(plugin.releases) and len(made) == len(torch) + 1
    for found in releases(Project(REPOSITORY)):  # each has a pinned image to be compiled in
        image = found.target.tag.images.get("compiler")
        if found.plugin.compiled and not found.release.tag:
            assert image is not None and "@sha256:" in image.base["x86_64"]
        assert not found.plugin.compiled or (image and image.base["x86_64"])
    for cell in made:
        assert ("--container" in cell["release"]) == (cell in torch)
        lines = cell["release"].split("\n")
        folders = {line.rpartition(" ")[2] for line in lines if line}
        assert len(folders) == 1 and next(iter(folders)).startswith("release/")
        pythons = cell["python"].split()
        assert sum(line.startswith("lmsbuild conda ") for line in lines) == len(pythons)
        assert len(pythons) >= (3 if cell in torch else 1)
    assert len({cell["release"].split()[-1] for cell in made}) == len(made)


def test_what_a_run_leaves_goes_after_a_month() -> None:
    gitlab = YAML(typ="safe").load(REPOSITORY / "ci" / matrix.PIPELINES["gitlab"])
    assert gitlab[".lms-wheel"]["artifacts"]["expire_in"] == "30 days"
    jenkins = (REPOSITORY / "ci" / matrix.PIPELINES["jenkins"]).read_text()
    assert "buildDiscarder(logRotator(daysToKeepStr: '30'))" in jenkins


def test_jenkinsfile_is_groovy() -> None:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_groovy.language()))
    text = (REPOSITORY / "ci" / matrix.PIPELINES["jenkins"]).read_bytes()
    assert not parser.parse(text).root_node.has_error
    assert parser.parse(text.replace(b"steps {", b"steps (", 1)).root_node.has_error


def test_committed_pipelines_are_fresh() -> None:
    project = Project(REPOSITORY)
    matrix.check(project)


@pytest.fixture
def shipped(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with the real templates."""
    templates = world.project.root / "ci"
    templates.mkdir()
    (templates / "templates").symlink_to(REPOSITORY / "ci" / "templates")
    _with(world, RUNNERS)
    monkeypatch.setenv("LMSBUILD_ROOT", str(world.project.root))
    return world


def test_a_new_tag_is_data(shipped: World) -> None:
    project = shipped.project
    assert CliRunner().invoke(command, ["--write"]).exit_code == 0
    matrix.check(project)
    toml = shipped.tag_file
    toml.write_text(toml.read_text().replace('"3.11" = ', '"3.12" = '))
    with pytest.raises(SeriesError, match=r"ci/github/lms\.yml, .*lmsbuild matrix --write"):
        matrix.check(project)
    before = (project.root / "ci/github/lms.yml").read_bytes()
    dry = CliRunner().invoke(command, ["--write", "--dry-run", "--json"])
    assert len(json.loads(dry.stdout)["changed"]) == len(matrix.PIPELINES)
    assert (project.root / "ci/github/lms.yml").read_bytes() == before
    CliRunner().invoke(command, ["--write"])
    matrix.check(project)
    assert b"alpha-v1.0-py312-cu0" in (project.root / "ci/jenkins/Jenkinsfile").read_bytes()


def test_a_release_whose_wheels_nobody_looked_up_has_no_cell_yet(shipped: World) -> None:
    """As `port` leaves the tag that it is of."""
    toml = shipped.tag_file
    toml.write_text(re.sub("(?m)^sha256 = .*$", "sha256 = {}", toml.read_text(), count=1))
    plugin = 'name = "x"\nversion = "1"\nsources = "lms/x"\n[releases."1.0"]\n'
    (toml.parents[1] / "plugin.toml").write_text(f'{plugin}requires = ""\ntag = "v1.0"\n')
    shown = CliRunner().invoke(command, ["--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout) == []


@pytest.mark.parametrize("form", matrix.PIPELINES)
def test_printed_is_what_is_written(shipped: World, form: str) -> None:
    CliRunner().invoke(command, ["--write"])
    printed = CliRunner().invoke(command, ["v1.0", "--format", form])
    file = shipped.project.root / "ci" / matrix.PIPELINES[form]
    assert printed.stdout == file.read_text()


def test_json_is_the_cells(shipped: World) -> None:
    for arguments in (["--json"], ["--format", "json"], ["v1.0", "--json"]):
        shown = CliRunner().invoke(command, arguments)
        assert json.loads(shown.stdout) == [
            {
                "framework": "alpha",
                "tag": "v1.0",
                "python": "3.11",
                "cuda": "0",
                "arch": "x86_64",
                "build": "overlay",
            }
        ]


@pytest.mark.parametrize(
    "arguments", [["--write", "--check"], ["--check", "--format", "json"], ["v1.0", "--write"]]
)
def test_options_that_exclude_each_other(shipped: World, arguments: list[str]) -> None:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UsageError)
    assert not (shipped.project.root / "ci" / "github").exists()
