# SPDX-License-Identifier: Apache-2.0
"""Programs of users', each of which mixes several ways to reach memory. As lms_cases.py's: one
takes the device, and gives the same bits whatever moves meanwhile."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import time
import typing
import warnings
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from lms_cases import Case, grads, mlp, numbers
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints

PROGRAMS: dict[str, Case] = {}


NOT_IN_CHAOS_MODE: set[str] = set()


def program(function: Any = None, *, same_device: bool = False, chaos: bool = True) -> Any:
    def add(f: Any) -> Any:
        PROGRAMS[f.__name__] = Case(f.__name__, f, same_device)
        if not chaos:
            NOT_IN_CHAOS_MODE.add(f.__name__)
        return f

    return add if function is None else add(function)


def on_side(device: str) -> Any:
    """A new stream that waits for the current one, as a context; nothing on the CPU."""
    if device == "cpu":
        return torch.no_grad() if not torch.is_grad_enabled() else torch.enable_grad()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def join(device: str, context: Any) -> None:
    if device != "cpu":
        torch.cuda.current_stream().wait_stream(context.stream)


# ---- streams


@program
def ping_pong(device: str) -> Any:
    """Two streams hand a tensor to each other, by events; what each made dies on the other."""
    x, seen = numbers(device, 300), []
    if device == "cpu":
        for i in range(6):
            x = x * 1.25 + i
            seen.append(x.sum())
        return x, seen
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    streams[0].wait_stream(torch.cuda.current_stream())
    x.record_stream(streams[0])
    for i in range(6):
        stream, other = streams[i % 2], streams[1 - i % 2]
        with torch.cuda.stream(stream):
            y = x * 1.25 + i
            x.record_stream(stream)
            seen.append(y.sum())
        done = torch.cuda.Event()
        done.record(stream)
        other.wait_event(done)
        x = y
        del y
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    return x, seen


@program(chaos=False)  # autograd looks at the pointer of a gradient that crosses streams
def backward_on_streams(device: str) -> Any:
    """Branches of a forward pass on streams of their own, which autograd follows backwards."""
    x, nets = numbers(device, 8, 48, grad=True), [mlp(device) for _ in range(3)]
    outs = []
    for net in nets:
        if device == "cpu":
            outs.append(net(x))
            continue
        side = on_side(device)
        with side:
            x.record_stream(side.stream)
            outs.append(net(x))
        join(device, side)
        outs[-1].record_stream(torch.cuda.current_stream())
    sum(outs).square().mean().backward()
    return x.grad, [grads(net) for net in nets]


@program
def offload_by_hand(device: str) -> Any:
    """Saved tensors go to pinned memory on a stream of their own, and come back on another."""
    net, x = mlp(device, depth=4), numbers(device, 8, 48, grad=True)
    if device == "cpu":
        net(x).sin().sum().backward()
        return x.grad, grads(net)
    out, back = torch.cuda.Stream(), torch.cuda.Stream()

    def pack(t: Tensor) -> Any:
        if not t.is_cuda or t.is_leaf:
            return t
        out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(out):
            host = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
            host.copy_(t, non_blocking=True)
            t.record_stream(out)
        return host, out.record_event()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        host, done = packed
        back.wait_event(done)
        with torch.cuda.stream(back):
            t = host.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(back)
        t.record_stream(torch.cuda.current_stream())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = net(x).sin().sum()
    loss.backward()
    return x.grad, grads(net)


@program
def prefetched_batches(device: str) -> Any:
    """The loop that everybody has: the next batch is copied while this one is computed."""
    batches, net, seen = [numbers("cpu", 8, 48, seed=i) for i in range(5)], mlp(device), []
    if device == "cpu":
        return [net(b).square().sum() for b in batches]
    side = torch.cuda.Stream()

    def load(i: int) -> Tensor | None:
        if i == len(batches):
            return None
        with torch.cuda.stream(side):
            return batches[i].pin_memory().to("cuda", non_blocking=True)

    batch = load(0)
    for i in range(len(batches)):
        torch.cuda.current_stream().wait_stream(side)
        assert batch is not None
        batch.record_stream(torch.cuda.current_stream())
        now, batch = batch, load(i + 1)
        seen.append(net(now).square().sum())
    return seen


@program
def threads_that_differentiate(device: str) -> Any:
    """Threads with streams of their own, each with a backward pass through shared weights."""
    w, results = numbers(device, 48, 48, seed=9), [None] * 3

    def work(i: int) -> None:
        x = numbers(device, 8, 48, seed=i, grad=True)
        for _ in range(3):
            (x @ w).sin().sum().backward()
        results[i] = x.grad  # type: ignore[call-overload]
        if device != "cpu":
            torch.cuda.current_stream().synchronize()

    def on_a_stream(i: int) -> None:
        if device == "cpu":
            work(i)
            return
        with torch.cuda.stream(torch.cuda.Stream()):
            work(i)

    if device != "cpu":
        torch.cuda.synchronize()
    threads = [threading.Thread(target=on_a_stream, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# ---- captures


def capture(work: Any, **options: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, **options):
        work()
    return graph


@program
def graphs_that_share_a_pool(device: str) -> Any:
    x, y, z = (numbers(device, 400, seed=i) for i in range(3))

    def first() -> None:
        y.copy_((x * 2).sin() + 1)

    def second() -> None:
        z.copy_((y + x).cos() * 0.5)

    if device == "cpu":
        for i in range(3):
            x.add_(i)
            first()
            second()
        return x, y, z
    with torch.cuda.lms.pin(x, y, z):
        one = capture(first)
        two = capture(second, pool=one.pool())
    for i in range(3):
        x.add_(i)
        one.replay()
        torch.zeros(3000, device=device).sum()
        two.replay()
    torch.cuda.synchronize()
    return x, y, z


# ---- aliases


@program
def dlpack_of_views(device: str) -> Any:
    """An alias of a strided part outlives its tensor, and is written."""
    x = numbers(device, 20, 30)
    alias = torch.utils.dlpack.from_dlpack(x[2::2, 1:9].t().detach())
    keep = x[2::2]
    del x
    alias.mul_(2)
    again = torch.from_dlpack(alias[1:])
    again.sub_(1)
    del alias
    return keep, again


@program
def parts_of_storages(device: str) -> Any:
    x = numbers(device, 2048)
    storage = x.untyped_storage()
    parts = [storage[4096 * i // 2 : 4096 * i // 2 + 1024] for i in range(4)]
    made = [torch.empty(0, device=device).set_(part, 0, (256,)) for part in parts]
    x.mul_(3)
    for i, t in enumerate(made):
        t.add_(i)
    made[1].copy_(made[0])
    storage[0:16].fill_(0)
    return x, made


@program
def interfaces(device: str) -> Any:
    x = numbers(device, 64)
    if device == "cpu":
        a = torch.as_tensor(x.numpy())
        a += 1
        return x, a, x[8:].sum()

    class Holder:
        __cuda_array_interface__ = x.__cuda_array_interface__

    a = torch.as_tensor(Holder(), device="cuda")
    a += 1
    return x, a, x[8:].sum()


# ---- views and storages


@program
def views_of_views(device: str) -> Any:
    base = numbers(device, 6, 8, 10)
    a = base.permute(2, 0, 1)[1:7].unfold(0, 3, 1)
    b = base.view(-1).as_strided((5, 4), (7, 11), 3).t()
    c = base.view(torch.int32)[..., :3].view(torch.float32)
    d = base.narrow(1, 2, 3).transpose(0, 2).diagonal(0, 0, 2)
    d.mul_(0.5)
    c.neg_()
    b[0].fill_(7)
    expanded = base[0, 0].expand(4, 10)
    swapped = base.movedim(0, -1).unflatten(0, (2, 4)).flatten(1)
    swapped[0].add_(1)
    del base
    gc.collect()
    e = a.contiguous()
    return a, b, c, d, e, expanded, swapped, torch.broadcast_to(a[..., :1], a.shape).sum()


@program
def set_to_another_storage(device: str) -> Any:
    x, y = numbers(device, 100), numbers(device, 50, seed=1)
    twin = torch.empty(0, device=device)
    twin.set_(x.untyped_storage(), 10, (20, 2), (3, 1))
    x.set_(y)  # twin is all that is left of it
    twin.add_(1)
    x.mul_(2)
    half = torch.empty(0, dtype=torch.int16, device=device)
    half.set_(y.untyped_storage(), 4, (8,), (2,))
    bits = half.clone()
    z = numbers(device, 30, seed=2)
    z.data = y[5:]
    z.add_(3)
    torch.utils.swap_tensors(z, twin)
    z.mul_(2)
    twin.mul_(5)
    empty = torch.empty(0, device=device).set_(torch.UntypedStorage(0, device=device))
    return x, y, twin, bits, z, empty


@program
def grown_and_shrunk(device: str) -> Any:
    x = numbers(device, 40)
    view = x[10:20]
    x.resize_(10, 20)
    x[4:].fill_(2)
    x.untyped_storage().resize_(4 * 400)
    view.add_(1)
    x.set_(x.untyped_storage(), 0, (400,))
    x[200:].fill_(3)
    x.untyped_storage().resize_(4 * 100)
    y = torch.empty(0, device=device).set_(x.untyped_storage(), 0, (100,))
    y.resize_as_(numbers(device, 7, 5))
    freed = numbers(device, 60)
    freed.untyped_storage().resize_(0)
    freed.untyped_storage().resize_(240)
    freed.copy_(numbers(device, 60, seed=4))
    return view, y, freed, x.untyped_storage().nbytes()


@program
def sharded_parameters(device: str) -> Any:
    """As FSDP has them: one flat parameter, whose storage comes and goes."""
    net = mlp(device)
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    shard, size = flat.clone(), flat.untyped_storage().nbytes()
    shapes = [p.shape for p in net.parameters()]
    seen = []
    for i in range(3):
        flat.untyped_storage().resize_(size)
        flat.copy_(shard)
        at = 0
        for p, shape in zip(net.parameters(), shapes, strict=True):
            p.data = flat[at : at + shape.numel()].view(shape)
            at += shape.numel()
            p.grad = None
        x = numbers(device, 4, 48, seed=i)
        net(x).square().mean().backward()
        seen.append([p.grad.clone() for p in net.parameters()])
        shard.sub_(torch.cat([p.grad.view(-1) for p in net.parameters()]), alpha=0.1)
        for p in net.parameters():
            p.data = torch.empty(0, device=device)
        flat.untyped_storage().resize_(0)
    return seen, shard


@program
def gradients_in_one_buffer(device: str) -> Any:
    """Gradients are parts of a flat buffer; a closure over them outlives the module."""
    net = mlp(device)
    flat = torch.zeros(sum(p.numel() for p in net.parameters()), device=device)
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    optimiser = torch.optim.SGD(net.parameters(), 0.1, foreach=True)
    for i in range(3):
        net(numbers(device, 4, 48, seed=i)).square().sum().backward()
        flat.clamp_(-0.5, 0.5)
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)
    net(numbers(device, 4, 48, seed=9)).sum().backward()
    return flat, list(net.parameters())


# ---- copies and files


@program
def tied_weights_copied(device: str) -> Any:
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.BatchNorm1d(16))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(numbers("cpu", *p.shape, seed=i))
    net.to(device)
    net[1].weight = net[0].weight
    net(numbers(device, 4, 16)).sum().backward()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[0].weight.mul_(2)
    shallow = copy.copy(net[0].weight)
    memo: dict[int, Any] = {}
    a = numbers(device, 12)
    pair = copy.deepcopy([a, a[3:], a.view(3, 4)], memo)
    pair[1].fill_(1)
    return (
        twin[1].weight is twin[0].weight,
        list(twin.parameters()), [p.grad for p in twin.parameters()], shallow.detach(), pair,
    )  # fmt: skip


@program
def pickled(device: str) -> Any:
    x = numbers(device, 30)
    tensors = {"x": x, "tail": x[10:], "t": x.view(5, 6).t(), "p": nn.Parameter(x * 2)}
    again = pickle.loads(pickle.dumps(tensors, protocol=5))
    again["x"].add_(1)
    file = io.BytesIO()
    torch.save(tensors, file)
    saved = file.getvalue()
    loaded = torch.load(io.BytesIO(saved), weights_only=True)
    loaded["tail"].zero_()
    old = io.BytesIO()
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    legacy = torch.load(io.BytesIO(old.getvalue()), weights_only=True)
    on_cpu = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    return again, loaded, legacy, {k: v.detach() for k, v in on_cpu.items()}


@program
def shared_with_the_host(device: str) -> Any:
    """Host memory that other processes see, and pinned memory, to and from."""
    shared = numbers("cpu", 500).share_memory_()
    x = shared.to(device, non_blocking=True, copy=True)
    x.mul_(2)
    shared.copy_(x)
    pinned = torch.empty(500, pin_memory=device == "cuda")
    pinned.copy_(x.add_(1), non_blocking=True)
    if device == "cuda":
        torch.cuda.current_stream().synchronize()
    pinned.sub_(1)
    x.copy_(pinned, non_blocking=True)
    if device == "cuda":
        torch.cuda.current_stream().synchronize()
    return shared, x, pinned


# ---- autograd


class Twisted(torch.autograd.Function):
    """Saves an input, an output and what it made; has a second derivative, vmap and jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Any:
        made = x.sin()
        return made * y, made

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y = inputs
        ctx.save_for_backward(x, y, output[1])
        ctx.save_for_forward(x, y)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_made: Any) -> Any:
        x, y, made = ctx.saved_tensors
        grad_x = torch.zeros_like(x)
        if grad is not None:
            grad_x = grad_x + grad * y * x.cos()
        if grad_made is not None:
            grad_x = grad_x + grad_made * x.cos()
        return grad_x, None if grad is None else grad * made

    @staticmethod
    def jvp(ctx: Any, x_t: Any, y_t: Any) -> Any:
        x, y = ctx.saved_tensors
        made_t = x.cos() * x_t
        return made_t * y + (0 if y_t is None else x.sin() * y_t), made_t


