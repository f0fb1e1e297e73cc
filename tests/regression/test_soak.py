# SPDX-License-Identifier: Apache-2.0
"""A long run takes no more memory than a short one, on the device or on the host."""

from __future__ import annotations

import json
from typing import Any

import lms_device
import pytest

# Shapes change from step to step, tensors live on for some steps, a storage is resized, one thread
# more comes and goes: whatever keeps a record of each must give it up.
PROGRAM = """
    import ctypes, gc, json, os, random, re, sys, tempfile, threading, torch

    steps, marks = int(sys.argv[1]), 10
    torch.cuda.lms.enable(min_size=0)
    torch.manual_seed(0)
    rng = random.Random(0)
    layers = [torch.nn.Linear(256, 256).cuda() for _ in range(8)]  # 256 KiB each
    optimiser = torch.optim.SGD([p for m in layers for p in m.parameters()], 1e-4, momentum=0.9)
    kept, told = [], []

    def aside():
        with torch.cuda.stream(side):
            (torch.ones(1 << 16, device="cuda") + 1).sum().item()

    def heap():
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        with tempfile.NamedTemporaryFile() as file:
            stream = ctypes.c_void_p(libc.fopen(os.fsencode(file.name), b"w"))
            libc.malloc_info(0, stream)
            libc.fclose(stream)
            text = file.read().decode()
        found = re.findall(r'type="(\\w+)"[^>]* size="(\\d+)"', text)
        of = {kind: int(size) for kind, size in found}
        return of["current"] + of["mmap"] - of["fast"] - of["rest"]  # the last of each is the total

    def memory():
        gc.collect()
        torch.cuda.synchronize()
        s = torch.cuda.lms.stats()
        return {
            "tracked": s["lms.tracked"],
            "host": s["lms.host.reserved_bytes"],
            "device": torch.cuda.memory_reserved(),
            "heap": heap(),
            "paged_out": s["lms.paged_out"],
        }

    side = torch.cuda.Stream()
    for step in range(steps):
        x = torch.full((rng.randrange(16, 256), 256), 0.1, device="cuda")
        for layer in layers:
            x = layer(x).relu()
        x.square().mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=step % 2 == 0)
        kept.append(torch.empty(rng.randrange(1 << 14, 1 << 17), device="cuda").fill_(step))
        if len(kept) > 8:
            old = kept.pop(rng.randrange(8))
            if step % 3 == 0:
                old.untyped_storage().resize_(0)
            del old
        if step % 50 == 0:
            thread = threading.Thread(target=aside)
            thread.start()
            thread.join()
        if step % (steps // marks) == steps // marks - 1:
            kept.clear()
            x = None
            optimiser.zero_grad()
            told.append(memory())
    print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2000])
def test_memory_stays_as_it_is(program: Any, steps: int) -> None:
    out = program(PROGRAM, str(steps), memory=6 * lms_device.MIB, timeout=3600)
    told = json.loads(out.strip().splitlines()[-1])
    assert told[-1]["paged_out"] - told[-2]["paged_out"] > steps // 10
    early, late = told[2], told[-1]  # what is made once has been made by then
    assert late["tracked"] == early["tracked"]
    for what in ("host", "device"):
        assert late[what] <= max(mark[what] for mark in told[:5]), told
    assert late["heap"] - early["heap"] < (64 << 10), told
