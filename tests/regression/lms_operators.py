# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own databases of operators, modules and optimisers come to on the device: a
program of test_operators.py.

    python lms_operators.py operators|modules|optimisers SAMPLES off|chaos|reclaim

prints one JSON object: by operator and sample, a digest of all that it returned, of what it was
given, and of the gradients, or the error. With `reclaim` all that can leave has left before each
call, with `chaos` the environment has it so after each.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

KIND, SAMPLES, MODE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MOST = 200_000  # elements of one sample; more take long to compute

Value = Any  # tensors, and lists and dictionaries of them


def mapped(value: Value, f: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    if isinstance(value, torch.Tensor):
        return f(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(each, f) for each in value)
    if isinstance(value, dict):
        return {name: mapped(each, f) for name, each in value.items()}
    return value


def tensors(value: Value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from tensors(value[name])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def digest(value: Value) -> str:
    found = hashlib.sha256()
    for tensor in tensors(value):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}".encode())
        plain = tensor.detach()
        if plain.layout != torch.strided:
            plain = plain.to_dense()
        plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
        if plain.numel():
            found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone().cuda() if tensor.layout == torch.strided else tensor.cuda()
    return copy.requires_grad_(tensor.requires_grad)


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def leave() -> None:
    if MODE == "reclaim":
        torch.cuda.lms.reclaim()


results: dict[str, str] = {}


def record(name: str, run: Callable[..., str], *args: Any) -> None:
    seed()
    try:
        results[name] = run(*args)
    except Exception as error:
        results[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def gradients_of(value: Value, given: Value) -> list[torch.Tensor]:
    ends = [t for t in tensors(value) if t.requires_grad]
    starts = [t for t in tensors(given) if t.requires_grad]
    if not ends or not starts:
        return []
    ones = [torch.ones_like(t) for t in ends]
    leave()
    found = torch.autograd.grad(ends, starts, ones, allow_unused=True)
    return [each for each in found if each is not None]


def operators() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        known = [
            each
            for each in (torch.float32, torch.int64, torch.complex64, torch.bool)
            if each in op.dtypes
        ]
        for dtype in known[:2]:
            differentiable = op.supports_autograd and dtype in (torch.float32, torch.complex64)
            seed()
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
            for i in range(0, len(samples), max(1, len(samples) // SAMPLES)):
                sample = samples[i]
                given = (sample.input, sample.args, sample.kwargs)
                if sum(t.numel() for t in tensors(given)) > MOST:
                    continue
                name = f"{op.name}.{op.variant_test_name} {dtype} {i}"
                record(name, called, op, given, differentiable)
                if op.inplace_variant is not None:
                    record(name + " in place", in_place, op, given)
                if op.supports_out:
                    record(name + " out=", into, op, given)


def moved(given: Value) -> Value:
    input, args, kwargs = mapped(given, on_device)
    if "device" in kwargs:
        kwargs["device"] = "cuda"
    leave()
    return input, args, kwargs


def called(op: Any, given: Value, differentiable: bool) -> str:
    input, args, kwargs = given = moved(given)
    result = op.op(input, *args, **kwargs)
    leave()
    gradients = gradients_of(result, given) if differentiable else []
    leave()
    return digest([result, given, gradients])


@torch.no_grad()
def in_place(op: Any, given: Value) -> str:
    input, args, kwargs = given = moved(given)
    result = op.inplace_variant(input, *args, **kwargs)
    leave()
    return digest([result, given])


@torch.no_grad()
def into(op: Any, given: Value) -> str:
    input, args, kwargs = moved(given)
    out = mapped(op.op(input, *args, **kwargs), lambda t: torch.full_like(t, 1))
    leave()
    result = op.op(input, *args, out=out, **kwargs)
    leave()
    return digest([result, out])


def modules() -> None:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (True, False):
            seed()
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for i, made in enumerate(inputs):
                if made.forward_input is not None:
                    name = f"{info.module_cls.__name__} {training} {i}"
                    record(name, trained, info.module_cls, made, training)


def trained(kind: Any, made: Any, training: bool) -> str:
    """Two steps without an optimiser: gradients and buffers add up."""
    args, kwargs = mapped((made.constructor_input.args, made.constructor_input.kwargs), on_device)
    module = kind(*args, **kwargs).cuda().train(training)
    given = mapped((made.forward_input.args, made.forward_input.kwargs), on_device)
    found = []
    for _ in range(2):
        leave()
        result = module(*given[0], **given[1])
        found.append(digest(result))
        ends = [t.sum() for t in tensors(result) if t.requires_grad]
        leave()
        if ends:
            torch.autograd.backward(ends)
    leave()
    gradients = [t.grad for t in [*module.parameters(), *tensors(given)] if t.grad is not None]
    return " ".join([*found, digest([gradients, list(module.buffers())])])


def optimisers() -> None:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for i, made in enumerate(info.optim_inputs_func(device="cuda")):
            for way in ("plain", *sorted(set(info.supported_impls) - {"differentiable"})):
                name = f"{info.optim_cls.__name__} {i} {way}"
                record(name, optimised, info, made.kwargs, way)


def optimised(info: Any, options: dict[str, Any], way: str) -> str:
    options = {**options, **({} if way == "plain" else {way: True})}
    sparse = info.optim_cls.__name__ == "SparseAdam"
    if sparse:
        model: Any = torch.nn.Embedding(100, 40, sparse=True).cuda()
        given: Any = torch.arange(0, 100, 3, device="cuda")
    else:
        layers = (torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8))
        model, given = torch.nn.Sequential(*layers).cuda(), torch.randn(16, 64, device="cuda")
    optimiser = info.optim_cls(model.parameters(), **options)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = model(given).pow(2).sum()
        loss.backward()
        leave()
        return loss

    for _ in range(3):
        if info.step_requires_closure:
            optimiser.step(closure)
        else:
            closure()
            optimiser.step()
        leave()
    state = optimiser.state_dict()
    optimiser.load_state_dict(state)
    return digest([list(model.parameters()), state["state"]])


warnings.simplefilter("ignore")
torch.cuda.init()
if MODE != "off":
    torch.cuda.lms.enable(min_size=0)
{"operators": operators, "modules": modules, "optimisers": optimisers}[KIND]()
print(json.dumps(results))
