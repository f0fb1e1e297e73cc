# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.engine


def test_a_seed_gives_the_numbers_of_the_cpu(torch: Any) -> None:
    def draw(place: str) -> list[Any]:
        torch.manual_seed(3)
        x = torch.empty(20, device=place)
        drawn = [
            x.normal_().clone(),
            torch.rand(7, device=place),
            torch.randperm(9, device=place),
            x.exponential_(),
        ]
        return [t.cpu() for t in drawn]

    assert all(map(torch.equal, draw("cpu"), draw("cuda")))


def test_dropout_is_that_of_the_cpu(torch: Any) -> None:
    x = torch.randn(1000)
    for p in (0.1, 0.3, 0.5, 0.75):
        torch.manual_seed(1)
        expected = torch.nn.functional.dropout(x, p)
        torch.manual_seed(1)
        assert torch.equal(torch.nn.functional.dropout(x.cuda(), p).cpu(), expected)


def test_state_is_saved_and_restored(torch: Any) -> None:
    torch.cuda.manual_seed(5)
    torch.rand(3, device="cuda")
    state = torch.cuda.get_rng_state()
    first = [torch.randn(4, device="cuda") for _ in range(3)]
    torch.cuda.set_rng_state(state)
    assert all(torch.equal(a, torch.randn(4, device="cuda")) for a in first)


def test_generators_are_independent(torch: Any) -> None:
    a, b = (torch.Generator("cuda").manual_seed(9) for _ in range(2))
    first = [torch.rand(3, device="cuda", generator=a) for _ in range(2)]
    torch.rand(100, device="cuda")
    assert all(torch.equal(x, torch.rand(3, device="cuda", generator=b)) for x in first)
    assert not torch.equal(first[0], first[1])


@pytest.mark.slow
def test_a_state_from_nowhere_is_told(torch: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(123)
    generator.set_offset(400)
    with pytest.warns(UserWarning, match="not reached in this process"):
        torch.rand(3, device="cuda", generator=generator)