@program
def functions_of_all_kinds(device: str) -> Any:
    x, y = numbers(device, 12, 10, grad=True), numbers(device, 12, 10, seed=1, grad=True)
    a, b = Twisted.apply(x, y)
    first = torch.autograd.grad(a.sum() + b.square().sum(), (x, y), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), (x, y))
    Twisted.apply(x, y)[1].sum().backward()
    mapped = torch.vmap(Twisted.apply)(x, y)
    per = torch.vmap(torch.func.grad(lambda u, v: Twisted.apply(u, v)[0].sum()))(x, y)
    forward = torch.func.jvp(
        lambda u: Twisted.apply(u, y.detach())[0], (x.detach(),), (y.detach(),)
    )
    return first, second, x.grad, mapped, per, forward


@program
def checkpoints_within_checkpoints(device: str) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    nets, x = [mlp(device) for _ in range(3)], numbers(device, 8, 48, grad=True)

    def inner(t: Tensor) -> Tensor:
        return checkpoints.checkpoint(nets[1], nets[0](t), use_reentrant=False).sin()

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    y = checkpoints.checkpoint(inner, x, use_reentrant=False)
    z = checkpoints.checkpoint(
        nets[2], y, use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )  # fmt: skip
    z.square().sum().backward()
    return z, x.grad, [grads(net) for net in nets]


