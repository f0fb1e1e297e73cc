# SPDX-License-Identifier: Apache-2.0
"""The cache and `clean`, with real processes where it matters who holds what."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_processes import run
from lmsbuild_wheels import let_go
from lmsbuild_world import REPOSITORY, World, plain_git

from lmsbuild import __main__ as main
from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import BusyError, UsageError
from lmsbuild.base.hashing import sha256_bytes
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.source import cached
from lmsbuild.tags.download import partial
from lmsbuild.upkeep import cleaning
from lmsbuild.upkeep.cleaning import clean, leftovers, worked

MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    let_go()


def keep(
    name: str, content: bytes = b"content", kind: str = "downloads", sha256: str = ""
) -> tuple[Path, bool]:
    """The entry, and whether it was made anew."""
    made = []

    def fill(path: Path) -> None:
        made.append(path)
        path.write_bytes(content)

    path = cache.keep(kind, name, f"file {name}", fill, Console(json_mode=True), sha256=sha256)
    return path, bool(made)


def test_entry_is_made_once(folder: Path) -> None:
    path, made = keep("a")
    assert made and path.read_bytes() == b"content"
    let_go()
    assert keep("a") == (path, False)
    # Moved to another disk: times and inodes differ, the content is the same.
    os.utime(path, (1, 1))
    let_go()
    assert keep("a") == (path, False)


@pytest.mark.parametrize("damage", [b"", b"conten", b"kontent"])
def test_damaged_entry_is_made_anew(
    folder: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = keep("a")
    path.write_bytes(damage)
    let_go()
    said: list[str] = []
    monkeypatch.setattr(Console, "warn", lambda self, text: said.append(text))
    assert keep("a") == (path, True)
    assert path.read_bytes() == b"content"
    (text,) = said
    assert f"has {len(damage)} bytes" in text and "not 7 bytes" in text


def test_failed_and_interrupted_entries_leave_nothing(folder: Path) -> None:
    def broken(path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.keep("downloads", "a", "a", broken, Console(json_mode=True))
    assert not list((folder / "tmp").glob("*/"))
    assert keep("a")[1]


# A process that holds, or is making, the entry `a`.
HOLDER = """
import sys, time
from lmsbuild.base import cache
from lmsbuild.base.console import Console
def fill(path):
    if sys.argv[1] == "making":
        print("ready", flush=True)
        time.sleep(float(sys.argv[2]))
    path.write_bytes(b"content of another")
cache.keep("downloads", "a", "file a", fill, Console(json_mode=True))
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def another(state: str, seconds: str = "60") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, state, seconds],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_held_entry_is_not_removed(folder: Path) -> None:
    with another("holding"):
        keep("b")
        (a,) = (entry for entry in cache.entries() if entry.path.name == "a")
        assert not cache.remove(a)
        assert [entry.path.name for entry in cache.trim(1)] == []
        let_go()
        assert [entry.path.name for entry in cache.trim(1)] == ["b"]
        # Two may use it at the same time.
        assert keep("a") == (folder / "downloads/a", False)
    let_go()
    assert [entry.path.name for entry in cache.trim(1)] == ["a"]
    assert not list((folder / "downloads").iterdir())


def test_second_process_waits_for_the_first(folder: Path) -> None:
    with another("making", "1"):
        path, made = keep("a")
        assert not made and path.read_bytes() == b"content of another"


def test_killed_process_leaves_what_clean_finds(folder: Path) -> None:
    with another("making") as process:
        assert cache.leftovers() == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        (left,) = cache.leftovers()
    with cache.scratch() as mine:
        assert cache.leftovers() == [left] and mine != left
    assert keep("a") == (folder / "downloads/a", True)


def test_least_recently_used_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_CACHE_LIMIT", "3 MiB")
    for number, name in enumerate("abc"):
        keep(name, bytes(MIB))
        os.utime(folder / f"downloads/{name}.entry", (number, number))
    let_go()
    keep("a")  # used again
    keep("d", bytes(MIB))
    assert sorted(entry.path.name for entry in cache.entries()) == ["a", "c", "d"]
    monkeypatch.setenv("LMSBUILD_CACHE_LIMIT", "0")
    keep("e", bytes(9 * MIB))
    assert len(cache.entries()) == 4


