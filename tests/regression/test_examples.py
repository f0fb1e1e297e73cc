# SPDX-License-Identifier: Apache-2.0
"""The examples, reduced, on a device that is too small for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lms_device import MIB

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"
HEADER = f"""
    import gc, json, os, sys
    sys.path.insert(0, {str(EXAMPLES)!r})
    import simcuda, torch
    """
TRANSFORMER = ("--layers=4", "--width=64", "--heads=2", "--words=256", "--tokens=64", "-b16")
NETWORK = ("-j0", "-asqueezenet1_1", "--image-size=96", "-b4", "--seed=1")

pytestmark = pytest.mark.values

TRAIN = """
    import importlib
    name, arguments = sys.argv[1], sys.argv[2:]
    example = importlib.import_module(name)

    def losses(*more):
        gc.collect()
        torch.cuda.empty_cache()
        return example.main([*arguments, *more])

    want = losses("--no-lms")
    peak = torch.cuda.max_memory_allocated()  # of the last batch
    simcuda.device.capacity = int(peak * 0.7)
    print('capacity', simcuda.device.capacity >> 20)
    try:
        losses("--no-lms")
        raise SystemExit("it fits")
    except torch.OutOfMemoryError:
        pass
    assert losses() == want and all(loss == loss for loss in want), want
    moved = torch.cuda.lms.stats()["lms.paged_out_bytes"]
    assert moved > 0 and len(want) == %d
    print("equal")
    """


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unet3d", ("--size=16", "--width=16", "--levels=3", "-b2", "--steps=2")),
        ("deeplabv3", ("--size=64", "--backbone=mobilenet_v3_large", "-b4", "--steps=2")),
        ("gpt2", (*TRANSFORMER, "--steps=2")),
        ("hugging_face", (*TRANSFORMER, "--steps=2")),
        ("with_lightning", (*TRANSFORMER, "--steps=2")),
        ("ManyModel", NETWORK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_trains_what_does_not_fit(
    program: Any, sim: Any, name: str, arguments: tuple[str, ...]
) -> None:
    if name in ("deeplabv3", "ManyModel"):
        pytest.importorskip("torchvision")  # each is for one release of torch
    code = HEADER + TRAIN % (12 if name == "ManyModel" else 2)
    assert "equal" in program(code, name, *arguments, memory=1024 * MIB)
