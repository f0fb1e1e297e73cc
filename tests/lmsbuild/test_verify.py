# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lmsbuild_world import World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, SeriesError, TreeStateError
from lmsbuild.base.project import Project
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.verify import Verified, verify
from lmsbuild.series.series import patch_files, series_of

ORDER = ["form", "chain", "runtime", "preimage", "apply", "build"]


def failed(done: Verified) -> list[str]:
    return [check.name for check in done.checks if check.problems]


def text_of(done: Verified) -> str:
    return "\n".join(done.problems)


@pytest.fixture
def checked(world: World, console: Console) -> Callable[[], Verified]:
    """Verify on a clone of upstream that is somewhere else than a refresh would look."""
    clone = world.clone()
    return lambda: verify(world.target, console, clone)


def edit(path: Path, old: str, new: str) -> None:
    content = path.read_bytes().decode()
    assert old in content
    path.write_bytes(content.replace(old, new, 1).encode())


def test_passes_with_and_without_the_code(
    world: World, console: Console, checked: Callable[[], Verified]
) -> None:
    done = checked()
    assert [check.name for check in done.checks] == ORDER
    assert [check.state for check in done.checks] == ["ok"] * 6, text_of(done)
    alone = verify(world.target, console)
    assert alone.origin is None
    states = {check.name: check.state for check in alone.checks}
    assert states == {**dict.fromkeys(ORDER, "ok"), "apply": "not checked", "build": "in part"}