def test_limit_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.limit() == 30 << 30
    monkeypatch.setenv("LMSBUILD_CACHE_LIMIT", "much")
    with pytest.raises(UsageError, match=r"LMSBUILD_CACHE_LIMIT=much.*20GiB"):
        cache.limit()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LMSBUILD_OFFLINE", "banana", "takes 1 (download nothing) or 0"),
        ("LMSBUILD_CACHE_LIMIT", "banana", "20GiB"),
        ("LMSBUILD_CACHE_LIMIT", "-5", "20GiB"),
    ],
)
def test_wrong_variables_are_told_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    code, _, errors = run("tags")
    assert code == UsageError.exit_code and f"{variable}={value} cannot" in errors
    assert words in errors
    monkeypatch.setenv(variable, "0")
    assert run("tags")[0] == 0


# clean -------------------------------------------------------------------------------------------


@pytest.fixture
def used(world: World, console: Console) -> World:
    """A world with a checkout, a cached source and leftovers of a killed run."""
    fetch(world.target, "git", None, console)
    (world.target.work / ".lmsbuild-new-killed").mkdir()
    (world.target.work / "wheels/.build-killed").mkdir(parents=True)
    (world.target.work / "env-stock").mkdir()
    left = world.folder / "cache/tmp/killed"
    left.mkdir()
    (left / "data").write_bytes(bytes(MIB))
    let_go()
    return world


def cleaned(*arguments: str) -> dict[str, object]:
    code, out, err = run("clean", *arguments, "--json")
    assert code == 0, err
    value: dict[str, object] = json.loads(out)
    return value


def names(result: dict[str, object], kept: bool = False) -> set[str]:
    items: list[dict[str, str]] = result["items"]  # type: ignore[assignment]
    return {Path(item["path"]).name for item in items if bool(item["kept"]) == kept}


LEFT = {".lmsbuild-new-killed", ".build-killed", "env-stock", "killed"}


def test_clean_takes_leftovers_only(used: World) -> None:
    result = cleaned("--dry-run")
    assert names(result) == LEFT and isinstance(result["bytes"], int) and result["bytes"] > MIB
    assert (used.target.work / ".lmsbuild-new-killed").is_dir()
    assert names(cleaned()) == LEFT
    assert not (used.folder / "cache/tmp/killed").exists()
    assert not cleaned()["items"]
    assert (used.target.work / "source/core").is_dir()
    assert list((used.folder / "cache/repositories").glob("*.git"))


@pytest.mark.default
def test_clean_work_keeps_what_is_the_users(used: World, console: Console) -> None:
    source = used.target.work / "source"
    assert run("apply", "v1.0")[0] == 0
    mine = source / "mine.txt"
    mine.write_text("mine")
    assert "source" in names(cleaned("--work"), kept=True)
    mine.unlink()
    used.commit(source, {"core/alloc.cpp": "mine\n"}, "My own work")
    result = cleaned("v1.0", "--work")
    assert "source" in names(result, kept=True) and "My own work" in str(result["items"])
    plain_git(source, "checkout", "-q", "-b", "side", "HEAD~1")
    assert "source" in names(cleaned("--work"), kept=True)
    plain_git(source, "branch", "-D", "lms")
    (source / "core/alloc.cpp").write_text("stashed\n")
    plain_git(source, "stash")
    assert "source" in names(cleaned("--work"), kept=True)
    plain_git(source, "stash", "drop")
    assert "source" in names(cleaned("--work"))
    assert not source.exists()


@pytest.mark.default
@pytest.mark.parametrize(
    ("lost", "why"), [(".git", "no repository (.git)"), (".git/HEAD", "its .git is damaged")]
)
def test_clean_work_keeps_what_git_cannot_judge(used: World, lost: str, why: str) -> None:
    source = used.target.work / "source"
    (source / "core/alloc.cpp").write_text("mine\n")
    # As in a checkout of the project, whose repository is around the work folder.
    plain_git(used.folder, "init", "-q")
    left = source / lost
    shutil.rmtree(left) if left.is_dir() else left.unlink()
    result = cleaned("v1.0", "--work")
    assert "source" in names(result, kept=True) and why in str(result["items"])
    assert (source / "core/alloc.cpp").read_text() == "mine\n"
    assert "source" in names(cleaned("v1.0", "--work", "--force"))


