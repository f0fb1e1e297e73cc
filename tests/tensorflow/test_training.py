# SPDX-License-Identifier: Apache-2.0
"""Models that need more than the device has train as they do where there is enough."""

import pytest

WAYS = ("fit", "function", "eager", "session", "estimator")
TIMES = (1.5, 2, 3)
SLOW = pytest.mark.slow
# The default tier trains one model that is made in seconds.
MATRIX = [
    ("shallow", "fit", 1.5),
    *(
        pytest.param(model, way, times, marks=SLOW)
        for model in ("resnet", "unet3d", "transformer")
        for way in WAYS
        for times in TIMES
    ),
]


@pytest.mark.parametrize(("model", "way", "times"), MATRIX)
def test_oversubscribed(programs, model, way, times):
    """A pool of 1/times of what is needed: the official wheel runs out of memory, ours trains with
    every digit of the losses and weights as without a limit."""
    reference = programs.reference(model, way)
    assert reference["outcome"] == "finished"
    pool = int(programs.needed(model, way) / times)
    # It waits ten seconds whenever it lacks memory.
    assert programs.train(model, way, "stock", pool, within=1800)["outcome"] == "out of memory"
    swapped = programs.train(model, way, pool=pool, env={"TF_LMS": "1"})
    assert swapped["outcome"] == "finished", swapped["message"]
    assert swapped["losses"] == reference["losses"]
    assert swapped["weights"] == reference["weights"]
    device = swapped["statistics"]["devices"][0]
    assert device["bytes_reclaimed"] > 0 and device["peak_bytes_in_use"] <= pool << 20


@pytest.mark.parametrize("by", ["call", pytest.param("config", marks=pytest.mark.slow)])
def test_turned_on_in_the_program(programs, by):
    """As published snippets do it, by a call or by a session's configuration."""
    way = "fit" if by == "call" else "session"
    pool = int(programs.needed("shallow", way) / 1.5)
    swapped = programs.train("shallow", way, pool=pool, by=by)
    assert swapped["outcome"] == "finished" and swapped["enabled"]
    assert swapped["losses"] == programs.reference("shallow", way)["losses"]


def test_no_effect_when_off(programs):
    """Without being asked, the patched wheel runs out of memory as the official one does."""
    pool = int(programs.needed("shallow", "fit") / 2)
    off = programs.train("shallow", "fit", pool=pool)
    assert (off["outcome"], off["enabled"]) == ("out of memory", False)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unet3d", "transformer"])
def test_many_threads(programs, model):
    """Races would show in the losses: many threads, little room."""
    reference = programs.reference(model, "function", threads=8)
    pool = int(programs.needed(model, "function", threads=8) / 1.5)
    for _ in range(5):
        swapped = programs.train(model, "function", pool=pool, env={"TF_LMS": "1"}, threads=8)
        assert swapped["outcome"] == "finished"
        assert swapped["losses"] == reference["losses"]