def test_finds_the_code_in_the_cache_and_where_the_user_stands(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()
    monkeypatch.chdir(clone / "core")
    assert verify(world.target, console).origin == plain_git(clone, "rev-parse", "v1.0^{commit}")
    monkeypatch.chdir(world.folder)
    path = fetch(world.target, "git", None, console).path
    path.rename(world.folder / "elsewhere")
    assert verify(world.target, console).origin


@pytest.mark.parametrize("cached", [True, False])
def test_real_series(
    real_project: Project, cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what code of the tags is here, and with none."""
    if not cached:
        monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path / "work"))
    assert run(["verify", "--all"]) == 0


@pytest.mark.parametrize(
    ("number", "old", "new", "check", "words"),
    [
        (1, "Subject: [PATCH] ", "Subject: [PATCH 1/2] ", "form", "line 4"),
        (1, "From 0000", "From 1234", "form", "line 1"),
        (1, "int line20 = 21;\n", "int line20 = 21;\r\n", "apply", "core/alloc.cpp"),
        (1, " int line23 = 23;\n", "", "form", "do not add up"),
        (1, "@@ -17,7 +17,7 @@", "@@ -17,7 +18,7 @@", "form", "should begin at +17"),
        (1, "@@ -17,7 +17,7 @@ int line16 = 16;", "@@ -17,7 +17,7 @@", "apply", "normal form"),
        (1, "@@ -17,7 +17,7 @@", "@@ -15,7 +15,7 @@", "apply", "normal form"),
        (1, "int line20 = 21;", "int line20 = 22;", "apply", "edited by hand"),
        (1, " int line18 = 18;", " int line18 = 0;", "apply", "hunk 1 of core/alloc.cpp"),
        (2, "+# new   \n", "+# newer\n", "form", "python/lms.py has blob"),
        (2, "index ", "index 0", "form", "full blob ids"),
        (0, "new file mode", "\rnew file mode", "apply", "is damaged because git gives up"),
        (0, "--- /dev/null", "--- dev/null", "apply", "bad git-diff"),
        (0, "+int engine();\n", "+int engine(); \n", "runtime", "core/lms/engine.h:2"),
    ],
)
def test_each_damage_is_found(
    world: World,
    checked: Callable[[], Verified],
    number: int,
    old: str,
    new: str,
    check: str,
    words: str,
) -> None:
    patch = series_of(world.target).patches[number]
    edit(patch.path, old, new)
    done = checked()
    assert check in failed(done)
    assert any(patch.name in problem and words in problem for problem in done.problems)
    assert all(" because " in problem and "; " in problem for problem in done.problems)


def test_signature_and_wrong_name_are_not_the_normal_form(
    world: World, checked: Callable[[], Verified]
) -> None:
    patch = series_of(world.target).patches[1].path
    patch.write_bytes(patch.read_bytes() + b"-- \n2.39.5\n\n")
    patch.rename(patch.with_name("0001-Other.patch"))
    done = checked()
    assert failed(done) == ["form"]
    assert "'-- '" in text_of(done) and "0001-Call-the-engine.patch" in text_of(done)


def test_patch_with_the_line_ends_of_windows(world: World, checked: Callable[[], Verified]) -> None:
    patch = series_of(world.target).patches[1].path
    patch.write_bytes(patch.read_bytes().replace(b"\n", b"\r\n"))
    assert "its lines end in CRLF" in text_of(checked())


def test_stale_runtime(world: World, checked: Callable[[], Verified]) -> None:
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 5; }\n"})
    done = checked()
    assert failed(done) == ["runtime"]
    assert "core/lms/engine.cpp differs" in text_of(done) and "lmsbuild refresh v1.0" in text_of(
        done
    )


def test_stale_after_an_earlier_patch_changed(
    world: World, checked: Callable[[], Verified]
) -> None:
    """Patch 2 touches a file of patch 1 and still expects what patch 1 left before."""
    first, second = (patch.path for patch in series_of(world.target).patches[1:])
    lines = first.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("diff --git a/core/CMake"))
    index = next(line for line in lines[start:] if line.startswith("index "))
    before, after = index.split()[1].split("..")
    moved = "".join(lines[start:]).replace(index, f"index {before[::-1]}..{after} 100644\n")
    second.write_bytes(second.read_bytes() + moved.encode())
    done = checked()
    assert "chain" in failed(done) and "apply" in failed(done)
    assert f"{second.parent.name}/{second.name} is stale because it expects" in text_of(done)


def test_every_stale_hunk_is_told(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    text = (clone / "core/alloc.cpp").read_text()
    text = text.replace("= 5;", "= 55;").replace("= 35;", "= 355;")
    world.commit(clone, {"core/alloc.cpp": text}, "Change both ends")
    refresh(world.target, clone)
    # Upstream keeps only what the first hook needs.
    plain_git(clone, "checkout", "-q", "v1.0")
    lines = [f"int line{i} = {i};\n" if 15 < i < 25 else f"other {i}\n" for i in range(1, 41)]
    world.commit(clone, {"core/alloc.cpp": "".join(lines)}, "Move on")
    edit(world.tag_file, world.target.tag.commit, plain_git(clone, "rev-parse", "HEAD"))
    stale = [p for p in verify(world.target, console, clone).problems if "is stale" in p]
    assert [p.split(" because ")[1].split(": ")[0] for p in stale] == [
        "hunk 1 of core/alloc.cpp (line 2",
        "hunk 2 of core/alloc.cpp (line 32",
    ]


def test_stale_on_the_code_of_the_tag(world: World, console: Console) -> None:
    """Upstream moved: the tag's commit is another, and two of the patches do not apply."""
    clone = world.clone()
    alloc = "".join(f"int other{i} = {i};\n" for i in range(1, 41))
    second = series_of(world.target).patches[2].path
    assert second.name.startswith("0002-")
    world.commit(clone, {"core/alloc.cpp": alloc, "python/api.py": "gone = 1\n"}, "Move on")
    commit = plain_git(clone, "rev-parse", "HEAD")
    toml = world.tag_file
    edit(toml, world.target.tag.commit, commit)
    done = verify(world.target, console, clone)
    text = text_of(done)
    assert failed(done) == ["apply"]
    assert "0001-Call-the-engine.patch is stale because hunk 1 of core/alloc.cpp" in text
    assert "0002-Show-it-in-Python.patch is stale because hunk 1 of python/api.py" in text
    assert "core/alloc.cpp of alpha:v1.0 is blob" in text
    assert "python/windows.py" not in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"python/api.py" = "', '"python/api.py" = "0000', "is recorded as blob 0000"),
        ('"python/api.py" = ', '"python/none.py" = ', "python/none.py although no patch"),
        ('"python/api.py" = ', '"python/none.py" = ', "lacks python/api.py"),
    ],
)
def test_recorded_blob_ids(
    world: World, checked: Callable[[], Verified], old: str, new: str, words: str
) -> None:
    toml = world.tag_file
    text = toml.read_text().replace(old, new)
    toml.write_text("".join(f"{_cut(line)}\n" for line in text.splitlines()))
    done = checked()
    assert failed(done) == ["preimage"] and words in text_of(done)