def overlook(source: Path, flag: str) -> None:
    plain_git(source, "update-index", flag, "core/alloc.h")
    (source / "core/alloc.h").write_text("mine\n")


def nest(source: Path) -> None:
    (source / ".git/info").mkdir(exist_ok=True)
    (source / ".git/info/exclude").write_text("/mine/\n")
    plain_git(source, "init", "-q", "mine/deep")


@pytest.mark.default
@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda source: overlook(source, "--assume-unchanged"), "overlook"),
        (lambda source: overlook(source, "--skip-worktree"), "overlook"),
        (lambda source: plain_git(source, "worktree", "add", "-q", "../../../wt"), "worktree"),
        (nest, "another repository, mine/deep"),
    ],
    ids=["assumed", "skipped", "worktree", "nested"],
)
def test_clean_work_keeps_what_git_status_does_not_show(
    used: World, work: Callable[[Path], Any], why: str
) -> None:
    source = used.target.work / "source"
    assert run("apply", "v1.0")[0] == 0
    work(source)
    result = cleaned("v1.0", "--work")
    assert "source" in names(result, kept=True) and why in str(result["items"])
    assert source.is_dir()
    assert "source" in names(cleaned("v1.0", "--work", "--force"))


def test_clean_work_keeps_what_no_command_put_there(used: World) -> None:
    mine = used.target.work / "notes"
    mine.mkdir()
    for name in ("wheels/alpha.whl", "wheels/alpha.whl.manifest.json", "wheels-container/my.whl"):
        (used.target.work / name).parent.mkdir(exist_ok=True)
        (used.target.work / name).touch()
    result = cleaned("v1.0", "--work")
    assert names(result, kept=True) == {"notes", "wheels-container"} and "wheels" in names(result)
    assert "my.whl in it is not made by lmsbuild" in str(result)
    assert mine.is_dir()
    result = cleaned("v1.0", "--work", "--force")
    assert names(result) == {"notes", "wheels-container"} and not mine.exists()


def test_clean_work_keeps_what_the_user_made_since_it_looked(used: World) -> None:
    source = used.target.work / "source"
    found = worked([used.target], force=False)
    (source / "core/alloc.h").write_text("mine\n")
    (kept,) = (item for item in clean(found, None, dry_run=False) if item.path == source)
    assert "core/alloc.h is not committed" in kept.kept
    assert (source / "core/alloc.h").read_text() == "mine\n"


def test_clean_beside_another(used: World) -> None:
    """What the other removed since this one looked is gone, whatever it was."""
    assert run("apply", "v1.0")[0] == 0
    with partial("https://of.upstream/file"):
        pass
    (used.folder / "cache/partial/killed").mkdir(exist_ok=True)
    found = [*leftovers([used.target]), *cleaning.cached(None), *worked([used.target], force=False)]
    assert run("clean", "--all")[0] == 0
    done = clean(found, None, dry_run=False)
    assert {"source", "killed"} <= {item.path.name for item in done}
    assert not [item for item in done if item.kept]
    for item in done:
        assert not item.path.exists(), item


