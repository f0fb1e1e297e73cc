# SPDX-License-Identifier: Apache-2.0
"""docs/statistics.md defines every number that the patched TensorFlow gives, and no other.

Read off the sources, so that it takes no TensorFlow; tests/regression/test_statistics.py asks
PyTorch for its numbers.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SECTION = (PROJECT / "docs/statistics.md").read_text().partition("\n## TensorFlow\n")[2]
IBM, REST = SECTION.split("\nOnly in `lms_statistics()`, for each device:\n")
ALIAS = {"handed_out_bytes"}  # statistics.py adds it


def defined(text: str) -> set[str]:
    """The names in the first column of the tables."""
    cells = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def written(file: str) -> set[str]:
    """The names that a C++ file gives numbers: `{"name", value}` and `\\"name\\": `."""
    text = (PROJECT / "lms" / file).read_text()
    return set(re.findall(r'\{"(\w+)", ', text)) | set(re.findall(r'\\"(\w+)\\": ', text))


def getters() -> dict[str, str]:
    """Of statistics.py, what tf_export calls each function -> the function."""
    tree = ast.parse((PROJECT / "lms/tensorflow/python/statistics.py").read_text())
    return {
        ast.literal_eval(decorator.args[0]): ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
    }


def test_every_statistic_of_a_device_or_node_is_defined() -> None:
    given = written("tensorflow/csrc/statistics.cc") | written("core/report.cpp")
    whole = {"enabled", "devices_made", "devices", "host", "host_share"}
    assert whole < given and len(given) > 30
    never = {"num_defragmentations", "bytes_defragged"}  # of IBM's, always 0: nobody counts them
    assert defined(IBM) | (defined(REST) - ALIAS) == given - whole | never
    for name in whole:
        assert f"`{name}`" in IBM.partition("\n| ")[0], f"what {name} is is not said"


def test_every_function_is_defined() -> None:
    prefix = "experimental.get_"
    found = getters()
    assert {name.removeprefix(prefix) for name in found if name.startswith(prefix)} == defined(IBM)
    for name in (name for name in found if not name.startswith(prefix)):
        assert f"`tf.{name}()`" in SECTION
    for name in ALIAS:
        assert f"device['{name}'] = " in found["experimental.lms_statistics"]


def test_each_function_gives_the_number_of_its_name() -> None:
    for name, text in getters().items():
        asked = re.findall(r"_of_(?:device|host)\('(\w+)'", text)
        if name.startswith("experimental.get_") and "return 0" not in text:
            assert asked == [name.removeprefix("experimental.get_")]


def test_the_readme_counts_them() -> None:
    said = re.search(
        r"get_bytes_reclaimed\(gpu_id\)` and (\d+) more", (PROJECT / "README.md").read_text()
    )
    assert said and int(said[1]) == len(defined(IBM)) - 1
