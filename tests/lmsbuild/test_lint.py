# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

import pytest
from lmsbuild_world import REPOSITORY, UPSTREAM, World, write

from lmsbuild.__main__ import run
from lmsbuild.base.errors import LintError
from lmsbuild.base.git import Git
from lmsbuild.base.project import Project
from lmsbuild.checkout.refresh import RUNTIME_SUBJECT, refresh
from lmsbuild.series.lint import RULES, Finding, lint, missing_test
from lmsbuild.series.series import patch_files

TEST = "Test: tests/test_alpha.py::test_alpha"
GOOD = f"""Call the engine

The allocator must ask the engine before line20 is used, because only it
knows what is idle.

{TEST}
"""
ALLOC = UPSTREAM["core/alloc.cpp"]
CALL = {"core/alloc.cpp": ALLOC.replace("int line20 = 20;\n", "int line20 = 21;\n")}
TESTS = {
    "tests/test_alpha.py": "def test_alpha(): ...\nclass TestMore:\n    def test_more(self): ...\n",
    "tests/engine/test_core.py": "def test_case(): ...\n",
    "tests/regression/test_training.py": "def test_oversubscribed(): ...\n",
    "tests/engine/cases.cpp": "TEST(core_works) {}\n",
}
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


@pytest.fixture
def tidy(world: World) -> World:
    """A world whose runtime breaks no rule, and whose tests exist."""
    files = {"lms/core/engine.cpp": f"{LICENCE}int engine() {{ return 1; }}\n"}
    write(world.project.root, {**files, "lms/core/engine.h": f"{LICENCE}int engine();\n", **TESTS})
    toml = world.framework_file
    text = toml.read_text().replace(
        "[shows]",
        'line_length = { "*.cpp" = 80, "*.py" = 88 }\n\n[shows]',
    )
    toml.write_text(text)
    return world


def series(world: World, *commits: tuple[str, dict[str, str]]) -> list[Finding]:
    """The findings for hooks made of these commits (message, files)."""
    for file in patch_files(world.target.tag_patches):
        file.unlink()
    refresh(world.target, None)
    clone = world.clone(f"clone{len(list(world.folder.iterdir()))}")
    runtime = patch_files(world.target.runtime_patches)[0]
    Git(clone).run("am", "-q", "--keep-cr", str(runtime))
    for message, files in commits:
        world.commit(clone, files, message)
    refresh(world.target, clone)
    return lint(world.target)


def added(line: str) -> dict[str, str]:
    return {"core/alloc.cpp": ALLOC.replace("int line20 = 20;\n", f"{line}\n")}


def test_a_good_series_passes(tidy: World) -> None:
    again = f"{GOOD}Touches-again: core/alloc.cpp because the first must build alone\n"
    second = added("int line20 = 22;")
    assert series(tidy, (GOOD, CALL), (again.replace("Call", "Ask"), second)) == []


@pytest.mark.default
@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (GOOD.replace("Call the engine", "Call " + "the engine " * 7), "subject"),
        (GOOD.replace("Call", "call"), "subject"),
        (GOOD.replace("Call the engine", "Call the engine."), "subject"),
        (GOOD.replace("Call the engine", "[core] Call the engine"), "subject"),
        (f"Call line20\n\n{TEST}\n", "reason"),
        (f"Call line20\n\nThis is a change of some lines in one file, nothing else.\n\n{TEST}\n",
         "reason"),
        (GOOD.replace("line20", "it"), "upstream"),
        (GOOD.replace(TEST, ""), "test"),
        (GOOD.replace("::test_alpha", "::test_beta"), "test"),
        (f"{GOOD}Touches-again: core/alloc.cpp because it must\n", "touched-again"),
    ],
)  # fmt: skip
def test_messages(tidy: World, message: str, rule: str) -> None:
    found = series(tidy, (message, CALL))
    assert [(finding.rule, finding.file) for finding in found] == [(rule, "(message)")]
    assert found[0].patch.startswith("v1.0/0001-") and found[0].todo


def test_a_name_that_is_a_word_of_english_names_no_code(tidy: World) -> None:
    """And is said not to: whoever wrote it would look for it in vain."""
    files = {"core/alloc.h": UPSTREAM["core/alloc.h"] + "// more\n"}  # of the function `upstream`
    (found,) = series(tidy, (GOOD.replace("line20", "upstream"), files))
    assert found.rule == "upstream" and "a word of English, as Storage" in found.todo