@program
def hooks_everywhere(device: str) -> Any:
    net, x, seen = mlp(device), numbers(device, 8, 48, grad=True), []
    handles = [
        net.register_forward_pre_hook(lambda m, i: (i[0] * 1.5,)),
        net[2].register_full_backward_pre_hook(lambda m, g: (g[0].clamp(-1, 1),)),
        torch.autograd.graph.register_multi_grad_hook(
            tuple(net.parameters()), lambda gs: seen.append([g.clone() for g in gs])
        ),
    ]
    y = net(x)
    y.grad_fn.register_prehook(lambda g: (g[0] * 2,))
    y.grad_fn.register_hook(lambda i, o: None)
    kept = y.register_hook(lambda g: g.mul(0.5))
    y.retain_grad()
    loss = y.square().sum()
    loss.backward(retain_graph=True, inputs=[x, *net.parameters()])
    kept.remove()
    loss.backward()
    for handle in handles:
        handle.remove()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        a = numbers(device, 20, grad=True)
        b = a.sin()
        c = b.cos()
        b.mul_(3)
        c.sum().backward()
    return x.grad, y.grad, grads(net), seen, a.grad


@program
def forward_derivatives(device: str) -> Any:
    import torch.autograd.forward_ad as fwd

    x, t = numbers(device, 8, 48), numbers(device, 8, 48, seed=1)
    net = mlp(device)
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        out, tangent = fwd.unpack_dual(net(dual).sin())
        y = dual * 1
        y[2:5].mul_(2)
        y_tangent = fwd.unpack_dual(y).tangent.clone()
        tangent = tangent.clone()
    value, run = torch.func.linearize(lambda v: (v @ x.t()).tanh(), x)
    return out, tangent, y_tangent, value, run(t), torch.func.jacfwd(lambda v: v.pow(3))(x[0, :6])


