# SPDX-License-Identifier: Apache-2.0
"""Operators as programs use them. `python dry_cases.py FILE` writes what each returns, but for the
numbers: sizes, strides, types and devices, or the error."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

CASES: dict[str, Callable[[], Any]] = {}
D = "cuda"


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def rand(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device=D)


def trained(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    result = function(*leaves)
    first = result if isinstance(result, torch.Tensor) else result[0]
    first.sum().backward()
    return [result, [x.grad for x in leaves]]


def gradients(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """As the operator lays them out: `grad` of a leaf is laid out as the leaf is."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves).sum(), leaves)


def unary(name: str, function: Callable[[torch.Tensor], Any]) -> None:
    CASES[name] = lambda: trained(function, rand(4, 8, 16, 16))


SIMPLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, 1),
    "dropout": lambda x: F.dropout(x, 0.5), "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2), "adaptive": lambda x: F.adaptive_avg_pool2d(x, 3),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pad": lambda x: F.pad(x, (1, 1)), "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "sum": lambda x: x.sum(1), "mean": lambda x: x.mean((2, 3)), "max": lambda x: x.max(1),
    "amax": lambda x: x.amax(1), "var": lambda x: x.var(1), "norm": lambda x: x.norm(),
    "cumsum": lambda x: x.cumsum(1), "sort": lambda x: x.sort(1), "topk": lambda x: x.topk(3, 1),
    "cat": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x]),
    "clamp": lambda x: x.clamp(0, 1), "where": lambda x: torch.where(x > 0, x, 0.0),
    "tril": lambda x: x.tril(), "add_transposed": lambda x: x + x.transpose(2, 3),
    "half": lambda x: x.half(), "double": lambda x: x.double(), "pow": lambda x: x.pow(2),
    "permuted": lambda x: x.permute(0, 2, 3, 1).contiguous(), "roll": lambda x: x.roll(1, 1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0), "flip": lambda x: x.flip(1),
    "unfold": lambda x: F.unfold(x, 3), "glu": lambda x: F.glu(x, 1),
    "einsum": lambda x: torch.einsum("abij,abkj->abik", x, x), "prod": lambda x: x.prod(1),
    "logsumexp": lambda x: x.logsumexp(1), "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2), "instance_norm": F.instance_norm,
    "expand": lambda x: x[:1].expand(4, 8, 16, 16) * 2, "strided": lambda x: x[:, ::2] * 2,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last).relu(),
}  # fmt: skip
for name, function in SIMPLE.items():
    unary(name, function)


@case
def convolutions() -> Any:
    x, w = rand(4, 8, 16, 16), rand(12, 8, 3, 3)
    last = {"memory_format": torch.channels_last}
    return [
        trained(lambda x, w: F.conv2d(x, w, padding=1), x, w),
        trained(lambda x, w: F.conv2d(x, w, stride=2, groups=2), x, rand(12, 4, 3, 3)),
        trained(F.conv2d, x.contiguous(**last), w.contiguous(**last)),
        trained(lambda x, w: F.conv2d(x, w, groups=8), x, rand(8, 1, 3, 3)),
        trained(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, rand(8, 6, 2, 2)),
        trained(F.conv3d, rand(2, 3, 8, 8, 8), rand(4, 3, 3, 3, 3)),
        trained(F.conv1d, rand(2, 3, 9), rand(4, 3, 3)),
        gradients(F.conv2d, x.contiguous(**last), w.contiguous(**last)),
        gradients(F.conv2d, x.contiguous(**last), w),
        gradients(F.conv_transpose2d, x, rand(8, 6, 2, 2).contiguous(**last)),
    ]


@case
def normalisations() -> Any:
    x = rand(4, 8, 16, 16)
    ones = [torch.ones(8, device=D) for _ in range(2)]
    train = [lambda x, a, b, t=t: F.batch_norm(x, *ones, a, b, t) for t in (True, False)]
    layer = trained(lambda x, a, b: F.layer_norm(x, (16,), a, b), x, rand(16), rand(16))
    return [*(trained(f, x, rand(8), rand(8)) for f in train), layer]


