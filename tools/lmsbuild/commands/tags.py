# SPDX-License-Identifier: Apache-2.0
"""lmsbuild tags"""

from __future__ import annotations

import click

from lmsbuild.console import Console
from lmsbuild.frameworks import targets
from lmsbuild.options import examples, json_option
from lmsbuild.project import find_project
from lmsbuild.series import patch_files


@click.command("tags", epilog=examples("lmsbuild tags", "lmsbuild tags --json"))
@json_option
def command(console: Console) -> None:
    """List the supported frameworks and tags."""
    rows = [
        {
            "tag": target.label,
            "commit": target.tag.commit,
            "patches": len(patch_files(target.runtime_patches) + patch_files(target.tag_patches)),
            "version": f"{target.tag.version}+{target.tag.wheel.local}",
            "cuda": target.tag.overlay.cuda,
            "pythons": sorted(target.tag.wheel.sha256, key=lambda v: int(v.split(".")[1])),
        }
        for target in targets(find_project())
    ]
    console.table(
        "",
        ["tag", "commit", "patches", "wheel", "CUDA", "Python"],
        [
            [
                str(row["tag"]), str(row["commit"])[:12], str(row["patches"]), str(row["version"]),
                str(row["cuda"]), " ".join(map(str, row["pythons"])),  # type: ignore[arg-type]
            ]
            for row in rows
        ],
    )  # fmt: skip
    console.result(rows)