@program
def transforms(device: str) -> Any:
    from torch.func import functional_call, grad_and_value, hessian, jacrev, vjp, vmap

    net, x = mlp(device), numbers(device, 5, 48)
    state = dict(net.named_parameters())

    def loss(params: Any, sample: Tensor) -> Tensor:
        return functional_call(net, params, (sample,)).square().mean()

    grads_of, values = vmap(grad_and_value(loss), (None, 0))(state, x)
    out, pull = vjp(lambda p: functional_call(net, p, (x,)), state)
    (pulled,) = vmap(pull)(torch.stack([torch.ones_like(out), out.detach()]))
    nested = vmap(vmap(lambda a, b: (a * b).sum(), (None, 0)), (0, None))(x, x)
    chunks = vmap(lambda v: v.sort().values, chunk_size=2)(x)
    return (
        grads_of, values, pulled, nested, chunks,
        hessian(lambda v: v.sin().sum())(x[0, :5]), jacrev(lambda v: v[:3].outer(v[3:6]))(x[0]),
    )  # fmt: skip


@program
def parametrised(device: str) -> Any:
    from torch.nn.utils import parametrizations, prune

    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12)).to("cpu")
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(numbers("cpu", *p.shape, seed=i))
    net.to(device)
    parametrizations.weight_norm(net[0])
    prune.l1_unstructured(net[1], "weight", amount=0.3)
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(3):
        optimiser.zero_grad()
        net(numbers(device, 4, 12, seed=i)).square().sum().backward()
        optimiser.step()
    prune.remove(net[1], "weight")
    torch.nn.utils.parametrize.remove_parametrizations(net[0], "weight")
    return list(net.parameters())


