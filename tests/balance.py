# SPDX-License-Identifier: Apache-2.0
"""Divides the suites into units of work for pytest-xdist, and starts those that take longest first.

A unit is a file, so that what its tests share is made once, unless `durations.toml` says otherwise:
a file whose tests share nothing that takes time is divided into functions or cases. The same file
has how long each unit took. After a change of the suites, from reports of whole runs:

    python tests/balance.py record work/*/reports/*-default.xml

For the oldest Python that a suite runs in, 3.7; there nothing is known, and a unit is a file.
"""

import os
import resource
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:
    try:
        import tomli as tomllib
    except ImportError:
        tomllib = None

DURATIONS = Path(__file__).resolve().parent / "durations.toml"
PROPERTY = "cpu_seconds"  # of a test and of what it started, in reports

elsewhere = 0.0  # such seconds of programs that another process started for this one


class Units:
    """What tests are done one after the other, by one worker, and how long that takes."""

    def __init__(self, text=None):
        if text is None:
            text = DURATIONS.read_text() if DURATIONS.is_file() else ""
        known = tomllib.loads(text) if tomllib else {}
        self.by_function = known.get("by_function", [])
        self.by_case = known.get("by_case", [])
        self.together = known.get("together", {})
        self.seconds = known.get("seconds", {})

    def of(self, nodeid):
        """The unit of a test: `regression/test_streams.py`, or that with ::function or [case]."""
        path, _, name = nodeid.partition("::")
        file = path.rpartition("tests/")[2]
        if file in self.by_case:
            return file + "::" + name
        if file in self.by_function:
            unit = file + "::" + name.partition("[")[0]
            return self.together.get(unit, unit)
        return file

    def places(self, nodeids):
        """Unit -> its place: the longest first, and before it what nobody measured, of that the
        cases first: a file is divided into cases where one takes minutes."""
        order = {}
        for nodeid in nodeids:
            order.setdefault(self.of(nodeid), len(order))

        def rank(unit):
            case = unit.partition("::")[0] in self.by_case
            return -self.seconds.get(unit, float("inf")), not case, order[unit]

        units = sorted(order, key=rank)
        return {unit: place for place, unit in enumerate(units)}


class Balance:
    """The plugin of pytest."""

    def __init__(self):
        self.units = Units()
        self.before = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        # One process keeps the order of the files.
        if "PYTEST_XDIST_WORKER" in os.environ:
            order = self.units.places([item.nodeid for item in items])
            items.sort(key=lambda item: order[self.units.of(item.nodeid)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        from xdist.scheduler import LoadScopeScheduling

        units = self.units

        class Scheduling(LoadScopeScheduling):
            def _split_scope(self, nodeid):
                return units.of(nodeid)

        config.option.loadscopereorder = False  # else what has the most tests would be first
        return Scheduling(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.before = spent()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append((PROPERTY, f"{spent() - self.before:.2f}"))


def register(config):
    """Of a conftest's `pytest_configure`."""
    if not config.pluginmanager.has_plugin("balance"):
        config.pluginmanager.register(Balance(), "balance")


def spent():
    """Seconds of processor time of this process, of those that it waited for, and elsewhere."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + elsewhere


def read(report):
    """Seconds of each test in a JUnit report that such a run wrote, by its node's id."""
    found = {}
    for case in ElementTree.parse(str(report)).iter("testcase"):
        for said in case.iter("property"):
            if said.get("name") == PROPERTY:
                parts = case.get("classname").split(".")
                end = next(i for i, part in enumerate(parts) if part.startswith("test_"))
                names = [*parts[end + 1 :], case.get("name")]
                nodeid = "/".join(parts[: end + 1]) + ".py::" + "::".join(names)
                found[nodeid] = found.get(nodeid, 0.0) + float(said.get("value"))
    return found


def record(reports, file=DURATIONS):
    """Write what the units of the reports took; the others stay as they are."""
    text = file.read_text()
    units = Units(text)
    measured = {}
    for report in reports:
        for nodeid, seconds in read(report).items():
            unit = units.of(nodeid)
            measured[unit] = measured.get(unit, 0.0) + seconds
    units.seconds.update({unit: max(1, round(s)) for unit, s in measured.items()})
    lines = [f'"{unit}" = {seconds}' for unit, seconds in sorted(units.seconds.items())]
    head = text.partition("[seconds]\n")[0]
    file.write_text(head + "[seconds]\n" + "\n".join(lines) + "\n")
    return measured


if __name__ == "__main__":
    if sys.argv[1:2] != ["record"] or not sys.argv[2:]:
        sys.exit("usage: python tests/balance.py record REPORT.xml ...")
    for unit, seconds in sorted(record([Path(name) for name in sys.argv[2:]]).items()):
        print(f"{seconds:6.0f} s  {unit}")
