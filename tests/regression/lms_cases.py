# SPDX-License-Identifier: Apache-2.0
"""Small programs on one device, each of which reaches memory in a way of its own.

A case takes the device name and returns what it computed: tensors, numbers, strings, in lists,
tuples and dicts. It must give the same bits whatever is moved out while it runs.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[str], Any]
    same_device: bool  # compare with the same device without Large Model Support, not with the CPU
    values: bool = False  # what it does, or the shape of a result, depends on what was computed


CASES: dict[str, Case] = {}


def case(
    function: Callable[[str], Any] | None = None, *, same_device: bool = False, values: bool = False
) -> Callable[..., Any]:
    def add(f: Callable[[str], Any]) -> Callable[[str], Any]:
        CASES[f.__name__] = Case(f.__name__, f, same_device, values)
        return f

    return add if function is None else add(function)


def numbers(device: str, *shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device).requires_grad_(grad)


def mlp(device: str, width: int = 48, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers).to(device)


def grads(module: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in module.parameters()]


# ---- autograd


@case
def backward(device: str) -> Any:
    net, x = mlp(device), numbers(device, 8, 48, grad=True)
    net(x).square().mean().backward()
    return x.grad, grads(net)


@case
def retain_graph(device: str) -> Any:
    net, x = mlp(device), numbers(device, 8, 48, grad=True)
    loss = net(x).sin().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
    return x.grad, grads(net)


@case(same_device=True)
def double_backward(device: str) -> Any:
    w, x = numbers(device, 48, 48, grad=True), numbers(device, 8, 48, seed=1, grad=True)
    y = (x @ w).tanh().pow(3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (first.square().sum() + y).backward()
    return first, w.grad, x.grad


@case
def third_derivative(device: str) -> Any:
    x = numbers(device, 500, grad=True)
    y = (x.pow(5) * x.sin()).sum()
    for _ in range(3):
        (x_grad,) = torch.autograd.grad(y, x, create_graph=True)
        y = x_grad.sum()
    return x_grad


@case
def hooks(device: str) -> Any:
    seen: list[Tensor] = []
    net, x = mlp(device), numbers(device, 8, 48, grad=True)
    net[0].register_forward_hook(lambda m, i, o: o * 2)
    net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    net[4].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    net[4].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = net(x)
    y.register_hook(lambda g: seen.append(g) or g + 1)
    y.sum().backward()
    return x.grad, grads(net), seen


@case
def saved_tensors_hooks(device: str) -> Any:
    net, x = mlp(device), numbers(device, 8, 48, grad=True)

    def pack(t: Tensor) -> Any:
        return t.device, t.detach().cpu()

    def unpack(packed: Any) -> Tensor:
        return packed[1].to(packed[0])

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        net(x).sum().backward()
    first = grads(net)
    with torch.autograd.graph.save_on_cpu():
        net(x).sin().sum().backward()
    return x.grad, first, grads(net)


@case
def checkpointing(device: str) -> Any:
    results = []
    for reentrant in (False, True):
        net, x = mlp(device, depth=4), numbers(device, 8, 48, grad=True)
        y = checkpoint(net[:4], x, use_reentrant=reentrant)
        checkpoint(net[4:], y, use_reentrant=reentrant).square().sum().backward()
        results.append((x.grad, grads(net)))
        z = checkpoint_sequential(net, 2, x, use_reentrant=reentrant)
        z.sum().backward()
        results.append((x.grad, grads(net)))
    return results


@case(same_device=True)
def checkpointing_with_dropout(device: str) -> Any:
    net = nn.Sequential(nn.Linear(48, 48), nn.Dropout(0.5), nn.Linear(48, 48), nn.Dropout(0.5))
    torch.manual_seed(5)
    for p in net.parameters():
        nn.init.normal_(p)
    net, x = net.to(device), numbers(device, 8, 48, grad=True)
    torch.manual_seed(6)
    checkpoint(net, x, use_reentrant=False).sum().backward()
    return x.grad, grads(net)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.kept = x * 2  # behind autograd's back
        return x**3 * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return grad * 1.5 * ctx.kept * x * scale, (grad * x**3).sum()


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad * 2


@case
def custom_functions(device: str) -> Any:
    x, s = numbers(device, 30, 30, grad=True), torch.tensor(1.5, device=device, requires_grad=True)
    Cube.apply(x, s).sum().backward()
    y = numbers(device, 30, 30, seed=2, grad=True)
    AddInPlace.apply(x * 1, y).square().sum().backward()
    return x.grad, s.grad, y.grad


@case
def views_and_in_place(device: str) -> Any:
    base = numbers(device, 16, 32)
    column, flat, strided = base[:, 3], base.view(-1), base.as_strided((4, 4), (64, 2), 5)
    column.mul_(2)
    flat[10:200] += 1
    strided.zero_()
    base.t()[1].copy_(torch.arange(16.0))
    base[base > 1] = 0.5
    base[::2, ::3] = -1
    halves = base.chunk(2, 1)
    halves[0].add_(halves[1])
    torch.add(halves[0], 1, out=halves[1])
    return base, column, flat.sum(), strided, base.diagonal(), base.unfold(1, 4, 4).sum(-1)


@case
def in_place_in_the_graph(device: str) -> Any:
    x = numbers(device, 16, 16, grad=True)
    y = x * 2
    y[:4] = 0
    y[4:8].mul_(3)
    z = y.view(-1)
    z[100:150].mul_(0.5)
    y.t().add_(1)
    y.square().sum().backward()
    a = numbers(device, 16, grad=True)
    b = torch.zeros(16, 16, device=device)
    b[3] = a
    b[:, 2].copy_(a * 2)
    b.sin().sum().backward()
    return x.grad, a.grad


@case
def accumulated_gradients(device: str) -> Any:
    net = mlp(device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for step in range(3):
        for micro in range(2):
            net(numbers(device, 4, 48, seed=10 * step + micro)).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        optimiser.step()
        seen.append([p.grad.clone() for p in net.parameters()])
        optimiser.zero_grad(set_to_none=step == 1)
    return seen, list(net.parameters())


@case
def anomaly_and_graph_queries(device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            net, x = mlp(device), numbers(device, 8, 48, grad=True)
            net(x).sum().backward()
    return x.grad, torch.autograd.functional.jacobian(lambda v: v.sin() * 2, numbers(device, 12))


# ---- tensors and storages


@case
def deep_copies(device: str) -> Any:
    net = mlp(device)
    twin = copy.deepcopy(net)
    shared = numbers(device, 20)
    pair = copy.deepcopy([shared, shared[3:9], shared.view(4, 5)])
    shared.zero_()
    pair[1].mul_(2)
    for p in net.parameters():
        p.data.zero_()
    return list(twin.parameters()), pair, copy.copy(shared)


@case
def save_and_load(device: str) -> Any:
    x = numbers(device, 40)
    saved = {"x": x, "part": x[5:9], "net": mlp(device).state_dict()}
    results = []
    for legacy in (False, True):
        file = io.BytesIO()
        torch.save(saved, file, _use_new_zipfile_serialization=not legacy)
        x.add_(0)
        file.seek(0)
        back = torch.load(file, map_location=device, weights_only=False)
        back["part"].add_(100)  # still a view of x
        results.append((back["x"], back["part"], list(back["net"].values())))
        file.seek(0)
        results.append(torch.load(file, map_location="cpu", weights_only=False)["x"])
    return results


@case
def replaced_storages(device: str) -> Any:
    a, b = numbers(device, 30), numbers(device, 50, seed=1)
    view = a[10:20]
    a.set_(b)
    a.add_(1)
    c = torch.empty(0, device=device).set_(b.untyped_storage(), 7, (5, 4), (4, 1))
    c.mul_(2)
    p = nn.Parameter(numbers(device, 30, seed=2))
    old = p.data
    p.data = p.data * 3
    old.zero_()
    q = numbers(device, 9, seed=4)
    torch.utils.swap_tensors(q, keep := numbers(device, 11, seed=5))
    return a, b, c, view, p, old, q, keep


@case
def resized_storages(device: str) -> Any:
    a = numbers(device, 64)
    storage = a.untyped_storage()
    size = storage.size()
    backup = a.clone()
    storage.resize_(0)
    storage.resize_(size)
    a.copy_(backup)
    b = numbers(device, 10, seed=1)
    b.resize_(100)[10:] = 7
    b.resize_(4, 5)
    c = numbers(device, 50, seed=2)
    c.untyped_storage().resize_(4 * 80)
    c = c.new_empty(0).set_(c.untyped_storage(), 0, (80,))
    c[50:] = 1
    out = torch.empty(0, device=device)
    torch.add(a, 1, out=out)
    torch.mul(b, 2, out=b)
    return a, b, c, out


@case(same_device=True)
def storage_methods(device: str) -> Any:
    x = numbers(device, 24)
    storage = x.untyped_storage()
    copied = storage.clone()
    on_cpu = storage.cpu()
    listed = storage[3]
    storage[8] = 1
    again = torch.empty(0, device=device).set_(copied, 0, (24,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = x.storage().tolist()
    other = torch.empty_like(x)
    other.untyped_storage().copy_(storage)
    host = torch.empty(0).set_(on_cpu, 0, (24,))
    torch.empty_like(x).untyped_storage().fill_(0)
    return x, again, host, listed, typed, other, len(storage)


@case
def data_of_a_module(device: str) -> Any:
    net = mlp(device)
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(vector * 2, net.parameters())
    first = [p.detach().clone() for p in net.parameters()]
    net.double().float()
    twin = mlp(device)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        twin.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    state = {k: v.float() + 1 for k, v in net.state_dict().items()}
    net.float().load_state_dict(state)
    other = mlp(device)
    other.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
    net.requires_grad_(False)[0].weight.zero_()
    return first, vector, [list(m.parameters()) for m in (net, twin, other)]


@case
def overwriting(device: str) -> Any:
    """zero_ and copy_ need no old bytes, unless they leave some."""
    whole, half, source = (numbers(device, 32, 32, seed=i) for i in range(3))
    whole.zero_()
    half[:16].zero_()
    part = numbers(device, 32, 32, seed=5)
    part[:, 4:8].copy_(source[:, :4])
    same = numbers(device, 32, 32, seed=6)
    same.copy_(same)
    same.view(-1)[:512].copy_(same.view(-1)[512:])
    broadcast = numbers(device, 32, 32, seed=7)
    broadcast.copy_(source[0])
    cast = numbers(device, 32, 32, seed=8)
    cast.copy_(torch.arange(1024).view(32, 32))
    transposed = numbers(device, 32, 32, seed=9).t()
    transposed.copy_(source)
    stored = numbers(device, 2000, seed=10)
    stored[:1000].copy_(source.view(-1)[:1000])
    conj = torch.complex(source, whole).conj()
    conj.copy_(torch.complex(half, source))
    empty = torch.empty(32, 32, device=device)
    empty.fill_(3)
    overlapping = numbers(device, 16, seed=11)
    overlapping.as_strided((4, 4), (1, 1)).zero_()  # as many elements, but not all of them
    return (
        overlapping,
        whole,
        half,
        part,
        same,
        broadcast,
        cast,
        transposed,
        stored,
        conj.resolve_conj(),
        empty,
    )


@case
def copies_on_write(device: str) -> Any:
    """Lazy clones share bytes by the mechanism that the write barrier is built on."""
    x = numbers(device, 200)
    x.sum()
    lazy = torch._lazy_clone(x)
    again = torch._lazy_clone(lazy)
    first = lazy + 1
    lazy.mul_(2)
    x.sub_(1)
    x.sum()
    last = torch._lazy_clone(x)
    last.zero_()
    return x, lazy, again, first, last


@case
def failing_operators(device: str) -> Any:
    """What an operator refuses is as it was before."""
    a, b = numbers(device, 6, 7), numbers(device, 5, 4, seed=1)
    i = torch.arange(4, device=device)
    keep = a.clone()
    refused = []
    for attempt in (
        lambda: a.copy_(b),
        lambda: a.copy_(numbers("cpu", 3)),
        lambda: a @ b,
        lambda: a.add_(b),
        lambda: torch.cat([a, b]),
        lambda: a.index_copy_(0, i, b),
        lambda: torch.add(a, b, out=a),
        lambda: a.view(5),
        lambda: F.conv2d(a, b),
        lambda: torch._foreach_add_([a, a], [b, b]),
        lambda: a.scatter_(1, i, b),
        lambda: a.masked_fill_(b > 0, 1.0),
        lambda: a.to(torch.int8).copy_("text"),
    ):
        try:
            attempt()
        except (RuntimeError, TypeError, IndexError) as error:
            refused.append(type(error).__name__)
    return refused, a, b, keep


@case(values=True)
def read_by_python(device: str) -> Any:
    x = numbers(device, 6, 5)
    flags = x > 0
    return [
        x[1, 2].item(),
        x.tolist(),
        str(x),
        repr(flags),
        bool(flags[0, 0]),
        float(x.sum()),
        [float(v) for v in x[0]],
        f"{x[2, 2]:.3f}",
        x.cpu().numpy().tolist(),
        (x == x.clone()).all().item(),
        x.nonzero().tolist(),
        x.is_nonzero() if x.numel() == 1 else len(x),
        torch.equal(x, x.clone()),
        torch.allclose(x, x + 1e-9),
        x in [x],
    ]


@case
def numeric_types(device: str) -> Any:
    x = numbers(device, 12, 12)
    z = torch.complex(x, x.t())
    parts = torch.view_as_real(z)
    parts[..., 0].mul_(2)
    lazy_conj, lazy_neg = z.conj(), z.conj().imag
    lazy_neg.add_(1)
    return (
        z,
        lazy_conj.resolve_conj(),
        lazy_neg.resolve_neg(),
        (lazy_conj @ z).abs(),
        [x.to(t) for t in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool)],
        x.double().half().view(torch.int16),
        torch.view_as_complex(parts.contiguous()),
    )


@case(values=True)
def indexing(device: str) -> Any:
    x, i = numbers(device, 20, 9), torch.tensor([3, 1, 4, 1, 5], device=device)
    y = x.clone().index_add_(0, i, x[:5]).index_fill_(1, i, 2.0)
    z = x.clone().scatter_add_(0, i.view(5, 1).expand(5, 9), x[:5])
    z.index_put_((i, i), x[0, :5], accumulate=True)
    z.masked_scatter_(z > 1, x)
    w = torch.where(x > 0, x, z)
    return (
        (y, z, w, x.gather(0, i.view(1, 5)), x.take(i), x.masked_select(x > 0)),
        (x.sort(1), x.topk(3), x.argmax(0), x.cumsum(0), x.flip(0), x.roll(2, 1), x.unique()),
        (
            F.embedding(i, x),
            F.one_hot(i, 9),
            torch.bincount(i),
            torch.searchsorted(x[0].sort()[0], x),
        ),
    )


@case
def out_variants(device: str) -> Any:
    a, b = numbers(device, 12, 12), numbers(device, 12, 12, seed=1)
    out, small = torch.empty(12, 12, device=device), torch.empty(0, device=device)
    torch.mm(a, b, out=out)
    torch.cat([a, b], out=small)
    target = torch.zeros(24, 12, device=device)
    torch.sin(a, out=target[6:18])
    values, indices = torch.empty(0, device=device), torch.empty(0, device=device, dtype=torch.long)
    torch.max(a, 1, out=(values, indices))
    torch.stack([a, a, b], out=(stacked := torch.empty(3, 12, 12, device=device)))
    return out, small, target, values, indices, stacked


@case
def stored_for_long(device: str) -> Any:
    """Many tensors, used again in another order."""
    made = [numbers(device, 40, seed=i).mul_(i + 1) for i in range(60)]
    total = torch.zeros(40, device=device)
    for i in (7, 3, 59, 0, 21, 3, 7):
        total += made[i]
        made[i].neg_()
    del made[10:50]
    return total, made


# ---- libraries of operators


@case
def foreach(device: str) -> Any:
    a, b = ([numbers(device, 20, seed=s + i) for i in range(7)] for s in (0, 50))
    torch._foreach_add_(a, b, alpha=2)
    torch._foreach_addcmul_(a, b, b, [0.1 * i for i in range(7)])
    torch._foreach_addcdiv_(a, b, torch._foreach_exp(b), [0.5] * 7)
    torch._foreach_lerp_(a, b, 0.25)
    torch._foreach_mul_(a, torch.tensor(1.5, device=device))
    torch._foreach_copy_(b[:3], a[4:])
    torch._foreach_zero_(b[5:])
    torch._foreach_clamp_min_(a, -1.0)
    return (
        (a, b, torch._foreach_norm(a), torch._foreach_sqrt(torch._foreach_abs(a))),
        (torch._foreach_maximum(a, b), torch._foreach_pow(a, 2), torch._foreach_neg(b)),
        (torch._foreach_max(a), torch._foreach_sign(a), torch._foreach_div(a, [2.0] * 7)),
    )


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "capturable": lambda p: torch.optim.Adam(p, capturable=p[0].is_cuda),
}


def _optimise(name: str) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        net = mlp(device)
        optimiser = OPTIMISERS[name](list(net.parameters()))
        for step in range(3):
            optimiser.zero_grad()
            net(numbers(device, 4, 48, seed=step)).square().sum().backward()
            optimiser.step()
        state = copy.deepcopy(optimiser.state_dict())
        optimiser.load_state_dict(state)
        optimiser.step()
        return list(net.parameters())

    return run


for _name in OPTIMISERS:
    CASES[f"optimiser_{_name}"] = Case(
        f"optimiser_{_name}",
        _optimise(_name),
        same_device=_name in ("asgd", "capturable", "nadam", "radam"),
    )


@case(same_device=True)
def lbfgs_and_averages(device: str) -> Any:
    net = mlp(device, 12, 2)
    average = torch.optim.swa_utils.AveragedModel(net)
    ema = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimiser = torch.optim.LBFGS(net.parameters(), max_iter=3)
    x = numbers(device, 6, 12)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimiser.step(closure)
        average.update_parameters(net)
        ema.update_parameters(net)
    return [list(m.parameters()) for m in (net, average, ema)]


@case
def optional_operands(device: str) -> Any:
    """Tensors that an operator is given, or not."""
    x, weight, bias = (numbers(device, *shape, grad=True) for shape in ((6, 8), (8,), (8,)))
    chances = numbers(device, 6, 8, seed=1).abs() + 1
    results = [
        nn.functional.layer_norm(x, (8,), *given)
        for given in ((), (weight,), (weight, bias), (None, bias))
    ]
    classes = torch.arange(6, device=device)
    results += [
        nn.functional.nll_loss(chances.log(), classes, given)
        for given in (None, numbers(device, 8, seed=2).abs() + 1)
    ]
    sum(result.sum() for result in results).backward()
    return results, x.grad, weight.grad, bias.grad


@case(values=True)
def normalisation_statistics(device: str) -> Any:
    """Kernels that write running statistics, which the schema does not say."""
    nets = [nn.BatchNorm1d(10), nn.BatchNorm1d(10, momentum=None), nn.InstanceNorm1d(10, True)]
    nets[2] = nn.InstanceNorm1d(10, track_running_stats=True, affine=True)
    results = []
    for net in nets:
        net.to(device)
        for step in range(3):
            results.append(net(numbers(device, 4, 10, 6, seed=step)))
        results.append(net.eval()(numbers(device, 4, 10, 6, seed=9)))
        results.append([b.clone() for b in net.buffers()])
    return results


@case
def quantisation_observer(device: str) -> Any:
    observer = torch.ao.quantization.MovingAverageMinMaxObserver().to(device)
    for step in range(3):
        observer(numbers(device, 30, seed=step))
    return observer.min_val, observer.max_val


@case(same_device=True)
def recurrent(device: str) -> Any:
    torch.manual_seed(2)
    results = []
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        net, x = kind(6, 8, 2, batch_first=True).to(device), numbers(device, 3, 5, 6, grad=True)
        out = net(x)[0]
        out.square().sum().backward()
        results.append((out, x.grad, grads(net)))
    return results


@case(values=True)
def sparse(device: str) -> Any:
    i = torch.tensor([[0, 1, 1, 3], [2, 0, 0, 1]], device=device)
    s = torch.sparse_coo_tensor(i, numbers(device, 4), (4, 3))
    dense, w = numbers(device, 3, 5, seed=1), nn.Embedding(10, 6, sparse=True).to(device)
    with torch.no_grad():
        w.weight.copy_(numbers(device, 10, 6, seed=2))
    w(torch.tensor([1, 4, 1], device=device)).sum().backward()
    torch.optim.SparseAdam(w.parameters()).step()
    c = s.coalesce()
    return (
        (c.indices(), c.values(), s.to_dense(), torch.sparse.mm(c, dense), (c * 2).to_dense()),
        (w.weight.grad.to_dense(), w.weight, (c + c).coalesce().values(), c.t().to_dense()),
    )


@case(values=True)
def sparse_compressed(device: str) -> Any:
    m = torch.where(numbers(device, 8, 6) > 0.5, 1.5, 0.0).to(device)
    csr = m.to_sparse_csr()
    again = torch.sparse_csr_tensor(csr.crow_indices(), csr.col_indices(), csr.values() * 2, (8, 6))
    return csr.crow_indices(), csr.col_indices(), csr.values(), again.to_dense(), csr.to_dense()


@case
def nested_tensors(device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [numbers(device, n, 8, seed=n) for n in (3, 5, 2)]
        nested = torch.nested.nested_tensor(parts)
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        return (
            [t.clone() for t in (nested * 2).unbind()],
            (jagged.sin() + 1).values(),
        )


@case(same_device=True)
def mixed_precision(device: str) -> Any:
    net = mlp(device)
    optimiser = torch.optim.Adam(net.parameters(), fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    for step in range(3):
        with torch.autocast(device, dtype=torch.float16 if step < 2 else torch.bfloat16):
            loss = net(numbers(device, 4, 48, seed=step)).float().square().sum()
            if step == 1:
                loss = loss * float("inf")
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        scaler.step(optimiser)
        scaler.update()
    return list(net.parameters()), scaler.get_scale()


@case
def function_transforms(device: str) -> Any:
    from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

    x, w = numbers(device, 6, 5), numbers(device, 5, 5, seed=1)
    per_sample = vmap(grad(lambda w, x: (x @ w).tanh().sum()), (None, 0))(w, x)
    nets = [mlp(device, 8, 2) for _ in range(3)]
    params, buffers = stack_module_state(nets)
    many = vmap(lambda p, b, x: functional_call(nets[0], (p, b), x), (0, 0, None))(
        params, buffers, numbers(device, 4, 8)
    )
    primal, tangent = jvp(torch.sin, (x,), (x * 2,))
    return (
        per_sample,
        many,
        primal,
        tangent,
        jacrev(lambda v: v.pow(3))(x[0]),
        hessian(lambda v: v.pow(3).sum())(x[0]),
    )


@case
def compiled(device: str) -> Any:
    net, x = mlp(device), numbers(device, 8, 48, grad=True)
    run = torch.compile(net, backend="eager")
    for _ in range(2):
        run(x).square().sum().backward()
    torch._dynamo.reset()
    return x.grad, grads(net)


@case
def scripted(device: str) -> Any:
    x = numbers(device, 8, 48, grad=True)
    net = torch.jit.trace(mlp(device), x)

    def loop(x: Tensor, n: int) -> Tensor:
        out = x
        for _i in range(n):
            out = out * 2 + x
        return out

    script = torch.jit.script(loop)
    with torch.jit.optimized_execution(False):
        for _ in range(3):
            y = script(net(x), 3).sum()
            y.backward()
    return x.grad, y


@case(same_device=True)
def random_numbers(device: str) -> Any:
    torch.manual_seed(7)
    own = torch.Generator(device).manual_seed(8)
    x = torch.rand(40, device=device)
    state = torch.random.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    return (
        (x, torch.randn(40, device=device, generator=own), torch.randperm(30, device=device)),
        (x.bernoulli_(0.3).clone(), x.normal_().clone(), x.uniform_(), x.clone().exponential_()),
        (F.dropout(torch.ones(100, device=device), 0.4), torch.multinomial(x.abs(), 5), state),
        nn.init.orthogonal_(torch.empty(6, 6)).to(device),
    )


@case
def loaded_data(device: str) -> Any:
    data = torch.utils.data.TensorDataset(numbers("cpu", 20, 6), torch.arange(20))
    loader = torch.utils.data.DataLoader(data, 4, pin_memory=device == "cuda")
    total = []
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        total.append((x * y[:, None]).sum(1))
    return total


class Logged(Tensor):
    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(f, types, args, kwargs or {})


class Wrapped(Tensor):
    """Holds another tensor, as quantised and distributed tensors do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        wrapped = Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(t: Any) -> Any:
            return t.inner if isinstance(t, Wrapped) else t

        out = f(*torch.utils._pytree.tree_map(unwrap, args), **(kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Wrapped, out)


@case
def tensor_subclasses(device: str) -> Any:
    a = numbers(device, 10, 10).as_subclass(Logged)
    b = Wrapped(numbers(device, 10, 10, seed=1))
    c = b @ b + 1
    return (a.sin() @ a).as_subclass(Tensor), c.inner, (c * 2).inner


def void(_: Any) -> None:
    """Of a kernel that returns nothing."""


_LIBRARY = torch.library.Library("lms_test", "DEF")
_LIBRARY.define("marked(Tensor(a!) x, Tensor y) -> ()")
_LIBRARY.define("unmarked(Tensor x, Tensor y) -> ()")
_LIBRARY.define("pair(Tensor x) -> (Tensor, Tensor)")
_LIBRARY.impl("marked", lambda x, y: void(x.add_(y)), "CompositeExplicitAutograd")
_LIBRARY.impl("unmarked", lambda x, y: void(x.mul_(y)), "CompositeExplicitAutograd")
_LIBRARY.impl("pair", lambda x: (x.sin(), x.cos()), "CompositeExplicitAutograd")


@case
def custom_operators(device: str) -> Any:
    x, y = numbers(device, 30), numbers(device, 30, seed=1)
    x.sum()
    for _ in range(2):
        torch.ops.lms_test.marked(x, y)
        torch.ops.lms_test.unmarked(x, y)
    return x, torch.ops.lms_test.pair(x)


_LATE = 0


@case
def operators_defined_late(device: str) -> Any:
    """Defined after Large Model Support was turned on, then taken away and defined anew."""
    global _LATE
    results = []
    for scale in (2.0, 3.0):
        _LATE += 1
        library = torch.library.Library("lms_test_late", "DEF")
        library.define("scale(Tensor(a!) x) -> Tensor")

        def scale_it(x: Tensor, scale: float = scale) -> Tensor:
            return x.mul_(scale).clone()

        library.impl("scale", scale_it, "CompositeExplicitAutograd")

        @torch.library.custom_op(f"lms_test_late::twice{_LATE}", mutates_args=("x",))
        def twice(x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

        x = numbers(device, 30)
        results.append((torch.ops.lms_test_late.scale(x), twice(x), x))
        library._destroy()
    return results


@case
def fills_and_factories(device: str) -> Any:
    x = numbers(device, 20)
    return (
        torch.zeros_like(x),
        torch.full_like(x, 3),
        x.new_zeros(5),
        x.new_tensor([1.0, 2]),
        torch.arange(10, device=device),
        torch.tensor([1, 2], device=device),
        torch.linspace(0, 1, 7, device=device),
        torch.eye(4, device=device),
        x.clone(memory_format=torch.preserve_format),
        torch.empty_like(x).copy_(x),
        x.expand(3, 20).contiguous(),
    )


@case
def linear_algebra(device: str) -> Any:
    a, b = numbers(device, 4, 12, 12), numbers(device, 4, 12, 12, seed=1)
    return (
        a.bmm(b),
        torch.einsum("bij,bjk->ik", a, b),
        torch.baddbmm(a, a, b, beta=0.5),
        torch.addmm(a[0], a[1], b[1]),
        torch.outer(a[0, 0], b[0, 0]),
        torch.tensordot(a, b, ([1, 2], [2, 1])),
        a[0].matmul(b),
        F.scaled_dot_product_attention(a[:, None], b[:, None], a[:, None]),
        F.multi_head_attention_forward(
            a, a, a, 12, 3, b.new_ones(36, 12), b.new_ones(36), None, None, False, 0.0,
            b.new_ones(12, 12), None,
        )[0],
    )  # fmt: skip


@case
def convolutions(device: str) -> Any:
    x = numbers(device, 2, 4, 9, 9, grad=True)
    w, v = numbers(device, 6, 4, 3, 3, seed=1, grad=True), numbers(device, 4, 3, 2, 2, seed=2)
    y = F.conv2d(x, w, stride=2, padding=1) + 0
    z = F.max_pool2d(y, 2) + F.adaptive_avg_pool2d(F.conv_transpose2d(x, v)[:, :1], (2, 2))
    u = F.interpolate(z, scale_factor=2, mode="bilinear")
    channels_last = F.conv2d(x.contiguous(memory_format=torch.channels_last), w)
    (u.sum() + channels_last.square().mean() + F.pad(x, (1, 1)).sum()).backward()
    return y, z, u, channels_last, x.grad, w.grad