# ---- kinds of tensors


@program
def complex_numbers(device: str) -> Any:
    z = torch.complex(numbers(device, 16, 16), numbers(device, 16, 16, seed=1)).requires_grad_()
    w = z.mul(1j).conj()
    pair = torch.view_as_real(w.resolve_conj())
    loss = pair.square().sum() + w.imag.sin().sum() + (z @ z.mH).abs().sum()
    loss.backward()
    a = z.detach().clone()
    a.imag.mul_(2)
    a.real.copy_(a.imag)
    torch.view_as_real(a)[..., 1].neg_()
    lazy = a.conj().imag
    c = torch._neg_view(a.real) + lazy
    return (
        z.grad,
        a,
        c,
        lazy.resolve_neg(),
        torch.polar(a.abs(), a.angle()),
        a.conj().t()[1:4].clone(),
    )


@program
def sparse_arithmetic(device: str) -> Any:
    i = torch.tensor([[0, 3, 1, 3, 3], [1, 0, 2, 0, 4]], device=device)
    v = numbers(device, 5, grad=True)
    s = torch.sparse_coo_tensor(i, v, (5, 5))
    d = numbers(device, 5, 4, grad=True)
    torch.sparse.mm(s, d).square().sum().backward()
    c = s.detach().coalesce()
    c.values().mul_(2)
    c2 = (c + c.t().coalesce()).coalesce()
    narrow = c2.to_dense()[1:4]
    e = nn.EmbeddingBag(20, 6, sparse=True, mode="sum").to(device)
    with torch.no_grad():
        e.weight.copy_(numbers(device, 20, 6, seed=3))
    index, offsets = torch.tensor([1, 5, 5, 9], device=device), torch.tensor([0, 2], device=device)
    e(index, offsets).square().sum().backward()
    torch.optim.SGD(e.parameters(), 0.1).step()
    pickle_again = copy.deepcopy(c2)
    return (
        v.grad,
        d.grad,
        c.to_dense(),
        c2.to_dense(),
        narrow,
        e.weight.detach(),
        pickle_again.to_dense(),
    )


