# SPDX-License-Identifier: Apache-2.0
"""What a dry device can stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simcuda import SimcudaError, profile, read_profiles
from simcuda.profiles import PROFILES, to_toml


def test_every_profile_is_complete_and_says_its_sources() -> None:
    profiles = read_profiles()
    assert {"v100-16gb-pcie3", "v100-32gb-nvlink2", "gh200-96gb-c2c"} <= set(profiles)
    for name, one in profiles.items():
        assert one.name == name
        assert 0 < one.available < one.memory
        assert all(one.sources[of] for of in ("gpu", "link", "assumed"))
        assert set(one.flops) == {"fp64", "fp32", "tf32", "half"}


def test_the_runtime_gets_what_is_reached(tmp_path: Path) -> None:
    v100 = profile("v100-32gb-pcie3")
    native = v100.native()
    assert (native.major, native.minor, native.multiprocessors) == (7, 0, 80)
    assert (native.in_, native.out, native.bandwidth) == (15.75e9, 15.75e9, 900e9)
    slower = tmp_path / "profiles.toml"
    slower.write_text(PROFILES.read_text().replace("link = 1.0", "link = 0.5"))
    assert profile("v100-32gb-pcie3", slower).native().in_ == 15.75e9 / 2


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(SimcudaError, match=r"no profile 'v100'; choose one of a100-80gb.*v100-16"):
        profile("v100")


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced('capability = "7.0"\n', ""), "gpu: v100-pcie: capability is missing"),
        (replaced('"7.0"', '"seven"'), "gpu: v100-pcie: capability is not written like 8.0"),
        (replaced("half = 112e12", "half = 0"), "gpu: v100-pcie: half is 0, not from 1e+09"),
        (replaced("half = 112e12", "half = -112e12"), "half is -112000000000000.0, not from"),
        (replaced("half = 112e12", "half = nan"), "gpu: v100-pcie: half is nan, not from"),
        (replaced("half = 112e12", "half = 1e30"), "half is 1e+30, not from 1e+09 to 1e+17"),
        (replaced("half = 112e12", "half = 112"), "gpu: v100-pcie: half is 112, not from"),
        (replaced("half = 112e12", f"half = 1{'0' * 400}"), "gpu: v100-pcie: half is 1000"),
        (replaced('"7.0"', '"700.0"'), "gpu: v100-pcie: capability is not written like 8.0"),
        (replaced("multiprocessors = 80", "multiprocessors = 0"), "multiprocessors is 0, not from"),
        (replaced("in = 450e9", "in = -1"), "link: c2c: in is -1, not from 1e+08 to 1e+15"),
        (replaced("kernel = 3_000", "kernel = 0"), "assumed: kernel is 0, not from 1 to"),
        (replaced("c2c = ", "c2c = 5 # "), "source: c2c is 5, which is not text"),
        (replaced('context = "512M"', 'context = "-1"'), "assumed: context is wrong: '-1' is not"),
        (replaced('host = "1T"', 'host = "90000T"'), "assumed: host is 90000T, more than"),
        (replaced('memory = "24G"', "memory = 24"), "24gb-pcie4: memory is 24, which is not text"),
        (replaced('space = "0"', 'space = "30G"'), "is not more than the workspace (convolution_"),
        (replaced("half = 112e12", "half = true"), "half is True, which is not a number"),
        (replaced("half = 112e12", "half = 112e12\nint8 = 1"), "gpu: v100-pcie: int8 is unknown"),
        (replaced('source = "c2c"', 'source = "me"'), "link: c2c: source is 'me'; choose one of"),
        (replaced('gpu = "gh200"', 'gpu = "gh"'), "profile: gh200-96gb-c2c: gpu is 'gh'; choose"),
        (replaced('memory = "24G"', 'memory = "24 cups"'), "'24 cups' is not a size"),
        (replaced('memory = "24G"', 'memory = "256M"'), "memory is not more than the driver's own"),
        (replaced("attention = 1.0", "attention = 1.5"), "attention is 1.5, not from 0.001 to 1"),
        (replaced("duplex = 1000", "duplex = 0.5"), "duplex is 0.5, which is not a whole number"),
        (replaced("[source]", "[source"), "cannot be read"),
        (lambda text: text + "\n[more]\n", "more is unknown"),
    ],
)
def test_a_wrong_file_is_refused(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(change(PROFILES.read_text()))
    with pytest.raises(SimcudaError) as error:
        read_profiles(path)
    assert message in str(error.value)


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(SimcudaError, match="cannot be read"):
        read_profiles(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SimcudaError, match="cannot be read"):
        profile(str(tmp_path / "binary.toml"))


def test_a_file_has_one_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PROFILES.read_text())
    with pytest.raises(SimcudaError, match=r"mine\.toml cannot be taken for a profile because it"):
        profile(str(path))
    h100 = profile("h100-80gb-pcie5")
    path.write_text(to_toml(h100))
    found = profile(str(path))
    assert found == replace(h100, sources=found.sources)
    assert [found.sources[of] for of in ("gpu", "link", "assumed")] == list(h100.sources.values())