def test_clean_looks_at_what_is_being_removed(used: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path.name == "data":
            raise FileNotFoundError(errno.ENOENT, "gone", str(path))
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert "killed" in {item.path.name for item in leftovers([used.target])}


@pytest.mark.default
def test_clean_force(used: World) -> None:
    (used.target.work / "source/mine.txt").write_text("mine")
    assert "source" in names(cleaned("--all", "--force"))
    assert not (used.target.work / "source").exists()
    assert not cache.entries()


@pytest.mark.default
def test_clean_cache_by_age_and_tag(used: World) -> None:
    keep("other")
    let_go()
    old = time.time() - 10 * 86400
    os.utime(used.folder / "cache/downloads/other.entry", (old, old))
    source = next((used.folder / "cache/repositories").glob("*.git")).name
    result = cleaned("--cache", "--older-than", "5", "--dry-run")
    assert "other" in names(result) and source in names(result, kept=True)
    # People read one line for all that stays for a reason.
    kept = [item for item in result["items"] if item["kept"]]  # type: ignore[attr-defined]
    said = run("clean", "--cache", "--older-than", "5", "--dry-run")[1].splitlines()
    lines = [line for line in said if line.startswith("kept ")]
    assert len(lines) == len({item["what"] for item in kept}) < len(kept)
    assert all(line.endswith(": used within the last 5 days") for line in lines)
    assert any(" items in " in line for line in lines), said
    assert source in names(cleaned("v1.0", "--cache"))
    assert (used.folder / "cache/downloads/other").exists()
    assert names(cleaned("--cache")) == {"other"}


@pytest.mark.default
def test_clean_leaves_what_is_in_use(used: World) -> None:
    from filelock import FileLock

    with FileLock(used.target.work / ".source.lock"):
        code, out, err = run("clean", "--work", "--json")
    assert code == BusyError.exit_code and "source stays because another lmsbuild" in err
    assert {"source", ".lmsbuild-new-killed"} <= names(json.loads(out)["error"], kept=True)
    assert (used.target.work / "source").is_dir()


@pytest.mark.parametrize(
    "words",
    [["pop", "v1.0"], ["undo", "v1.0"], ["refresh", "v1.0", "--dry-run"], ["verify", "v1.0"]],
    ids=lambda words: words[0],
)
def test_clean_leaves_the_checkout_that_a_command_works_on(used: World, words: list[str]) -> None:
    source = used.target.work / "source"
    assert run("apply", "v1.0")[0] == 0
    assert main.run(words) == 0  # this process is not at its end
    code, _, err = run("clean", "v1.0", "--work", "--force")
    assert code == BusyError.exit_code and "at work with it" in err and source.is_dir()
    let_go()
    assert run("clean", "v1.0", "--work", "--force")[0] == 0 and not source.exists()


def test_clean_leaves_the_cached_source_that_is_verified(used: World) -> None:
    (repository,) = (used.folder / "cache/repositories").glob("*.git")
    assert cached(used.target) == [repository]
    assert repository.name in names(cleaned("--cache"), kept=True)
    let_go()
    assert repository.name in names(cleaned("--cache")) and not cached(used.target)


def test_clean_leaves_a_download_that_runs(used: World) -> None:
    with partial("https://of.upstream/file") as folder:
        (folder / "data").write_bytes(b"half")
        assert folder.name in names(cleaned("--cache"), kept=True)
        assert (folder / "data").read_bytes() == b"half"
    folder.mkdir()
    assert folder.name in names(cleaned("--cache")) and not folder.exists()


def test_an_entry_that_is_held_is_checked_before_it_is_used(folder: Path) -> None:
    path, _ = keep("known")
    let_go()
    path.write_bytes(b"damaged")
    assert cache.hold(path)
    assert keep("known") == (path, True) and path.read_bytes() == b"content"


HOLDS = """
from lmsbuild.wheel import overlay
real = overlay.publish
def publish(*arguments):
    real(*arguments)
    print("published", flush=True)
    sys.stdin.read()
overlay.publish = publish
"""


@pytest.mark.default
def test_clean_leaves_what_a_wheel_is_made_of(world: World, official: Path) -> None:
    """Neither the checkout nor the wheel that the other is about to name."""
    words = ["wheel", "v1.0", "--source", "git"]
    code = f"import sys\n{HOLDS}\nfrom lmsbuild.__main__ import main; main()"
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    maker = subprocess.Popen(
        [sys.executable, "-c", code, *words], env=variables, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert maker.stdout is not None and "published\n" in maker.stdout
    except BaseException:
        maker.kill()
        raise
    code_of_clean, _, err = run("clean", "--all", "--force")
    out, said = maker.communicate("", timeout=60)
    assert code_of_clean == BusyError.exit_code and "is at work with it" in err
    assert maker.returncode == 0, said
    (wheel,) = (world.target.work / "wheels").glob("*.whl")
    assert f"wrote {wheel}" in out
    assert run("clean", "--all", "--force")[0] == 0
    assert not wheel.exists() and not (world.target.work / "source").exists()


def test_what_has_lost_its_record_is_known_by_its_hash(folder: Path) -> None:
    """Of a download that is whole nothing is got again; what is damaged is."""
    path, made = keep("known", sha256=sha256_bytes(b"content"))
    assert made
    for damage, again in ((b"content", False), (b"kontent", True)):
        let_go()
        path.write_bytes(damage)
        path.with_name("known.entry").unlink()
        assert keep("known", sha256=sha256_bytes(b"content")) == (path, again)
        assert path.read_bytes() == b"content"
        assert json.loads(path.with_name("known.entry").read_text())["bytes"] == 7
