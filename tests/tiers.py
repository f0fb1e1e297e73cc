# SPDX-License-Identifier: Apache-2.0
"""What the default tier leaves out of what a test is run in.

Whether one operation waits for another is checked by order, whichever mode of the simulated device
runs them. So a test that takes its mode as a parameter runs in one, that in which writes come late,
and in those in which a safeguard needs it to fail; the full tier runs all. For the oldest Python
that a suite runs in, 3.7.
"""

import re
from pathlib import Path

MODES = ("immediate", "lazy", "eager-copy", "late-write")
MOST_TELLING = "late-write"
PARAMETERS = ("mode", "first")  # first: where `mode` is that of the test's own process
SAFEGUARDS = Path(__file__).resolve().parent / "safeguards"


def needed():
    """Names of the tests that safeguards name, as pytest has them: `test_x[lazy]`, or `test_x` for
    all of its cases."""
    found = set()
    for file in SAFEGUARDS.glob("*.toml"):
        for test in re.findall(r'^test = "([^"]+)"$', file.read_text(), re.MULTILINE):
            found.add(test.rpartition("::")[2])
    return found


def in_other_modes(items):
    """Those of `items`, pytest's, that the default tier leaves out."""
    cases = {}  # of what differs by the mode alone: mode -> item
    for item in items:
        parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        mode = next((p for p in PARAMETERS if parameters.get(p) in MODES), None)
        if mode is not None:
            name = parameters.pop(mode)
            others = tuple(sorted((key, repr(value)) for key, value in parameters.items()))
            cases.setdefault((item.nodeid.partition("[")[0], others), {})[name] = item
    names, left_out = needed(), set()
    for (test, _), by_mode in cases.items():
        if test.rpartition("::")[2] in names:
            continue
        kept = MOST_TELLING if MOST_TELLING in by_mode else next(iter(by_mode))
        left_out |= {
            item for mode, item in by_mode.items() if mode != kept and item.name not in names
        }
    return left_out