@pytest.mark.default
@pytest.mark.parametrize(
    ("files", "file", "line", "rule", "words"),
    [
        (added("int line20 = 21; "), "core/alloc.cpp", 20, "whitespace", "ends with a space"),
        (added("\tint line20 = 21;"), "core/alloc.cpp", 20, "whitespace", "with a tab"),
        (added("int line20 = 21;\r"), "core/alloc.cpp", 20, "line-ends", "carriage return"),
        (added("int line20 = " + "1" * 70 + ";"), "core/alloc.cpp", 20, "line-length", "84"),
        (
            {"core/alloc.cpp": CALL["core/alloc.cpp"][:-1]},
            "core/alloc.cpp",
            40,
            "whitespace",
            "end",
        ),
        ({"core/new.h": "int line20;\n"}, "core/new.h", 1, "licence", "licence"),
        ({"core/new.h": f"{LICENCE}\n"}, "core/new.h", 2, "whitespace", "empty line"),
    ],
)
def test_lines(
    tidy: World, files: dict[str, str], file: str, line: int, rule: str, words: str
) -> None:
    found = series(tidy, (GOOD, {**CALL, **files}))
    assert [(f.file, f.line, f.rule) for f in found] == [(file, line, rule)]
    assert words in found[0].problem


def test_spaces_in_a_file_of_tabs(tidy: World) -> None:
    tabs = "".join(f"\tint tab{n};\n" for n in range(9))
    first = ("Add core/tabs.cpp\n\nIt must be there because it is needed by the second.\n\n" + TEST,
             {"core/tabs.cpp": LICENCE + tabs})  # fmt: skip
    again = f"{GOOD}Touches-again: core/tabs.cpp because the test needs two patches\n"
    spaces = {"core/tabs.cpp": LICENCE + tabs.replace("\tint tab4", "    int tab5")}
    found = series(tidy, first, (again, {**CALL, **spaces}))
    assert {(f.rule, f.problem) for f in found if "0002" in f.patch} == {
        ("whitespace", "the line is indented with spaces in a file that has tabs")
    }


def test_a_file_in_two_patches_needs_a_reason(tidy: World) -> None:
    found = series(tidy, (GOOD, CALL), (GOOD.replace("Call", "Ask"), added("int line20 = 22;")))
    assert [(f.rule, f.file) for f in found] == [("touched-again", "core/alloc.cpp")]
    assert "0001-Call-the-engine.patch touches the file already" in found[0].problem


def test_the_runtime_must_keep_the_rules_too(tidy: World) -> None:
    write(tidy.project.root, {"lms/core/engine.cpp": "int engine() { return 1; } \n"})
    found = series(tidy, (GOOD, CALL))
    assert [(f.rule, f.file) for f in found] == [
        ("licence", "core/lms/engine.cpp"),
        ("whitespace", "core/lms/engine.cpp"),
    ]
    assert found[0].patch == f"runtime/0001-{RUNTIME_SUBJECT.replace(' ', '-')}.patch"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tests/test_alpha.py", ""),
        ("tests/test_alpha.py::test_alpha", ""),
        ("tests/test_alpha.py::test_alpha[one]", ""),
        ("tests/test_alpha.py::TestMore::test_more", ""),
        ("tests/engine/cases.cpp::core_works", ""),
        ("tests/test_alpha.py::test_more", "no test_more"),
        ("tests/engine/cases.cpp::core", "no core"),
        ("tests/none.py::test_alpha", "no file tests/none.py"),
        ("lms/core/engine.cpp", "below tests/"),
        ("tests/../lms/core/engine.cpp", "below tests/"),
    ],
)
def test_named_tests(tidy: World, value: str, reason: str) -> None:
    found = missing_test(tidy.project.root, value)
    assert reason in found and bool(reason) == bool(found)


def test_the_table_of_rules_has_each() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text().partition("| rule | why |")[2]
    cells = re.findall(r"^\| (`.*?) \|", page.partition("\n\n")[0], re.MULTILINE)
    told = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    rules = {rule.__name__.strip("_").replace("_", "-") for rule in RULES}
    assert told == rules - {"again"} | {"touched-again"}


def test_real_series(real_project: Project) -> None:
    assert run(["lint", "--all"]) == 0


def test_command(tidy: World, capsys: pytest.CaptureFixture[str]) -> None:
    series(tidy, (GOOD, CALL))
    assert run(["lint", "v1.0"]) == 0
    assert "no findings" in capsys.readouterr().out
    series(tidy, (GOOD.replace("Call", "call"), CALL))
    assert run(["lint", "--all", "--json"]) == LintError.exit_code
    (finding,) = json.loads(capsys.readouterr().out)["error"]["findings"]
    assert (finding["rule"], finding["line"]) == ("subject", 4)
