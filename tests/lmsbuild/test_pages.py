# SPDX-License-Identifier: Apache-2.0
"""What the pages name is there: where links lead, targets of make, numbers of the runtime."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
from lmsbuild_world import REPOSITORY, plain_git

PAGES = [REPOSITORY / name for name in plain_git(REPOSITORY, "ls-files", "*.md").split()]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text()))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]


@pytest.mark.parametrize("page", [page for page in PAGES if links(page)], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_found_from_the_readme() -> None:
    found: set[Path] = set()
    looked_at = [REPOSITORY / "README.md"]
    while looked_at:
        page = looked_at.pop()
        found.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        looked_at += [target for target in targets & {*PAGES} if target not in found]
    assert [named(page) for page in PAGES if page not in found] == []


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    found = set()
    for page in PAGES:
        code = r"(?:`(?:[\w=<>-]+ )?|^ {4})make ([a-z][a-z-]*)(?=[` \n])"
        found |= set(re.findall(code, page.read_text(), re.MULTILINE))
    assert len(found) > 15 and found <= targets


def test_the_simulated_devices_options_are_those_of_its_page() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simcuda", "--help"],
        cwd=REPOSITORY / "tools", capture_output=True, text=True, check=True,
    )  # fmt: skip
    options = done.stdout.partition("\noptions:\n")[2].partition("\n\n")[0]
    page = (REPOSITORY / "docs/simcuda.md").read_text()
    told = set(re.findall(r"^\| `(--[\w-]+)", page, re.MULTILINE))
    assert told == set(re.findall(r"^  (--[\w-]+)", options, re.MULTILINE)) and len(told) > 15


# What a page says in figures, and the line of the code that it is of.
FIGURES = {
    "README.md": (
        ("12 GiB of free disk", "tools/lmsbuild/places/doctor.py", "DISK_GIB = 12"),
        ("4 GiB of memory", "tools/lmsbuild/places/doctor.py", "MEMORY_GIB = 4"),
    ),
    "docs/architecture.md": (
        ("three into each device", "lms/pytorch/c10/Fences.cpp", "kInStreams = 3"),
        ("five out of it", "lms/pytorch/c10/Fences.cpp", "kOutStreams = 5"),
        (
            "for each 128 that could leave",
            "lms/core/victims.cpp",
            "kCandidatesPerVictim = 128",
        ),
        ("one below 1 MiB", "lms/pytorch/c10/State.h", "kSmallBytes = size_t{1} << 20"),
        ("a 4096th of all that could leave", "lms/core/cost.cpp", "kOfCandidates = 1.0 / 4096"),
        ("as much as to copy a sixth of its memory", "lms/core/cost.cpp", "kOfMemory = 1.0 / 6"),
        ("at four times the price", "lms/core/reclaim.cpp", "kTimesThePrice = 4"),
        ("a period of up to 16 of them", "lms/core/rhythm.h", "kLongestPeriod = 16"),
        ("over 4096 uses", "lms/core/engine.h", "kUses = 4096"),
        ("each op looks at two", "lms/core/engine.cpp", "kCopiesLookedAt = 2"),
        ("places of 64 MiB", "lms/core/host_pool.h", "kSegmentBytes = std::size_t{64} << 20"),
        ("best fit at 512 bytes", "lms/core/host_pool.h", "kAlignment = 512"),
        ("a sixteenth above the high-water mark", "lms/core/host_pool.cpp", "mark + mark / 16"),
        ("an eighth above what others held", "lms/core/host_pool.cpp", "mark + mark / 8"),
        ("up to 64 are looked at", "lms/plugin/csrc/Allocator.cpp", "kMostBlocks = 64"),
        ("fails after 30 seconds", "lms/pytorch/python/lms/api.py", "PATIENCE = 30.0"),
        ("longer than 10 seconds", "lms/core/turns.h", "kLongest{10000}"),
        ("or 30 when an op of `aten` ran", "lms/core/admission.h", "kStuck{30000}"),
        ("after four tries", "lms/core/turns.h", "kPatientTries = 4"),
        ("that call waits 100 ms", "lms/pytorch/c10/Switch.cpp", "kFirstGrace{100}"),
    ),
    "docs/tensorflow.md": (
        ("still runs after ten seconds", "lms/tensorflow/csrc/switch.cc", "kPatience{10}"),
        ("While half of the pool is free", "lms/core/admission.cpp", "kRoomyPart = 2"),
        ("seven eighths of the pool", "lms/core/admission.cpp", "kFragmentedPart = 8"),
        ("below a 64th of the pool", "lms/core/admission.h", "space_.bytes() / 64"),
        ("nothing changes for half a minute", "lms/core/admission.h", "kStuck{30000}"),
        ("none has ended for ten seconds", "lms/core/turns.h", "kLongest{10000}"),
        ("looking for two seconds", "lms/core/turns.h", "kDropTime{2000}"),
        ("waits for those, four times", "lms/core/turns.h", "kPatientTries = 4"),
        ("unless less than 64 KiB", "lms/tensorflow/csrc/bfc.cc", "kLeastTrimmed = 64 << 10"),
        ("(below 4 KiB;", "lms/tensorflow/csrc/buffer.h", "kSmallestMovable = 4096"),
        ("**slots** of 4 KiB", "lms/tensorflow/csrc/small_slabs.cc", "kSlot = 4096"),
        ("**divider** of 256 bytes", "lms/tensorflow/csrc/small_slabs.cc", "kDivider = 256"),
        ("of 8 MiB at most", "lms/core/slabs.cpp", "kMostSlab = std::size_t{8} << 20"),
    ),
    "docs/plugin.md": (
        ("of up to 64 that fit", "lms/plugin/csrc/Allocator.cpp", "kMostBlocks = 64"),
        ("| 10 MiB |", "lms/plugin/csrc/Allocator.cpp", "kMinLarge = size_t{10} << 20"),
    ),
    "docs/statistics.md": (("over 4096 uses", "lms/core/engine.h", "kUses = 4096"),),
    "docs/coming-from-ibm.md": (
        ("1 MiB unless set", "lms/pytorch/python/lms/api.py", "DEFAULT_MIN_SIZE = 1 << 20"),
        ("95% of what is free and reserved", "lms/pytorch/python/lms/ibm.py", "_SHARE = 0.95"),
        ("take 3/4 of the machine's memory", "lms/core/host_share.h", "memory / 4 * 3"),
        ("segments of 64 MiB", "lms/core/host_pool.h", "kSegmentBytes = std::size_t{64} << 20"),
        ("An epoch is 12 batches", "examples/pytorch/ManyModel.py", "BATCHES = 12"),
        ("all but the first two batches", "examples/pytorch/lmsstats.py", "WARM_UP = 2"),
    ),
    "docs/bounds.md": (
        ("at most 400 of them", "tools/simcuda/bounds.py", "_TIMES = 400"),
        ("the 16 deepest", "tools/simcuda/bounds.py", "_VALLEYS = 16"),
        ("the 16 highest", "tools/simcuda/bounds.py", "_VALLEYS = 16"),
    ),
    "docs/benchmarks/ops.md": (
        ("less than 16 MiB", "lms/pytorch/c10/Fences.cpp", "kBytesPerMark = size_t{16} << 20"),
    ),
}


@pytest.mark.parametrize(
    ("page", "words", "file", "code"),
    [pytest.param(page, *row, id=row[0]) for page, rows in FIGURES.items() for row in rows],
)
def test_figures_are_those_of_the_code(page: str, words: str, file: str, code: str) -> None:
    """Who changes a number of the code changes its page."""
    assert words in " ".join((REPOSITORY / page).read_text().split())
    assert re.search(rf"{re.escape(code)}(?![\w.])", (REPOSITORY / file).read_text())


def test_what_the_readme_quotes_is_what_is_said() -> None:
    text = (REPOSITORY / "README.md").read_text().partition("## When something goes wrong")[2]
    quoted = re.findall(r'"([^"]+)"', text.partition("\n## ")[0])
    sources = [*(REPOSITORY / "lms/core").iterdir(), *(REPOSITORY / "lms/pytorch/c10").iterdir()]
    code = "\n".join(source.read_text() for source in sources)
    assert len(quoted) == 5 and [words for words in quoted if words not in code] == []


def test_options_of_graph_rewriting_are_those_of_the_page() -> None:
    page = (REPOSITORY / "docs/tflms.md").read_text().partition("| `LMS(...)` |")[2]
    rows = re.findall(r"^\| (`.*?) \|.*\| ([^|]+) \|$", page.partition("\n\n")[0], re.MULTILINE)
    told = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    source = REPOSITORY / "lms/tflms/tensorflow_large_model_support/lms.py"
    (made,) = (
        node.args
        for kind in ast.parse(source.read_text()).body
        if isinstance(kind, ast.ClassDef) and kind.name == "LMS"
        for node in kind.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    defaults = map(ast.literal_eval, made.defaults)
    taken = dict(zip((each.arg for each in made.args[1:]), defaults, strict=True))
    assert told.keys() == taken.keys()
    for name, default in taken.items():  # those of the rest are words
        if isinstance(default, int) and not isinstance(default, bool) and name != "debug_level":
            assert told[name].partition(":")[0] == str(default), name


def test_where_no_swapper_is_as_fast_is_that_of_the_benchmark() -> None:
    """docs/bounds.md counts the runs in which doing without is faster, and even than the bound."""
    lines = (REPOSITORY / "docs/benchmarks/dry/results.jsonl").read_text().splitlines()
    times: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for run in map(json.loads, lines):
        case, result = run["case"], run["result"]
        if result["status"] == "ok" and (case["factor"] or 0) >= 2:
            of = times[case["profile"], case["model"], case["factor"]]
            of[case["method"]] = result["all_seconds"]

    def counts(method: str) -> tuple[int, int, int]:
        both = [of for of in times.values() if method in of and "lms" in of]
        faster = [of for of in both if of[method] < of["lms"]]
        return len(faster), len(both), sum(of[method] < of["bound"] for of in faster)

    slower, runs, never = counts("checkpoint")
    with_both, runs_of_both, never_of_both = counts("both")
    saving, runs_of_saving, _ = counts("save_on_cpu")
    told = " ".join((REPOSITORY / "docs/bounds.md").read_text().split())
    assert (
        f"is slower than checkpointing in {slower} of {runs}, and the bound is in {never} of "
        f"these; slower than checkpointing with `save_on_cpu` in {with_both} of {runs_of_both}, "
        f"and the bound in {never_of_both} of these; and slower than `save_on_cpu` in {saving} of "
        f"{runs_of_saving}."
    ) in told


def test_the_plug_ins_speed_is_that_of_the_benchmark() -> None:
    """docs/plugin.md sums up the first table of the page that the benchmark has rendered."""
    page = (REPOSITORY / "docs/benchmarks/dry/README.md").read_text()
    first = page.partition("\n## v100-32gb-pcie3 ")[2].partition("\n## ")[0]
    head, _, *rows = [line.split(" | ") for line in first.splitlines() if line.startswith("|")]
    patch, plugin = head.index("LMS: speed"), head.index("plug-in: speed")
    ratios = [float(row[plugin]) / float(row[patch]) for row in rows if "out" not in row[plugin]]
    told = " ".join((REPOSITORY / "docs/plugin.md").read_text().split())
    assert (
        f"at {min(ratios):.2f} to {max(ratios):.2f} of the patch's speed, in the mean of "
        f"{len(ratios)} runs at {mean(ratios):.2f}"
    ) in told
