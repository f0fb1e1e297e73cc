# SPDX-License-Identifier: Apache-2.0
"""lmsbuild matrix"""

from __future__ import annotations

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import dry_run_option, examples, json_option
from lmsbuild.tags import matrix
from lmsbuild.tags.frameworks import load, resolve


@click.command(
    "matrix",
    epilog=examples(
        "lmsbuild matrix                    # what is built",
        "lmsbuild matrix --format github    # the pipeline, on standard output",
        "lmsbuild matrix v2.6.0 --format gitlab > .gitlab-ci.yml",
        "lmsbuild matrix --write            # ci/ anew, after a change of a tag",
    ),
)
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option(
    "--format", "form", type=click.Choice([*matrix.PIPELINES, "json"]),
    help="Print the pipeline for this CI system, or the cells as JSON.",
)  # fmt: skip
@click.option("--write", "writes", is_flag=True, help="Write the pipelines below ci/.")
@click.option("--check", "checks", is_flag=True, help="Fail when those below ci/ are stale.")
@dry_run_option
@json_option
def command(
    *,
    tags: tuple[str, ...],
    form: str | None,
    writes: bool,
    checks: bool,
    dry_run: bool,
    console: Console,
) -> None:
    """Show the CI matrix (tag x Python x CUDA x architecture), or render pipelines of it.

    Made of every tag's official wheels, with the rules `include` and `exclude` of ci/matrix.toml.
    An `overlay` is the official wheel with the patched libraries; `full` is a build of everything
    in a container, for what no official wheel covers. A `plugin` is the package beside an official
    release, tested there; the newest Python stands for all.
    """
    if writes + checks + (form is not None) > 1:
        raise UsageError(
            "nothing was done because --format, --write and --check exclude each other; give one"
        )
    if tags and (writes or checks):
        raise UsageError(
            "nothing was done because the pipelines below ci/ are of every tag; leave the TAG out, "
            "or print those of one with --format"
        )
    project = find_project()
    if checks:
        matrix.check(project)
        console.say("the pipelines below ci/ are those of the tags")
        console.result({"stale": []})
        return
    if writes:
        if project.installed and not dry_run:
            raise UsageError(
                "the pipelines of an installed lmsbuild are not written because an update would "
                "undo it; work in a clone of the project, or print them with --format"
            )
        files = matrix.rendered(project)
        changed = matrix.stale(files) if dry_run else matrix.write(files)
        names = [path.relative_to(project.root).as_posix() for path in changed]
        verb = "would be written" if dry_run else "written"
        console.say(f"{verb}: {', '.join(names)}" if names else "nothing has changed")
        console.result({"changed": names})
        return
    labels = [resolve(project, tag).label for tag in tags]
    rules = matrix.rules_of(project)
    frameworks = load(project)
    chosen = matrix.select(matrix.cells(frameworks, rules), labels)
    if form in matrix.PIPELINES and not console.json_mode:
        text = matrix.render(project, form, matrix.jobs(frameworks, rules, chosen))
        click.echo(text, nl=False)
        return
    if form == "json":
        console.json_mode = True
    console.table(
        "",
        ["tag", "Python", "CUDA", "architecture", "build"],
        [
            [f"{cell.framework}:{cell.tag}", cell.python, cell.cuda, cell.arch, cell.build]
            for cell in chosen
        ],
    )
    console.result([cell.model_dump() for cell in chosen])
