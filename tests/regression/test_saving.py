# SPDX-License-Identifier: Apache-2.0
"""Libraries that save models compare pointers to find weights that share memory. Afterwards the
weights may move as before, and the file is the one that is written without Large Model Support."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as safetensors_torch
import torch
from torch import nn


class Tied(nn.Module):
    """Two names of one weight, two parts of one storage, and a part that overlaps another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        whole = torch.arange(4096.0)
        self.register_buffer("low", whole[:1024])
        self.register_buffer("high", whole[2048:])


def tied() -> nn.Module:
    return Tied().cuda()


def transformer() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=2, vocab_size=128, n_positions=64, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).cuda()


def save_file(model: nn.Module, folder: Path) -> None:
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    for shared in safetensors_torch._find_shared_tensors(state):
        for name in sorted(shared)[1:]:
            state[name] = state[name].clone()
    safetensors_torch.save_file(state, folder / "model.safetensors")


def save_model(model: nn.Module, folder: Path) -> None:
    safetensors_torch.save_model(model, str(folder / "model.safetensors"))
    safetensors_torch.load_model(model, str(folder / "model.safetensors"))


def accelerate_model(model: nn.Module, folder: Path) -> None:
    """In parts: what it cuts a model by are the sizes of storages, each counted once."""
    from accelerate import Accelerator

    Accelerator().save_model(model, folder, max_shard_size="1GB")


def accelerate_state(model: nn.Module, folder: Path) -> None:
    """With an optimiser, and read again."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    optimiser = torch.optim.Adam(model.parameters(), lr=0)  # has a state, changes nothing
    model, optimiser = accelerator.prepare(model, optimiser)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    accelerator.save_state(str(folder))
    accelerator.load_state(str(folder))


def save_pretrained(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    type(model).from_pretrained(folder).cuda()


SAVERS = [
    pytest.param(tied, save_file, id="save_file"),
    pytest.param(tied, save_model, id="save_model"),
    pytest.param(transformer, save_model, id="save_model-of-a-transformer"),
    pytest.param(transformer, save_pretrained, id="save_pretrained"),
    pytest.param(tied, accelerate_model, id="accelerate-save_model"),
    pytest.param(transformer, accelerate_model, id="accelerate-save_model-of-a-transformer"),
    pytest.param(transformer, accelerate_state, id="accelerate-save_state"),
]


def content(folder: Path) -> tuple[set[str], bytes]:
    """Names in the file, and all that follows its header."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return set(json.loads(data[8 : 8 + length])), data[8 + length :]


@pytest.mark.parametrize(("make", "save"), SAVERS)
def test_saving_a_model_holds_no_weight(
    device: Any, make: Callable[[], Any], save: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    lms, without, with_it = torch.cuda.lms, tmp_path / "without", tmp_path / "with"
    without.mkdir()
    with_it.mkdir()
    save(make(), without)
    lms.enable(min_size=0)
    model = make()
    for _ in range(2):  # some weights are out at the second
        save(model, with_it)
        held = [n for n, t in model.state_dict().items() if torch.ops.lms.exposed(t)]
        assert held == []
        lms.reclaim()
    assert content(with_it) == content(without)


def test_placing_a_model_on_several_devices_holds_no_weight(lms: Any) -> None:
    """What a weight is tied to is looked for by its pointer."""
    from accelerate import dispatch_model

    model = transformer().eval()
    places = {"transformer.wte": 0, "transformer.wpe": 0, "transformer.ln_f": 0, "lm_head": 0}
    places |= {"transformer.h.0": 0, "transformer.h.1": "cpu"}
    tokens = torch.arange(64, device="cuda")[None]
    want = model(tokens, labels=tokens).loss.item()
    placed = dispatch_model(model, places)
    for _ in range(2):
        assert placed(tokens, labels=tokens).loss.item() == want
        held = [n for n, t in placed.state_dict().items() if t.is_cuda and torch.ops.lms.exposed(t)]
        assert held == []
        lms.reclaim()


def test_the_addresses_of_storages_are_apart(lms: Any) -> None:
    """Who compares the end of one tensor with the start of another finds no overlap."""
    tensors = {str(i): torch.full((1 << 16,), float(i), device="cuda") for i in range(8)}
    found = safetensors_torch._filter_shared_not_shared([set(tensors)], tensors)
    assert sorted(map(len, found)) == [1] * len(tensors)


@pytest.mark.parametrize("on_first", [True, False])
def test_saved_tensors_that_may_change_while_it_is_switched(lms: Any, on_first: bool) -> None:
    """What was saved before is known by the same name after it."""

    def switch(on: bool) -> None:
        lms.enable(min_size=0) if on else lms.disable()

    switch(on_first)
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 2
        z = y.sin()
        switch(not on_first)
        y.mul_(2)
        z.sum().backward()
    assert torch.equal(x.grad.cpu(), (torch.ones(1 << 16) * 2).cos() * 2)


def test_saved_tensors_that_may_change_are_not_held(lms: Any) -> None:
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 2
        z = y.sin()
        kept = y.detach()
        y.mul_(2)
        lms.reclaim()
        z.sum().backward()
    assert not torch.ops.lms.exposed(x) and not torch.ops.lms.exposed(kept)
    assert torch.equal(x.grad.cpu(), (torch.ones(1 << 16) * 2).cos() * 2)
