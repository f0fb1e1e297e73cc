# SPDX-License-Identifier: Apache-2.0
"""The packages of lmsbuild import one way, no modules import each other in a circle, and what an
option means is handed on, not left in the environment."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY

PACKAGE = REPOSITORY / "tools" / "lmsbuild"
# Each may import those above it. `commands` are loaded by name, so that each starts fast.
ORDER = (
    "base",
    "tags",
    "series",
    "checkout",
    "wheel",
    "places",
    "upkeep",
    "conda",
    "trials",
    "ship",
    "cli",
    "commands",
    "__main__",
)


def modules(package: Path) -> dict[str, ast.Module]:
    """The name of each module below `package`, without `lmsbuild.`, and what it says."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): ast.parse(path.read_bytes())
        for path in package.rglob("*.py")
        if not {"_project", "programs"} & set(path.parts) and path.name != "__init__.py"
    }


def imports(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    """The modules that `tree` imports anywhere: in functions and for types, too."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "lmsbuild":
                parent = rest.rpartition(".")[0]
                yield rest if rest in known else parent or rest


def wrong_ways(package: Path) -> list[str]:
    """The imports against the order, and the circles, of the modules below `package`."""
    known = modules(package)
    graph = {name: set(imports(tree, known)) & set(known) for name, tree in known.items()}
    rank = {name: number for number, name in enumerate(ORDER)}
    wrong = [
        f"{name} imports {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if rank[other.partition(".")[0]] > rank[name.partition(".")[0]]
    ]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        wrong.append("in a circle: " + " -> ".join(error.args[1]))
    return wrong


def test_every_module_is_in_a_room() -> None:
    rooms = {name.partition(".")[0] for name in modules(PACKAGE)}
    assert rooms == set(ORDER)
    for room in rooms - {"__main__"}:
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))


def test_imports_run_one_way() -> None:
    assert wrong_ways(PACKAGE) == []


@pytest.mark.parametrize(
    "line",
    [
        "from lmsbuild.wheel.elf import read",
        "from lmsbuild.wheel import elf",
        "import lmsbuild.wheel.elf",
        "def late():\n    from lmsbuild.wheel import elf",
        "if TYPE_CHECKING:\n    from lmsbuild.wheel.elf import Library",
    ],
)
def test_an_import_against_the_order(tmp_path: Path, line: str) -> None:
    for name, text in {"series/mail.py": line, "wheel/elf.py": ""}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert wrong_ways(tmp_path) == ["series.mail imports wheel.elf"]


def test_a_circle_within_a_room(tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / "one.py").write_text("def late():\n    from lmsbuild.wheel import two")
    (tmp_path / "wheel" / "two.py").write_text("from lmsbuild.wheel.one import late")
    (found,) = wrong_ways(tmp_path)
    assert found.startswith("in a circle: wheel.")


CHANGES = {"clear", "pop", "popitem", "setdefault", "update"}
# Around the import of GitPython, which looks there.
PUT_BACK = {"base.git.command"}


def changes_environment(tree: ast.Module) -> bool:
    changed = {"os.putenv", "os.unsetenv"}
    changed |= {f"{name}.{how}" for name in ("environ", "os.environ") for how in CHANGES}
    return any(
        ast.unparse(node.value).endswith("environ") and not isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Subscript)
        else isinstance(node, ast.Attribute) and ast.unparse(node) in changed
        for node in ast.walk(tree)
    )


def test_no_module_changes_the_environment() -> None:
    known = modules(PACKAGE)
    assert {name for name, tree in known.items() if changes_environment(tree)} == PUT_BACK


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("os.environ['A'] = 'b'", True),
        ("del os.environ['A']", True),
        ("os.environ.setdefault('A', 'b')", True),
        ("os.putenv('A', 'b')", True),
        ("a = {**os.environ, 'A': 'b'}", False),
        ("a = os.environ['A'] + os.environ.get('B')", False),
    ],
)
def test_how_a_change_of_the_environment_is_found(line: str, changes: bool) -> None:
    assert changes_environment(ast.parse(line)) == changes