@case
def products() -> Any:
    return [
        trained(torch.mm, rand(6, 7), rand(7, 5)),
        trained(torch.bmm, rand(3, 4, 5), rand(3, 5, 6)),
        trained(F.linear, rand(2, 6, 7), rand(5, 7), rand(5)),
        trained(torch.matmul, rand(2, 3, 4, 5).transpose(2, 3), rand(4, 6)),
        trained(torch.baddbmm, rand(3, 4, 6), rand(3, 4, 5), rand(3, 5, 6)),
    ]


@case
def losses() -> Any:
    x, at = rand(6, 7), torch.randint(4, (6,), device=D)
    image = torch.zeros(4, 16, 16, dtype=torch.long, device=D)
    return [
        trained(lambda x: F.cross_entropy(x, at), x),
        trained(lambda x: F.cross_entropy(x, image), rand(4, 8, 16, 16)),
        trained(F.mse_loss, x, rand(6, 7)),
        trained(lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)), x),
        trained(F.smooth_l1_loss, x, rand(6, 7)),
    ]


@case
def embeddings() -> Any:
    at = torch.randint(4, (6,), device=D)
    bag = trained(lambda w: F.embedding_bag(at.view(2, 3), w), rand(10, 4))
    return [trained(lambda w: F.embedding(at, w), rand(10, 4)), bag]


@case
def indices() -> Any:
    x, at = rand(6, 10), torch.randint(4, (6,), device=D)
    x[2:4, ::2] = -1
    x[torch.tensor([0, 1]), torch.tensor([2, 3])] = 5
    x[x > 0] = 1
    return [
        x[at], x[:, [1, 3]].t(), x.index_select(0, at), x.gather(1, at[:, None]),
        x.clone().index_put_((at,), rand(10)), x.scatter_add(0, at.view(1, 6), rand(1, 6)),
        torch.searchsorted(x.sort(1)[0], x), F.one_hot(at, 5), x.take(at), x.index_add(0, at, x),
    ]  # fmt: skip


@case
def factories() -> Any:
    x = rand(3, 4)
    return [
        torch.arange(5, device=D), torch.arange(0, 1, 0.25, device=D), torch.randperm(5, device=D),
        torch.arange(0, 1, 0.2, device=D), torch.linspace(0, 1, 7, device=D),
        torch.full((2, 3), 1.5, device=D), torch.zeros_like(x.t()), torch.eye(3, device=D),
        torch.tril_indices(4, 4, device=D),
        torch.randint(3, (4,), device=D), x.new_empty(2), torch.ones(3, device=D, dtype=torch.half),
    ]  # fmt: skip


@case
def types() -> Any:
    """Of the same sizes, so that a plan of one must not be taken for another."""
    whole, x = torch.ones(4, dtype=torch.long, device=D), rand(4)
    return [
        whole + 1, whole + 1.5, whole + 0, whole / 2, whole * x, x * 2, x * 2j, x.half() + x,
        x.half() + torch.tensor(2.0), whole.add(torch.tensor(1.5)), x > 0, x.to(torch.int32),
    ]  # fmt: skip


@case
def in_place_and_out() -> Any:
    x = rand(4, 5)
    fresh, turned = torch.empty(0, device=D), torch.empty(5, 4, device=D).t()
    low, at = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    same = [torch.add(x, x, out=fresh) is fresh, torch.mul(x, 2, out=turned) is turned]
    torch.min(x, 1, out=(low, at))
    same += [x.add_(1) is x, x.t().mul_(2).zero_().shape]
    return [*same, fresh, turned, low, at, x, x.resize_(2, 2)]