def _cut(line: str) -> str:
    """Keep a lengthened blob id at 40 digits."""
    return f'{line[:-5]}"' if ' = "0000' in line and len(line.split('"')[3]) == 44 else line


@pytest.mark.parametrize("with_code", [True, False])
def test_sources_that_cmake_does_not_list(world: World, console: Console, with_code: bool) -> None:
    write(world.project.root, {"lms/core/more.cpp": "int more() { return 1; }\n"})
    edit(world.tag_file, '"core/lms/engine.cpp"]', '"core/lms/more.cpp"]')
    assert run(["refresh", "v1.0"]) == 0
    done = verify(world.target, console, world.clone() if with_code else None)
    assert failed(done) == ["build"] and "core/lms/more.cpp" in text_of(done)


def test_all_failures_are_told(world: World, checked: Callable[[], Verified]) -> None:
    write(world.project.root, {"lms/core/engine.cpp": "changed\n"})
    edit(series_of(world.target).patches[2].path, "+    return 1", "+    return 2")
    edit(world.tag_file, '"python/api.py"', '"python/other.py"')
    assert failed(checked()) == ["runtime", "preimage", "apply"]


def test_refuses_code_of_another_framework(world: World, console: Console) -> None:
    other = world.folder / "other"
    other.mkdir()
    plain_git(other, "init", "-q")
    with pytest.raises(TreeStateError, match=r"no commit that is alpha:v1\.0"):
        verify(world.target, console, other)


def test_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify"]) == 2
    assert run(["verify", "--all"]) == 0
    assert "alpha:v1.0" in capsys.readouterr().out
    write(world.project.root, {"lms/core/engine.cpp": "changed\n"})
    assert run(["verify", "v1.0"]) == SeriesError.exit_code
    shown = capsys.readouterr()
    assert "FAILED       alpha:v1.0  runtime" in shown.out and "1 check failed" in shown.err
    assert run(["verify", "v1.0", "--json"]) == SeriesError.exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert "runtime" in json.dumps(error["tags"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("/python/lms.py", "/../../evil.py", "path '../../evil.py' may lead out of its folder"),
        ("/python/lms.py", "/.git/hooks/evil", "path '.git/hooks/evil' leads into what is git's"),
        ("--- a/python/api.py", "--- a/../../api.py", "names 'a/../../api.py', 'b/python/api.py'"),
        ("new file mode 100644", "new file mode 120000", "lms.py something else than a plain file"),
        ("new file mode 100644", "new file mode 160000", "(mode 160000)"),
        ("@@ -0,0 +1 @@", "@@ -0,0 +1,2 @@", "hunks do not add up"),
        ("+# new   \n", "", "hunks do not add up"),
        ("@@ -0,0 +1 @@\n+# new   \n", "", "lms.py has no hunks"),
    ],
)
def test_damaged_patch_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    patch = patch_files(world.target.tag_patches)[1]
    text = patch.read_bytes().decode()
    assert old in text
    patch.write_bytes(text.replace(old, new).encode())
    assert run(["export", "v1.0", "-o", "out.patch"]) == ConfigError.exit_code
    assert words in capsys.readouterr().err and not (world.folder / "out.patch").exists()
    assert run(["verify", "v1.0"]) == SeriesError.exit_code
    assert "`git apply" not in "".join(capsys.readouterr())


