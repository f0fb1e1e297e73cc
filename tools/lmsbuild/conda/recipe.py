# SPDX-License-Identifier: Apache-2.0
"""Recipes: rendered from the templates of conda-recipes/, and a package built of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from lmsbuild.base import log
from lmsbuild.base.errors import (
    ConfigError,
    PackageError,
)
from lmsbuild.base.hashing import sha256_file
from lmsbuild.base.project import Project
from lmsbuild.conda.condapackage import (
    check_room,
    settle,
)
from lmsbuild.conda.rattler import rattler
from lmsbuild.conda.staging import TIME, Staged

OWN_LICENCE = "LICENSE.large-model-support"


def build_recipe(
    template: str, values: Mapping[str, Any], subdir: str, project: Project, folder: Path
) -> Path:
    """Render a recipe, build it and give the package its settled form. Raises PackageError."""
    recipe = folder / "recipe" / "recipe.yaml"
    recipe.parent.mkdir(exist_ok=True)
    recipe.write_text(render(template, values, project), encoding="utf-8")
    log.note(recipe.read_text(encoding="utf-8"))
    threads = max(2, os.cpu_count() or 2)
    order = {"recipe": str(recipe), "platform": subdir, "output": str(folder / "out"),
             "threads": threads}  # fmt: skip
    done = rattler("build", order, {})
    if done.error:
        check_room(folder, done.error)
        raise PackageError(
            f"{values['name']} was not built because rattler-build says: {done.error}; see the "
            "full log",
            output=done.output,
        )
    built = Path(done.files[0])
    settle(built, TIME)
    return built


def render(template: str, values: Mapping[str, Any], project: Project) -> str:
    """The recipe as text. Raises ConfigError for a template that is wrong."""
    loader = jinja2.FileSystemLoader(project.recipes)
    try:
        found = jinja2.Environment(
            loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        ).get_template(template)
        return found.render(values)
    except jinja2.TemplateError as error:
        raise ConfigError(
            f"conda-recipes/{template} cannot be used because {error}; correct it"
        ) from error


def put_licences(staged: Staged, project: Project, recipe: Path) -> list[str]:
    """The wheel's licence files and our own beside the recipe, as the recipe names them."""
    files = {f"{number}-{Path(path).name}": staged.root / path
             for number, path in enumerate(sorted(staged.licences))}  # fmt: skip
    files[OWN_LICENCE] = project.recipes / "LICENSE"
    (recipe / "licences").mkdir()
    for name, file in files.items():
        shutil.copyfile(file, recipe / "licences" / name)
    return [f"licences/{name}" for name in files]


def used(project: Project) -> dict[str, str]:
    """The files that packages are made by, with their hashes."""
    files = [*project.recipes.glob("*.j2"), project.recipes / "dependencies.toml"]
    return {file.name: sha256_file(file) for file in files}
