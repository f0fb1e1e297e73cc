# SPDX-License-Identifier: Apache-2.0
"""The figures of devices: those of the simulated device, so that the package needs none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorflow_large_model_support import profiles
from tensorflow_large_model_support.profiles import PROFILES, Profile

ROOT = Path(__file__).resolve().parents[2]


def test_the_figures_are_those_of_the_simulated_device(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    simcuda = pytest.importorskip("simcuda")
    known = simcuda.read_profiles()
    assert set(known) == set(PROFILES)
    for name, ours in PROFILES.items():
        theirs = known[name]
        assert set(theirs.efficiency.values()) == {1.0}
        assert ours == Profile(
            name,
            *(theirs.flops[kind] for kind in ("fp64", "tf32", "half")),
            *(theirs.bandwidth, theirs.link_in, theirs.link_out),
            *(theirs.nanoseconds[kind] for kind in ("kernel", "copy")),
        )


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-32GB", "v100-32gb-pcie3"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-pcie4"),
        ("NVIDIA H200", "h200-141gb-pcie5"),
        ("NVIDIA GH200 480GB", "gh200-96gb-c2c"),
        ("Quadro P400", None),
    ],
)
def test_a_devices_name_has_a_profile(device, name):
    found = profiles.like(device)
    assert (found and found.name) == name


def test_a_profile_is_named_or_given():
    own = Profile("mine", 1, 2, 3, 4, 5, 6)
    assert profiles.profile(own) is own and profiles.profile("a100-80gb-pcie4").name.startswith("a")
    assert (own.rate(8), own.rate(4), own.rate(2)) == (1, 2, 3)
    with pytest.raises(ValueError, match="profile is 'fast', which is none of v100-16gb-pcie3, "):
        profiles.profile("fast")