@program
def ragged(device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [numbers(device, n, 8, seed=n).requires_grad_() for n in (3, 5, 2)]
        jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        net = nn.Linear(8, 8)
        with torch.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_(numbers("cpu", *p.shape, seed=i))
        net.to(device)
        out = F.relu(net(jagged)) * 2
        out.values().square().sum().backward()
        strided = torch.nested.nested_tensor([p.detach() for p in parts])
        padded = strided * 3
        views = [t.mul_(2) for t in strided.unbind()]
        return (
            [p.grad for p in parts],
            grads(net),
            padded.unbind(),
            views,
            strided.unbind()[1].sum(),
        )


@program(same_device=True)
def amp_with_a_cache(device: str) -> Any:
    """Weights that autocast has cast are kept until the region ends, and used again."""
    net, x = mlp(device), numbers(device, 8, 48)
    optimiser = torch.optim.AdamW(net.parameters(), foreach=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    seen = []
    for i in range(3):
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16 if i % 2 else torch.float16):
            first = net(x)
            with torch.autocast(device, enabled=False):
                middle = first.float().sin()
            loss = net(first + net(x + middle)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        seen.append(loss.detach())
    return seen, list(net.parameters())


@program
def inference_tensors(device: str) -> Any:
    with torch.inference_mode():
        x = numbers(device, 40)
        y = x[10:30].view(4, 5)
        y.mul_(2)
        z = x.sort().values
    net = mlp(device)
    with torch.inference_mode():
        out = net(numbers(device, 3, 48))
    w = numbers(device, 40, grad=True)
    (w * x.clone()).sum().backward()
    return x, y, z, out, w.grad


@program
def from_meta(device: str) -> Any:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, 3))
    net.to_empty(device=device)
    state = {
        k: numbers(device, *v.shape, seed=i) for i, (k, v) in enumerate(net.state_dict().items())
    }
    net.load_state_dict(state)
    lazy = nn.Sequential(nn.LazyLinear(7), nn.ReLU()).to(device)
    lazy(numbers(device, 2, 5))
    with torch.no_grad():
        lazy[0].weight.copy_(numbers(device, 7, 5))
        lazy[0].bias.zero_()
    twin = nn.Linear(7, 5, device=device)
    twin.load_state_dict({"weight": lazy[0].weight.t(), "bias": numbers(device, 5)}, assign=True)
    return net(numbers(device, 4, 12)), lazy(numbers(device, 3, 5)), twin(numbers(device, 2, 7))


# ---- operators of the user's own

_OPS: list[Any] = []