def test_a_file_that_is_twice_in_a_patch(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """git would take one on the other; what the tool tells of the patch would be of the last."""
    patch = series_of(world.target).patches[1]
    patch.path.write_bytes(patch.data + patch.part("core/alloc.cpp").encode())
    for command, code in (("export", ConfigError.exit_code), ("verify", SeriesError.exit_code)):
        assert run([command, "v1.0"]) == code
        assert "has core/alloc.cpp twice" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("number", "old", "new", "words"),
    [
        (1, "int line20 = 21;", "int line20 = 22;", "edited by hand because it leaves core/alloc"),
        (1, " int line18 = 18;", " int line18 = 0;", "is stale because hunk 1 of core/alloc.cpp"),
        (2, "+# new   \n", "+# newer\n", "edited by hand because python/lms.py has blob"),
        (1, "@@ -17,7 +17,7 @@", "@@ -17,7 +17,6 @@", "hunks do not add up"),
    ],
)
def test_export_is_refused_where_git_gets_something_else(
    world: World, capsys: pytest.CaptureFixture[str], number: int, old: str, new: str, words: str
) -> None:
    patch = series_of(world.target).patches[number].path
    text = patch.read_bytes().decode()
    assert old in text
    assert run(["fetch", "v1.0"]) == 0
    assert run(["export", "v1.0", "-o", "sound.patch"]) == 0
    assert "not tried" not in capsys.readouterr().err
    patch.write_bytes(text.replace(old, new).encode())
    for arguments in (["-o", "out.patch"], ["-o", "-"], ["--dry-run"]):
        assert run(["export", "v1.0", *arguments]) in (SeriesError.exit_code, ConfigError.exit_code)
        assert words in " ".join(capsys.readouterr().err.split()), arguments
    assert not list(world.folder.glob("out*"))


def test_export_in_another_form_than_refresh_writes(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """What git takes is exported, also where `verify` would have it written anew."""
    patch = series_of(world.target).patches[1].path
    patch.write_bytes(patch.read_bytes().replace(b"Subject: [PATCH] ", b"Subject: [PATCH 1/2] "))
    assert run(["verify", "v1.0"]) == SeriesError.exit_code
    assert run(["export", "v1.0", "-o", "out.patch"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "it was not tried because there is no code of v1.0 here; `lmsbuild fetch` gets" in told
    plain_git(world.clone(), "am", "-q", str(world.folder / "out.patch"))


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("int line20 = 21;", "int line20 = 22;", SeriesError.exit_code),
        ("@@ -17,7 +17,7 @@", "@@ -17,7 +17,6 @@", ConfigError.exit_code),
    ],
)
def test_an_edit_of_a_patch_that_is_applied(
    world: World, capsys: pytest.CaptureFixture[str], old: str, new: str, code: int
) -> None:
    assert run(["apply", "v1.0"]) == run(["apply", "v1.0"]) == 0
    assert "already applied, nothing to do" in capsys.readouterr().out
    edit(series_of(world.target).patches[1].path, old, new)
    assert run(["apply", "v1.0"]) == code
    shown = capsys.readouterr()
    assert "already applied" not in shown.out and "0001" in shown.err


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "patch 0001 of {patches}/runtime is missing"),
        (1, "patch 0001 of {patches}/v1.0 is missing"),
        (
            2,
            "no patch of it touches python/api.py, which `preimage` of patches/alpha/v1.0/tag.toml",
        ),
    ],
)
def test_a_series_that_lacks_a_patch(
    world: World, capsys: pytest.CaptureFixture[str], number: int, words: str
) -> None:
    """Of the last one, which leaves no gap, the recorded files of upstream's tell."""
    clone = str(world.clone())
    assert run(["apply", "v1.0", "--into", clone]) == 0
    lost = series_of(world.target).patches[number]
    content = lost.data
    lost.path.unlink()
    words = words.format(patches=world.project.patches / "alpha")
    for command in (
        ["export", "v1.0", "-o", "out.patch"],
        ["apply", "v1.0"],
        ["apply", "v1.0", "--into", clone],
        ["apply", "v1.0", "--into", clone, "--dry-run"],
    ):
        capsys.readouterr()
        assert run(command) == ConfigError.exit_code, command
        assert words in capsys.readouterr().err, command
    assert not (world.folder / "out.patch").exists()
    assert run(["status", "v1.0", "--into", clone]) == 0
    assert words in capsys.readouterr().out
    assert run(["verify", "v1.0"]) == SeriesError.exit_code
    lost.path.write_bytes(content)
    assert run(["apply", "v1.0", "--into", clone]) == 0