@case
def lists() -> Any:
    tensors = [rand(3), rand(2, 2)]
    torch._foreach_mul_(tensors, 2)
    torch._foreach_addcmul_(tensors, tensors, tensors, 0.5)
    numbers = torch.tensor([1.0] * len(tensors))  # of the CPU
    torch._foreach_addcdiv_(tensors, tensors, tensors, numbers)
    return [torch._foreach_norm(tensors), torch._foreach_add(tensors, tensors), tensors]


@case
def attention() -> Any:
    q, math = rand(2, 4, 16, 8), [torch.nn.attention.SDPBackend.MATH]
    with torch.nn.attention.sdpa_kernel(math):
        causal = trained(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)
        heads = nn.MultiheadAttention(8, 2).to(D)
        layer = nn.TransformerEncoderLayer(8, 2, 16).to(D)
        return [causal, heads(*[rand(3, 2, 8)] * 3), trained(layer, rand(3, 2, 8))]


@case
def recurrent() -> Any:
    parts: list[Any] = []
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        parts.append(trained(kind(4, 5, 2, bidirectional=True).to(D), rand(3, 2, 4)))
    return [*parts, nn.LSTMCell(4, 5).to(D)(rand(2, 4))]


@case
def mixed_precision() -> Any:
    net = nn.Sequential(nn.Conv2d(8, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3)).to(D)
    parts: list[Any] = []
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast(D, dtype):
            parts.append(net(rand(4, 8, 16, 16)))
        parts[-1].float().sum().backward()
    return [*parts, [p.grad for p in net.parameters()]]


@case
def scaler() -> Any:
    weight = nn.Parameter(rand(4))
    optimiser, scaler = torch.optim.SGD([weight], 0.1), torch.amp.GradScaler(D)
    for _ in range(2):
        scaler.scale((weight * weight).sum()).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimiser)
        scaler.update()
    return weight.grad


def optimised(kind: Any, **options: Any) -> Any:
    weights = [nn.Parameter(rand(5, 5)), nn.Parameter(rand(3))]
    optimiser = kind(weights, **options)
    for _ in range(2):
        sum((w * w).sum() for w in weights).backward()
        optimiser.step()
        optimiser.zero_grad()
    values = [v for state in optimiser.state.values() for v in state.values()]
    return [v for v in values if isinstance(v, torch.Tensor)]


OPTIMISERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}), "sgd_fused": (torch.optim.SGD, {"fused": True}),
    "adam": (torch.optim.Adam, {}), "adam_fused": (torch.optim.Adam, {"fused": True}),
    "adam_capturable": (torch.optim.Adam, {"capturable": True}),
    "adamw_loop": (torch.optim.AdamW, {"foreach": False}), "rmsprop": (torch.optim.RMSprop, {}),
    "adagrad": (torch.optim.Adagrad, {}), "adadelta": (torch.optim.Adadelta, {}),
    "nadam": (torch.optim.NAdam, {}), "rprop": (torch.optim.Rprop, {}),
}  # fmt: skip
for name, (kind, options) in OPTIMISERS.items():
    CASES[name] = lambda kind=kind, options=options: optimised(kind, **options)  # type: ignore[misc]


@case
def algebra() -> Any:
    x = rand(5, 5)
    return [
        torch.linalg.inv(x), torch.linalg.qr(x), torch.fft.fft(x), torch.fft.rfft(x),
        torch.linalg.cholesky_ex(torch.eye(3, device=D)), torch.view_as_complex(rand(3, 2)) * 1j,
        torch.cdist(x, x), torch.aminmax(x), torch.histc(x), torch.bucketize(x, x[0]),
    ]  # fmt: skip


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [list(value.shape), list(value.stride()), str(value.dtype), value.device.type]
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return value if isinstance(value, bool | None) else type(value).__name__


def main() -> None:
    warnings.simplefilter("ignore")
    results = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        try:
            results[name] = describe(function())
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