def own_operators() -> Any:
    """Registered once, when the first program asks: while it may be on."""
    if _OPS:
        return _OPS[0]

    @torch.library.custom_op("lms_programs::blend", mutates_args=("into",))
    def blend(into: Tensor, xs: typing.List[Tensor], scale: float) -> Tensor:  # noqa: UP006
        made = torch.zeros_like(into)
        for x in xs:
            made = made + x * scale
            into.add_(made)
        return made

    @torch.library.custom_op("lms_programs::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    cube.register_fake(lambda x: torch.empty_like(x))
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    cube.register_vmap(lambda info, dims, x: (cube(x), dims[0]))

    @torch.library.custom_op("lms_programs::fails", mutates_args=("x",))
    def fails(x: Tensor, after: int) -> None:
        for i in range(after):
            x.add_(i)
        raise ValueError("in the middle")

    library = torch.library.Library("lms_programs", "FRAGMENT")
    library.define("bend(Tensor x) -> Tensor")
    library.impl("bend", lambda x: (x * 2).sin() - x, "CompositeImplicitAutograd")

    _OPS.append((blend, cube, fails, library))
    return _OPS[0]


@program
def operators_of_ones_own(device: str) -> Any:
    blend, cube, fails, _ = own_operators()
    into, xs = numbers(device, 40), [numbers(device, 40, seed=i) for i in range(3)]
    made = blend(into, [*xs, into.clone()], 0.5)
    x = numbers(device, 40, grad=True)
    cube(x).sum().backward()
    mapped = torch.vmap(cube)(numbers(device, 4, 10))
    run = torch.compile(lambda t: cube(t).sin() + 1, backend="aot_eager", fullgraph=True)
    compiled = run(x.detach())
    torch._dynamo.reset()
    bend = torch.ops.lms_programs.bend
    bent = torch.func.grad(lambda t: bend(t).sum())(x.detach())
    bent_each = torch.vmap(bend)(numbers(device, 4, 9))
    y = numbers(device, 40, seed=8)
    try:
        fails(y, 3)
    except ValueError as error:
        return into, made, x.grad, mapped, compiled, bent, bent_each, y, str(error)
    raise AssertionError


@program
def compiled_in_parts(device: str) -> Any:
    """Graph breaks, another size, mutation, and a backward pass that is compiled, too."""
    kept: list[Tensor] = []
    seen: list[Tensor] = []

    def work(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).relu()
        kept.append(y.detach())
        torch._dynamo.graph_break()
        y = y.sin()
        seen.append(w.detach().sum())
        return y.cos() + x.detach().sum()

    run = torch.compile(work, backend="aot_eager")
    w = numbers(device, 12, 12, grad=True)
    for n in (4, 6, 6):
        x = numbers(device, n, 12, seed=n)
        run(x, w).sum().backward()
        with torch.no_grad():
            w.mul_(0.5)
        seen.append(x)
    torch._dynamo.reset()
    return seen, w.grad, kept


# ---- failures


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        (x * grad).sum()
        raise RuntimeError("no gradient")


@program
def failures_within(device: str) -> Any:
    """In a backward pass, a hook, a mode's handler and an unpack hook; and then once more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    net, x, said = mlp(device), numbers(device, 8, 48, grad=True), []

    def attempt(f: Any) -> None:
        try:
            f()
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            said.append(str(error).splitlines()[0])

    y = net(x)
    attempt(lambda: Refuses.apply(y).sum().backward(retain_graph=True))
    handle = net[0].weight.register_hook(lambda g: 1 / 0)
    attempt(lambda: y.sum().backward(retain_graph=True))
    handle.remove()

    class Fails(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = f(*args, **(kwargs or {}))
            if f is torch.ops.aten.sin.default:
                raise ValueError("after the kernel")
            return out

    def in_mode() -> None:
        with Fails():
            (x * 2).sin().sum()

    attempt(in_mode)

    def unpack(t: Tensor) -> Tensor:
        raise ValueError("not unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        z = x.sin().cos()
    attempt(lambda: z.sum().backward())
    for p in net.parameters():
        p.grad = None
    x.grad = None
    net(x).sum().backward()
    return said, x.grad, grads(net)


@program
def cycles_and_finalisers(device: str) -> Any:
    """What a collector frees in the middle of operators still uses tensors."""
    seen: list[Tensor] = []
    over: list[bool] = []

    class Node:
        def __init__(self, value: Tensor) -> None:
            self.value, self.me = value, self

        def __del__(self) -> None:
            seen.append(self.value.sum().cpu())
            self.value.zero_()
            over.append(True)

    alive = numbers(device, 50)
    Node(alive)
    for i in range(4):
        Node(numbers(device, 30, seed=i))
    before = alive.clone()
    reference = weakref.ref(alive)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        x = numbers(device, 30)
        for _ in range(10):
            x = x.sin() + 1
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    deadline = time.monotonic() + 10
    while len(over) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)  # another thread is collecting
    return sorted(float(s) for s in seen), before, alive, x, reference() is alive


@program
def lists_of_all_kinds(device: str) -> Any:
    """Lists with an item twice, empty ones, parts of one storage, and between devices."""
    x = numbers(device, 100)
    empty = torch.empty(0, device=device)
    parts = [x[:30], x[30:60], empty, x[60:]]
    torch._foreach_add_(parts, 1.0)
    twice = [numbers(device, 10), numbers(device, 10, seed=1)]
    torch._foreach_mul_([twice[0], twice[1]], [twice[1], twice[1]])
    host = [numbers("cpu", 10, seed=i) for i in range(3)]
    there = [torch.empty(10, device=device) for _ in range(3)]
    torch._foreach_copy_(there, host)
    torch._foreach_copy_(host, torch._foreach_neg(there))
    doubles = [t.double() for t in there]
    torch._foreach_copy_(doubles[:2], there[1:])
    norms = torch._foreach_norm([*parts[:2], x], 2)
    return x, twice, host, there, doubles, norms, torch._foreach_sqrt([p.abs() for p in parts])


@program(same_device=True)
def capturable_and_scheduled(device: str) -> Any:
    """Learning rates and steps that are tensors of the device."""
    net = mlp(device)
    rate = torch.tensor(0.01, device=device)
    options = {"capturable": True} if device == "cuda" else {}
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, foreach=device == "cuda", **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5)
    for i in range(4):
        optimiser.zero_grad()
        net(numbers(device, 4, 48, seed=i)).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=True)
        optimiser.step()
        schedule.step()
    return list(net.parameters()), rate, optimiser.state_dict()["state"]
