# SPDX-License-Identifier: Apache-2.0
"""What of a GPU can be tested without one: that the hooks are in place, and that copies are ordered
as they must be, on the streams of StreamExecutor's host platform."""

from pathlib import Path

import pytest
from conftest import version, version_text
from native import FRAMEWORK, OFFICIAL

CASES = [
    "out_after_writer",
    "reuse_after_out",
    "in_after_owner",
    "use_after_in",
    "round_trip",
    "poison_in_order",
]


def test_hooks(builder):
    """The devices are made, and their tensors copied, by the overlay."""
    if "+cpu" in version_text():
        pytest.skip("the wheel has no GPU device")
    found = builder.run("gpu_hooks")
    assert {name: Path(file).name for name, file in found.items()} == dict.fromkeys(
        ("devices", "out", "beside"), FRAMEWORK
    )


@pytest.fixture(scope="module")
def streams(builder):
    if version() < (2, 14):
        pytest.skip("the host platform has no events on this version")
    sources = ["tensorflow/core/common_runtime/lms/stream_transport.cc"]
    libraries = ["libtensorflow_cc.so.2", FRAMEWORK, OFFICIAL]
    return builder.run("stream_transport", sources, libraries, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_streams(streams, case):
    """A copy waits for the work before it, and the work after it for the copy."""
    assert streams[case] == "right"
