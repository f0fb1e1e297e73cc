# SPDX-License-Identifier: Apache-2.0
"""Every C++ test case of the engine, in every build. Free of warnings is part of passing."""

from __future__ import annotations

from pathlib import Path

import core_build
import pytest

# In the fast tier, and few rounds of what is random.
FAST = {"sanitize"}
# In the full tier: without a sanitizer a case tells less, and what differs between the standards is
# what the compiler accepts.
FULL = {"plain14", "plain17", "plain20"}
ROUNDS: dict[str, dict[str, tuple[str, ...]]] = {
    "plain17": {"random_programs": ("seeds=40",), "pool_random": ("seeds=8",)},
    "sanitize": {
        "random_programs": ("seeds=10", "steps=1000"),
        "victims_hole_is_optimal": ("instances=3000",),
        "victims_cover_is_within_factor_two": ("instances=2000",),
        "victims_take_the_cheaper_way": ("instances=4000",),
        "pool_random": ("seeds=4", "steps=1000"),
        "threads_share_one_engine": ("steps=300",),
    },
    "tsan": {
        "pool_random": ("seeds=4", "steps=1000"),
    },
}
LONG: dict[str, dict[str, tuple[str, ...]]] = {
    "plain17": {
        "random_programs": ("first=1000", "seeds=4000", "steps=4000"),
        "pool_random": ("seeds=200", "steps=5000"),
        "victims_hole_is_optimal": ("instances=2000000",),
        "victims_cover_is_within_factor_two": ("instances=500000",),
        "threads_share_one_engine": ("steps=100000",),
    },
    "sanitize": {"random_programs": ("first=100000", "seeds=400", "steps=4000")},
    "tsan": {"threads_share_one_engine": ("steps=20000", "seed=7")},
}


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    return {}


def check(programs: dict[str, Path], variant: str, case: str, *options: str) -> None:
    if variant not in programs:
        programs[variant] = core_build.build(variant)
    done = core_build.run_case(programs[variant], case, *options)
    assert done.returncode == 0, (
        f"{case} in {variant}: status {done.returncode}\n{done.stdout}{done.stderr}"
    )


def tier(variant: str) -> list[pytest.MarkDecorator]:
    if variant in FAST:
        return []
    return [pytest.mark.slow if variant in FULL else pytest.mark.default]


@pytest.mark.parametrize(
    ("variant", "case"),
    [
        pytest.param(variant, case, marks=tier(variant))
        for variant in core_build.VARIANTS
        for case in core_build.case_names(variant)
    ],
)
def test_case(programs: dict[str, Path], variant: str, case: str) -> None:
    check(programs, variant, case, *ROUNDS.get(variant, {}).get(case, ()))


@pytest.mark.default
@pytest.mark.parametrize("variant", sorted(FULL))
def test_standard(variant: str) -> None:
    core_build.check_syntax(variant)


def test_every_case_is_run(programs: dict[str, Path]) -> None:
    programs.setdefault("sanitize", core_build.build("sanitize"))
    listed = core_build.run_case(programs["sanitize"], "--list").stdout.split()
    assert sorted(listed) == sorted(core_build.case_names("sanitize"))
    assert core_build.run_case(programs["sanitize"], "no_such_case").returncode == 2


def test_races_are_looked_for_where_there_are_threads() -> None:
    cases = core_build.case_names("tsan")
    assert "threads_share_one_engine" in cases and "victims_hole_is_optimal" not in cases
    assert set(cases) < set(core_build.case_names("sanitize"))


@pytest.mark.default
def test_locks_in_both_orders_are_reported() -> None:
    program = core_build.build("tsan")
    assert core_build.run_case(program, "threads_lock_in_one_order").returncode == 0
    done = core_build.run_case(program, "threads_lock_in_one_order", "reversed=1")
    assert done.returncode != 0 and "lock-order-inversion" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "case"), [(variant, case) for variant, cases in LONG.items() for case in cases]
)
def test_long(programs: dict[str, Path], variant: str, case: str) -> None:
    check(programs, variant, case, *LONG[variant][case])
