# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.engine
THREADS = 8


def _everywhere(work: Any) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [f.result(timeout=60) for f in [pool.submit(work, i) for i in range(THREADS)]]


def test_threads_train_models_of_their_own(torch: Any, mode: str) -> None:
    def train(seed: int, place: str = "cuda") -> Any:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(16, 16, generator=generator).to(place).requires_grad_()
        for _ in range(20):
            x = torch.randn(8, 16, generator=generator).to(place)
            (grad,) = torch.autograd.grad((x @ weight).tanh().pow(2).sum(), weight)
            weight.data.sub_(grad, alpha=0.1)
        return weight.detach().cpu()

    got = _everywhere(train)
    assert all(torch.equal(train(seed, "cpu"), weight) for seed, weight in enumerate(got))


def test_ops_of_one_stream_are_atomic(torch: Any, mode: str) -> None:
    x = torch.zeros(10000, device="cuda")

    def count(_: int) -> None:
        for _ in range(100):
            x.add_(1)

    _everywhere(count)
    assert torch.equal(x.cpu(), torch.full((10000,), 100.0 * THREADS))


def test_threads_with_streams_of_their_own(torch: Any, mode: str) -> None:
    def work(i: int) -> bool:
        side = torch.cuda.Stream()
        host = torch.full((5000,), float(i)).pin_memory()
        with torch.cuda.stream(side):
            for _ in range(30):
                x = host.cuda(non_blocking=True)
                y = (x + 1).cpu()
                event = torch.cuda.Event()
                event.record()
                if i % 2:
                    torch.cuda.synchronize()
        return bool(torch.equal(y, host + 1))

    assert all(_everywhere(work))
